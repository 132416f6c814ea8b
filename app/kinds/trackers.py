"""Trackers of a run by name, in the order in which they are opened: one is a row of `TRACKERS` and its module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from app.config import AppConfig


class TrackerKind(NamedTuple):
    """What is to know of a tracker.

    Attributes:
        name: of the tracker.
        key: the key that asks for it, by any value but null and false.
        start: the function "module:function", or an extension's own, that opens it, of a `Setting` of
            app.trackers.base, or gives None.
        package: what must be installed for it; empty: nothing, or it does without.
        file: in the run's directory, removed by a run from the start; empty: none.
        is_cut_back: whether it shows the last step's events again after a resumption.
        is_wanted: whether a configuration asks for it, where the key's null depends on others; None: the key says.
        of_clicks: whether it knows labels of 0 and 1 alone.
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
    """The trackers, and those of extensions."""
    return [*TRACKERS, *rows_of_extensions(TrackerKind)]
