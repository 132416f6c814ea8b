"""Views of a run in MLflow, and in Weights & Biases (docs/report.md)."""

from app.config.kinds import TrackerKind
from common.command import later
from common.extensions import Core, KeyGroup
from extensions.trackers.keys import TrackersConfig


def register(core: Core) -> None:
    """Add the trackers and their keys."""
    mlflow, wandb = (later(f"extensions.trackers.remote:start_{name}") for name in ("mlflow", "wandb"))
    core.add(
        KeyGroup("AppConfig", "trackers", TrackersConfig),
        TrackerKind("mlflow", "trackers.mlflow", mlflow, package="mlflow", file=".mlflow_run"),
        TrackerKind("wandb", "trackers.wandb", wandb, package="wandb", file=".wandb_run"),
    )
