"""Signals, and numbers that are not finite: where training stops, what it says, what several processes agree on."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.checkpoint.files import whole_checkpoints
from app.config import TrainConfig
from app.training.stop import StopCheck, StopReasons
from common.errors import UserError
from tests.app.conftest import Command
from tests.app.run_files import events, losses, summary

SLOW = [("SIGTERM", 2, 40), ("SIGINT", 1, 31), ("SIGUSR1", 1, 31)]


@pytest.mark.parametrize(
    ("name", "processes", "most"),
    [("SIGTERM", 1, 31), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_step_is_finished_and_no_more_are_begun(
    name: str, processes: int, most: int, overrides: list[str], run_app: Command, tmp_path: Path
) -> None:
    """A signal in step 31: alone, that one is the last; several processes ask each other every ten steps."""
    keys, fault = [*overrides, "run.name=x"], f"{name} in the step:31"
    stopped = run_app("train", *keys, processes=processes, fault=fault, status=75)
    assert f"{name}: stopping" in stopped.stderr
    assert "the same command resumes" in stopped.stderr
    run = tmp_path / "runs/x"
    assert summary(run)["status"] == "interrupted"
    assert summary(run)["steps"] == most
    assert whole_checkpoints(run / "checkpoints")[-1].name == f"step_{most:08d}"


def test_a_second_signal_ends_it_at_once(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    stopped = run_app("train", *overrides, "run.name=x", fault="two signals:31", status=128 + signal.SIGTERM)
    assert not (tmp_path / "runs/x/summary.json").exists()
    message = "SIGTERM: stopped immediately: the same command resumes from runs/x/checkpoints/step_00000024"
    assert message in stopped.stderr
    assert message in (tmp_path / "runs/x/log.txt").read_text()


@pytest.mark.slow("examples")
def test_an_echo_of_a_signal_is_no_second_one(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    run_app("train", *overrides, "run.name=x", fault="an echoed signal:31", status=75)
    assert whole_checkpoints(tmp_path / "runs/x/checkpoints")[-1].name == "step_00000031"


@pytest.mark.slow("processes")
@pytest.mark.parametrize("number", [3, 15])
def test_a_signal_in_an_evaluation_is_seen_inside(
    number: int, overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    """Of 8 batches: in the third of the first evaluation, in the seventh of the second; steps are 20 and 40."""
    small = [*overrides, "eval.global_batch_size=64", "run.name=x"]
    run_app("train", *small, fault=f"signal in the evaluation:{number}", status=75)
    run, step = tmp_path / "runs/x", 20 if number == 3 else 40
    assert summary(run)["steps"] == step
    assert [event["step"] for event in events(run, "eval")] == [20, 40][: step // 20 - 1]
    run_app("train", *small)
    assert [event["step"] for event in events(run, "eval")] == [20, 40, 60]
    assert summary(run)["digest"] == summary(uninterrupted)["digest"]
    assert losses(run) == losses(uninterrupted)


def test_a_signal_before_the_first_step_leaves_nothing(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    """While sums of the dataset's files are compared."""
    stopped = run_app("train", *overrides, "run.name=x", fault="signal in the sums:2", status=128 + signal.SIGTERM)
    assert stopped.stderr.endswith("SIGTERM: stopped before the first step; nothing was trained yet\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow("processes")
def test_windows_of_losses_do_not_depend_on_stops(overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    """Logged every 25 steps, stopped after 31: the window from 26 to 50 is logged whole."""
    windows = [*overrides, "train.log_every_steps=25"]
    run_app("train", *windows, "run.name=whole")
    run_app("train", *windows, "run.name=cut", fault="stop:31", status=75)
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
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_what_is_not_finite_is_not_saved(
    fault: str, message: str, every: int, overrides: list[str], uninterrupted: Path, run_app: Command, tmp_path: Path
) -> None:
    """The run stops."""
    keys = [*overrides, f"train.log_every_steps={every}", "run.name=x"]
    assert PLACE + message in run_app("train", *keys, fault=fault, status=2).stderr
    run = tmp_path / "runs/x"
    assert summary(run)["status"] == "failed"
    assert whole_checkpoints(run / "checkpoints")[-1].name == "step_00000036"
    if every == 1:
        run_app("train", *overrides, "run.name=x")
        assert summary(run)["digest"] == summary(uninterrupted)["digest"]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_can_be_skipped(processes: int, overrides: list[str], run_app: Command, tmp_path: Path) -> None:
    skip = [*overrides, "train.on_nan=skip", "run.name=x"]
    process = run_app("train", *skip, processes=processes, fault="loss not finite:40")
    assert PLACE + "the loss is not finite: skipped" in process.stderr
    run = tmp_path / "runs/x"
    assert (summary(run)["steps"], summary(run)["train"]["skipped_steps"]) == (60, 1)
    assert [event["loss"] for event in events(run, "train") if event["step"] == 40] == [None]
    assert summary(run)["train"]["loss"] > 0


@pytest.mark.slow("examples")
def test_steps_are_not_skipped_for_ever_nor_are_gradients(overrides: list[str], run_app: Command) -> None:
    for fault, message in (
        ("losses not finite:20", "step 30: 11 steps in a row were skipped"),
        ("gradients not finite:40", "first non-finite value: gradient of"),
    ):
        keys = [*overrides, "train.on_nan=skip", f"run.name={fault[:6]}"]
        assert message in run_app("train", *keys, fault=fault, status=2).stderr


class _Peers:
    """A process of several, of which the others' reasons are given."""

    world_size = 3

    def __init__(self, *other_reasons: tuple[bool, int, bool]) -> None:
        self._others = [np.array(one, np.int64) for one in other_reasons]

    def gather(self, values: Any) -> list[Any]:
        return [values, *self._others]


class _Checkpointer:
    def __init__(self, failed: bool) -> None:
        self._failed = failed

    def report_finished(self) -> None: ...

    def failed(self) -> bool:
        return self._failed

    def wait(self) -> None:
        raise UserError("a checkpoint could not be written")  # on all processes, as Saver does


class _Request:
    """Of common.signals.StopRequest what is called, without a handler of signals."""

    signal: int | None = None

    def note(self, number: int) -> None:
        self.signal = number


def check(peers: _Peers, failed: bool = False, request: _Request | None = None, minutes: Any = None) -> StopCheck:
    arguments: Any = (request, _Checkpointer(failed), TrainConfig(max_minutes=minutes), peers, 0.0)
    return StopCheck(*arguments)


NONE = (False, 0, False)


@pytest.mark.parametrize(
    ("other_reasons", "agreed"),
    [
        ([NONE, NONE], (False, 0, False)),
        ([NONE, (False, 15, False)], (False, 15, False)),
        ([(False, 0, True), (False, 2, False)], (False, 2, True)),
        ([(True, 0, False), (False, 10, True)], (True, 10, True)),
    ],
)
def test_all_processes_have_the_reasons_of_any(other_reasons: list[Any], agreed: tuple[bool, int, bool]) -> None:
    peers: Any = _Peers(*other_reasons)
    assert StopReasons(*NONE).agreed(peers) == agreed
    assert StopReasons(*agreed).agreed(peers) == agreed


def test_another_process_s_signal_and_time_limit_stop_this_one_at_a_tenth_step() -> None:
    request = _Request()
    for other_reasons in ([(False, 15, False), NONE], [(False, 0, True), NONE]):
        stop = check(_Peers(*other_reasons), request=request)
        assert not stop.requested(9)
        assert stop.requested(10)
    assert request.signal == 15
    assert not check(_Peers(NONE, NONE)).requested(10)
    assert check(_Peers(NONE, NONE), minutes=1e-9).requested(10)


def test_a_checkpoint_that_another_process_could_not_write_ends_this_one_whatever_else_came() -> None:
    with pytest.raises(UserError, match="could not be written"):
        check(_Peers((False, 15, True), (True, 0, False))).requested(10)
