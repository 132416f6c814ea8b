"""The one error that is the user's to mend."""


class UserError(Exception):
    """Bad input or configuration.

    The message is one line that names the file, row, column or key and says what to do; a command that
    meets it prints that line and ends with exit status 2.
    """
