"""Views of a run in MLflow, and in Weights & Biases (docs/report.md)."""

from dataclasses import dataclass
from typing import ClassVar

from app.config.kinds import TrackerKind
from common.extensions import Core, KeyGroup, later
from common.keys import key


@dataclass(frozen=True)
class TrackersConfig:
    """Views of a run in other tools, beside TensorBoard."""

    decides_bits: ClassVar[bool] = False

    mlflow: str | None = key(None, "tracking URI (a server's, or sqlite:///FILE); needs the mlflow package")
    mlflow_experiment: str = key("clickwork", "experiment that MLflow files the run under")
    wandb: str | None = key(None, "project of Weights & Biases; needs the wandb package")


def register(core: Core) -> None:
    """Add the trackers and their keys."""
    mlflow, wandb = (later(f"extensions.trackers.remote:start_{name}") for name in ("mlflow", "wandb"))
    core.add(
        KeyGroup("AppConfig", "trackers", TrackersConfig),
        TrackerKind("mlflow", "trackers.mlflow", mlflow, package="mlflow", file=".mlflow_run"),
        TrackerKind("wandb", "trackers.wandb", wandb, package="wandb", file=".wandb_run"),
    )
