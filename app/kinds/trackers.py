"""Trackers of a run by name, in the order in which they are opened: one is a row of `TRACKERS` and its module."""

from typing import NamedTuple


class TrackerKind(NamedTuple):
    """What is to know of a tracker.

    Attributes:
        name: of the tracker.
        key: the key that asks for it, by any value but null and false.
        start: the function "module:function" that opens it, of a `Setting` of app.trackers.base, or gives None.
        package: what must be installed for it; empty: nothing, or it does without.
        file: in the run's directory, removed by a run from the start; empty: none.
        is_cut_back: whether it shows the last step's events again after a resumption.
    """

    name: str
    key: str
    start: str
    package: str = ""
    file: str = ""
    is_cut_back: bool = False


TENSORBOARD = "tensorboard"  # directory of its events and of traces
MLPERF_LOG = "mllog.txt"
TRACKERS = (
    TrackerKind("tensorboard", "record.tensorboard", "app.trackers.tensorboard:start", "", TENSORBOARD, True),
    TrackerKind("mlperf", "mlperf.enabled", "app.trackers.mlperf:start", "mlperf_logging", MLPERF_LOG),
    TrackerKind("prometheus", "record.prometheus_port", "app.trackers.prometheus:start"),
    TrackerKind("mlflow", "record.mlflow", "app.trackers.remote:start_mlflow", "mlflow", ".mlflow_run"),
    TrackerKind("wandb", "record.wandb", "app.trackers.remote:start_wandb", "wandb", ".wandb_run"),
)
