"""MLflow and Weights & Biases, if their client is installed. A resumed run continues the same remote run."""

import importlib
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.metrics.documents import Event
from app.record.documents import Summary
from app.trackers import Setting, figures
from common.errors import UserError
from common.extensions import keys_of_extension
from extensions.trackers import TrackersConfig

Settings = Mapping[str, str | int | float | bool]


class MLflow:
    """A run of an MLflow server or directory; figures are sent by MLflow's own thread."""

    def __init__(self, uri: str, experiment: str, run: str, settings: Settings, id_file: Path) -> None:
        """Begin a remote run, or continue the one of `id_file`, which remembers its id."""
        self._client: Any = importlib.import_module("mlflow").MlflowClient(uri)
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._id, self._last_step = (id_file.read_text(encoding="utf-8").strip(), -1) if id_file.exists() else ("", -1)
        if self._id:
            # A run that was killed may have sent steps that it trains again.
            history = self._client.get_metric_history(self._id, "train/loss")
            self._last_step = max((metric.step for metric in history), default=-1)
            self._client.set_terminated(self._id, status="RUNNING")
            return
        existing = self._client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else self._client.create_experiment(experiment)
        self._id = self._client.create_run(number, run_name=run).info.run_id
        params = [self._entities.Param(key, str(value)) for key, value in settings.items()]
        self._client.log_batch(self._id, params=params)
        id_file.write_text(self._id, encoding="utf-8")

    def event(self, event: Event) -> None:
        """Send an event, unless its step is one that an interrupted process of this run has sent."""
        if event.step > self._last_step:
            stamp, step = time.time_ns() // 1_000_000, event.step
            metrics = [self._entities.Metric(tag, value, stamp, step) for tag, value in figures(event).items()]
            self._client.log_batch(self._id, metrics=metrics, synchronous=False)

    def close(self, summary: Summary | None) -> None:
        """End the remote run: FINISHED if training completed or reached its target, else FAILED."""
        is_complete = summary is not None and summary.status in ("completed", "target_reached")
        self._client.set_terminated(self._id, status="FINISHED" if is_complete else "FAILED")


class WeightsAndBiases:
    """A run of a W&B project; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, run: str, settings: Settings, id_file: Path) -> None:
        """Begin a remote run, or continue the one of `id_file`, which remembers its id; W&B's files lie beside it."""
        wandb: Any = importlib.import_module("wandb")
        # W&B continues a run only under the id that it began with.
        number = id_file.read_text(encoding="utf-8").strip() if id_file.exists() else uuid.uuid4().hex
        self._run = wandb.init(
            project=project, name=run, id=number, resume="allow", config=dict(settings), dir=str(id_file.parent)
        )
        id_file.write_text(number, encoding="utf-8")

    def event(self, event: Event) -> None:
        """Send an event, unless it is of an earlier step: W&B takes steps in order only."""
        if event.step >= self._run.step:
            self._run.log(figures(event), step=event.step)

    def close(self, summary: Summary | None) -> None:
        """End the remote run: exit code 0 if training completed or reached its target, else 1."""
        is_complete = summary is not None and summary.status in ("completed", "target_reached")
        self._run.finish(exit_code=0 if is_complete else 1)


def start_mlflow(setting: Setting) -> MLflow:
    """Begin or continue MLflow's run. Raises UserError if its client cannot."""
    keys, run = keys_of_extension(setting.config, TrackersConfig), setting.config.run.name
    uri = str(keys.mlflow)
    with one_line_errors("trackers.mlflow", uri):
        return MLflow(uri, keys.mlflow_experiment, run, setting.settings, setting.file)


def start_wandb(setting: Setting) -> WeightsAndBiases:
    """Begin or continue the run of Weights & Biases. Raises UserError if its client cannot."""
    project = str(keys_of_extension(setting.config, TrackersConfig).wandb)
    with one_line_errors("trackers.wandb", project):
        return WeightsAndBiases(project, setting.config.run.name, setting.settings, setting.file)


@contextmanager
def one_line_errors(key: str, value: str) -> Iterator[None]:
    """Context in which a client's failure to start is reported in one line."""
    try:
        yield
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(f"{key}={value}: {type(error).__name__}: {first_line}; fix it, or leave the key out") from error
