"""Parser of single numbers as people write them."""

import functools
import math
import re
from decimal import Decimal
from typing import Any

from data_prep.dataset.spelling import TRUTHS
from data_prep.dataset.table_spec import Table

# Default form of numbers: 1.5, not 1.000,5.
NUMBERS = Table(delimiter=",", header=True, label="", dense=(), sparse=(), rule=None, names=())


def number_of(value: Any, table: Table) -> float:
    """Return a number or truth value, given as text or typed; NaN if it is neither."""
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if not isinstance(value, str):
        return math.nan
    if _number_pattern(table.decimal, table.thousands).fullmatch(value):
        return float(value.replace(table.thousands, "").replace(table.decimal, "."))
    return TRUTHS.get(value.strip().lower(), math.nan)


@functools.cache
def _number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Compile the pattern of a number. Python's float also accepts 1_000, inf, nan and digits of other scripts."""
    point = re.escape(decimal)
    whole = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
    return re.compile(rf"[ \t]*[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?[ \t]*", re.ASCII)
