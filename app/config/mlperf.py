"""`mlperf`: the log that MLPerf Training's checkers read."""

from dataclasses import dataclass
from enum import Enum


class Division(Enum):
    """closed: MLPerf's own model, data and target; open: anything else."""

    closed = "closed"
    open = "open"


@dataclass
class MLPerfConfig:
    """Who submits what; the log is <run.dir>/mllog.txt."""

    enabled: bool = False
    benchmark: str = "dlrm_dcnv2"
    division: Division = Division.open
    organization: str = "reference_implementation"
    platform: str = "reference_implementation"
    status: str = "onprem"
