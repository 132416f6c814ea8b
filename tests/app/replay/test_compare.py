"""A replay's checkpointer is in its place from the start."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.checkpoint.saver import Saver
from app.record.directory import RunDirectory
from app.replay.compare import ReplayComparison
from app.runtime.platform import Runtime
from app.training import session
from app.training.run import TrainingRun
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, composed


def test_a_replay_makes_one_checkpointer_and_that_compares(
    runtime: Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes a process group for its writer."""
    calls: list[tuple[object, ...]] = []
    make_saver = Saver.__init__

    def counted(saver: Saver, *arguments: Any) -> None:
        calls.append(arguments)
        make_saver(saver, *arguments)

    monkeypatch.setattr(Saver, "__init__", counted)
    this = session.build(composed(*SMALL, f"data.path={dataset}"), runtime, dataset, load_manifest(dataset))
    make = partial(ReplayComparison, checkpoints={7: tmp_path}, scored={})
    run = TrainingRun(this, RunDirectory(tmp_path, 0), 0.0, make_checkpointer=make)
    assert isinstance(run.checkpointer, ReplayComparison)
    assert [step for step in range(10) if run.checkpointer.due(step)] == [7]
    assert len(calls) == 1
