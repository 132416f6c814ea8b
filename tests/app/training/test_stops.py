"""Signals, and numbers that are not finite: where training stops, what it says, that it goes on."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from app.checkpoint.files import whole_checkpoints
from tests.app.conftest import Command, ended, forked
from tests.app.run_files import events, losses, summary


def injected(fault: str, *overrides: str, cwd: Path, processes: int = 1) -> "subprocess.CompletedProcess[str]":
    return ended(forked("train", *overrides, cwd=cwd, processes=processes, fault=fault), cwd)


@pytest.mark.parametrize(("processes", "most"), [(1, 31), pytest.param(2, 40, marks=pytest.mark.slow)])
def test_the_step_is_finished_and_no_more_are_begun(
    processes: int, most: int, overrides: list[str], run_app: Command, tmp_path: Path
) -> None:
    """SIGTERM in step 31: alone, that one is the last; several processes ask each other every ten steps."""
    stopped = injected("signal in the step:31", *overrides, "run.name=x", cwd=tmp_path, processes=processes)
    assert stopped.returncode == 75, stopped.stderr
    assert "SIGTERM: stopping" in stopped.stderr
    assert "the same command resumes" in stopped.stderr
    run = tmp_path / "runs/x"
    assert summary(run)["status"] == "interrupted"
    assert summary(run)["steps"] == most
    assert whole_checkpoints(run / "checkpoints")[-1].name == f"step_{most:08d}"


def test_a_second_signal_ends_it_at_once(overrides: list[str], tmp_path: Path) -> None:
    stopped = injected("two signals:31", *overrides, "run.name=x", cwd=tmp_path)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "runs/x/summary.json").exists()
    message = "SIGTERM: stopped immediately: the same command resumes from runs/x/checkpoints/step_00000024"
    assert message in stopped.stderr
    assert message in (tmp_path / "runs/x/log.txt").read_text()


@pytest.mark.slow("examples")
def test_an_echo_of_a_signal_is_no_second_one(overrides: list[str], tmp_path: Path) -> None:
    stopped = injected("an echoed signal:31", *overrides, "run.name=x", cwd=tmp_path)
    assert stopped.returncode == 75, stopped.stderr
    assert whole_checkpoints(tmp_path / "runs/x/checkpoints")[-1].name == "step_00000031"


@pytest.mark.slow("processes")
@pytest.mark.parametrize("number", [3, 15])
def test_a_signal_in_an_evaluation_is_seen_inside(
    number: int, overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    """Of 8 batches: in the third of the first evaluation, in the seventh of the second; steps are 20 and 40."""
    small = [*overrides, "eval.global_batch_size=64", "run.name=x"]
    stopped = injected(f"signal in the evaluation:{number}", *small, cwd=tmp_path)
    assert stopped.returncode == 75, stopped.stderr
    run = tmp_path / "runs/x"
    step = 20 if number == 3 else 40
    assert summary(run)["steps"] == step
    assert [event["step"] for event in events(run, "eval")] == [20, 40][: step // 20 - 1]
    run_app("train", *small)
    assert [event["step"] for event in events(run, "eval")] == [20, 40, 60]
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]
    assert losses(run) == losses(uninterrupted)


def test_a_signal_while_sums_are_compared_leaves_nothing(
    overrides: list[str], run_app: Command, tmp_path: Path
) -> None:
    stopped = injected("signal in the sums:2", *overrides, "run.name=x", cwd=tmp_path)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert stopped.stderr.endswith("SIGTERM: stopped before the first step; nothing was trained yet\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow("processes")
def test_windows_of_losses_do_not_depend_on_interruptions(
    overrides: list[str], run_app: Command, tmp_path: Path
) -> None:
    """Logged every 25 steps, stopped after 31: the window from 26 to 50 is logged whole."""
    windows = [*overrides, "train.log_every_steps=25"]
    run_app("train", *windows, "run.name=whole")
    assert injected("stop:31", *windows, "run.name=cut", cwd=tmp_path).returncode == 75
    run_app("train", *windows, "run.name=cut")
    result = [
        [(event["step"], event["steps"], event["loss"], event["accuracy"]) for event in events(tmp_path / run, "train")]
        for run in ("runs/whole", "runs/cut")
    ]
    assert result[0] == result[1]
    assert [step for step, *_ in result[0]] == [25, 50, 60]


PLACE = "step 40 (epoch 1, batch 8 of 31, counted from 0): "


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("loss not finite:40", "first non-finite value: loss (nan)"),
        ("gradients not finite:40", "first non-finite value: gradient of dense_arch.0.bias"),
        ("table not finite:40", "first non-finite value: loss (nan)"),
    ],
)
@pytest.mark.parametrize("log_every", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_what_is_not_finite_stops_it_before_it_is_saved(
    fault: str,
    message: str,
    log_every: int,
    overrides: list[str],
    uninterrupted: Path,
    run_app: Command,
    tmp_path: Path,
) -> None:
    process = injected(fault, *overrides, f"train.log_every_steps={log_every}", "run.name=x", cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert PLACE + message in process.stderr
    assert "Traceback" not in process.stderr
    run = tmp_path / "runs/x"
    assert summary(run)["status"] == "failed"
    assert whole_checkpoints(run / "checkpoints")[-1].name == "step_00000036"
    if log_every == 1:
        run_app("train", *overrides, "run.name=x")
        assert summary(run)["digest"] == summary(uninterrupted)["digest"]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_can_be_skipped(processes: int, overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    skip = [*overrides, "train.on_nan=skip", "run.name=x"]
    process = injected("loss not finite:40", *skip, cwd=tmp_path, processes=processes)
    assert process.returncode == 0, process.stderr
    assert PLACE + "the loss is not finite: skipped" in process.stderr
    run = tmp_path / "runs/x"
    assert (summary(run)["steps"], summary(run)["train"]["skipped_steps"]) == (60, 1)
    assert [event["loss"] for event in events(run, "train") if event["step"] == 40] == [None]
    assert json.loads((run / "summary.json").read_text())["train"]["loss"] > 0


@pytest.mark.slow("examples")
def test_steps_are_not_skipped_for_ever_nor_are_gradients(overrides: list[str], tmp_path: Path) -> None:
    skip = [*overrides, "train.on_nan=skip"]
    process = injected("losses not finite:20", *skip, "run.name=lost", cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "step 30: 11 steps in a row were skipped" in process.stderr
    gradients = injected("gradients not finite:40", *skip, "run.name=gradients", cwd=tmp_path)
    assert gradients.returncode == 2
    assert "first non-finite value: gradient of" in gradients.stderr
