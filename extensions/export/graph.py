"""A DLRM from padded ids to scores as a module of plain lookups, which torch.onnx exports for any number of samples.

Shapes: B samples, N dense features, F sparse features, D embedding_dim, d the width of a table, M ids of the longest
bag, 1 for features of one id.
"""

import copy
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from app.checkpoint.saver import read_tensors
from app.config.app_config import AppConfig
from app.config.kinds import TableForms
from app.model.dlrm import DLRM
from app.model.embeddings import Embedding, SparseArch, TableSpec, make_sparse_arch, table_of
from app.sharding import planner
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.files import sync
from data_prep.dataset.format import Manifest
from extensions.export.documents import TablePrecision

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
    round_tables(model, TablePrecision.fp32)
    return model.eval().requires_grad_(False)


def packed_rows(weight: Tensor, precision: TablePrecision) -> tuple[Tensor, Tensor | None]:
    """Pack rows [n, d] into fp32 or fp16 values or, for int8, uint8 values [n, d] with fp16 scale and bias [n, 2].

    For a row x, FBGEMM keeps bias = fp16(min x), scale = fp16((max x - bias) / 255), or 1 if that is 0, and the
    integers round((x - bias) / scale) within [0, 255].
    """
    weight = weight.detach().float().contiguous()
    if precision is TablePrecision.fp32:
        return weight, None
    bias, high = weight.amin(dim=1).half(), weight.amax(dim=1)
    kept = weight.half() if precision is TablePrecision.fp16 else torch.cat([bias, ((high - bias) / 255).half()])
    if not kept.isfinite().all():
        raise UserError(
            f"tables={precision.value}: a table has values up to {weight.abs().max().item():.4g}, and fp16 ends at "
            "65,504, which they, or of integers their rows' minimum and range, are kept in; use tables=fp32"
        )
    if precision is TablePrecision.fp16:
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
