"""Errors that end a command with one line instead of a traceback."""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # raised by writes to open files, without a file name
LINE_CHARACTERS = 300


def last_line(text: str, default: str) -> str:
    """Return the last line of another program's error or log, which usually names the cause, or `default`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LINE_CHARACTERS] if lines else default


class UserError(Exception):
    """Bad input or configuration.

    The message is one line that names the file, row, column or key and says what to do. Commands print it and exit
    with status 2.
    """


class OwnError(UserError):
    """A UserError of a single process of a job, which prints it whatever its rank."""


class LostPeerError(Exception):
    """Raised if another process of the job ended or cannot be reached.

    Commands print the message and exit with status 75 if there is a checkpoint to resume from, else with 69.
    """

    def __init__(self, message: str, resumable: bool) -> None:
        """resumable: whether there is a checkpoint to resume from, which decides the exit status."""
        super().__init__(message)
        self.resumable = resumable
