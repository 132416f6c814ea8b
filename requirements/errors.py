"""Errors and log lines of the set-up."""

from __future__ import annotations

import sys


class SetupError(Exception):
    """A failed set-up; the message says in one sentence what is wrong and what to do."""


def log(message: str) -> None:
    """Log to stderr: stdout belongs to the command that follows."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)
