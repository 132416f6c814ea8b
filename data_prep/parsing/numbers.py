"""Parser of single numbers as people write them."""

import functools
import math
import re
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from data_prep.dataset.spelling import EXACT_INTEGERS, TRUTHS


class NumberForm(Protocol):
    """Characters in numbers: the point, and what separates thousands ("": nothing). A table is one."""

    @property
    def decimal(self) -> str:
        """Return the decimal point."""

    @property
    def thousands(self) -> str:
        """Return the separator of thousands."""


class _Plain(NamedTuple):
    decimal: str = "."
    thousands: str = ""


NUMBERS: NumberForm = _Plain()  # 1.5, not 1.000,5


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
    """Return the number as `number_of` does, but exactly where a float64 does not tell it from its neighbours."""
    number = number_of(value, form)
    if not abs(number) >= EXACT_INTEGERS:
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
