"""A run's model as a directory that scores raw rows without Clickwork.

    encoder/rules.json            columns, their kinds, spellings and transforms, and what an id may be
    encoder/FEATURE.arrow         a vocabulary: value (ascending), id and, if texts are exported, text
    encoder/FEATURE.bags.arrow    the bag that each id is expanded to (data.multi_hot)
    encoder/*.py                  copies of the modules that converted the dataset's rows

The copies need NumPy and pyarrow alone, so the same code reads rows for a dataset and for an exported model.

    DIR/manifest.json   where it comes from, its inputs, and the SHA-256 of all other files; written last
    DIR/model.onnx      the model; model.onnx.data beside it holds large tables
    DIR/encoder/        what makes the model's inputs of raw rows
    DIR/score.py        the program that scores rows

Everything is written under a temporary name, so that a directory with its own name is whole.
"""

import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor

from app.config.app_config import AppConfig
from app.data.split import bags_directory
from app.model.dlrm import DLRM
from app.sharding import planner
from app.training.checkpointer import TrainedRun
from app.training.predictor import task_of
from common import errors
from common.documents import encode
from common.errors import UserError
from common.files import digest_file, sync, write_atomically
from data_prep import codec
from data_prep.dataset.format import Manifest
from data_prep.dataset.multi_hot import MultiHotTables
from data_prep.encoding import load_vocabulary, rules_of
from data_prep.lookup import VocabularyTexts
from extensions.export.documents import ExportConfig, ExportedDirectory
from extensions.export.graph import (
    DENSE,
    IDS,
    LOGITS,
    PREDICTIONS,
    PROBABILITIES,
    ServedModel,
    bag_input,
    load_model,
    round_tables,
)

ENCODER = "encoder"
_IMPORT = re.compile(r"^from (?:common|data_prep\.codec)\.(\w+) import ", re.MULTILINE)


def write_encoder(directory: Path, root: Path, manifest: Manifest, config: AppConfig, keeps_texts: bool) -> None:
    """Write the encoder of the dataset at `root`, as a run of this configuration reads it.

    keeps_texts: whether to write the texts of values, if the dataset has kept them. Ids do not need them.
    """
    directory.mkdir()
    # A copy of the package that encodes the dataset's rows encodes new rows alike, without the rest of this program.
    for path in (Path(str(errors.__file__)), *Path(codec.__path__[0]).glob("*.py")):
        copy = _IMPORT.sub(r"from .\1 import ", path.read_text(encoding="utf-8"))
        (directory / path.name).write_text(copy, encoding="utf-8")
    rules, features = rules_of(manifest), list(manifest.num_embeddings)
    # Ids may be expanded to bags while the dataset is read.
    expanded, sizes = None, list(manifest.num_embeddings.values())
    if (bags := config.data.multi_hot.bags()) is not None:
        expanded = MultiHotTables.open(bags_directory(root, config.data), sizes, bags)
    bagged = [] if expanded is None else [name for name, size in zip(features, expanded.sizes, strict=True) if size > 1]
    for number, name in enumerate(features):
        if expanded is not None and name in bagged:
            # The bag of each id, [rows, size] int32.
            table = np.asarray(expanded.tables[number])
            array = pa.FixedSizeListArray.from_arrays(pa.array(table.reshape(-1)), table.shape[1])
            _write_arrow(directory / f"{name}.bags.arrow", pa.table({"bag": array}))
        if name in rules["vocabularies"]:
            _write_vocabulary(directory / f"{name}.arrow", root, name, manifest, keeps_texts)
    rules |= {
        "num_embeddings": manifest.num_embeddings,
        "bags": [name for name in features if name in bagged or name in manifest.ragged],
        "expanded": bagged,
    }
    write_atomically(directory / "rules.json", encode(rules, indent=1).encode())


def _write_vocabulary(path: Path, root: Path, name: str, manifest: Manifest, keeps_texts: bool) -> None:
    """Write a feature's values in ascending order with their ids and, if asked for and kept, their texts.

    The exported score.py finds a value by bisection.
    """
    values, ids = load_vocabulary(root, manifest, name)
    columns: dict[str, Any] = {"value": values, "id": ids}
    if keeps_texts and manifest.encoding["vocabulary"][name].get("texts"):
        blocks = [block.cast(pa.large_string()) for block in VocabularyTexts(root, name).blocks(1 << 20)]
        order = pa.array(ids - manifest.encoding["first_id"])
        columns["text"] = pa.concat_arrays(blocks).take(order) if blocks else pa.array([], pa.large_string())
    _write_arrow(path, pa.table(columns))


def _write_arrow(path: Path, table: pa.Table) -> None:
    """Write an Arrow file that `score.py` maps into memory: each column in one piece."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


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
    multi_hot = planner.multi_hot_features(trained.data.multi_hot, manifest)
    model = load_model(run.path, trained, manifest)
    num_dense, num_embeddings = len(manifest.schema["dense"]), manifest.num_embeddings
    has_clicks = task_of(manifest).has_clicks
    served = ServedModel(model, num_dense, num_embeddings, multi_hot, config.tables, correction, has_clicks)
    with _rename_when_whole(Path(config.out)) as root:
        path = root / MODEL
        served.save(path)
        round_tables(model, config.tables)
        batches = [random_batch(num_embeddings, multi_hot, num_dense, samples) for samples in (1, 2, 257)]
        difference = largest_difference(model, correction, path, batches, multi_hot)
        # Written so, the comparison refuses NaN, too.
        if not difference <= config.tolerance:
            raise UserError(
                f"tolerance={config.tolerance}: a logit of {MODEL} differs from the model's by {difference}"
            )
        write_encoder(root / ENCODER, run.root, manifest, trained, config.export.texts)
        shutil.copyfile(Path(__file__).with_name(SCORE), root / SCORE)
        exported = ExportedDirectory(
            **about,
            imports=PACKAGES,
            inputs={name: MEANINGS.get(name, BAG) for name in served.inputs},
            outputs={name: MEANINGS[name] for name in served.outputs},
            model=MODEL,
            files={str(file.relative_to(root)): digest_file(file) for file in _files_below(root)},
            rest={**run.about_sampling(config.correct_sampling), "largest_difference": difference},
        )
        write_atomically(root / MANIFEST, encode(exported, indent=1).encode())
    return exported


@contextmanager
def _rename_when_whole(path: Path) -> Iterator[Path]:
    """Provide a temporary directory, which gets the name `path` at the end and is removed after an error."""
    part = path.with_name(f".{path.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of an export that was interrupted
        part.mkdir(parents=True)
        yield part
        # The name promises a whole directory, so its files reach the disk first.
        for path_in_part in (*_files_below(part), part):
            sync(path_in_part)
        part.rename(path)
        sync(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _files_below(root: Path) -> list[Path]:
    """Return the files below a directory, in order of their names."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def random_batch(
    num_embeddings: Mapping[str, int], multi_hot: Collection[str], num_dense: int, samples: int
) -> tuple[Tensor, KeyedJaggedTensor]:
    """Draw numbers [samples, num_dense] and ids, seeded by `samples`; bags of multi-hot features have 0 to 3 ids."""
    draw = torch.Generator().manual_seed(samples)
    dense = torch.randn(samples, num_dense, generator=draw)
    lengths = torch.randint(4, (len(num_embeddings), samples), generator=draw)
    lengths[:, 0] = 2  # so that no multi-hot feature is without any id
    lengths[[name not in multi_hot for name in num_embeddings]] = 1
    ids = [
        torch.randint(rows, (int(count),), generator=draw)
        for rows, count in zip(num_embeddings.values(), lengths.sum(dim=1), strict=True)
    ]
    return dense, KeyedJaggedTensor([*num_embeddings], torch.cat(ids).int(), lengths=lengths.flatten().int())


def largest_difference(
    model: DLRM, correction: float, path: Path, batches: Iterable[tuple[Tensor, KeyedJaggedTensor]], multi_hot: Any
) -> float:
    """Return the largest difference in a logit between the file in ONNX Runtime and the model.

    correction: added to the model's logits, as the file's have it. multi_hot: names of features with bags.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    # The first output has the logits, or the predicted numbers: see `ServedModel.outputs`.
    for dense, bags in batches:
        [logits] = session.run([session.get_outputs()[0].name], feeds_of(dense, bags, multi_hot))
        with torch.no_grad():
            expected = (model(dense, bags) + correction).numpy()
        differences.append(float(np.abs(logits - expected).max()))
    return float(np.max(differences))  # NaN, if any logit is


def feeds_of(dense: Tensor, bags: KeyedJaggedTensor, multi_hot: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the inputs of model.onnx: numbers, single ids [B, F], ids [B, M] of each multi-hot feature, -1 padded."""
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
