"""Steps of extensions after training, one row each, which the training command calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from pathlib import Path

    from app.config import AppConfig
    from app.training.predictor import Evaluation, Predictor


class AfterTraining(NamedTuple):
    """Functions that an extension adds to the end of training. They import their modules when called.

    Attributes:
        require: raises UserError before training if the step cannot run.
        keep: is called with each evaluation on every rank. Returns a function of the run's directory and the step
            that writes what the step needs later, called if the run keeps the evaluated model; or None.
        finish: processes the run's directory on rank 0 after the process group is closed.
    """

    require: Callable[[AppConfig], None]
    keep: Callable[[Predictor, Evaluation], Callable[[Path, int], None] | None]
    finish: Callable[[AppConfig], None]


def steps_after_training() -> list[AfterTraining]:
    """Return the rows of all extensions."""
    return rows_of_extensions(AfterTraining)
