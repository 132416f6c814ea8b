"""Views of a run in MLflow, and in Weights & Biases (docs/report.md)."""

from typing import TYPE_CHECKING

from app.config.kinds import TrackerKind
from common.extensions import Core, KeyGroup
from extensions.trackers.keys import TrackersConfig

if TYPE_CHECKING:
    from app.trackers import Setting, Tracker


def register(core: Core) -> None:
    """Add the trackers and their keys."""
    core.add(
        KeyGroup("AppConfig", "trackers", TrackersConfig),
        TrackerKind("mlflow", "trackers.mlflow", start_mlflow, package="mlflow", file=".mlflow_run"),
        TrackerKind("wandb", "trackers.wandb", start_wandb, package="wandb", file=".wandb_run"),
    )


def start_mlflow(setting: "Setting") -> "Tracker":
    """Begin or continue a run in MLflow."""
    from extensions.trackers import remote

    return remote.start_mlflow(setting)


def start_wandb(setting: "Setting") -> "Tracker":
    """Begin or continue a run in Weights & Biases."""
    from extensions.trackers import remote

    return remote.start_wandb(setting)
