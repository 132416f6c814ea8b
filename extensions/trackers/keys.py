"""Keys of trackers."""

from dataclasses import dataclass
from typing import ClassVar

from common.keys import key


@dataclass(frozen=True)
class TrackersConfig:
    """Views of a run in other tools, beside TensorBoard."""

    decides_bits: ClassVar[bool] = False

    mlflow: str | None = key(None, "tracking URI (a server's, or sqlite:///FILE); needs the mlflow package")
    mlflow_experiment: str = key("clickwork", "experiment that MLflow files the run under")
    wandb: str | None = key(None, "project of Weights & Biases; needs the wandb package")
