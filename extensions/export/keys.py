"""Keys of `python -m app.export`."""

from dataclasses import dataclass, field

from app.config.checks import require_place
from app.config.commands import CHECKPOINT, CORRECT_SAMPLING, DatasetConfig, TablePrecision
from app.config.runtime import RuntimeConfig
from common.errors import UserError
from common.keys import MISSING, key

EXPORT_SUFFIX = ".pt2"


@dataclass(frozen=True)
class ExportConfig:
    """The run to export and the file to write."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    out: str = key(MISSING, "file to write, NAME.pt2", example="model.pt2")
    tables: TablePrecision = key(
        TablePrecision.fp32, "fp16, int8 and int4: a program that loads the file must import fbgemm_gpu"
    )
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    data: DatasetConfig = field(default_factory=DatasetConfig)
    correct_sampling: bool = key(False, CORRECT_SAMPLING)
    tolerance: float = key(1e-5, "largest difference in a logit between the file and its model", at_least=0)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads: the run's unless given


def validate_export(config: ExportConfig) -> None:
    """Raise UserError for invalid values."""
    if not config.out.endswith(EXPORT_SUFFIX):
        raise UserError(f"out={config.out}: the name must end in {EXPORT_SUFFIX}")
    require_place("out", config.out)
    if config.tables is TablePrecision.bf16:
        raise UserError("tables=bf16: FBGEMM looks up in no bf16 tables for inference; use fp16, fp32, int8 or int4")
