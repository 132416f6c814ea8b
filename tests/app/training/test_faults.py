"""What goes wrong: at exact moments, on disk, in the user's directories; and that the run goes on all the same."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.checkpoint.files import whole_checkpoints
from app.config import DataConfig
from app.data.split import SplitReader
from common.errors import UserError
from data_prep.dataset.format import load_manifest, shard_path
from tests.app.conftest import SMALL, Command, Refusal, ended, forked
from tests.app.datasets import NUM_DENSE, write_dataset
from tests.app.run_files import events, losses, summary, wait_for
from tests.error_lines import error_line

OVERWRITE = ["checkpoint.resume=never", "checkpoint.overwrite=true"]


def _injected(fault: str, number: int, *overrides: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return ended(forked("train", *overrides, cwd=cwd, fault=f"{fault}:{number}"), cwd)


@pytest.mark.parametrize(
    ("fault", "number", "asynchronous", "at_step"),
    [("in the step", 31, False, 24), pytest.param("in the pruning", 1, True, 24, marks=pytest.mark.slow)],
)
def test_a_kill_at_any_moment_changes_nothing(
    fault: str,
    number: int,
    asynchronous: bool,
    at_step: int,
    overrides: list[str],
    uninterrupted: Path,
    run_app: Command,
    tmp_path: Path,
) -> None:
    """Saves come at steps 12, 20 (the first evaluation is the best so far), 24, 36 …"""
    mode = f"checkpoint.asynchronous={asynchronous}"
    killed = _injected(fault, number, *overrides, mode, "run.name=killed", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_app("train", *overrides, "run.name=killed")
    assert f"step_{at_step:08d}, step {at_step}" in resumed.stderr
    run = tmp_path / "runs/killed"
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]
    assert losses(run) == losses(uninterrupted)
    assert [event["auc"] for event in events(run, "eval")] == [event["auc"] for event in events(uninterrupted, "eval")]
    names, expected = (
        sorted(path.name for path in (directory / "checkpoints").iterdir()) for directory in (run, uninterrupted)
    )
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
    killed = _injected("in the beginning", number, *short, *overwrite, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run_app("train", *short, *overwrite)
    assert summary(tmp_path / "runs/x")["steps"] == 3


@pytest.mark.slow("processes")
def test_a_stop_at_an_evaluation_loses_none(
    overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    stopped = _injected("stop", 20, *overrides, "run.name=stopped", cwd=tmp_path)
    assert stopped.returncode == 75, stopped.stderr
    run_app("train", *overrides, "run.name=stopped")
    run = tmp_path / "runs/stopped"
    assert [event["step"] for event in events(run, "eval")] == [20, 40, 60]
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]
    manifest = json.loads((run / "manifest.json").read_bytes())
    assert manifest["from_step"] == 20
    assert [part["from_step"] for part in manifest["earlier"]] == [0]


@pytest.mark.slow("processes")
def test_a_full_disk_leaves_the_older_checkpoint(
    overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    run_app("train", *overrides, "run.name=full", "train.max_steps=12")
    full = _injected("disk full", 20_000, *overrides, "run.name=full", cwd=tmp_path)
    assert full.returncode == 2, full.stderr
    assert "the checkpoint was not written" in full.stderr
    assert "Traceback" not in full.stderr
    run = tmp_path / "runs/full"
    assert summary(run)["status"] == "failed"
    assert [path.name for path in whole_checkpoints(run / "checkpoints")] == ["step_00000012"]
    run_app("train", *overrides, "run.name=full")
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]


def test_a_limit_on_the_size_of_files_is_named(overrides: list[str], tmp_path: Path) -> None:
    """In the archive that torch writes, of which it knows only that positions differ."""
    limited = _injected("disk full", 40_000, *overrides, "run.name=x", cwd=tmp_path)
    assert limited.returncode == 2
    assert "Traceback" not in limited.stderr
    assert limited.stderr.splitlines()[-1].endswith(
        "step_00000012.part: the checkpoint was not written: a file may have 40.0 kB at most here; "
        "raise that limit (ulimit -f)"
    )


def test_space_for_checkpoints_is_asked_for_before_the_first_step(
    overrides: list[str], refused: Refusal, tmp_path: Path
) -> None:
    many = ["checkpoint.every_steps=1", "checkpoint.keep=1000000000000", "train.max_steps=1000000000000"]
    assert re.match(
        r"error: runs/x/checkpoints: [\d.,]+ \wB needed for checkpoints of [\d.]+ kB, up to 1000000000002 at a time, "
        r"[\d.]+ \wB free; free some, or give run.dir on another disk, checkpoint.keep=1 or ",
        refused("train", *overrides, *many, "run.name=x"),
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow("processes")
def test_a_start_over_a_killed_run_keeps_its_log(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    run = tmp_path / "runs/x"
    for number in (1, 2):
        killed = _injected("in the step", 6, *overrides, "run.name=x", cwd=tmp_path)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        before = (run / "log.txt").read_bytes(), (run / "metrics.jsonl").read_bytes()
        process = _injected("in the step", 3, *overrides, "run.name=x", cwd=tmp_path)
        message = (
            "runs/x: starts over from step 0; the part before was killed; what it logged is in "
            f"log.txt.{2 * number - 1} and metrics.jsonl.{2 * number - 1}"
        )
        assert message in process.stderr
        assert message in (run / "log.txt").read_text()
        backups = (run / f"log.txt.{2 * number - 1}", run / f"metrics.jsonl.{2 * number - 1}")
        assert tuple(path.read_bytes() for path in backups) == before
    run_app("train", *overrides, "run.name=x", "train.max_steps=3")
    assert len(losses(run)) == 3


@pytest.mark.slow("processes")
def test_no_checkpoint_is_removed_unasked(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    short = [*overrides, "train.max_steps=24", "run.name=x"]
    run_app("train", *short)
    run = tmp_path / "runs/x"
    before = sorted(run.rglob("*"))
    for resume in ("never", "runs/other"):
        run_app("train", *overrides, "train.max_steps=12", "run.name=other")
        refusal = run_app("train", *short, f"checkpoint.resume={resume}", status=2)
        assert error_line(refusal.stderr) == (
            f"error: checkpoint.resume={resume}: would remove step_00000020, step_00000024 in runs/x/checkpoints; give "
            "another run.name, or checkpoint.overwrite=true to remove them"
        )
        assert sorted(run.rglob("*")) == before
    restart = run_app("train", *short, *OVERWRITE)
    assert "runs/x: starts over from step 0; the run before; what it logged is in log.txt.1" in restart.stderr
    idle = run_app("train", *short, "checkpoint.overwrite=true", status=2)
    assert "checkpoint.overwrite=true: has no effect with checkpoint.resume=auto" in idle.stderr


@pytest.mark.slow("processes")
@pytest.mark.parametrize("damage", ["a changed byte", "state.json empty", "cut short", "gone", "arrays.npz cut short"])
def test_a_damaged_checkpoint_is_passed_over(
    damage: str, overrides: list[str], uninterrupted: Path, run_app: Command, refused: Refusal, tmp_path: Path
) -> None:
    run = tmp_path / "runs/damaged"
    shutil.copytree(uninterrupted, run)
    *_, older, newest = whole_checkpoints(run / "checkpoints")
    (tensors,) = newest.glob("*.distcp")
    content = bytearray(tensors.read_bytes())
    if damage == "a changed byte":
        content[len(content) // 2] ^= 1
        tensors.write_bytes(content)
    elif damage == "cut short":
        tensors.write_bytes(content[:-1])
    elif damage == "gone":
        tensors.unlink()
    elif damage == "state.json empty":
        (newest / "state.json").write_text("{}")
    else:
        (newest / "arrays.npz").write_bytes((newest / "arrays.npz").read_bytes()[:-9])
    assert newest.name in refused("evaluate", "run=runs/damaged", f"checkpoint={newest}")
    resumed = run_app("train", *overrides, "run.name=damaged")
    assert f"skipped {newest.relative_to(tmp_path)}" in resumed.stderr
    assert f"{older.name}, step {int(older.name[-8:])}" in resumed.stderr
    assert losses(run) == losses(uninterrupted)


@pytest.mark.slow("processes")
def test_going_back_to_an_earlier_checkpoint(
    overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    run_app("train", *overrides, "run.name=back", "checkpoint.keep=9")
    run = tmp_path / "runs/back"
    back = ["run.name=back", "checkpoint.keep=9", "checkpoint.resume=runs/back/checkpoints/step_00000024"]
    refusal = run_app("train", *overrides, *back, "train.max_steps=30", status=2)
    assert "would remove step_00000036, step_00000040, step_00000048, step_00000060 in runs/back" in refusal.stderr
    run_app("train", *overrides, *back, "train.max_steps=30", "checkpoint.overwrite=true")
    steps = [path.name for path in whole_checkpoints(run / "checkpoints")]
    assert steps == ["step_00000012", "step_00000020", "step_00000024", "step_00000030"]
    run_app("train", *overrides, "run.name=back", "checkpoint.keep=9")
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]
    run_app("train", *overrides, "run.name=branch", "checkpoint.resume=runs/back")
    assert summary(tmp_path / "runs/branch")["steps"] == 60


@pytest.mark.slow("processes")
def test_a_higher_target_goes_on(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=target", "train.max_steps=40", "train.eval_every_steps=10"]
    run_app("train", *overrides, "train.target_auc=0.55")
    first = summary(tmp_path / "runs/target")
    assert first["status"] == "target_reached"
    same = run_app("train", *overrides, "train.target_auc=0.55")
    assert "target_reached already" in same.stderr
    run_app("train", *overrides, "train.target_auc=0.999")
    assert summary(tmp_path / "runs/target")["status"] == "completed"
    assert summary(tmp_path / "runs/target")["steps"] == 40


def test_other_peoples_directories_are_left_alone(refused: Refusal, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    for extra in ([], OVERWRITE):
        line = refused("train", *SMALL, "data.path=data", "run.dir=data", "run.name=x", *extra)
        assert "run.dir=data: contains" in line
    after = {
        path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.name != ".lock" and path.is_file()
    }
    assert after == before


def test_starting_over_with_a_mistake_keeps_what_was_there(
    run_app: Command, refused: Refusal, dataset: Path, tmp_path: Path
) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=kept", "train.max_steps=5"]
    run_app("train", *overrides)
    before = summary(tmp_path / "runs/kept")
    refused("train", *overrides, *OVERWRITE, "train.global_batch_size=5000")
    assert summary(tmp_path / "runs/kept") == before
    assert whole_checkpoints(tmp_path / "runs/kept/checkpoints")


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
def test_two_processes_stop_together_and_go_on_to_the_same_bits(
    run_app: Command, dataset: Path, tmp_path: Path
) -> None:
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


def test_half_of_a_launchers_environment_is_refused(dataset: Path, tmp_path: Path) -> None:
    half = {"WORLD_SIZE": "2"}
    forks = forked("train", *SMALL, f"data.path={dataset}", "run.name=x", cwd=tmp_path, environment=half)
    process = ended(forks, tmp_path)
    assert process.returncode == 2
    assert "WORLD_SIZE is set but not RANK" in process.stderr


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
def test_values_that_data_prep_does_not_write_are_named(
    kind: str, column: int, value: Any, message: str, tmp_path: Path
) -> None:
    write_dataset(tmp_path, {"train": 300}, shard_rows=100)
    path = shard_path(tmp_path, "train", "00001", kind)
    array = np.load(path)
    array[41, column] = value
    np.save(path, array)
    split = SplitReader(tmp_path, load_manifest(tmp_path), "train", DataConfig(), rank=0, world_size=1)
    with pytest.raises(UserError, match=f"shard 00001, {message}"):
        list(split.train_batches(50, seed=0, epoch=0, first=0))
    assert len(split.dense_names) == NUM_DENSE
