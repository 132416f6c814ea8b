"""Trackers of a run. Each is a row of `TRACKERS` and a module; the run opens them in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from app.config import AppConfig


class TrackerKind(NamedTuple):
    """Properties of a tracker.

    Attributes:
        name: name of the tracker.
        key: the key that enables it, by any value except null and false.
        start: opens the tracker; takes a `Setting` of app.trackers.base and may return None. The core names it as
            "module:function".
        package: the package that it requires; empty: none.
        file: its file in the run's directory, which a run from the start removes; empty: none.
        is_cut_back: True if a resumption repeats the events of the last step.
        is_wanted: returns whether a configuration enables it, if a null key depends on other keys; None: `key` decides.
        of_clicks: True if it supports only labels of 0 and 1.
    """

    name: str
    key: str
    start: str | Callable[..., Any]
    package: str = ""
    file: str = ""
    is_cut_back: bool = False
    is_wanted: Callable[[AppConfig], bool] | None = None
    of_clicks: bool = False


TENSORBOARD = "tensorboard"  # directory of its events and of traces
TRACKERS = (
    TrackerKind("tensorboard", "record.tensorboard", "app.trackers.tensorboard:start", "", TENSORBOARD, True),
    TrackerKind("prometheus", "record.prometheus_port", "app.trackers.prometheus:start"),
    TrackerKind("mlflow", "record.mlflow", "app.trackers.remote:start_mlflow", "mlflow", ".mlflow_run"),
    TrackerKind("wandb", "record.wandb", "app.trackers.remote:start_wandb", "wandb", ".wandb_run"),
)


def trackers() -> list[TrackerKind]:
    """Returns the trackers of the core, then those of extensions."""
    return [*TRACKERS, *rows_of_extensions(TrackerKind)]
