"""Schedules of the learning rate by name; each is a row of `ScheduleName`, with values in conf/schedule and a test."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from common.table_rows import row_with

DECAY = ("warmup_steps", "decay_start_step", "decay_steps")


@dataclass(frozen=True)
class Schedule:
    """Properties of a schedule.

    Attributes:
        rate: function "module:function" of base rate, ScheduleConfig, step (the first is 0) and number of cuts.
        keys: keys of `schedule` that have an effect.
        needs: those of them that must not be 0, each with the message if it is.
        by_metric: whether evaluations, by train.monitor, decide when the rate is cut.
    """

    rate: str
    keys: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    by_metric: bool = False


class ScheduleName(Enum):
    """Course of the learning rate.

    constant; warmup_poly: linear warm-up, hold and polynomial decay of power 2; cosine: linear warm-up, hold and half a
    cosine (Loshchilov and Hutter 2017); warmup: linear from 0 at the first step, then hold (MLPerf's DLRMv4); plateau:
    cut when train.monitor stops improving, as torch's ReduceLROnPlateau.
    """

    constant = "constant", Schedule("app.optimizer.schedule:constant")
    warmup = (
        "warmup",
        Schedule(
            "app.optimizer.schedule:warmup", DECAY[:1], {"warmup_steps": "must be at least 1 with schedule=warmup"}
        ),
    )
    warmup_poly = "warmup_poly", Schedule("app.optimizer.schedule:warmup_poly", DECAY)
    cosine = (
        "cosine",
        Schedule(
            "app.optimizer.schedule:cosine",
            (*DECAY, "end_factor"),
            {"decay_steps": "schedule=cosine needs the steps that its decay takes"},
        ),
    )
    plateau = (
        "plateau",
        Schedule("app.optimizer.schedule:plateau", ("factor", "patience", "threshold", "min_lr"), by_metric=True),
    )

    _value_: str
    schedule: Schedule
    __new__ = row_with("schedule")


def with_key(key: str) -> tuple[ScheduleName, ...]:
    """Return the schedules with which a key of `schedule` has an effect."""
    return tuple(name for name in ScheduleName if key in name.schedule.keys)
