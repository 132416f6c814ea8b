"""Checks of values that several groups of the configuration use."""

from pathlib import Path

from common.errors import UserError


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
