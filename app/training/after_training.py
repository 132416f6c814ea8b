"""What extensions do with a run that has ended: a row each, which training calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from pathlib import Path

    from app.config import AppConfig
    from app.training.predictor import Evaluation, Predictor


class AfterTraining(NamedTuple):
    """What an extension does with a run that has ended; its functions import what they need.

    Attributes:
        require: raises UserError where it cannot be done, before anything is trained.
        keep: takes from an evaluation what is needed later, on every process. Returns what writes it into the run's
            directory, by the step, where the run serves the evaluated model; None: nothing to write.
        finish: acts on a run's directory, on rank 0, once the process group is closed.
    """

    require: Callable[[AppConfig], None]
    keep: Callable[[Predictor, Evaluation], Callable[[Path, int], None] | None]
    finish: Callable[[AppConfig], None]


def steps_after_training() -> list[AfterTraining]:
    """The rows of all extensions."""
    return rows_of_extensions(AfterTraining)
