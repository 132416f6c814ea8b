"""Errors that end a command with one line."""


class UserError(Exception):
    """Bad input or configuration.

    The message is one line that names the file, row, column or key and says what to do; a command that
    meets it prints that line and ends with exit status 2.
    """


class LostPeerError(Exception):
    """Another process of the job is gone or out of reach.

    The command prints the message and ends with exit status 75: the same command goes on from the last checkpoint.
    """
