"""What the machine does to a run: full and read-only disks, no memory, files that change, kills at any time."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.checkpoint.files import whole_checkpoints
from app.config import DataConfig
from app.data.split import SplitReader
from common.errors import UserError
from data_prep.dataset.format import load_manifest, shard_path
from tests.app.conftest import SMALL, Command, Refusal, ended, forked, mounted_disk, remount
from tests.app.datasets import write_dataset
from tests.app.run_files import events, losses, summary, wait_for
from tests.error_lines import error_line


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 400 KiB: room for one checkpoint of the small model and the beginning of another."""
    with mounted_disk(tmp_path, "400k") as disk:
        yield disk


@pytest.mark.slow("processes")
@pytest.mark.parametrize("asynchronous", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_full_disk_in_mid_checkpoint(
    asynchronous: bool, overrides: list[str], uninterrupted: Path, run_app: Command, small_disk: Path
) -> None:
    run = small_disk / "run"
    arguments = [*overrides, f"run.dir={run}", "run.name=x", f"checkpoint.asynchronous={asynchronous}"]
    arguments += ["record.tensorboard=false"]
    full = run_app("train", *arguments, fault="disk taken:3", status=2)
    assert "the checkpoint was not written" in full.stderr
    assert "No space left on device" in full.stderr
    whole = [path.name for path in whole_checkpoints(run / "checkpoints")]
    assert whole[-1] != "step_00000060"
    assert not list((run / "checkpoints").glob("*.part"))
    assert summary(run)["status"] == "failed"
    remount(small_disk, "size=4m")
    resumed = run_app("train", *arguments)
    assert whole[-1] in resumed.stderr
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]


@pytest.mark.slow("processes")
def test_training_meets_the_disk_that_a_checkpoint_fills(
    overrides: list[str], run_app: Command, small_disk: Path
) -> None:
    """What training writes fails before the checkpoint behind its back does, which then leaves room to say so."""
    arguments = [*overrides, f"run.dir={small_disk}/run", "run.name=x", "record.tensorboard=false"]
    assert "No space left on device" in run_app("train", *arguments, fault="disk filled:1", status=2).stderr
    assert not list((small_disk / "run/checkpoints").glob("*.part"))
    assert summary(small_disk / "run")["status"] == "failed"


def test_a_read_only_directory_is_said(overrides: list[str], refused: Refusal, small_disk: Path) -> None:
    remount(small_disk, "ro")
    directory = f"run.dir={small_disk}/run"
    refusal = refused("train", *overrides, directory, "run.name=x")
    assert f"{directory}: not writable (Read-only file system)" in refusal


def test_a_directory_of_roots_is_said(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    """As a user whom the directory does not belong to, where the tests run as root."""
    if os.getuid():
        pytest.skip("not root: no other user to become, so a directory of root's was not tried")
    (tmp_path / "runs").mkdir(mode=0o755)
    process = run_app("train", *overrides, "run.name=x", fault="another user:65534", status=2)
    assert "run.dir=runs/x: not writable (Permission denied)" in error_line(process.stderr)


@pytest.mark.slow("processes")
def test_it_goes_on_after_want_of_memory(
    overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    failed = run_app("train", *overrides, "run.name=x", fault="no memory:41", status=2)
    assert "error: out of memory (" in failed.stderr
    assert "a smaller train.global_batch_size" in failed.stderr
    run_app("train", *overrides, "run.name=x")
    assert summary(tmp_path / "runs/x")["digest"] == summary(uninterrupted)["digest"]


@pytest.mark.slow("processes")
def test_a_process_that_is_killed_ends_the_others(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    """As the kernel kills one for want of memory; the next start says that the part before was killed."""
    forks = forked("train", *overrides, "train.max_steps=5000", "run.name=x", cwd=tmp_path, processes=2)
    run = tmp_path / "runs/x"
    wait_for(run / "checkpoints/latest", lambda: True, forks)
    forks[1].kill()
    process = ended(forks, tmp_path)
    assert forks[0].exitcode == 75, process.stderr
    assert "another process is lost or unreachable" in process.stderr
    assert "perhaps killed for lack of memory" in process.stderr
    assert "Traceback" not in process.stderr
    (run / "summary.json").unlink()  # as after the kill of all
    step = int((run / "checkpoints/latest").read_text().removeprefix("step_"))
    resumed = run_app("train", *overrides, f"train.max_steps={step + 5}", "run.name=x", processes=2)
    assert "the part before was killed" in resumed.stderr


@pytest.mark.parametrize("change", ["a value", "cut short", "replaced", "removed"])
def test_a_shard_that_changes_is_found(change: str, tmp_path: Path) -> None:
    """Before the next window that reads it is trained on; windows are 100 rows, and one more is read ahead."""
    write_dataset(tmp_path, {"train": 1000}, shard_rows=500)
    config = DataConfig(shuffle_block_rows=100, shuffle_window_blocks=1)
    split = SplitReader(tmp_path, load_manifest(tmp_path), "train", config, rank=0, world_size=1)
    batches = split.train_batches(50, seed=0, epoch=0, first=0)
    next(batches)
    path = shard_path(tmp_path, "train", "00001", "dense")
    content = path.read_bytes()
    if change == "a value":
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(np.float32(3).tobytes())
    elif change == "cut short":
        os.truncate(path, len(content) - 4096)
    elif change == "replaced":
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").rename(path)
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"00001.dense.npy: changed while the run was reading it"):
        list(batches)


@pytest.mark.slow("processes")
def test_kills_at_random_moments_change_nothing(dataset: Path, run_app: Command, tmp_path: Path) -> None:
    """kill -9 at any time after a part of the run began (in steps, saves, renames), 6 times over, then the end."""
    overrides = [*SMALL, f"data.path={dataset}", "train.epochs=1000", "checkpoint.every_steps=5"]
    overrides += ["train.eval_every_steps=150", "train.log_every_steps=5", "record.tensorboard=false"]
    rng, run, steps = random.Random(0), tmp_path / "runs/killed", []
    for number in range(6):
        (fork,) = forked("train", *overrides, "run.name=killed", cwd=tmp_path)
        # At times while it finds its place, at times once it has saved: slow machines get on, too.
        watched = run / ("checkpoints/latest" if number % 2 else "metrics.jsonl")
        before = _state(watched)
        while _state(watched) == before and fork.exitcode is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.15))
        fork.kill()
        fork.join()
        assert fork.exitcode == -signal.SIGKILL, (tmp_path / ".stderr").read_text()
        assert "skipped" not in (tmp_path / ".stderr").read_text()  # a kill never leaves a damaged one
        steps += [int(path.name.removeprefix("step_")) for path in whole_checkpoints(run / "checkpoints")[-1:]]
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    for name in ("killed", "whole"):
        run_app("train", *overrides, f"train.max_steps={steps[-1] + 7}", f"run.name={name}")
    assert summary(run)["digest"] == summary(tmp_path / "runs/whole")["digest"]
    assert losses(run) == losses(tmp_path / "runs/whole")
    evaluated = [[event["auc"] for event in events(tmp_path / "runs" / name, "eval")] for name in ("whole", "killed")]
    assert evaluated[0] == evaluated[1]


def _state(path: Path) -> tuple[int, int, int] | None:
    """What a change of the file changes: at its end, or in its place."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
