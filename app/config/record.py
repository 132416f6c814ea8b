"""`record` and `mlperf`: views of a run for other tools."""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from common.keys import key


@dataclass(frozen=True)
class RecordConfig:
    """Views of a run for other tools; its own files are always written."""

    decides_bits: ClassVar[bool] = False

    tensorboard: bool = key(True, "events in the run's tensorboard/, if the tensorboard package is here")
    prometheus_port: int | None = key(
        None, "serve the newest figures as text on this port while training", at_least=1, at_most=65_535
    )
    prometheus_host: str = key("127.0.0.1", "the address to listen at; 0.0.0.0 in a container")
    mlflow: str | None = key(None, "tracking URI (a server's, or sqlite:///FILE); needs the mlflow package")
    mlflow_experiment: str = key("clickwork", "experiment that MLflow files the run under")
    wandb: str | None = key(None, "project of Weights & Biases; needs the wandb package")


class MLPerfDivision(Enum):
    """closed: MLPerf's own model, data and target; open: anything else."""

    closed = "closed"
    open = "open"


@dataclass(frozen=True)
class MLPerfConfig:
    """Metadata of an MLPerf submission; the log is <run.dir>/mllog.txt."""

    decides_bits: ClassVar[bool] = False

    enabled: bool = key(False, "write the log")
    benchmark: str = key("dlrm_dcnv2", "name of MLPerf's benchmark")
    division: MLPerfDivision = key(MLPerfDivision.open, "closed: MLPerf's own model, data and target")
    organization: str = key("reference_implementation", "who submits")
    platform: str = key("reference_implementation", "name of the system")
    status: str = key("onprem", "of the system: onprem, cloud, preview, research")
