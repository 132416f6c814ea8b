"""A run's model as a directory that scores raw rows without Clickwork.

    DIR/manifest.json   where it comes from, its inputs, and the SHA-256 of all other files; written last
    DIR/model.onnx      the model; model.onnx.data beside it holds large tables
    DIR/encoder/        what makes the model's inputs of raw rows
    DIR/score.py        the program that scores rows

Everything is written under a temporary name, so that a directory with its own name is whole.
"""

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor

from app.config import AppConfig
from app.config.commands import TablePrecision
from app.model.dlrm import DLRM
from app.scoring import served_model
from app.sharding import from_config
from app.training.labels import task_of
from app.training.resume import TrainedRun
from common.documents import encode
from common.errors import UserError
from common.files import digest_file, sync, write_atomically
from extensions.export.documents import ExportedDirectory
from extensions.export.encoder import ENCODER, write_encoder
from extensions.export.graph import DENSE, IDS, LOGITS, PREDICTIONS, PROBABILITIES, ModelGraph, bag_input
from extensions.export.keys import ExportConfig

COMPARED_SAMPLES = (1, 2, 257)  # of batches in which an export is compared with its model
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
    """Write the directory; about: its provenance. Return its manifest."""
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
        batches = [random_batch(num_embeddings, multi_hot, num_dense, samples) for samples in COMPARED_SAMPLES]
        difference = largest_difference(served, correction, path, batches, multi_hot)
        if not difference <= config.tolerance:
            raise UserError(
                f"tolerance={config.tolerance}: a logit of {MODEL} differs from the model's by {difference}"
            )
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
    """Give a temporary directory, which gets the name `path` at the end and is removed after an error."""
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


def random_batch(
    num_embeddings: Mapping[str, int], multi_hot: Collection[str], num_dense: int, samples: int
) -> tuple[Tensor, KeyedJaggedTensor]:
    """Draw a reproducible batch; bags of multi-hot features have zero to three ids."""
    draw = torch.Generator().manual_seed(samples)
    dense = torch.randn(samples, num_dense, generator=draw)
    lengths = torch.randint(4, (len(num_embeddings), samples), generator=draw)
    lengths[:, 0] = 2  # at least some ids
    lengths[[name not in multi_hot for name in num_embeddings]] = 1
    ids = [
        torch.randint(rows, (int(count),), generator=draw)
        for rows, count in zip(num_embeddings.values(), lengths.sum(dim=1), strict=True)
    ]
    return dense, KeyedJaggedTensor([*num_embeddings], torch.cat(ids).int(), lengths=lengths.flatten().int())


def largest_difference(
    model: DLRM,
    correction: float,
    path: Path,
    batches: Iterable[tuple[Tensor, KeyedJaggedTensor]],
    multi_hot: Collection[str],
) -> float:
    """Return the largest difference in a logit between the file in ONNX Runtime and the model."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    for dense, bags in batches:
        [logits] = session.run([session.get_outputs()[0].name], feeds_of(dense, bags, multi_hot))
        with torch.no_grad():
            expected = (model(dense, bags) + correction).numpy()
        differences.append(float(np.abs(logits - expected).max()))
    return max(differences)


def feeds_of(dense: Tensor, bags: KeyedJaggedTensor, multi_hot: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return a batch as the inputs of model.onnx."""
    feeds, single = {DENSE: dense.numpy()} if dense.shape[1] else {}, []
    for feature in bags.keys():  # noqa: SIM118 (no dict)
        ids, lengths = bags[feature].values().numpy().astype(np.int64), bags[feature].lengths().numpy()
        if feature not in multi_hot:
            single.append(ids)
            continue
        matrix = np.full((len(lengths), max(1, lengths.max())), -1, np.int64)
        matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = ids
        feeds[bag_input(feature)] = matrix
    return {**feeds, **({IDS: np.stack(single, axis=1)} if single else {})}
