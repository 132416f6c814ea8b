"""Checks of values that several groups of the configuration use."""

from pathlib import Path

from common.errors import UserError


def require_place(key: str, out: str | None) -> None:
    """Require that a file can be written, unless null; directories above it that are missing are made."""
    if out is None:
        return
    if Path(out).is_dir():
        raise UserError(f"{key}={out}: is a directory; give a file in it")
    if not (above := next(each for each in Path(out).parents if each.exists())).is_dir():
        raise UserError(f"{key}={out}: {above} is a file; choose another directory")
