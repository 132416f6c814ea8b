"""Skipped steps update nothing, whatever else happens: evaluations and resumptions leave the bits as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from app.runtime.platform import Runtime
from app.training import session
from app.training.session import Session
from app.training.stop import StopCheck
from tests.app.conftest import SMALL
from tests.app.in_process import train_here
from tests.app.run_files import summary

SPOILED = (2, 3, 7)  # steps, counted from 0


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of these steps is NaN."""
    begin, make, now = Session.begin_step, vars(session)["make_loss"], [0]

    def begun(self: Session, step: int) -> float:
        now[0] = step
        return begin(self, step)

    def made(*arguments: Any) -> Callable[[Tensor, Tensor], Tensor]:
        loss = make(*arguments)
        return lambda logits, labels: loss(logits, labels) * (float("nan") if now[0] in SPOILED else 1.0)

    monkeypatch.setattr(Session, "begin_step", begun)
    monkeypatch.setattr(session, "make_loss", made)


@pytest.mark.slow
@pytest.mark.usefixtures("spoiled")
@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adam", "lamb", "adagrad"])
def test_evaluations_and_resumptions_change_no_bits(
    optimizer: str, runtime: Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = [
        *SMALL,
        f"data.path={dataset}",
        "record.tensorboard=false",
        f"optimizer={optimizer}",
        "train.on_nan=skip",
        "train.max_steps=10",
    ]
    assert train_here(runtime, *base, "run.name=whole") == "completed"
    assert train_here(runtime, *base, "run.name=evaluated", "train.eval_every_steps=2") == "completed"
    for stop in (4, 9, None):
        with monkeypatch.context() as stopped:
            stopped.setattr(StopCheck, "requested", lambda _, step, stop=stop: step == stop)
            assert train_here(runtime, *base, "run.name=parts") == ("completed" if stop is None else "interrupted")
    expected, *others = [summary(Path("runs") / name) for name in ("whole", "evaluated", "parts")]
    assert expected["train"]["skipped_steps"] == len(SPOILED)
    for figures in others:
        assert figures["train"]["skipped_steps"] == len(SPOILED)
        assert figures["digest"] == expected["digest"]
