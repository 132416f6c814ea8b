"""python -m app.export run=runs/NAME out=DIR [tables=int8]: a run's model for other programs.

DIR holds the model as ONNX, its encoder and score.py, which scores raw rows (extensions/export/directory.py). It is
compared with the model before it gets its name.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import structs

from app.config.app_config import AppConfig, validate
from app.config.model import require_dlrm, require_own_scores
from app.record import provenance
from app.runtime import platform
from app.runtime.platform import Runtime
from app.training import checkpointer
from common.cli import EXIT_DONE
from common.errors import UserError
from common.log import log
from extensions.export.documents import ExportConfig

ONNX_PACKAGES = ("onnxruntime", "onnxscript")


def main(config: ExportConfig) -> int:
    """Export as configured, and return the exit status."""
    trained = checkpointer.trained_config(Path(config.run), config.runtime, config.data.path)
    validate(trained)
    require_dlrm(trained.model, "export")
    require_own_scores(trained.model, "export")
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise UserError(
            f"out={config.out}: needs {' and '.join(missing)}; install with: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )
    with platform.joined(trained, platform.READING) as runtime:
        if runtime.world_size > 1:
            raise UserError(f"export: one process makes the directory, not {runtime.world_size}; leave NPROC out")
        _write_directory(config, trained, runtime)
    return EXIT_DONE


def _write_directory(config: ExportConfig, trained: AppConfig, runtime: Runtime) -> None:
    """Load the model, write the directory, and print and log what it holds."""
    run = checkpointer.open_checkpoint(Path(config.run), config.checkpoint, trained.data.path, runtime)
    correction = run.correction(config.correct_sampling)
    facts = structs.asdict(provenance.describe_run())
    facts.pop("rest")  # the export's manifest has further keys of its own
    about: dict[str, Any] = {
        **facts,
        "run": str(Path(config.run)),
        "checkpoint": run.path.name,
        "step": run.state.step,
        "dataset_digest": run.manifest.digest,
        "tables": config.tables,
        "dense_features": run.manifest.schema["dense"],
        "sparse_features": run.manifest.num_embeddings,
        "tolerance": config.tolerance,
    }
    from extensions.export.directory import export_directory  # imports ONNX Runtime

    exported = export_directory(config, trained, run, correction, about)
    run.log_chosen_checkpoint()
    size = sum(file.stat().st_size for file in Path(config.out).rglob("*") if file.is_file())
    difference = exported.figure("largest_difference")
    log.info(
        "export: %s, %.1f MB, step %d, tables %s; logits within %.1g of the model's; score rows with python score.py "
        "ROWS there",
        config.out,
        size / 1e6,
        run.state.step,
        config.tables,
        difference,
    )
    properties = {key: getattr(exported, key) for key in ("tables", "imports", "inputs", "outputs", "model")}
    print(json.dumps(run.about | properties | {"largest_difference": difference}, indent=1))
