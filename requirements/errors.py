"""The one error of the set-up that is the user's to mend, and how it speaks."""

from __future__ import annotations

import sys


class SetupError(Exception):
    """One sentence for the user: what is wrong and what to do."""


def say(message: str) -> None:
    """Tell what is going on; stdout stays the command's own."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)
