"""What goes wrong: at exact moments, on disk, in the user's directories; and that the run goes on all the same."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.checkpoint.files import whole_checkpoints
from app.config import DataConfig
from app.data.split import SplitReader
from common.errors import UserError
from data_prep.dataset.format import load_manifest, shard_path
from tests.app.conftest import SMALL, Command, Refusal, Train, ended, forked
from tests.app.datasets import NUM_DENSE, write_dataset
from tests.app.run_files import events, losses, summary, wait_for

OVERWRITE = ["checkpoint.resume=never", "checkpoint.overwrite=true"]


@pytest.mark.parametrize(
    ("fault", "mode"), [("in the step:31", "false"), pytest.param("in the pruning:1", "true", marks=pytest.mark.slow)]
)
def test_a_kill_changes_nothing(
    fault: str, mode: str, overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    """Saves come at steps 12, 20 (the first evaluation is the best so far), 24, 36 …"""
    killed = [*overrides, "run.name=killed"]
    run_app("train", *killed, f"checkpoint.asynchronous={mode}", fault=fault, status=-signal.SIGKILL)
    assert "step_00000024, step 24" in run_app("train", *killed).stderr
    run = tmp_path / "runs/killed"
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]
    assert losses(run) == losses(uninterrupted)
    assert [event["auc"] for event in events(run, "eval")] == [event["auc"] for event in events(uninterrupted, "eval")]
    names, expected = (sorted(os.listdir(directory / "checkpoints")) for directory in (run, uninterrupted))
    assert names == expected
    assert (run / "checkpoints/best").read_text() == (uninterrupted / "checkpoints/best").read_text()


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("overwrite", [[], pytest.param(OVERWRITE, marks=pytest.mark.slow)])
def test_a_kill_before_the_first_step_is_no_hindrance(
    number: int, overwrite: list[str], overrides: list[str], run_app: Command, tmp_path: Path
) -> None:
    """Before the manifest or the configuration gets its name, in a new directory or over a run that was there."""
    short = [*overrides, "train.max_steps=3", "run.name=x"]
    if overwrite:
        run_app("train", *short)
    run_app("train", *short, *overwrite, fault=f"in the beginning:{number}", status=-signal.SIGKILL)
    run_app("train", *short, *overwrite)
    assert summary(tmp_path / "runs/x")["steps"] == 3


def test_a_limit_on_the_size_of_files_is_named(overrides: list[str], run_app: Command) -> None:
    """In the archive that torch writes, of which it knows only that positions differ."""
    limited = run_app("train", *overrides, "run.name=x", fault="disk full:40000", status=2)
    assert limited.stderr.splitlines()[-1].endswith(
        "step_00000012.part: the checkpoint was not written: a file may have 40.0 kB at most here; "
        "raise that limit (ulimit -f)"
    )


@pytest.mark.slow("processes")
def test_a_start_over_a_killed_run_keeps_its_log(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    run = tmp_path / "runs/x"
    for number in (1, 3):
        run_app("train", *overrides, "run.name=x", fault="in the step:6", status=-signal.SIGKILL)
        before = (run / "log.txt").read_bytes(), (run / "metrics.jsonl").read_bytes()
        process = run_app("train", *overrides, "run.name=x", fault="in the step:3", status=-signal.SIGKILL)
        backups = [f"log.txt.{number}", f"metrics.jsonl.{number}"]
        message = "starts over from step 0; the part before was killed; what it logged is in " + " and ".join(backups)
        assert f"runs/x: {message}" in process.stderr
        assert f"runs/x: {message}" in (run / "log.txt").read_text()
        assert tuple((run / name).read_bytes() for name in backups) == before
    run_app("train", *overrides, "run.name=x", "train.max_steps=3")
    assert len(losses(run)) == 3


def test_a_start_over_keeps_the_log_of_the_run_before(train: Train, logged: pytest.LogCaptureFixture) -> None:
    train("train.max_steps=2")
    train("train.max_steps=2", *OVERWRITE)
    assert "runs/x: starts over from step 0; the run before; what it logged is in log.txt.1" in logged.text


@pytest.mark.slow("processes")
def test_a_damaged_checkpoint_is_passed_over(
    overrides: list[str], uninterrupted: Path, run_app: Command, refused: Refusal, tmp_path: Path
) -> None:
    """What damage is: tests/app/checkpoint/test_damage.py."""
    run = tmp_path / "runs/damaged"
    shutil.copytree(uninterrupted, run)
    *_, older, newest = whole_checkpoints(run / "checkpoints")
    (newest / "arrays.npz").write_bytes((newest / "arrays.npz").read_bytes()[:-9])
    assert newest.name in refused("evaluate", "run=runs/damaged", f"checkpoint={newest}")
    resumed = run_app("train", *overrides, "run.name=damaged")
    assert f"skipped {newest.relative_to(tmp_path)}" in resumed.stderr
    assert f"{older.name}, step {int(older.name[-8:])}" in resumed.stderr
    assert losses(run) == losses(uninterrupted)


@pytest.mark.slow("processes")
def test_going_back_to_a_checkpoint(
    overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    run, kept = tmp_path / "runs/back", [*overrides, "run.name=back", "checkpoint.keep=9"]
    run_app("train", *kept)
    back = ["checkpoint.resume=runs/back/checkpoints/step_00000024", "checkpoint.overwrite=true"]
    run_app("train", *kept, *back, "train.max_steps=30")
    steps = [path.name for path in whole_checkpoints(run / "checkpoints")]
    assert steps == ["step_00000012", "step_00000020", "step_00000024", "step_00000030"]
    run_app("train", *kept)
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]


def test_two_runs_do_not_share_a_directory(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=shared", "train.epochs=6000"]
    (tmp_path / "first").mkdir()
    forks = forked("train", *overrides, f"run.dir={tmp_path}/runs/shared", cwd=tmp_path / "first")
    try:
        wait_for(tmp_path / "runs/shared/metrics.jsonl", lambda: True, forks)
        second = run_app("train", *overrides, status=2)
    finally:
        forks[0].kill()
        forks[0].join()
    assert "another process is training there" in second.stderr


@pytest.mark.slow("processes")
def test_two_processes_stop_together_and_resume(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    """To the same bits."""
    overrides = [*SMALL, f"data.path={dataset}", "train.epochs=6000"]
    stopped = tmp_path / "runs/stopped"
    forks = forked("train", *overrides, "run.name=stopped", cwd=tmp_path, processes=2)
    wait_for(stopped / "metrics.jsonl", lambda: len(events(stopped, "train")) >= 10, forks)
    os.kill(forks[1].pid, signal.SIGTERM)  # one of them gets it; a launcher sends it to all: test_launch
    ended(forks, tmp_path)
    assert [fork.exitcode for fork in forks] == [75, 75]
    assert "SIGTERM: another process was asked to stop" in (stopped / "log.txt").read_text()
    step = summary(stopped)["steps"]
    assert summary(stopped)["status"] == "interrupted"
    for name in ("stopped", "whole"):
        run_app("train", *overrides, f"run.name={name}", f"train.max_steps={step + 20}", processes=2)
    assert summary(stopped)["digest"] == summary(tmp_path / "runs/whole")["digest"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("interaction", ["dot", pytest.param("cat", marks=pytest.mark.slow)])
def test_bf16_trains(interaction: str, run_app: Command, dataset: Path, tmp_path: Path) -> None:
    figures = []
    for precision in ("fp32", "bf16"):
        keys = [*SMALL, f"data.path={dataset}", f"run.name={precision}", "train.max_steps=31"]
        keys += [f"runtime.precision={precision}", f"model.interaction={interaction}"]
        run_app("train", *keys)
        figures.append(summary(tmp_path / "runs" / precision)["eval"]["logloss"])
    assert figures[0] != figures[1]
    assert figures[0] == pytest.approx(figures[1], rel=0.02)


def test_half_of_a_launchers_environment_is_refused(run_app: Command, dataset: Path) -> None:
    keys = [*SMALL, f"data.path={dataset}", "run.name=x"]
    assert "WORLD_SIZE is set but not RANK" in run_app("train", *keys, environment={"WORLD_SIZE": "2"}, status=2).stderr


@pytest.mark.parametrize(
    ("kind", "column", "value", "message"),
    [
        ("dense", 3, np.nan, "row 41, int_3: is not a finite number"),
        ("dense", 0, np.inf, "row 41, int_0: is not a finite number"),
        ("labels", 0, 7, "row 41, label: is not 0 or 1"),
        ("labels", 0, -1, "row 41, label: is not 0 or 1"),
        ("sparse", 1, -1, "row 41, cat_1, a table of 7 rows: the id is not in it"),
    ],
)
def test_values_of_another_program_are_named(kind: str, column: int, value: Any, message: str, tmp_path: Path) -> None:
    """Which data_prep does not write."""
    write_dataset(tmp_path, {"train": 300}, shard_rows=100)
    path = shard_path(tmp_path, "train", "00001", kind)
    array = np.load(path)
    array[41, column] = value
    np.save(path, array)
    split = SplitReader(tmp_path, load_manifest(tmp_path), "train", DataConfig(), rank=0, world_size=1)
    with pytest.raises(UserError, match=f"shard 00001, {message}"):
        list(split.train_batches(50, seed=0, epoch=0, first=0))
    assert len(split.dense_names) == NUM_DENSE
