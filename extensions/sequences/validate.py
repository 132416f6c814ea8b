"""Checks of the keys `sequences` against the whole configuration, and of the device."""

import importlib.util
import os
from operator import attrgetter
from typing import Any

from common.errors import UserError
from common.extensions import keys_of_extension
from common.keys import keys_of, shown
from extensions.sequences.keys import Attention, SequencesConfig


def triton_problem(device_type: str) -> str | None:
    """Return why Triton's kernels cannot run on a device; None if they can, for instance interpreted on a CPU."""
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a GPU; use bucketed, or set TRITON_INTERPRET=1, which computes the same on a CPU, slowly"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; use bucketed, or install it: pip install triton"
    return None


def require_device(config: object, device_type: str) -> None:
    """Raise UserError if the device cannot compute the configured attention."""
    attention = keys_of_extension(config, SequencesConfig).hstu.attention
    if attention is Attention.triton and (problem := triton_problem(device_type)):
        raise UserError(f"sequences.hstu.attention=triton: {problem}")


def refuse_without_model(config: Any) -> None:
    """Raise UserError for a key of this extension with a model that does not read it."""
    if config.model.name == "hstu":
        return
    given, usual = keys_of_extension(config, SequencesConfig), SequencesConfig()
    for key, *_ in keys_of(SequencesConfig):
        value = attrgetter(key)(given)
        if value != attrgetter(key)(usual):
            raise UserError(f"sequences.{key}={shown(value)}: has no effect without model=hstu; leave it out")
