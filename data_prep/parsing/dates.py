"""Dates and times to whole numbers: their parts, as numeric or categorical features of a user's own table."""

import calendar
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPOCH = "epoch"  # the format of seconds since 1970-01-01
NO_TIME = np.datetime64("NaT", "s")


def _days(times: NDArray[np.datetime64]) -> NDArray[np.int64]:
    return times.astype("M8[D]").astype(np.int64)


def _seconds(times: NDArray[np.datetime64]) -> NDArray[np.int64]:
    return times.astype("M8[s]").astype(np.int64)


PARTS: dict[str, Callable[[NDArray[np.datetime64]], Any]] = {
    "year": lambda times: times.astype("M8[Y]").astype(np.int64) + 1970,
    "month": lambda times: times.astype("M8[M]").astype(np.int64) % 12 + 1,
    "day": lambda times: (times.astype("M8[D]") - times.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1,
    "weekday": lambda times: (_days(times) + 3) % 7,  # 1970-01-01 was a Thursday, Monday is 0
    "hour": lambda times: _seconds(times) // 3600 % 24,
    "minute": lambda times: _seconds(times) // 60 % 60,
    "second": lambda times: _seconds(times) % 60,
    "date": _days,
    "timestamp": _seconds,
}


def read_time(text: str, form: str | None) -> np.datetime64 | None:
    """A time in UTC, to the second, NaT of an empty text; None where a text is no time."""
    try:
        return np.datetime64(_read_seconds(text.strip(), form), "s") if text else NO_TIME
    except (ValueError, OverflowError):
        return None


def _read_seconds(text: str, form: str | None) -> int:
    if form == EPOCH:
        if not text.lstrip("-").isdecimal() or len(text) > len("253402300799"):  # the year 9999
            raise ValueError
        return int(text)
    if form is not None:
        time = datetime.strptime(text, form)
    else:
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    return calendar.timegm(time.utctimetuple())


def fault_of_format(form: str) -> str | None:
    """What strptime would ignore of a format, in silence; None: nothing."""
    directives = set(re.findall("%(.)", form))
    if "p" in directives and "I" not in directives:
        return "%p has an effect with %I alone (hours of 12); write %I in place of %H"
    if "I" in directives and "p" not in directives:
        return "%I counts hours to 12 and needs %p; write %H for hours to 24"
    if directives & {"U", "W"} and not directives & {"a", "A", "w", "u"}:
        return "%U and %W have an effect with a weekday alone; add %w"
    return None


def part_of(times: NDArray[np.datetime64], part: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A part of times [rows], and which of them have one: where there is no time the part is 0."""
    present = ~np.isnat(times)
    return np.where(present, PARTS[part](np.where(present, times, np.datetime64(0, "s"))), 0), present
