"""Signals, and numbers that are not finite: where training stops, what it says, what several processes agree on."""

import signal
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.config.train import TrainConfig
from app.training.checkpointer import StopCheck
from common.errors import UserError
from tests.app.conftest import Job
from tests.app.run_files import events

SLOW = [("SIGTERM", 2, 40), ("SIGINT", 1, 31), ("SIGUSR1", 1, 31)]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "processes", "most"),
    [("SIGTERM", 1, 31), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_step_is_finished_and_no_more_are_begun(name: str, processes: int, most: int, job: Job) -> None:
    """A signal in step 31: alone, that one is the last; several processes ask each other every ten steps."""
    stopped = job.train(processes=processes, fault=f"{name} in the step:31", status=75)
    assert f"{name}: stopping" in stopped.stderr
    assert "the same command resumes" in stopped.stderr
    assert (job.summary()["status"], job.summary()["steps"]) == ("interrupted", most)
    assert job.last_checkpoint() == f"step_{most:08d}"


@pytest.mark.medium
def test_a_second_signal_ends_it_at_once(job: Job) -> None:
    stopped = job.train(fault="two signals:31", status=128 + signal.SIGTERM)
    assert not (job.run / "summary.json").exists()
    message = "SIGTERM: stopped immediately: the same command resumes from runs/x/checkpoints/step_00000024"
    assert message in stopped.stderr
    assert message in (job.run / "log.txt").read_text()


@pytest.mark.slow("examples")
def test_an_echo_of_a_signal_is_no_second_one(job: Job) -> None:
    job.train(fault="an echoed signal:31", status=75)
    assert job.last_checkpoint() == "step_00000031"


@pytest.mark.slow("processes")
@pytest.mark.parametrize("number", [3, 15])
def test_a_signal_in_an_evaluation_is_seen_inside(number: int, job: Job) -> None:
    """An evaluation has 8 batches: the signal comes in the third of step 20's or in the seventh of step 40's."""
    job.train("eval.global_batch_size=64", fault=f"signal in the evaluation:{number}", status=75)
    step = 20 if number == 3 else 40
    assert job.summary()["steps"] == step
    assert [event["step"] for event in events(job.run, "eval")] == [20, 40][: step // 20 - 1]
    job.train("eval.global_batch_size=64")
    assert [event["step"] for event in events(job.run, "eval")] == [20, 40, 60]
    job.assert_undisturbed()


def test_a_signal_before_the_first_step_leaves_nothing(job: Job) -> None:
    """While sums of the dataset's files are compared."""
    stopped = job.train(fault="signal in the sums:2", status=128 + signal.SIGTERM)
    assert stopped.stderr.endswith("SIGTERM: stopped before the first step; nothing was trained yet\n")
    assert not job.run.parent.exists()


@pytest.mark.slow("processes")
def test_windows_of_losses_do_not_depend_on_stops(job: Job) -> None:
    """Logged every 25 steps, stopped after 31: the window from 26 to 50 is logged whole."""
    job.train("train.log_every_steps=25", "run.name=whole")
    job.train("train.log_every_steps=25", fault="stop:31", status=75)
    job.train("train.log_every_steps=25")
    keys, runs = ("step", "steps", "loss", "accuracy"), (job.run, job.run.with_name("whole"))
    cut, whole = ([[event[key] for key in keys] for event in events(run, "train")] for run in runs)
    assert cut == whole
    assert [step for step, *_ in cut] == [25, 50, 60]


PLACE = "step 40 (epoch 1, batch 8 of 31, counted from 0): "


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("loss not finite:40", "first non-finite value: loss (nan)"),
        ("gradients not finite:40", "first non-finite value: gradient of dense_arch.0.bias"),
        ("table not finite:40", "first non-finite value: loss (nan)"),
    ],
)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_what_is_not_finite_is_not_saved(fault: str, message: str, every: int, job: Job) -> None:
    assert PLACE + message in job.train(f"train.log_every_steps={every}", fault=fault, status=2).stderr
    assert (job.summary()["status"], job.last_checkpoint()) == ("failed", "step_00000036")
    if every == 1:
        job.train()
        job.assert_undisturbed()


@pytest.mark.medium
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_can_be_skipped(processes: int, job: Job) -> None:
    process = job.train("train.on_nan=skip", processes=processes, fault="loss not finite:40")
    assert PLACE + "the loss is not finite: skipped" in process.stderr
    figures = job.summary()
    assert (figures["steps"], figures["train"]["skipped_steps"]) == (60, 1)
    assert [event["loss"] for event in events(job.run, "train") if event["step"] == 40] == [None]
    assert figures["train"]["loss"] > 0


@pytest.mark.slow("examples")
def test_steps_are_not_skipped_for_ever_nor_are_gradients(job: Job) -> None:
    for fault, message in (
        ("losses not finite:20", "step 30: 11 steps in a row were skipped"),
        ("gradients not finite:40", "first non-finite value: gradient of"),
    ):
        assert message in job.train("train.on_nan=skip", f"run.name={fault[:6]}", fault=fault, status=2).stderr


class _Peers:
    """A process of several, of which the others' reasons are given."""

    world_size = 3

    def __init__(self, *other_reasons: tuple[bool, int, bool]) -> None:
        self._others = [np.array(one, np.int64) for one in other_reasons]

    def gather(self, values: Any) -> list[Any]:
        return [values, *self._others]


class _Request:
    """The called part of common.signals.StopRequest, without a handler of signals."""

    signal: int | None = None

    def note(self, number: int) -> None:
        self.signal = number


def check(peers: Any, request: Any = None, minutes: float | None = None) -> StopCheck:
    """With a checkpointer that has not failed here, whose wait raises on all processes, as Saver's does."""
    checkpointer = Mock(**{"failed.return_value": False, "wait.side_effect": UserError("could not be written")})
    return StopCheck(request, checkpointer, TrainConfig(max_minutes=minutes), peers, 0.0)


NONE = (False, 0, False)


def test_another_process_s_signal_and_time_limit_stop_this_one_at_a_tenth_step() -> None:
    request = _Request()
    for other_reasons in ([(False, 2, True), (False, 15, False)], [(False, 0, True), NONE]):
        stop = check(_Peers(*other_reasons), request=request)
        assert not stop.requested(9)
        assert stop.requested(10)
    assert request.signal == 15
    assert not check(_Peers(NONE, NONE)).requested(10)
    assert check(_Peers(NONE, NONE), minutes=1e-9).requested(10)


def test_a_checkpoint_that_another_process_could_not_write_ends_this_one_whatever_else_came() -> None:
    with pytest.raises(UserError, match="could not be written"):
        check(_Peers((False, 15, True), (True, 0, False))).requested(10)
