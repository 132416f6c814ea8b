"""Checks of values that several groups of the configuration use."""

from collections.abc import Mapping
from pathlib import Path

from common.errors import UserError

MAX_FLOAT32 = 3.4028234e38


def require_at_least(values: Mapping[str, tuple[float | None, float]]) -> None:
    """Each key's value, unless null, must be at least its minimum.

    Raises:
        UserError: names the first key whose value is too small.
    """
    for key, (value, minimum) in values.items():
        if value is not None and value < minimum:
            raise UserError(f"{key}={value}: must be at least {minimum}")


def require_place(key: str, out: str | None) -> None:
    """A file to be written, unless null, must be in a directory that is there.

    Raises:
        UserError: there is no such directory, or the file is one.
    """
    if out is None:
        return
    if not Path(out).parent.is_dir():
        raise UserError(f"{key}={out}: there is no directory {Path(out).parent}; make it, or choose another")
    if Path(out).is_dir():
        raise UserError(f"{key}={out}: is a directory; give a file in it")


def require_positive(values: Mapping[str, float | None]) -> None:
    """Each key's value, unless null, must be above 0, and finite in single precision too.

    Raises:
        UserError: names the first key whose value is not.
    """
    for key, number in values.items():
        if number is not None and not 0 < number <= MAX_FLOAT32:
            raise UserError(f"{key}={number}: must be a finite number above 0")
