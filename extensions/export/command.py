"""python -m app.export run=runs/NAME out=model.pt2|DIR [tables=int8]: a run's model for other programs.

out=model.pt2 is a program of torch.export for the CPU and any number of samples:
torch.export.load(out).module()(dense_features, ids) gives logits. clickwork.json in the file describes its inputs.
out=DIR is a directory with the model as ONNX, its encoder and score.py, which scores raw rows
(extensions/export/directory.py). Both are compared with the model before they get their name.
"""

import json
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from app.config import AppConfig, validate
from app.config.model import require_dlrm, require_own_scores
from app.record import provenance
from app.runtime import process_group
from app.runtime.platform import Runtime
from app.scoring import served_model
from app.sharding import from_config
from app.training import resume
from app.training.resume import TrainedRun
from common.cli import EXIT_DONE
from common.documents import Json
from common.errors import UserError
from data_prep.dataset.format import Manifest
from extensions.export.documents import ExportedProgram
from extensions.export.keys import ExportConfig
from extensions.export.program import (
    COMPARED_SAMPLES,
    Program,
    export_program,
    program_of,
    random_inputs,
    save,
    uses_fbgemm,
)

log = logging.getLogger("clickwork")

CPU = torch.device("cpu")
ONNX_PACKAGES = ("onnx", "onnxruntime")


def main(config: ExportConfig) -> int:
    """Export as configured, and return the exit status."""
    trained = resume.trained_config(Path(config.run), config.runtime, config.data.path)
    validate(trained)
    require_dlrm(trained.model, "export")
    require_own_scores(trained.model, "export")
    if config.is_directory:
        _require_packages(config)
    with process_group.joined(trained, process_group.READING) as runtime:
        if runtime.world_size > 1:
            raise UserError(f"export: one process makes the file, not {runtime.world_size}; leave NPROC out")
        _export(config, trained, runtime)
    return EXIT_DONE


def _require_packages(config: ExportConfig) -> None:
    """Raise UserError unless the packages that write and run ONNX are installed."""
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise UserError(
            f"out={config.out}: a directory needs {' and '.join(missing)}; install with: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )


def _export(config: ExportConfig, trained: AppConfig, runtime: Runtime) -> None:
    """Load the model, export it, compare the export with it, and write it."""
    run = resume.open_checkpoint(Path(config.run), config.checkpoint, trained.data.path, runtime)
    correction = run.correction(config.correct_sampling)
    about: dict[str, Any] = {
        **structs.asdict(provenance.describe_run()),
        "run": str(Path(config.run)),
        "checkpoint": run.path.name,
        "step": run.state.step,
        "dataset_digest": run.manifest.digest,
        "tables": config.tables.value,
        "dense_features": run.manifest.schema["dense"],
        "sparse_features": run.manifest.num_embeddings,
        "tolerance": config.tolerance,
    }
    write = _write_directory if config.is_directory else _write_program
    difference, properties = write(config, trained, run, correction, about)
    run.log_choice()
    size = sum(file.stat().st_size for file in [Path(config.out), *Path(config.out).rglob("*")] if file.is_file())
    log.info(
        "export: %s, %.1f MB, step %d, tables %s; logits within %.1g of the model's; %s",
        config.out,
        size / 1e6,
        run.state.step,
        config.tables.value,
        difference,
        properties.pop("use"),
    )
    print(json.dumps(run.about | properties | {"largest_difference": difference}, indent=1))


def _write_directory(
    config: ExportConfig, trained: AppConfig, run: TrainedRun, correction: float, about: dict[str, Any]
) -> tuple[float, Json]:
    """Write the directory; return the largest difference in a logit, and what the command prints of it."""
    from extensions.export.directory import export_directory  # imports onnx, which programs do without

    exported = export_directory(config, trained, run, correction, about)
    difference = exported.figure("largest_difference")
    assert difference is not None
    properties = {key: getattr(exported, key) for key in ("tables", "imports", "inputs", "outputs", "model")}
    return difference, {**properties, "use": "score rows with python score.py ROWS there"}


def _write_program(
    config: ExportConfig, trained: AppConfig, run: TrainedRun, correction: float, about: dict[str, Any]
) -> tuple[float, Json]:
    """Write the file; return the largest difference in a logit, and what the command prints of it."""
    manifest = run.manifest
    model = served_model.load(run.path, trained, manifest, config.tables, CPU)
    num_dense = len(manifest.schema["dense"])
    multi_hot = from_config.multi_hot_features(trained.data.multi_hot, manifest)
    program = program_of(model, manifest.num_embeddings, multi_hot, correction)
    exported = export_program(program, num_dense, manifest.num_embeddings)
    document = ExportedProgram(
        **about,
        imports=["fbgemm_gpu"] if uses_fbgemm(exported) else [],
        inputs=_inputs(one_id_each=not multi_hot),
        rest=run.about_sampling(config.correct_sampling),
    )
    differences = []

    def check(loaded: torch.export.ExportedProgram) -> None:
        differences.append(_difference(program, loaded, num_dense, manifest))
        if not differences[0] <= config.tolerance:
            raise UserError(
                f"tolerance={config.tolerance}: a logit of the file differs from the model's by {differences[0]}"
            )

    save(exported, Path(config.out), document, check)
    properties = {key: getattr(document, key) for key in ("tables", "imports", "inputs")}
    use = f"load it with torch{' after import fbgemm_gpu' if document.imports else ' alone'}"
    return differences[0], {**properties, "use": use}


def _difference(program: Program, loaded: torch.export.ExportedProgram, num_dense: int, manifest: Manifest) -> float:
    """Return the largest difference in a logit between the loaded program and the model, over random samples."""
    run = loaded.module()
    differences = []
    for samples in COMPARED_SAMPLES:
        inputs = random_inputs(program, num_dense, manifest.num_embeddings, samples)
        with torch.no_grad():
            differences.append((run(*inputs) - program(*inputs)).abs().max().item())
    return max(differences)


def _inputs(one_id_each: bool) -> dict[str, str]:
    """Describe the program's inputs, in order."""
    dense = {"dense_features": "[B, N] float32, encoded as the dataset's"}
    if one_id_each:
        return {**dense, "ids": "[B, F] int64, one id a feature"}
    return {
        **dense,
        "ids": "[L] int64, the bags of the first feature sample after sample, then the next's",
        "lengths": "[F, B] int64, ids of each bag",
    }
