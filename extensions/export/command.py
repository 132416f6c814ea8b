"""python -m app.export run=runs/NAME out=model.pt2 [tables=int8]: a run's model as one self-contained file.

A program of torch.export for the CPU and any number of samples: torch.export.load(out).module()(dense_features, ids)
gives logits. clickwork.json in the file describes its inputs. The file is read back and compared with the model
before it gets its name.
"""

import json
import logging
from pathlib import Path

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
from common.cli import EXIT_DONE
from common.errors import UserError
from data_prep.dataset.format import Manifest
from extensions.export.documents import ExportedProgram
from extensions.export.keys import ExportConfig
from extensions.export.program import Program, export_program, program_of, random_inputs, save, uses_fbgemm

log = logging.getLogger("clickwork")

CPU = torch.device("cpu")
COMPARED_SAMPLES = (1, 2, 257)


def main(config: ExportConfig) -> int:
    """Export as configured, and return the exit status."""
    trained = resume.trained_config(Path(config.run), config.runtime, config.data.path)
    validate(trained)
    require_dlrm(trained.model, "export")
    require_own_scores(trained.model, "export")
    with process_group.joined(trained, process_group.READING) as runtime:
        if runtime.world_size > 1:
            raise UserError(f"export: one process makes the file, not {runtime.world_size}; leave NPROC out")
        _export(config, trained, runtime)
    return EXIT_DONE


def _export(config: ExportConfig, trained: AppConfig, runtime: Runtime) -> None:
    """Load the model, export it, compare the program with it, and write the file."""
    out = Path(config.out)
    run = resume.open_checkpoint(Path(config.run), config.checkpoint, trained, runtime)
    manifest = run.manifest
    correction = run.correction(config.correct_sampling)
    model = served_model.load(run.path, trained, manifest, config.tables, CPU)
    num_dense = len(manifest.schema["dense"])
    multi_hot = from_config.multi_hot_features(trained, manifest)
    program = program_of(model, manifest.num_embeddings, multi_hot, correction)
    exported = export_program(program, num_dense, manifest.num_embeddings)
    about = ExportedProgram(
        **structs.asdict(provenance.describe_run()),
        run=str(Path(config.run)),
        checkpoint=run.path.name,
        step=run.state.step,
        dataset_digest=manifest.digest,
        tables=config.tables.value,
        imports=["fbgemm_gpu"] if uses_fbgemm(exported) else [],
        inputs=_inputs(one_id_each=not multi_hot),
        dense_features=manifest.schema["dense"],
        sparse_features=manifest.num_embeddings,
        tolerance=config.tolerance,
        rest=run.about_sampling(config.correct_sampling),
    )
    differences = {}

    def check(loaded: torch.export.ExportedProgram) -> None:
        differences["largest_difference"] = difference = _difference(program, loaded, num_dense, manifest)
        if not difference <= config.tolerance:
            raise UserError(
                f"tolerance={config.tolerance}: a logit of the file differs from the model's by {difference}"
            )

    save(exported, out, about, check)
    run.log_choice()
    log.info(
        "export: %s, %.1f MB, step %d, tables %s; logits within %.1g of the model's; load it with torch%s",
        out,
        out.stat().st_size / 1e6,
        run.state.step,
        config.tables.value,
        differences["largest_difference"],
        " after import fbgemm_gpu" if about.imports else " alone",
    )
    properties = {key: getattr(about, key) for key in ("tables", "imports", "inputs")}
    print(json.dumps(run.about | properties | differences, indent=1))


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
