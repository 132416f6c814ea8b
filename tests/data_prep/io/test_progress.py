"""What a person sees of a stage."""

import io
import sys

import pytest

from data_prep.engine.executor import Counters
from data_prep.io.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("total", "shown"), [(0, False), (10**9, True), (None, True)])
def test_bytes_are_shown_where_there_are_any(monkeypatch, total, shown):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("arrange", total, Counters()):
        pass
    bar, line = (text for text in terminal.getvalue().replace("\r", "\n").split("\n") if "arrange: " in text)
    assert ("B/s" in bar, "B/s" in line) == (shown, shown)
