"""Stand-ins: the training loop over batches made by a test, nothing recorded; tables that give their input."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from app.config.train import TrainConfig
from app.data.batch import Batch
from app.metrics.documents import EvaluationFigures, TrainEvent
from app.metrics.timing import StepTimer
from app.model.embeddings import Vectors
from app.training.loop import TrainingLoop
from app.training.state import RunLength, RunState


class Nothing:
    """In place of what the loop calls besides a session: there are batches; nothing is due, nothing is done."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.reported: list[TrainEvent] = []
        self._batches = batches

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        return iter(self._batches)

    def evaluate(self, step: int) -> EvaluationFigures:
        return EvaluationFigures(step=step, auc=None)

    def steps(self, state: RunState, event: TrainEvent) -> None:
        self.reported.append(event)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def step(session: Any, batch: Batch, number: int) -> float:
    """Make a step of training; return its loss."""
    session.begin_step(number)
    session.optimizer.zero_grad()
    loss = session.loss_of(session.forward(batch), batch)
    session.backward(loss)
    session.optimizer.step()
    return float(loss.item())


def train(session: Any, batches: Iterable[Batch], steps: int, config: TrainConfig) -> tuple[RunState, list[TrainEvent]]:
    """Train to the end; the final state, and what was reported of the windows of steps."""
    nothing, state = Nothing(batches), RunState()
    loop: Any = TrainingLoop
    timer, length = StepTimer(torch.device("cpu")), RunLength(steps, steps, config)
    loop = loop(session, nothing, nothing, nothing, nothing, nothing, timer, length, state)
    assert loop.run() == "completed"
    return state, nothing.reported


class GivenVectors(nn.Module):
    """A lookup whose result is its input [B, F, D]."""

    def forward(self, values: Tensor) -> Callable[[], Vectors]:
        """Return the vectors in the form of SparseArch."""
        return lambda: (values, None)
