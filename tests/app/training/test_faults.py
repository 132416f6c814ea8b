"""Faults at exact moments: in memory, on disk, in the user's directories; the run resumes from them."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.checkpoint.files import whole_checkpoints
from app.config.data import DataConfig
from app.data.split import SplitReader
from common.errors import UserError
from data_prep.dataset.format import load_manifest, shard_path
from tests.app.conftest import Command, Job, Refusal, forked, mounted_disk, remount
from tests.app.datasets import NUM_DENSE, write_dataset
from tests.app.run_files import events, wait_for
from tests.error_lines import refused


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "mode"), [("in the step:31", "false"), pytest.param("in the pruning:1", "true", marks=pytest.mark.slow)]
)
def test_a_kill_changes_nothing(fault: str, mode: str, job: Job) -> None:
    """Saves come at steps 12, 20 (the first evaluation is the best so far), 24, 36 …"""
    job.train(f"checkpoint.asynchronous={mode}", fault=fault, status=-signal.SIGKILL)
    assert "step_00000024, step 24" in job.train().stderr
    job.assert_undisturbed()

    def left(run: Path) -> tuple[list[str], list[str], str]:
        saved = run / "checkpoints"
        return [e["auc"] for e in events(run, "eval")], sorted(os.listdir(saved)), (saved / "best").read_text()

    assert left(job.run) == left(job.whole)


@pytest.mark.slow("processes")
def test_a_damaged_checkpoint_is_passed_over(job: Job, refused_command: Refusal) -> None:
    shutil.copytree(job.whole, job.run)
    *_, older, newest = whole_checkpoints(job.run / "checkpoints")
    (newest / "arrays.npz").write_bytes((newest / "arrays.npz").read_bytes()[:-9])
    assert newest.name in refused_command("evaluate", "run=runs/x", f"checkpoint={newest}")
    resumed = job.train()
    assert f"skipped runs/x/checkpoints/{newest.name}" in resumed.stderr
    assert f"{older.name}, step {int(older.name[-8:])}" in resumed.stderr
    job.assert_undisturbed()


@pytest.mark.medium
def test_two_runs_do_not_share_a_directory(run_app: Command, small: list[str], tmp_path: Path) -> None:
    overrides = [*small, "run.name=shared", "train.epochs=6000"]
    (tmp_path / "first").mkdir()
    forks = forked("train", *overrides, f"run.dir={tmp_path}/runs/shared", cwd=tmp_path / "first")
    try:
        wait_for(tmp_path / "runs/shared/metrics.jsonl", lambda: True, forks)
        second = run_app("train", *overrides, status=2)
    finally:
        forks[0].kill()
        forks[0].join()
    assert "another process is training there" in second.stderr


@pytest.mark.parametrize(
    ("kind", "column", "value", "message"),
    [
        ("dense", 3, np.nan, "row 41, int_3: is not a finite number"),
        ("labels", 0, 7, "row 41, label: is not 0 or 1"),
        ("sparse", 1, -1, "row 41, cat_1, a table of 7 rows: the id is not in it"),
        ("sparse", 2, 300, "row 41, cat_2, a table of 300 rows: the id is not in it"),
    ],
)
def test_values_of_another_program_are_named(kind: str, column: int, value: Any, message: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train": 300}, shard_rows=100)
    path = shard_path(tmp_path, "train", "00001", kind)
    array = np.load(path)
    array[41, column] = value
    np.save(path, array)
    split = SplitReader(tmp_path, load_manifest(tmp_path), "train", DataConfig(), rank=0, world_size=1)
    with pytest.raises(UserError, match=f"shard 00001, {message}"):
        list(split.train_batches(50, seed=0, epoch=0, first=0))
    assert len(split.dense_names) == NUM_DENSE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 400 KiB: room for one checkpoint of the small model and the beginning of another."""
    with mounted_disk(tmp_path, "400k") as disk:
        yield disk


@pytest.mark.slow("processes")
def test_a_full_disk_in_mid_checkpoint(job: Job, small_disk: Path) -> None:
    job = job._replace(run=small_disk / "run")
    keys = [f"run.dir={job.run}", "record.tensorboard=false"]
    full = job.train(*keys, fault="disk taken:3", status=2)
    assert "the checkpoint was not written" in full.stderr
    assert "No space left on device" in full.stderr
    last = job.last_checkpoint()
    assert last != "step_00000060"
    assert not list((job.run / "checkpoints").glob("*.part"))
    assert job.summary()["status"] == "failed"
    remount(small_disk, "size=4m")
    assert last in job.train(*keys).stderr
    job.assert_undisturbed()


@pytest.mark.slow("processes")
def test_want_of_memory_is_told(job: Job) -> None:
    failed = job.train(fault="no memory:41", status=2)
    assert "error: out of memory (" in failed.stderr
    assert "a smaller train.global_batch_size" in failed.stderr
    job.train()
    job.assert_undisturbed()


@pytest.mark.parametrize("change", ["a value", "cut short", "replaced"])
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
    else:
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").rename(path)
    refused(r"00001.dense.npy: changed while the run was reading it", list, batches)
