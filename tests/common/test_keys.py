"""What keys declare: numbers just inside and just outside of each limit, meanings, and which keys decide bits."""

import math
import re
from typing import Any

import pytest

from app.commands import COMMANDS
from app.config import model, sharding
from app.config.app_config import AppConfig
from common.extensions import load
from common.keys import check_keys, declaration, keys_of, values_that_decide_bits
from tests.changed import changed
from tests.error_lines import refused

SCHEMAS = {load(command.schema) for command in COMMANDS.values() if command.schema}
SCHEMAS |= {model.TableOverride, sharding.TableShardingConfig}
INTERVAL = re.compile(r"in ([\[(])(\S+), (\S+)([])])")


def numbers_of(rule: str, whole: bool) -> tuple[list[Any], list[Any]]:
    """Numbers at the limits that a sentence names: those that it allows, and others; integers if `whole`."""
    allowed, others = [], [] if whole else [math.nan]
    if interval := INTERVAL.fullmatch(rule):
        opening, low, high, closing = interval.groups()
        bounds = [("at least" if opening == "[" else "above", low), ("at most" if closing == "]" else "below", high)]
    else:
        bounds = re.findall(r"(at least|above|at most|below) (\S+)", rule)
    for words, text in bounds:
        bound: Any = float(text) if "." in text or text == "inf" or not whole else int(text)
        beyond = (-1 if words in ("at least", "above") else 1) * (1 if whole else 1e-9 * max(1, abs(bound)))
        if words in ("at least", "at most"):
            allowed.append(bound)
            others.append(bound + beyond)
        else:
            others.append(bound)
            allowed.append(bound - beyond if bound != math.inf else 1e9)
    return allowed, others + ([math.inf, 1e39] if rule.startswith("a finite") else [])


@pytest.mark.parametrize("schema", sorted(SCHEMAS, key=str))
def test_every_key_has_its_limits_and_a_meaning(schema: type) -> None:
    keys = {name: (declaration(owner, field), str(kind)) for name, owner, field, kind in keys_of(schema)}
    usual = changed(schema(), dict.fromkeys(keys))  # nulls, which all limits let pass: one key is looked at
    for name, (declared, kind) in keys.items():
        assert len(declared.meaning) > 3, name
        if not declared.rule:
            continue
        allowed, others = numbers_of(declared.rule, whole="float" not in kind)
        assert allowed, (name, declared.rule)
        for value in allowed:
            assert declared.allows(value), (name, value)
        for value in others if "dict" not in kind else ():
            given = [value] if "list" in kind else value
            if given != declared.default:  # a default may be outside
                message = re.escape(f"{name}={given}: must be ") + ".*" + re.escape(declared.rule)
                refused(message, check_keys, changed(usual, {name: given}))


def test_keys_of_training_that_decide_no_bits() -> None:
    """A new key decides unless it is declared otherwise, and named here or in a group of which none decides."""
    deciding = values_that_decide_bits(AppConfig())
    groups = ("baselines", "loss", "model", "optimizer", "runtime", "schedule", "tiny", "train", "data.negatives")
    names = {name for name, *_ in keys_of(AppConfig) if name.startswith(groups)}
    runtime = ("platform", "num_threads", "compile", "timeout_minutes", "profile_steps", "different_releases")
    train = ["epochs", "max_steps", "max_samples", "max_minutes", "eval_every_steps"]
    train += ["eval_every_fraction", "eval_grid", "early_stop_patience", "target_auc", "target_accuracy"]
    train += ["log_every_steps", "warmup_steps_excluded", "on_nan", "pipeline", "deterministic"]
    expected = {"baselines", "tiny", *(f"runtime.{name}" for name in runtime), *(f"train.{name}" for name in train)}
    assert {name for name in names if not any(f"{key}.".startswith(f"{name}.") for key in deciding)} == expected
