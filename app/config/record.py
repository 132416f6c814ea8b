"""`record` and `mlperf`: views of a run for other tools."""

from dataclasses import dataclass
from enum import Enum

from app.config.checks import require_at_least
from common.errors import UserError

MAX_PORT = 65_535


@dataclass
class RecordConfig:
    """Views of a run for other tools; its own files are always written."""

    tensorboard: bool = True  # events in the run's tensorboard/, if the tensorboard package is here
    prometheus_port: int | None = None  # serve the newest figures as text on this port while training
    prometheus_host: str = "127.0.0.1"  # the address to listen at; 0.0.0.0 in a container
    mlflow: str | None = None  # tracking URI (a server's, or file:DIR); needs the mlflow package
    mlflow_experiment: str = "clickwork"
    wandb: str | None = None  # project of Weights & Biases; needs the wandb package


def validate_record(record: RecordConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least({"record.prometheus_port": (record.prometheus_port, 1)})
    if (record.prometheus_port or 0) > MAX_PORT:
        raise UserError(f"record.prometheus_port={record.prometheus_port}: must be at most {MAX_PORT}")


class MLPerfDivision(Enum):
    """closed: MLPerf's own model, data and target; open: anything else."""

    closed = "closed"
    open = "open"


@dataclass
class MLPerfConfig:
    """Metadata of an MLPerf submission; the log is <run.dir>/mllog.txt."""

    enabled: bool = False
    benchmark: str = "dlrm_dcnv2"
    division: MLPerfDivision = MLPerfDivision.open
    organization: str = "reference_implementation"
    platform: str = "reference_implementation"
    status: str = "onprem"
