"""The training loop (`train`), what it drives (`parts`), and the steps the host does not wait for (`window`)."""

from app.loop.parts import AGREE_EVERY_STEPS, LOSS, Parts, State, Steps, Stopped
from app.loop.train import evaluation_due, predict, reached, train

__all__ = [
    "AGREE_EVERY_STEPS",
    "LOSS",
    "Parts",
    "State",
    "Steps",
    "Stopped",
    "evaluation_due",
    "predict",
    "reached",
    "train",
]
