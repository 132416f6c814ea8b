"""Fixtures of the training side."""

import functools
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from app.checkpoint.files import whole_checkpoints
from app.commands import COMMANDS
from app.config.app_config import CONFIG_DIR, AppConfig
from app.config.train import RuntimeConfig
from app.runtime import platform
from app.training import session
from common import cli
from common.compose import compose_config
from data_prep.dataset.format import load_manifest
from tests.app import inject
from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.app.in_process import command_here, train_here, train_until
from tests.app.run_files import losses, summary
from tests.error_lines import refused
from tests.forks import keep_environment
from tests.once import made_once

REPOSITORY = Path(__file__).parent.parent.parent
SMALL = ["model.dense_arch=[32,16]", "model.over_arch=[32,1]", "train.global_batch_size=64", "train.log_every_steps=1"]
SMALL += ["train.eval_every_steps=100", "runtime.num_threads=1", "runtime.platform=cpu"]

_STORES: list[Any] = []  # a store lasts as long as the processes that meet in it

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Refusal = Callable[..., str]
Train = Callable[..., None]


def composed(*overrides: str) -> AppConfig:
    return compose_config(AppConfig, CONFIG_DIR, overrides)


def built(runtime: platform.Runtime, root: Path, *overrides: str) -> session.Session:
    """The small model, but for the overrides, for the dataset at `root`."""
    config = composed(*SMALL, f"data.path={root}", "run.name=x", *overrides)
    return session.build(config, runtime, root, load_manifest(root))


@functools.cache
def started(config: pytest.Config) -> platform.Runtime:
    """The process group, started once a process, though tests/extensions has the fixture, too."""
    config.add_cleanup(platform.stop)
    return platform.start(RuntimeConfig(num_threads=1), seed=0, deterministic=True)


@pytest.fixture(scope="session")
def runtime(pytestconfig: pytest.Config) -> platform.Runtime:
    """This test process as world size 1 of the distributed path."""
    return started(pytestconfig)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset in shards of several sizes."""
    root = tmp_path_factory.mktemp("dataset")
    write_dataset(root)
    return root


@pytest.fixture(scope="session")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset with features of many ids."""
    root = tmp_path_factory.mktemp("ragged")
    write_ragged_dataset(root, {"train": 2_000, "val": 300, "test": 20}, shard_rows=700)
    return root


@pytest.fixture
def run_app(tmp_path: Path) -> Command:
    """Run an entry point in a process of its own, in tmp_path; require its exit status, and that errors are one line.

    Keywords are those of `forked`; processes: run on several.
    """

    def run(name: str, *overrides: str, status: int = 0, **keywords: Any) -> "subprocess.CompletedProcess[str]":
        process = ended(forked(name, *overrides, cwd=tmp_path, **keywords), tmp_path)
        assert process.returncode == status, process.stdout + process.stderr
        assert "Traceback" not in process.stderr, process.stderr
        return process

    return run


@pytest.fixture
def train(runtime: platform.Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train the small model as run x, here but in tmp_path, with a fault of `inject`; require the run's status."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides: str, status: str = "completed", fault: str = "") -> None:
        keys = [*SMALL, f"data.path={dataset}", "record.tensorboard=false", "run.name=x", *overrides]
        assert (train_until(runtime, fault, *keys) if fault else train_here(runtime, *keys)) == status

    return run


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("clickwork"), "propagate", True)
    caplog.set_level("INFO", "clickwork")
    return caplog


@pytest.fixture
def refused_command(runtime: platform.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """Run an entry point that refuses its arguments, here but in tmp_path, and return the line of its error."""

    def run(name: str, *overrides: str) -> str:
        monkeypatch.chdir(tmp_path)
        return f"error: {refused('.', command_here, runtime, name, *overrides)}"

    return run


@pytest.fixture(scope="session")
def small(dataset: Path) -> list[str]:
    return [*SMALL, f"data.path={dataset}"]


@pytest.fixture(scope="session")
def overrides(dataset: Path) -> list[str]:
    """Five checkpoints over two epochs, evaluated in between."""
    five = ["train.max_steps=60", "checkpoint.every_steps=12", "train.eval_every_steps=20"]
    return [*SMALL, f"data.path={dataset}", *five]


@pytest.fixture(scope="session")
def uninterrupted(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""

    def train(directory: Path) -> None:
        assert ended(forked("train", *overrides, "run.name=whole", cwd=directory), directory).returncode == 0

    return made_once(tmp_path_factory, "uninterrupted", train) / "runs/whole"


class Job(NamedTuple):
    """The run x of `overrides`, in processes of its own in tmp_path; and the run that nothing happened to."""

    overrides: list[str]
    command: Command
    run: Path
    whole: Path

    def train(self, *more: str, **keywords: Any) -> "subprocess.CompletedProcess[str]":
        return self.command("train", *self.overrides, "run.name=x", *more, **keywords)

    def summary(self) -> dict[str, Any]:
        return summary(self.run)

    def last_checkpoint(self) -> str:
        return whole_checkpoints(self.run / "checkpoints")[-1].name

    def assert_undisturbed(self) -> None:
        """It has ended with the bits of the run that nothing happened to."""
        assert self.summary()["digest"] == summary(self.whole)["digest"]
        assert losses(self.run) == losses(self.whole)


@pytest.fixture
def job(overrides: list[str], run_app: Command, uninterrupted: Path, tmp_path: Path) -> Job:
    return Job(overrides, run_app, tmp_path / "runs/x", uninterrupted)


@pytest.fixture(scope="session")
def recorded(runtime: platform.Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped, resumed and trained further; evaluated four times, on both splits."""

    def train(root: Path) -> None:
        overrides = [*SMALL, f"data.path={dataset}", "record.tensorboard=false", "run.name=x", f"run.dir={root}/x"]
        overrides += ["train.log_every_steps=4", "train.eval_every_steps=5", "eval.train_split=true"]
        assert train_until(runtime, "stop:6", *overrides, "train.max_steps=12") == "interrupted"
        for steps in (12, 14):
            assert train_here(runtime, *overrides, f"train.max_steps={steps}") == "completed"

    return made_once(tmp_path_factory, "recorded", train) / "x"


@contextmanager
def mounted_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mount a disk of its own of that size at `directory`/disk; skip the test without the right to mount."""
    disk = directory / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no right to mount a small disk here: a full or read-only disk was not tried")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def remount(disk: Path, options: str) -> None:
    """Change the options of a disk that `mounted_disk` has mounted."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def ended(forks: list[Any], cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Wait for the processes that `forked` started in `cwd`; the status is the first one's that is not 0."""
    deadline = time.monotonic() + 480
    while (running := [fork.sentinel for fork in forks if fork.exitcode is None]) and time.monotonic() < deadline:
        connection.wait(running, 1)
        if any(fork.exitcode for fork in forks):
            deadline = min(deadline, time.monotonic() + 120)  # the others have nobody to talk to
    hanging = [fork for fork in forks if fork.exitcode is None]
    for fork in hanging:
        fork.kill()
        fork.join()
    assert not hanging, f"{hanging} did not end"
    out, err = ((cwd / f".{stream}").read_text() for stream in ("stdout", "stderr"))
    return subprocess.CompletedProcess([], next((fork.exitcode for fork in forks if fork.exitcode), 0), out, err)


def forked(
    name: str,
    *overrides: str,
    cwd: Path,
    processes: int = 1,
    fault: str = "",
    stderr: str = ".stderr",
    environment: Mapping[str, str] = {},
) -> list[Any]:
    """Start what `python -m app.<name>` does, in forks of a process that has imported torch already: 3 s less each.

    Several processes are told what torchrun would tell them, and meet in a store of ours. fault: see tests.app.inject;
    stderr: a terminal, or a file in cwd.
    """
    context = multiprocessing.get_context("forkserver")
    for stream in (".stdout", ".stderr"):
        (cwd / stream).write_bytes(b"")
    for pid in cwd.glob(".pid.*"):
        pid.unlink()
    store: Any = None
    if processes > 1:
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        _STORES.append(store)
    if name == "train" and not any(override.startswith("baselines=") for override in overrides):
        overrides = (*overrides, "baselines=false")  # they take seconds, and change nothing of a run
    forks = []
    for rank in range(processes):
        extra = {**(launched_environment(rank, processes, processes, store.port) if store else {}), **environment}
        fork = context.Process(target=_entry_point, args=(name, overrides, str(cwd), stderr, extra, fault))
        fork.start()
        forks.append(fork)
    return forks


def _entry_point(
    name: str, overrides: tuple[str, ...], cwd: str, stderr: str, extra: dict[str, str], fault: str
) -> None:
    os.chdir(cwd)
    keep_environment("PATH")  # compilers look there for their parts
    os.environ.update({**app_environment(), **extra})
    for descriptor, stream in ((1, ".stdout"), (2, stderr)):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    Path(f".pid.{os.environ.get('RANK', '0')}").write_text(str(os.getpid()), encoding="utf-8")
    inject.install(fault)
    sys.argv = [f"app.{name}", *overrides]
    cli.run(COMMANDS[name])


def launched_environment(rank: int, world_size: int, local_world_size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun gives a process of a job whose store is here."""
    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank % local_world_size,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": local_world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {key: str(value) for key, value in environment.items()}


def app_environment() -> dict[str, str]:
    """The environment with this checkout importable and no leftovers of a launcher."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**environment, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
