"""Limits of keys as tests state them: numbers refused, numbers taken, the message."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest

from common.errors import UserError
from common.extensions import KeyGroup, rows_of_extensions
from common.keys import check_keys, declaration, keys_of
from tests.changed import changed

INF = math.inf
Limits = tuple[Sequence[Any], Sequence[Any], str]
ONE: Limits = ([0, -3], [1, 7], "at least 1")
RATES: Limits = ([[-0.01], [0.2, 1.0]], [[0.0], [0.5, 0.99]], "a list of numbers in [0, 1)")
LIST: Limits = ([[0], [3, 0]], [[1], [7, 1]], "a list of numbers of at least 1")
NOT_EMPTY: Limits = ([*LIST[0], []], LIST[1], LIST[2])
ZERO: Limits = ([-1], [0, 9], "at least 0")
BLOCKS: Limits = ([0, 9_999], [10_000, 200_000], "at least 10000")
DECAY: Limits = ([-1e-9, math.nan], [0.0, 10.0], "at least 0")
TOLERANCE: Limits = ([-1.0, math.nan], [0.0, 1.0], "at least 0")
POSITIVE: Limits = ([0.0, -1.0, INF, math.nan, 1e39], [1e-9, 3e38], "a finite number above 0")
SHARE: Limits = ([-0.01, 1.01, math.nan], [0.0, 1.0], "in [0, 1]")
BELOW_1: Limits = ([-0.01, 1.0, math.nan], [0.0, 0.99], "in [0, 1)")
ABOVE_0: Limits = ([0.0, 1.01], [0.01, 1.0], "in (0, 1]")
INSIDE: Limits = ([0.0, 1.0], [0.01, 0.99], "in (0, 1)")
DROPOUT: Limits = ([-0.01, 1.0], [0.0, 0.99], "at least 0 and below 1")
SEED: Limits = ([-1, 2**32], [0, 2**32 - 1], "in [0, 4294967296)")
DIFFICULTY: Limits = ([0.09, INF], [0.1, 1e9], "in [0.1, inf)")


def check_limits(schema: type, limits: Mapping[str, Limits]) -> None:
    """Check that the table has every key with limits but those of extensions, and that each holds and has a meaning."""
    rows = rows_of_extensions(KeyGroup)
    elsewhere = {row.name for row in rows}
    # Keys that join a group of the core, as extensions.special_tables adds to model.tables.
    joined = {(row.configuration, field.name) for row in rows if not row.name for field in fields(row.keys)}
    declarations, own = {}, {}
    for name, owner, field, _ in keys_of(schema):
        declarations[name] = declaration(owner, field)
        if elsewhere.isdisjoint(name.split(".")) and joined.isdisjoint(
            (base.__name__, field) for base in owner.__mro__
        ):
            own[name] = declarations[name]
    limited = {name for name, declared in own.items() if declared.rule}
    assert limited == set(limits)
    assert [name for name, declared in declarations.items() if len(declared.meaning) <= 3] == []
    usual = changed(schema(), dict.fromkeys(declarations))  # nulls, which all limits let pass: one key is looked at
    for name, (bad_values, good_values, rule) in limits.items():
        for value in bad_values:
            with pytest.raises(UserError) as error:
                check_keys(changed(usual, {name: value}))
            assert str(error.value) == f"{name}={value}: must be {rule}"
        for value in good_values:
            assert declarations[name].allows(value), (name, value)
