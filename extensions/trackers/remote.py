"""MLflow and Weights & Biases, if their client is installed. A resumed run continues the same remote run."""

import importlib
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.metrics.documents import AnyEvent, Curves
from app.record.documents import Summary
from app.trackers.base import Setting, figures, one_line_errors

Settings = Mapping[str, str | int | float | bool]


class MLflow:
    """A run of an MLflow server or directory; figures are sent by MLflow's own thread."""

    name = "mlflow"

    def __init__(self, uri: str, experiment: str, run: str, settings: Settings, id_file: Path) -> None:
        """`id_file`: the file that remembers the remote run's id."""
        self._client: Any = importlib.import_module("mlflow").MlflowClient(uri)
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._id, self._last_step = (id_file.read_text().strip(), -1) if id_file.exists() else ("", -1)
        if self._id:
            history = self._client.get_metric_history(self._id, "train/loss")
            self._last_step = max((metric.step for metric in history), default=-1)
            self._client.set_terminated(self._id, status="RUNNING")
            return
        existing = self._client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else self._client.create_experiment(experiment)
        self._id = self._client.create_run(number, run_name=run).info.run_id
        params = [self._entities.Param(key, str(value)) for key, value in settings.items()]
        self._client.log_batch(self._id, params=params)
        id_file.write_text(self._id)

    def event(self, event: AnyEvent) -> None:
        """Those that were sent before an interruption are not sent again."""
        if event.step > self._last_step:
            stamp, step = time.time_ns() // 1_000_000, event.step
            metrics = [self._entities.Metric(tag, value, stamp, step) for tag, value in figures(event).items()]
            self._client.log_batch(self._id, metrics=metrics, synchronous=False)

    def curves(self, curves: Curves) -> None: ...

    def close(self, summary: Summary | None) -> None:
        is_complete = summary is not None and summary.status in ("completed", "target_reached")
        self._client.set_terminated(self._id, status="FINISHED" if is_complete else "FAILED")


class WeightsAndBiases:
    """A run of a W&B project; WANDB_MODE=offline keeps it on this machine."""

    name = "wandb"

    def __init__(self, project: str, run: str, settings: Settings, id_file: Path) -> None:
        """`id_file`: the file that remembers the run's id; W&B's own files lie beside it."""
        wandb: Any = importlib.import_module("wandb")
        number = id_file.read_text().strip() if id_file.exists() else uuid.uuid4().hex
        self._run = wandb.init(
            project=project, name=run, id=number, resume="allow", config=dict(settings), dir=str(id_file.parent)
        )
        id_file.write_text(number)

    def event(self, event: AnyEvent) -> None:
        """W&B takes steps in order only: earlier ones are left out."""
        if event.step >= self._run.step:
            self._run.log(figures(event), step=event.step)

    def curves(self, curves: Curves) -> None: ...

    def close(self, summary: Summary | None) -> None:
        is_complete = summary is not None and summary.status in ("completed", "target_reached")
        self._run.finish(exit_code=0 if is_complete else 1)


def start_mlflow(setting: Setting) -> MLflow:
    """Begin or continue MLflow's run. Raises UserError if its client cannot."""
    record, run = setting.config.record, setting.config.run.name
    uri = str(record.mlflow)
    with one_line_errors("record.mlflow", uri):
        return MLflow(uri, record.mlflow_experiment, run, setting.settings, setting.file)


def start_wandb(setting: Setting) -> WeightsAndBiases:
    """Begin or continue the run of Weights & Biases. Raises UserError if its client cannot."""
    project = str(setting.config.record.wandb)
    with one_line_errors("record.wandb", project):
        return WeightsAndBiases(project, setting.config.run.name, setting.settings, setting.file)
