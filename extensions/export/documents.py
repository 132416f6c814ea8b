"""Description of an export: manifest.json of its directory. Needs no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from app.config.commands import CHECKPOINT, CORRECT_SAMPLING, DatasetConfig
from app.config.train import RuntimeConfig
from app.record.documents import Provenance
from common.documents import Number
from common.errors import UserError
from common.files import FileDigest
from common.keys import MISSING, key, require_place

# Precision of tables; int8 has a scale and a bias in fp16 per row. Arithmetic is always fp32.
TablePrecision: TypeAlias = Literal["fp32", "fp16", "int8"]


@dataclass(frozen=True)
class DirectoryConfig:
    """Settings of the directory."""

    texts: bool = key(True, "false: without the texts of values, which ids do not need (data.keep_texts)")


@dataclass(frozen=True)
class ExportConfig:
    """The run to export and the directory to write."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    out: str = key(
        MISSING,
        "a new directory with model.onnx, the encoder and score.py, for raw rows (needs onnxruntime and onnxscript)",
        example="exports/quickstart",
    )
    tables: TablePrecision = key("fp32", "precision of tables")
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    export: DirectoryConfig = field(default_factory=DirectoryConfig)
    data: DatasetConfig = field(default_factory=DatasetConfig)
    correct_sampling: bool = key(False, CORRECT_SAMPLING)
    tolerance: float = key(1e-5, "largest difference in a logit between the export and its model", at_least=0)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads: the run's unless given


def validate_export(config: ExportConfig) -> None:
    """Raise UserError for an `out` that exists or cannot be made."""
    if Path(config.out).exists():
        raise UserError(f"out={config.out}: exists; choose another name, or remove it (rm -r {config.out})")
    require_place("out", config.out)


class ExportedDirectory(Provenance, kw_only=True):
    """manifest.json of an export: a run's model and encoder as a directory.

    imports: packages that score.py imports. inputs, outputs: the model's by name, and their meaning.
    sparse_features: rows of each one's table. tolerance: of its logits against the model's. model: its file.
    files: all files but this one, with their SHA-256.
    """

    run: str
    checkpoint: str
    step: int
    dataset_digest: str
    tables: str
    imports: list[str]
    inputs: dict[str, str]
    dense_features: list[str]
    sparse_features: dict[str, int]
    tolerance: Number
    outputs: dict[str, str]
    model: str
    files: dict[str, FileDigest]
