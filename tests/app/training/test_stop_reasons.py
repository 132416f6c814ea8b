"""What several processes agree on: what any of them has is a reason for all."""

from typing import Any

import numpy as np
import pytest

from app.config import TrainConfig
from app.training.stop import StopCheck, StopReasons
from common.errors import UserError


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
