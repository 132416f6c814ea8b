"""The configuration of `python -m app.export`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from app.config.runtime import RuntimeConfig
from app.config.serving import TablePrecision
from common.errors import UserError

SUFFIX = ".pt2"


@dataclass
class ExportConfig:
    """Which run's model becomes which file."""

    run: str = MISSING  # the run's directory
    out: str = MISSING  # the file, NAME.pt2
    tables: TablePrecision = TablePrecision.fp32  # fp16, int8 and int4: whoever loads the file must import fbgemm_gpu
    checkpoint: str | None = None  # null: the run's newest
    data_path: str | None = None  # null: where the run found its dataset
    tolerance: float = 1e-5  # largest difference in a logit between the file and the model that it was made of
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads: those of the run unless given


def validate_export(config: ExportConfig) -> None:
    """Raises UserError for values that cannot work."""
    if not config.out.endswith(SUFFIX):
        raise UserError(f"out={config.out}: the name must end in {SUFFIX}")
    if config.tables is TablePrecision.bf16:
        raise UserError("tables=bf16: FBGEMM looks up in no bf16 tables for inference; use fp16, fp32, int8 or int4")
    if not config.tolerance >= 0:
        raise UserError(f"tolerance={config.tolerance}: must be at least 0")
