"""Checks of values that several groups of the configuration use."""

from pathlib import Path

from common.errors import UserError


def require_place(key: str, out: str | None) -> None:
    """Require that a file to be written, unless null, is in an existing directory.

    Raises:
        UserError: there is no such directory, or the file is a directory.
    """
    if out is None:
        return
    if not Path(out).parent.is_dir():
        raise UserError(f"{key}={out}: there is no directory {Path(out).parent}; make it, or choose another")
    if Path(out).is_dir():
        raise UserError(f"{key}={out}: is a directory; give a file in it")
