"""A run's model as a directory that scores raw rows without Clickwork.

    DIR/manifest.json   where it comes from, its inputs, and the SHA-256 of all other files; written last
    DIR/model.onnx      the model; model.onnx.data beside it holds large tables
    DIR/encoder/        what makes the model's inputs of raw rows
    DIR/score.py        the program that scores rows

Everything is written under a temporary name, so that a directory with its own name is whole.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from app.config import AppConfig
from app.config.commands import TablePrecision
from app.scoring import served_model
from app.sharding import from_config
from app.training.labels import task_of
from app.training.resume import TrainedRun
from common.documents import encode
from common.errors import UserError
from common.files import digest_file, sync, write_atomically
from data_prep.dataset.bags import offsets_of
from extensions.export.documents import ExportedDirectory
from extensions.export.encoder import ENCODER, write_encoder
from extensions.export.graph import DENSE, IDS, LOGITS, PREDICTIONS, PROBABILITIES, ModelGraph, bag_input
from extensions.export.keys import ExportConfig
from extensions.export.program import COMPARED_SAMPLES, BagsProgram, Program, program_of, random_inputs

MANIFEST, MODEL, SCORE = "manifest.json", "model.onnx", "score.py"
PACKAGES = ["numpy", "onnxruntime", "pyarrow"]  # that score.py imports
MEANINGS = {
    DENSE: "[B, N] float32, encoded as the dataset's",
    IDS: "[B, F] int64, of the features of one id, in their order",
    LOGITS: "[B] float32",
    PROBABILITIES: "[B] float32, of a click",
    PREDICTIONS: "[B] float32, the predicted numbers",
}
BAG = "[B, M] int64, bags of any number of ids, filled with -1"


def export_directory(
    config: ExportConfig, trained: AppConfig, run: TrainedRun, correction: float, about: dict[str, Any]
) -> ExportedDirectory:
    """Write the directory; about: what all exports say of themselves. Return its manifest.

    Raises:
        UserError: the model in ONNX Runtime differs from the model, or a file cannot be read or written.
    """
    manifest = run.manifest
    multi_hot = from_config.multi_hot_features(trained.data.multi_hot, manifest)
    model = served_model.load(run.path, trained, manifest, TablePrecision.fp32, torch.device("cpu"))
    num_dense, num_embeddings = len(manifest.schema["dense"]), manifest.num_embeddings
    has_clicks = task_of(manifest).has_clicks
    graph = ModelGraph(model, num_dense, num_embeddings, multi_hot, config.tables, correction, has_clicks)
    with _new_directory(Path(config.out)) as root:
        path = root / MODEL
        graph.save(path)
        served = served_model.in_precision(model, config.tables, torch.device("cpu"))
        program = program_of(served, num_embeddings, multi_hot, correction)
        difference = largest_difference(program, path, num_dense, num_embeddings, config.tolerance)
        write_encoder(root / ENCODER, run.root, manifest, trained, config.export.texts)
        shutil.copyfile(Path(__file__).with_name(SCORE), root / SCORE)
        exported = ExportedDirectory(
            **about,
            imports=PACKAGES,
            inputs={name: MEANINGS.get(name, BAG) for name in graph.inputs},
            outputs={name: MEANINGS[name] for name in graph.outputs},
            model=MODEL,
            files={str(file.relative_to(root)): digest_file(file) for file in _files(root)},
            rest={**run.about_sampling(config.correct_sampling), "largest_difference": difference},
        )
        write_atomically(root / MANIFEST, encode(exported, indent=1).encode())
    return exported


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """Give a temporary directory, which gets the name `path` at the end and is removed after an error.

    Raises:
        UserError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of an export that was interrupted
        part.mkdir(parents=True)
        yield part
        for each in (*_files(part), part):
            sync(each)
        part.rename(path)
        sync(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _files(root: Path) -> list[Path]:
    """Return the files below a directory, in order of their names."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def largest_difference(
    program: Program, path: Path, num_dense: int, num_embeddings: Mapping[str, int], tolerance: float
) -> float:
    """Return the largest difference in a logit between the file in ONNX Runtime and the program, over random samples.

    Raises:
        UserError: it is beyond the tolerance.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    for samples in COMPARED_SAMPLES:
        inputs = random_inputs(program, num_dense, num_embeddings, samples)
        [logits] = session.run([session.get_outputs()[0].name], feeds_of(program, inputs, list(num_embeddings)))
        with torch.no_grad():
            differences.append(float(np.abs(logits - program(*inputs).numpy()).max()))
    if not max(differences) <= tolerance:
        raise UserError(f"tolerance={tolerance}: a logit of {MODEL} differs from the model's by {max(differences)}")
    return max(differences)


def feeds_of(program: Program, inputs: Sequence[torch.Tensor], features: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a program as those of model.onnx."""
    dense, ids, *lengths = (tensor.numpy() for tensor in inputs)
    feeds = {DENSE: dense} if dense.shape[1] else {}
    if not isinstance(program, BagsProgram):
        return {**feeds, IDS: ids}
    [counts] = lengths
    starts = offsets_of(counts.sum(axis=1))
    single = []
    for number, feature in enumerate(features):
        bags = ids[starts[number] : starts[number + 1]]
        if feature not in program.multi_hot:
            single.append(bags)
            continue
        matrix = np.full((counts.shape[1], max(1, counts[number].max())), -1, np.int64)
        matrix[np.arange(matrix.shape[1]) < counts[number][:, None]] = bags
        feeds[bag_input(feature)] = matrix
    return {**feeds, **({IDS: np.stack(single, axis=1)} if single else {})}
