"""What a person sees of a stage."""

import io
import sys

import pytest

from data_prep.executor import Counters
from data_prep.io import Progress
from tests.data_prep.conftest import Capture


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("total", "is_visible"), [(0, False), (10**9, True), (None, True)])
def test_bytes_are_shown_if_there_are_any(monkeypatch: pytest.MonkeyPatch, total: int | None, is_visible: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("arrange", total, Counters()):
        pass
    bar, line = (text for text in terminal.getvalue().replace("\r", "\n").split("\n") if "arrange: " in text)
    assert ("B/s" in bar, "B/s" in line) == (is_visible, is_visible)


SIZES = {0: "", 800: "800 B of 800 B", 13_120: "13.1 kB of", 2_500_000_000: "2.5 GB of 2.5 GB"}


@pytest.mark.parametrize(("size", "text"), SIZES.items())
def test_sizes_are_in_units_that_fit(capsys: Capture, size: int, text: str) -> None:
    counters = Counters()
    with Progress("parse", size, counters):
        counters.add(size, 3)
    line = capsys.readouterr().err
    assert line.startswith("parse: 3 rows, ")
    assert text in line
    assert " 0.0 MB" not in line  # nor is 20.0 MB/s
