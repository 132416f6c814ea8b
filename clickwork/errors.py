"""The error of this interface."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import UserError

BAD_INPUT = 2  # EXIT_BAD_INPUT of common.cli, which imports Hydra


class Error(Exception):
    """Bad input or configuration, in the words of the commands, or a command that did not end well.

    Attributes:
        status: the exit status of the command; 2 for bad input, 75 for an interrupted one, which can be resumed.
    """

    __module__ = "clickwork"  # as users import it

    def __init__(self, message: str, status: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def convert_errors() -> Iterator[None]:
    """Context, or decorator, in which a UserError becomes an `Error`."""
    try:
        yield
    except UserError as error:
        raise Error(str(error)) from None
