"""Settings to search: `search.KEY=VALUES` as ranges and choices, drawn by Optuna."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from common.config_file import as_override
from common.errors import UserError

if TYPE_CHECKING:
    from optuna.trial import Trial

PLAIN = re.compile(r"[\w.-]+")  # words that need no quotes
LOG_RATIO = 10  # high over low, from which on a range is drawn on a logarithmic scale


class Range(NamedTuple):
    """All numbers from low to high."""

    low: float
    high: float

    @property
    def is_log(self) -> bool:
        """Whether every factor, in place of every difference, is equally likely."""
        return self.low > 0 and self.high / self.low >= LOG_RATIO


Space: TypeAlias = dict[str, Range | tuple[str, ...]]  # by dotted key: a range, or values as they are typed


def space_of(search: dict[str, Any]) -> Space:
    """Return the settings to search from the nested values of `search`."""
    return {name: _values_of(name, values) for name, values in _leaves("", search)}


def _leaves(prefix: str, values: dict[str, Any]) -> list[tuple[str, Any]]:
    leaves = []
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        leaves += _leaves(f"{dotted}.", value) if isinstance(value, dict) else [(dotted, value)]
    return leaves


def _values_of(name: str, values: Any) -> Range | tuple[str, ...]:
    texts = tuple(dict.fromkeys(map(_text, values))) if isinstance(values, list) else ()
    if len(texts) < 2:
        raise UserError(f"search.{name}={as_override(values)}: must be a list of two or more different values")
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(values) == len(numbers) == 2 and any(isinstance(value, float) for value in values):
        if numbers[0] >= numbers[1]:
            raise UserError(f"search.{name}={as_override(values)}: a range is [low,high]; write the lower number first")
        return Range(float(numbers[0]), float(numbers[1]))
    return texts


def _text(value: Any) -> str:
    return value if isinstance(value, str) and PLAIN.fullmatch(value) else as_override(value)


def ends(space: Space) -> list[list[str]]:
    """Return overrides for each choice, and for the ends of each range, to be checked before a trial."""
    return [
        [f"{name}={value}"]
        for name, values in space.items()
        for value in ((repr(values.low), repr(values.high)) if isinstance(values, Range) else values)
    ]


def draw(trial: Trial, space: Space) -> None:
    """Let a trial draw a value of each setting."""
    for name, values in space.items():
        if isinstance(values, Range):
            trial.suggest_float(name, values.low, values.high, log=values.is_log)
        else:
            trial.suggest_categorical(name, values)


def overrides_of(parameters: dict[str, Any]) -> list[str]:
    """Return drawn values as `key=value`, numbers of a range with four digits."""
    return [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in parameters.items()
    ]
