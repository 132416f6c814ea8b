"""python -m app.export run=runs/NAME out=DIR [tables=int8]: a run's model as a directory that scores raw rows.

DIR is compared with the model before it gets its name, and needs nothing of Clickwork.

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

The graph is a DLRM from padded ids to scores, a module of plain lookups, which torch.onnx exports for any number of
samples. Shapes: B samples, N dense features, F sparse features, D embedding_dim, d the width of a table, M ids of the
longest bag, 1 for features of one id.
"""

import copy
import json
import logging
import re
import shutil
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torchrec import KeyedJaggedTensor

from app.checkpoint.saver import read_tensors
from app.config.app_config import AppConfig, validate
from app.config.kinds import TableForms
from app.config.model import require_dlrm, require_own_scores
from app.data.split import bags_directory
from app.model.dlrm import DLRM
from app.model.embeddings import Embedding, SparseArch, TableSpec, make_sparse_arch, table_of
from app.record import provenance
from app.runtime import platform
from app.sharding import planner
from app.training import checkpointer
from app.training.checkpointer import TrainedRun
from app.training.predictor import task_of
from common import errors
from common.cli import EXIT_DONE
from common.command import log
from common.documents import encode
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.files import digest_file, sync, write_atomically
from data_prep import codec
from data_prep.dataset.format import Manifest
from data_prep.dataset.multi_hot import MultiHotTables
from data_prep.encoding import load_vocabulary, rules_of
from data_prep.lookup import VocabularyTexts
from extensions.export.documents import ExportConfig, ExportedDirectory, TablePrecision

DENSE, IDS, LOGITS, PROBABILITIES, PREDICTIONS = "dense_features", "ids", "logits", "probabilities", "predictions"
OPSET, IR_VERSION = 18, 8  # read by ONNX Runtime from 1.14 (2023) on
INLINE_BYTES = 1 << 30  # protobuf ends at 2 GiB, and is read into memory twice
OUTSIDE = 1 << 62  # in place of a wrong id: Gather refuses it


def bag_input(feature: str) -> str:
    """Return the name of the input of a feature whose bags may have any number of ids."""
    return f"{IDS}_{feature}"


def make_whole_model(config: AppConfig, manifest: Manifest) -> DLRM:
    """Return the model that the configuration names, whole and on the CPU; its tables' values are not set."""
    multi_hot = planner.multi_hot_features(config.data.multi_hot, manifest)
    sparse_arch = make_sparse_arch(config.model, manifest.num_embeddings, multi_hot, initial=False)
    model = DLRM(config.model, len(manifest.schema["dense"]), len(manifest.num_embeddings), sparse_arch)
    # Tables are declared without memory, which a whole model needs here.
    for collection in sparse_arch.collections:
        collection.to_empty(device=torch.device("cpu"))
    return model


def load_model(checkpoint: Path, config: AppConfig, manifest: Manifest) -> DLRM:
    """Return a checkpoint's model, whole, with tables in fp32. Raise UserError for a checkpoint that does not fit."""
    model = make_whole_model(config, manifest)
    read_tensors(checkpoint, {"model": model.state_dict()})
    round_tables(model, "fp32")
    return model.eval().requires_grad_(False)


def packed_rows(weight: Tensor, precision: TablePrecision) -> tuple[Tensor, Tensor | None]:
    """Pack rows [n, d] into fp32 or fp16 values or, for int8, uint8 values [n, d] with fp16 scale and bias [n, 2].

    For a row x, FBGEMM keeps bias = fp16(min x), scale = fp16((max x - bias) / 255), or 1 if that is 0, and the
    integers round((x - bias) / scale) within [0, 255].
    """
    weight = weight.detach().float().contiguous()
    if precision == "fp32":
        return weight, None
    bias, high = weight.amin(dim=1).half(), weight.amax(dim=1)
    kept = weight.half() if precision == "fp16" else torch.cat([bias, ((high - bias) / 255).half()])
    if not kept.isfinite().all():
        raise UserError(
            f"tables={precision}: a table has values up to {weight.abs().max().item():.4g}, and fp16 ends at "
            "65,504, which they, or of integers their rows' minimum and range, are kept in; use tables=fp32"
        )
    if precision == "fp16":
        return kept, None
    fused = torch.ops.fbgemm.FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf(weight, 8)
    return fused[:, :-4], fused[:, -4:].contiguous().view(torch.float16)


def round_tables(model: DLRM, precision: TablePrecision) -> None:
    """Round a model's tables to the values that a precision keeps, in fp32."""
    for name, parameter in model.sparse_arch.named_parameters():
        if table_of(f".{name}") is not None:
            values, pairs = packed_rows(parameter, precision)
            parameter.data = values.float()
            if pairs is not None:
                scale, bias = pairs.float().split(1, dim=1)
                parameter.data = values.float() * scale + bias


class ServedModel(nn.Module):
    """The model with tables as they are served.

    inputs: names, in the order of `forward`: of the dense features, of single ids, of each feature's bags. outputs:
    LOGITS and PROBABILITIES, or PREDICTIONS where labels are numbers.
    """

    limits: Tensor

    def __init__(
        self,
        model: DLRM,
        num_dense: int,
        num_embeddings: Mapping[str, int],
        multi_hot: Collection[str],
        precision: TablePrecision,
        correction: float = 0.0,
        has_clicks: bool = True,
    ) -> None:
        """Take the layers of a model with tables in fp32.

        num_embeddings: rows of each feature's table, in the model's order. multi_hot: features whose bags may have any
        number of ids. precision: fp32, fp16 or int8. correction: added to the logits.
        """
        super().__init__()
        self._num_dense, self._num_embeddings, self._correction = num_dense, dict(num_embeddings), correction
        self._single = [feature for feature in num_embeddings if feature not in multi_hot]
        bags = [bag_input(feature) for feature in num_embeddings if feature in multi_hot]
        self.inputs = [*([DENSE] if num_dense else []), *([IDS] if self._single else []), *bags]
        self.outputs = [LOGITS, PROBABILITIES] if has_clicks else [PREDICTIONS]
        self.register_buffer("limits", torch.tensor([num_embeddings[name] for name in self._single]))
        # The values of each table [n, d] or, packed, their integers with each row's scale and bias [n, 2].
        self._names: dict[str, str] = {}
        for key, parameter in model.sparse_arch.named_parameters():
            if (table := table_of(f".{key}")) is not None:
                self._names[table] = name = f"table_{len(self._names)}"
                values, pairs = packed_rows(parameter, precision)
                self.register_buffer(name, values)
                self.register_buffer(f"{name}_pairs", pairs)
        # The rest of the model: of its lookup, what is not a collection of tables.
        arch = copy.copy(model.sparse_arch)
        arch._modules = {name: part for name, part in arch._modules.items() if name not in ("bags", "rows")}
        self._layers = copy.copy(model)
        self._layers._modules = {**model._modules, "sparse_arch": arch}

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all weights and tables."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Map the tensors of `inputs`, dense [B, N], ids [B, F] and bags [B, M] filled with -1, to the outputs [B]."""
        by_name = dict(zip(self.inputs, inputs, strict=True))
        if IDS in by_name:
            by_name[IDS] = _refuse_wrong(by_name[IDS], 0, self.limits)
        arch = self._layers.sparse_arch
        assert isinstance(arch, SparseArch)
        owners = {feature: embedding for embedding in arch.embeddings for feature in embedding.features}
        vectors = []
        for feature in arch.feature_names:
            embedding, mask = owners[feature], None
            if feature in self._single:
                place = self._single.index(feature)
                ids = by_name[IDS][:, place : place + 1]
            else:
                bags = by_name[bag_input(feature)]
                # A bag's end is filled with -1; row 0 is read in its place, and the mask removes it.
                ids = _refuse_wrong(bags, -1, self._num_embeddings[feature]).clamp(min=0)
                mask = (bags >= 0).float()
            if type(embedding) is Embedding:
                table = embedding.tables[0]
                vectors.append(self.pool_bags(self.look_up(table, ids), mask, table.mean))
            else:
                [forms] = rows_of_extensions(TableForms)
                vectors.append(forms.served_vectors(self, arch, embedding, ids, mask))
        sparse = torch.cat(vectors, dim=1)
        dense = by_name[DENSE] if DENSE in by_name else sparse.new_zeros(sparse.shape[0], 0)
        logits = self._layers.logits_of_vectors(dense, sparse, None)
        logits = logits + self._correction if self._correction else logits
        return (logits, torch.sigmoid(logits)) if len(self.outputs) > 1 else (logits,)

    def look_up(self, table: TableSpec, ids: Tensor) -> Tensor:
        """Return the rows [B, M, d] float32 of a table at ids [B, M]; packed rows are unpacked there."""
        name = self._names[table.name]
        rows = F.embedding(ids, self.get_buffer(name)).float()
        if (pairs := self._buffers[f"{name}_pairs"]) is None:
            return rows
        scale, bias = F.embedding(ids, pairs).float().split(1, dim=2)
        return rows * scale + bias

    @staticmethod
    def pool_bags(vectors: Tensor, mask: Tensor | None, mean: bool) -> Tensor:
        """Return the sums or means [B, 1, d] of a bag's vectors [B, M, d].

        mask [B, M]: 1 where there is an id; None: there is one everywhere.
        """
        if mask is None:
            return vectors
        sums = (vectors * mask.unsqueeze(2)).sum(1, keepdim=True)
        # An empty bag has the mean 0.
        return sums / mask.sum(1).clamp(min=1).reshape(-1, 1, 1) if mean else sums

    def save(self, path: Path, inline_bytes: int = INLINE_BYTES) -> list[Path]:
        """Write the model as ONNX, tensors to a file beside it if they have more than `inline_bytes`; return files."""
        widths = {DENSE: self._num_dense, IDS: len(self._single)}
        # Two samples with bags of three ids stand for any number: torch.export would take 1 for a constant.
        example = tuple(
            torch.zeros(2, widths.get(name, 3), dtype=torch.float32 if name == DENSE else torch.int64)
            for name in self.inputs
        )
        samples = torch.export.Dim("samples")
        shapes = tuple(
            {0: samples} if name in widths else {0: samples, 1: torch.export.Dim(f"bag_{number}")}
            for number, name in enumerate(self.inputs)
        )
        with torch.no_grad(), _quiet():
            program: Any = torch.onnx.export(
                self.eval(),
                example,
                dynamo=True,
                dynamic_shapes=(shapes,),
                input_names=self.inputs,
                output_names=self.outputs,
                opset_version=OPSET,
                verbose=False,
            )
            program.model.ir_version = IR_VERSION
            # The exporter notes at each node where it stands in this program, by the paths of this machine.
            for node in program.model.graph:
                node.metadata_props.clear()
            is_external = self.num_bytes > inline_bytes
            program.save(str(path), external_data=is_external)
        files = [path, *([path.with_name(f"{path.name}.data")] if is_external else [])]
        for file in files:
            sync(file)
        return files


def _refuse_wrong(ids: Tensor, lowest: int, rows: Tensor | int) -> Tensor:
    """Return ids with OUTSIDE in place of those below `lowest` or not below `rows`."""
    # Gather counts negative ids from the end of a table, so it would read a row for them.
    return torch.where((ids < lowest) | (ids >= rows), OUTSIDE, ids)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without the notes and warnings of torch.onnx, which a user cannot act on."""
    loggers = {
        name: logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export", "onnxscript", "onnx_ir")
    }
    levels = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, logger in loggers.items():
            logger.setLevel(levels[name])


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
ONNX_PACKAGES = ("onnxruntime", "onnxscript")  # that make the directory
MEANINGS = {
    DENSE: "[B, N] float32, encoded as the dataset's",
    IDS: "[B, F] int64, of the features of one id, in their order",
    LOGITS: "[B] float32",
    PROBABILITIES: "[B] float32, of a click",
    PREDICTIONS: "[B] float32, the predicted numbers",
}
BAG = "[B, M] int64, bags of any number of ids, filled with -1"


def main(config: ExportConfig) -> int:
    """Export as configured, print and log what the directory holds, and return the exit status."""
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
        run = checkpointer.open_checkpoint(Path(config.run), config.checkpoint, trained.data.path, runtime)
        exported = export_directory(config, trained, run)
        run.log_chosen_checkpoint()
        size = sum(file.bytes for file in exported.files.values())
        difference = exported.figure("largest_difference")
        text = "export: %s, %.1f MB, step %d, tables %s; logits within %.1g of the model's; score rows with python "
        text += "score.py ROWS there"
        log.info(text, config.out, size / 1e6, run.state.step, config.tables, difference)
        properties = {key: getattr(exported, key) for key in ("tables", "imports", "inputs", "outputs", "model")}
        print(json.dumps(run.about | properties | {"largest_difference": difference}, indent=1))
    return EXIT_DONE


def export_directory(config: ExportConfig, trained: AppConfig, run: TrainedRun) -> ExportedDirectory:
    """Write the directory, and return its manifest."""
    manifest, correction = run.manifest, run.correction(config.correct_sampling)
    multi_hot = planner.multi_hot_features(trained.data.multi_hot, manifest)
    model = load_model(run.path, trained, manifest)
    num_dense, num_embeddings = len(manifest.schema["dense"]), manifest.num_embeddings
    has_clicks = task_of(manifest).has_clicks
    served = ServedModel(model, num_dense, num_embeddings, multi_hot, config.tables, correction, has_clicks)
    facts = structs.asdict(provenance.describe_run())
    further = {**facts.pop("rest"), **run.about_sampling(config.correct_sampling)}
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
            **facts,
            run=str(Path(config.run)),
            checkpoint=run.path.name,
            step=run.state.step,
            dataset_digest=manifest.digest,
            tables=config.tables,
            dense_features=manifest.schema["dense"],
            sparse_features=num_embeddings,
            tolerance=config.tolerance,
            imports=PACKAGES,
            inputs={name: MEANINGS.get(name, BAG) for name in served.inputs},
            outputs={name: MEANINGS[name] for name in served.outputs},
            model=MODEL,
            files={str(file.relative_to(root)): digest_file(file) for file in _files_below(root)},
            rest={**further, "largest_difference": difference},
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
    import onnxruntime  # not installed with the rest

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
