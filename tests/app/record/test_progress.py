"""Progress of a run whose end is not known: steps and time left are said as the most that there can be."""

import io

import pytest

from app.metrics.documents import TrainEvent
from app.record.directory import ProgressDisplay

WINDOW = TrainEvent(
    event="train", step=10, epoch=0, loss=0.5, accuracy=0.8, samples_per_second=1e3, input_wait_fraction=0.0
)


class Terminal(io.StringIO):
    """In place of a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize("may_end_early", [True, False])
def test_lines_and_the_bar_say_at_most(
    may_end_early: bool, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    display = ProgressDisplay(100, visible=True, all_windows=True, may_end_early=may_end_early)
    display.start(0)
    display.update(WINDOW, None)
    assert ("at most 00:00 to go" in logged.text) is may_end_early
    assert "loss 0.5000 accuracy 80.00% 1,000 samples/s" in logged.text
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    bar = ProgressDisplay(100, visible=True, may_end_early=may_end_early)
    bar.start(0)
    bar.update(WINDOW, None)
    bar.close()
    output = terminal.getvalue()
    assert ("step 10 of at most 100" in output) is may_end_early
    assert ("%|" not in output) is may_end_early
