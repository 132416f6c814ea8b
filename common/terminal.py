"""Colours on terminals."""

import os
from typing import IO

CODES = {"green": 32, "yellow": 33, "red": 31, "bold": 1, "dim": 2}


def coloured(text: str, colour: str, stream: IO[str]) -> str:
    """Return the text in a colour of CODES if `stream` is a terminal and NO_COLOR (no-color.org) is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m"
