"""Keys of `python -m app.export`."""

from dataclasses import dataclass, field
from pathlib import Path

from app.config.checks import require_place
from app.config.commands import CHECKPOINT, CORRECT_SAMPLING, DatasetConfig, TablePrecision
from app.config.runtime import RuntimeConfig
from common.errors import UserError
from common.keys import MISSING, key

EXPORT_SUFFIX = ".pt2"


@dataclass(frozen=True)
class DirectoryConfig:
    """Settings of an export as a directory."""

    texts: bool = key(True, "false: without the texts of values, which ids do not need (data.keep_texts)")


@dataclass(frozen=True)
class ExportConfig:
    """The run to export and the file to write."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    out: str = key(
        MISSING,
        "NAME.pt2: a program of torch.export; a name without an ending: a directory with model.onnx, the encoder and "
        "score.py, which scores raw rows (needs onnx and onnxruntime)",
        example="model.pt2",
    )
    tables: TablePrecision = key(
        TablePrecision.fp32,
        "fp16, int8 and int4: a program that loads NAME.pt2 must import fbgemm_gpu; a directory has no int4",
    )
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    export: DirectoryConfig = field(default_factory=DirectoryConfig)
    data: DatasetConfig = field(default_factory=DatasetConfig)
    correct_sampling: bool = key(False, CORRECT_SAMPLING)
    tolerance: float = key(1e-5, "largest difference in a logit between the export and its model", at_least=0)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads: the run's unless given

    @property
    def is_directory(self) -> bool:
        """Whether `out` is to be a directory."""
        return not Path(self.out).suffix


def validate_export(config: ExportConfig) -> None:
    """Raise UserError for invalid values."""
    if config.is_directory:
        _validate_directory(config)
        return
    require_place("out", config.out)
    if not config.out.endswith(EXPORT_SUFFIX):
        raise UserError(
            f"out={config.out}: the name must end in {EXPORT_SUFFIX}, for a program, or have no ending, for a directory"
        )
    if config.export != DirectoryConfig():
        raise UserError(f"export: has an effect on directories alone, not on out={config.out}; leave it out")
    if config.tables is TablePrecision.bf16:
        raise UserError("tables=bf16: FBGEMM looks up in no bf16 tables for inference; use fp16, fp32, int8 or int4")


def _validate_directory(config: ExportConfig) -> None:
    """Raise UserError for what a directory cannot be."""
    if Path(config.out).exists():
        raise UserError(f"out={config.out}: exists; choose another name, or remove it (rm -r {config.out})")
    require_place("out", config.out)
    if config.tables in (TablePrecision.bf16, TablePrecision.int4):
        raise UserError(
            f"tables={config.tables.value}: ONNX Runtime looks up in no such tables; use fp32, fp16 or int8"
        )
