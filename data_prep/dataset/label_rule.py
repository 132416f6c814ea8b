"""Rules that turn a column's values into labels, such as `rating >= 4`; docs/data.md gives the grammar."""

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

# The order matters: `>=` is tried before `>`.
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_OPERATOR = "|".join(COMPARISONS)
RULE_PATTERN = rf"\s*({_OPERATOR})\s*(\S(?:.*\S)?)\s*"
COLUMN_AND_RULE = re.compile(rf"(.*?[^\s=<>!])\s*((?:{_OPERATOR})\s*\S.*)")
QUOTES = "\"'"
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"  # a number as Python writes it


class LabelRule(NamedTuple):
    """A parsed rule: operator, value without quotes, and whether the value was quoted."""

    operator: str
    value: str
    is_quoted: bool

    @property
    def is_equality(self) -> bool:
        """Return whether the operator may compare texts."""
        return self.operator in ("==", "!=")


def parse_rule(rule: str) -> LabelRule:
    """Parse an operator and a value.

    Raises:
        ValueError: invalid rule; the message says what to write.
    """
    match = re.fullmatch(RULE_PATTERN, rule)
    if match is None:
        raise ValueError(f"{rule}: not a rule; write one of {', '.join(COMPARISONS)} and a value")
    name, value = match[1], match[2]
    if value[0] in QUOTES:
        if len(value) < 2 or value[-1] != value[0]:
            raise ValueError(f"{rule}: the quote is not closed")
        return LabelRule(name, value[1:-1], True)
    if value[0] == "=":
        raise ValueError(f"{rule}: write {name} {value.lstrip('= ')}, or the text in quotes: {name} '{value}'")
    return LabelRule(name, value, False)
