"""Fixtures of the training side."""

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import runtime
from app.config import CONFIG_DIR, AppConfig, EvaluateConfig, PlanAppConfig, RuntimeConfig, VerifyConfig
from app.config.doctor import DoctorConfig
from app.config.recommend import RecommendConfig
from common.cli import run_command
from tests.app.datasets import write_dataset

REPOSITORY = Path(__file__).parent.parent.parent
SMALL = ["model.dense_arch=[32,16]", "model.over_arch=[32,1]", "train.global_batch_size=64",
         "train.log_every_steps=1", "runtime.num_threads=1", "runtime.platform=cpu"]  # fmt: skip
SCHEMAS = {"train": (AppConfig, "config"), "evaluate": (EvaluateConfig, "evaluate"), "verify": (VerifyConfig, "verify"),
           "recommend": (RecommendConfig, "recommend"), "doctor": (DoctorConfig, "doctor"),
           "plan": (PlanAppConfig, "plan")}  # fmt: skip

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def here() -> Iterator[runtime.Runtime]:
    """This test process as world size 1 of the distributed path."""
    yield runtime.start(RuntimeConfig(num_threads=1), seed=0, deterministic=True)
    runtime.stop()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset in shards of several sizes."""
    root = tmp_path_factory.mktemp("dataset")
    write_dataset(root)
    return root


@pytest.fixture
def run_app(tmp_path: Path) -> Command:
    """Run an entry point in a process of its own, in tmp_path, on `processes` processes, to its end."""

    def run(name: str, *overrides: str, processes: int = 1) -> "subprocess.CompletedProcess[str]":
        if processes == 1:
            return _forked(name, overrides, tmp_path)
        command = app_command(name, *overrides, processes=processes)
        return subprocess.run(
            command, cwd=tmp_path, env=app_environment(), capture_output=True, text=True, timeout=240, check=False
        )

    return run


def _forked(name: str, overrides: tuple[str, ...], cwd: Path) -> "subprocess.CompletedProcess[str]":
    """What `python -m app.<name>` does, in a fork of a process that has imported torch already: 3 s less each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["app.train", "app.evaluate", "app.verify", "app.recommend"])
    process = context.Process(target=_entry_point, args=(name, overrides, str(cwd)))
    process.start()
    process.join(240)
    assert process.exitcode is not None, f"app.{name} {overrides} did not end"
    out, err = ((cwd / f".{stream}").read_text() for stream in ("stdout", "stderr"))
    return subprocess.CompletedProcess([name, *overrides], process.exitcode, out, err)


def _entry_point(name: str, overrides: tuple[str, ...], cwd: str) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(app_environment())
    for descriptor, stream in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv = [f"app.{name}", *overrides]
    module = importlib.import_module(f"app.{name}")
    schema, config = SCHEMAS[name]
    sys.exit(run_command(module.main, schema, CONFIG_DIR, config))


def app_command(name: str, *overrides: str, processes: int = 1) -> list[str]:
    """The command line; several processes meet through a file-free store on a free port."""
    python = [sys.executable, "-m"]
    if processes > 1:
        python += ["torch.distributed.run", "--nproc-per-node", str(processes), "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "-m"]  # fmt: skip
    return [*python, f"app.{name}", *overrides]


def app_environment() -> dict[str, str]:
    """The environment with this checkout importable and no leftovers of a launcher."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**environment, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
