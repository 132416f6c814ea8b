"""Dates, times and numbers as people write them."""

import functools
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.codec.values import EXACT_INTEGERS, NUMBER, TRUTHS

# Characters in numbers: `decimal`, the point, and `thousands`, what separates these ("": nothing). A table has them.
NumberForm: TypeAlias = Any
NUMBERS: NumberForm = SimpleNamespace(decimal=".", thousands="")  # 1.5, not 1.000,5


def number_of(value: Any, form: NumberForm) -> float:
    """Return a number or truth value, given as text or typed; NaN if it is neither."""
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if not isinstance(value, str):
        return math.nan
    if _number_pattern(form.decimal, form.thousands).fullmatch(value):
        return float(value.replace(form.thousands, "").replace(form.decimal, "."))
    return TRUTHS.get(value.strip().lower(), math.nan)


def exact_number_of(value: Any, form: NumberForm) -> int | float | Decimal:
    """Return the number of `number_of`, but exactly where a float64 does not tell it from its neighbours."""
    number = number_of(value, form)
    if not abs(number) >= EXACT_INTEGERS:  # small, or NaN
        return number
    if isinstance(value, str):
        return Decimal(value.replace(form.thousands, "").replace(form.decimal, "."))
    exact: int | float | Decimal = value
    return exact


@functools.cache
def _number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Compile the pattern of a number. Python's float also accepts 1_000, inf, nan and digits of other scripts."""
    point = re.escape(decimal)
    whole = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
    return re.compile(rf"[ \t]*[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?[ \t]*", re.ASCII)


EPOCH = "epoch"
# Formats of numbers that count from 1970-01-01, coarse units first: the unit, and its decimal places in a second.
EPOCHS = {
    EPOCH: ("seconds", 0),
    "epoch_ms": ("milliseconds", 3),
    "epoch_us": ("microseconds", 6),
    "epoch_ns": ("nanoseconds", 9),
}
SECOND = 1_000_000  # microseconds
# Times lie between the years 1900 and 2100, in seconds since 1970. From CERTAIN (1973) on, units cannot be confused.
EARLIEST, CERTAIN, LATEST = -2_208_988_800, 10**8, 4_102_444_800
# Formats of dates written as whole numbers, by number of digits.
DATE_NUMBERS = {
    8: ("%Y%m%d", "%d%m%Y", "%m%d%Y", "%y%m%d%H"),
    10: ("%Y%m%d%H",),
    12: ("%Y%m%d%H%M",),
    14: ("%Y%m%d%H%M%S",),
}
NO_TIME = np.datetime64("NaT", "us")
_1970 = datetime(1970, 1, 1)


# How each part is computed from times in UTC, [rows] datetime64[us]; all results are whole numbers.
PARTS: dict[str, Callable[[NDArray[np.datetime64]], Any]] = {
    "year": lambda times: times.astype("M8[Y]").astype(np.int64) + 1970,
    "month": lambda times: times.astype("M8[M]").astype(np.int64) % 12 + 1,
    "day": lambda times: (times.astype("M8[D]") - times.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1,
    "weekday": lambda times: (times.astype("M8[D]").astype(np.int64) + 3) % 7,  # 1970-01-01 was a Thursday; Monday is 0
    "hour": lambda times: times.astype("M8[h]").astype(np.int64) % 24,
    "minute": lambda times: times.astype("M8[m]").astype(np.int64) % 60,
    "second": lambda times: times.astype("M8[s]").astype(np.int64) % 60,
    "date": lambda times: times.astype("M8[D]").astype(np.int64),
    "timestamp": lambda times: times.astype("M8[s]").astype(np.int64),
}


def is_plausible(numbers: Any, form: str, is_implied: bool = False) -> Any:
    """Return whether numbers (one, or an array of float64) are times in an epoch's format.

    Times lie between 1900 and 2100. A number before 1973 (10^8 seconds) must not be a later one in another unit.

    is_implied: whether the schema gives no format; then eight digits, which may be a date, are not a time.
    """
    # Milliseconds read as seconds lie in the future and seconds read as milliseconds in January 1970, so a number that
    # is certain in another unit is refused.
    seconds = numbers / 10.0 ** EPOCHS[form][1]
    is_elsewhere = np.zeros(np.shape(numbers), np.bool_)
    for name in EPOCHS:
        is_elsewhere = is_elsewhere | (name != form and _is_certain(numbers, name))
    is_possible = (seconds >= EARLIEST) & (seconds < LATEST) & np.logical_not(is_elsewhere)
    is_date = is_implied & (numbers >= 10**7) & (numbers < 10**8)
    return (_is_certain(numbers, form) | is_possible) & np.logical_not(is_date)


def _is_certain(numbers: Any, form: str) -> Any:
    """Return whether numbers in an epoch's format are times from 1973 to 2100, which no other unit can mean."""
    seconds = numbers / 10.0 ** EPOCHS[form][1]
    return (seconds >= CERTAIN) & (seconds < LATEST)


def count_microseconds(numbers: NDArray[np.int64], form: str) -> NDArray[np.int64]:
    """Convert plausible whole numbers in an epoch's format to microseconds, rounded down."""
    digits = EPOCHS[form][1]
    # Integers stay exact, where float64 would round nanoseconds.
    return numbers * 10 ** (6 - digits) if digits <= 6 else numbers // 10 ** (digits - 6)


def read_time(text: str, form: str | None, takes_numbers: bool = False) -> int | None:
    """Convert a time in UTC to microseconds since 1970, rounded down; None if the text is no time.

    form: a name of EPOCHS or a pattern of strptime; None: ISO 8601. takes_numbers: whether numbers without a format are
    seconds.
    """
    if form in EPOCHS or (form is None and takes_numbers and re.fullmatch(NUMBER, text)):
        epoch = form or EPOCH
        if not re.fullmatch(NUMBER, text) or not is_plausible(float(text), epoch, form is None):
            return None
        # Decimal keeps each digit; a float64 of seconds would round the last microseconds.
        return math.floor(Decimal(text.strip()).scaleb(6 - EPOCHS[epoch][1]))
    if form is None:
        # Python 3.10 reads neither Z nor other than six digits of a second's fraction.
        if "." in text or "," in text:
            text = re.sub(r"[.,]([0-9]+)", lambda match: f".{match[1][:6]:0<6}", text, count=1)
        text = text[:-1] + "+00:00" if text.endswith("Z") else text
    try:
        time = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
        # Times without a zone count as UTC, so those with one are converted to it.
        if time.tzinfo is not None:
            time = time.astimezone(timezone.utc).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return (time - _1970) // timedelta(microseconds=1)


def time_fault(text: str, form: str | None, takes_numbers: bool, entry: str) -> str:
    """Describe a text that `read_time` refuses, with a remedy: another format, if the digits look like one.

    form, takes_numbers: as for `read_time`. entry: the schema's entry, such as "time: {column: NAME", which a remedy
    ends with a format.
    """

    def with_format(other: str) -> str:
        return f"{entry}, format: {other}}}"

    remedy = "correct this row, or give another format in the schema"
    kind = "an ISO 8601 date or time" if form is None else f"a time of format {form}"
    if form is None and takes_numbers:
        kind = "a time (ISO 8601, or seconds)"
    shown = f"{text[:40]!a}"
    if not re.fullmatch(NUMBER, text) or (form is not None and form not in EPOCHS):
        return f"{shown} is not {kind}; {remedy}"
    text, number, epoch = text.strip(), float(text), form or EPOCH
    times = [(pattern, read_time(text, pattern)) for pattern in DATE_NUMBERS.get(len(text), ())]
    pattern = next((name for name, time in times if time is not None and 0 <= time < LATEST * SECOND), None)
    date = None if pattern is None else with_format(f'"{pattern}"')
    if form is None and takes_numbers and 10**7 <= number < 10**8:
        formats = f"`{date}`, or `{with_format(EPOCH)}`," if date else f"`{with_format(EPOCH)}`"
        return f"{text} may be a date, or seconds; write {formats} in the schema"
    if date is not None:
        remedy = f"it looks like a date; write `{date}` in the schema"
    elif other := _other_epoch(number, form if not takes_numbers else epoch):
        remedy = f"it looks like {EPOCHS[other][0]}; write `{with_format(other)}` in the schema"
    if form is None and not takes_numbers:
        return f"{shown} is not {kind}; {remedy}"
    unit, digits = EPOCHS[epoch]
    seconds = number / 10.0**digits
    place = "before 1900" if seconds < EARLIEST else "in the first days of 1970"
    return f"{text} lies {'in the future' if seconds >= LATEST else place} as {unit}; {remedy}"


def _other_epoch(number: float, form: str | None) -> str | None:
    """Return the format of EPOCHS, other than `form`, that a number probably has; None if there is none."""
    others = [name for name in EPOCHS if name != form]
    names = [name for name in others if _is_certain(number, name)]
    if form is not None:
        finer = [name for name in others if EPOCHS[name][1] > EPOCHS[form][1]]
        names += [name for name in finer if is_plausible(number, name)]
    return names[0] if names else None


# Directives of strptime that have an effect beside some others alone, these, and what to write.
NEEDED_BESIDE = (
    ("p", "I", "%p has an effect with %I alone (hours of 12); write %I in place of %H"),
    ("I", "p", "%I counts hours to 12 and needs %p; write %H for hours to 24"),
    ("UW", "aAwu", "%U and %W have an effect with a weekday alone; add %w"),
    ("d", "YyGcx", "%d needs a year (%Y or %y), as not all have a 29 February; or use the column as a category"),
)


def fault_of_format(form: str) -> str | None:
    """Describe a format that is unknown or that strptime would ignore in part; None if it is valid."""
    if form in EPOCHS or "%" not in form:
        unknown = f'is not known; give {", ".join(EPOCHS)}, or a pattern of strptime, e.g. "%d.%m.%Y %H:%M"'
        return None if form in EPOCHS else unknown
    given = set(re.findall("%(.)", form))
    return next((fault for some, needed, fault in NEEDED_BESIDE if given & {*some} and not given & {*needed}), None)


def part_of(times: NDArray[np.datetime64], part: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a part of times [rows], one of PARTS (0 for a missing time), and a mask of the times that are present."""
    present = ~np.isnat(times)
    return np.where(present, PARTS[part](np.where(present, times, np.datetime64(0, "us"))), 0), present
