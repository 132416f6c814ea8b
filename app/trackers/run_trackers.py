"""Views of a run for other tools: TensorBoard, MLflow, Weights & Biases, Prometheus; app.record has its own files."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.config import AppConfig
from app.metrics.documents import AnyEvent, Curves
from app.record.documents import Summary
from app.trackers import base, mlperf, tensorboard
from app.trackers.base import Tracker
from app.trackers.mlperf import MLPerf
from app.trackers.prometheus import Prometheus
from app.trackers.remote import MLflow, WeightsAndBiases
from app.trackers.tensorboard import TensorBoard
from common.errors import UserError

log = logging.getLogger("clickwork")

TENSORBOARD, MLFLOW_ID, WANDB_ID = "tensorboard", ".mlflow_run", ".wandb_run"
FILES = (
    TENSORBOARD,
    MLFLOW_ID,
    WANDB_ID,
    mlperf.FILE,
)  # in a run's directory, removed by a run from the start


class Trackers:
    """The configured trackers; one that fails is logged and dropped, and the run continues."""

    def __init__(self) -> None:
        self._open: list[Tracker] = []

    def start(
        self,
        directory: Path,
        config: AppConfig,
        plain: Mapping[str, Mapping[str, object]],
        rows: Mapping[str, int],
        world_size: int,
        from_step: int,
    ) -> None:
        """Open what the configuration asks for, on rank 0; elsewhere nothing is tracked.

        directory: the run's. plain: the configuration as dicts. rows: of each split of the dataset.

        Raises:
            UserError: an address that cannot be listened at, or a client that cannot begin.
        """
        name, asked = config.run.name, config.record
        settings = base.settings(plain, world_size)
        if asked.tensorboard and not tensorboard.AVAILABLE:
            log.warning("tensorboard: the package is not installed, so no events are written; "
                        "pip install tensorboard, or record.tensorboard=false")  # fmt: skip
        elif asked.tensorboard:
            self._open.append(TensorBoard(directory / TENSORBOARD, settings, from_step))
        if config.mlperf.enabled:
            self._open.append(MLPerf(directory / mlperf.FILE, config, rows, world_size, from_step))
        if asked.prometheus_port is not None:
            self._open.append(Prometheus(asked.prometheus_host, asked.prometheus_port, name))
            log.info("prometheus: http://%s:%d/metrics", asked.prometheus_host, asked.prometheus_port)
        if asked.mlflow is not None:
            with _one_line_errors("record.mlflow", asked.mlflow):
                kept = directory / MLFLOW_ID
                self._open.append(MLflow(asked.mlflow, asked.mlflow_experiment, name, settings, kept))
        if asked.wandb is not None:
            with _one_line_errors("record.wandb", asked.wandb):
                self._open.append(WeightsAndBiases(asked.wandb, name, settings, directory / WANDB_ID))

    def event(self, event: AnyEvent) -> None:
        """Show one event of metrics.jsonl."""
        self._each(lambda tracker: tracker.event(event))

    def show_again(self, events: Sequence[AnyEvent], curves: Curves | None) -> None:
        """Show the last step's events again in TensorBoard, whose files were cut back; other trackers have them."""
        for board in [tracker for tracker in self._open if isinstance(tracker, TensorBoard)]:
            for event in events:
                board.event(event)
            if curves is not None and any(event.event == "eval" for event in events):
                board.curves(curves)

    def curves(self, curves: Curves | None) -> None:
        """Show the shape of an evaluation; None on ranks that have none."""
        if curves is not None:
            self._each(lambda tracker: tracker.curves(curves))

    def close(self, summary: Summary | None) -> None:
        """Close all, with the run's summary if it has one."""
        self._each(lambda tracker: tracker.close(summary))
        self._open.clear()

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._open):
            try:
                action(tracker)
            except Exception as error:  # noqa: BLE001  # a server that is down must not end a training
                log.warning("%s: no more is sent (%s: %s)", tracker.name, type(error).__name__, error)
                self._open.remove(tracker)


@contextmanager
def _one_line_errors(key: str, value: str) -> Iterator[None]:
    """Context in which a client's failure to start is reported in one line."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"{key}={value}: {type(error).__name__}: {first}; fix it, or leave the key out") from error


def require_clients(config: AppConfig) -> None:
    """Raises UserError if the client of a configured tracker is not installed."""
    if config.mlperf.enabled:
        base.require_package("mlperf.enabled", "true", "mlperf_logging")
    if config.record.mlflow is not None:
        base.require_package("record.mlflow", config.record.mlflow, "mlflow")
    if config.record.wandb is not None:
        base.require_package("record.wandb", config.record.wandb, "wandb")
