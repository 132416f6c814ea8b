"""A run's directory that no run began in, and figures that a full disk does not take."""

from pathlib import Path

import pytest

from app.record import directory
from app.record.directory import RunDirectory


def test_a_run_that_did_not_begin_leaves_no_directory(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "runs/a", rank=0)
    record.open()
    record.release()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(directory.log, "propagate", True)
    for error, reason in ((OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd")):
        with directory.ignoring_full_disk():
            raise error
        assert caplog.messages[-1] == f"the last figures were not written: {reason}"
