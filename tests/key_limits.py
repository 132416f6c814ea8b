"""Limits of keys as tests state them: numbers refused, numbers taken, the message."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from common.errors import UserError
from common.keys import check_keys, declaration, keys_of
from tests.changed import changed

INF = math.inf
Limits = tuple[Sequence[Any], Sequence[Any], str]
ONE: Limits = ([0, -3], [1, 7], "at least 1")
LIST: Limits = ([[0], [3, 0]], [[1], [7, 1]], "a list of numbers of at least 1")
ZERO: Limits = ([-1], [0, 9], "at least 0")
BLOCKS: Limits = ([0, 9_999], [10_000, 200_000], "at least 10000")
TOLERANCE: Limits = ([-1.0, math.nan], [0.0, 1.0], "at least 0")
POSITIVE: Limits = ([0.0, -1.0, INF, math.nan, 1e39], [1e-9, 3e38], "a finite number above 0")
BELOW_1: Limits = ([-0.01, 1.0, math.nan], [0.0, 0.99], "in [0, 1)")
INSIDE: Limits = ([0.0, 1.0], [0.01, 0.99], "in (0, 1)")
DROPOUT: Limits = ([-0.01, 1.0], [0.0, 0.99], "at least 0 and below 1")
DIFFICULTY: Limits = ([0.09, INF], [0.1, 1e9], "in [0.1, inf)")


def check_limits(schema: type, limits: Mapping[str, Limits]) -> None:
    """Check that these keys have their limits; tests.common.test_keys holds each key against its own sentence."""
    declarations = {name: declaration(owner, field) for name, owner, field, _ in keys_of(schema)}
    usual = changed(schema(), dict.fromkeys(declarations))  # nulls, which all limits let pass: one key is looked at
    for name, (bad_values, good_values, rule) in limits.items():
        for value in bad_values:
            with pytest.raises(UserError) as error:
                check_keys(changed(usual, {name: value}))
            assert str(error.value) == f"{name}={value}: must be {rule}"
        for value in good_values:
            assert declarations[name].allows(value), (name, value)
