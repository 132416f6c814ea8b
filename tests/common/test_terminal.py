"""Colour only where it is wanted."""

import pytest

from common.cli import colour_text


@pytest.mark.parametrize("colour", [True, False])
def test_colour_is_for_terminals_that_want_it(colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("TERM", raising=False)
    if colour:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", "1")
    assert colour_text("x", "red", Terminal()) == ("\x1b[31mx\x1b[0m" if colour else "x")  # type: ignore[arg-type]
