"""A DLRM as an ONNX graph of the standard's own operators, for any number of samples.

The graph is built from the model's layers; docs/decisions.md says why. Shapes: B samples, N dense features, F sparse
features, D embedding_dim, d the width of a table, M ids of the longest bag, 1 for features of one id.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torchrec.modules.crossnet import LowRankCrossNet

from app.config.commands import TablePrecision
from app.config.model import Pooling, QROperation
from app.model.dlrm import DLRM, Bias, NoVectors, NumericVectors
from app.model.embeddings import Embedding, SparseArch, TableSpec, table_of
from app.model.layers import (
    EPSILON,
    BatchNorm,
    CatInteraction,
    CrossNet,
    DCNInteraction,
    DotInteraction,
    Dropout,
    Layer,
    ProjectionInteraction,
    ScalarPairsInteraction,
    SumInteraction,
)
from app.scoring.served_model import packed_rows
from common.files import sync

DENSE, IDS, LOGITS, PROBABILITIES, PREDICTIONS = "dense_features", "ids", "logits", "probabilities", "predictions"
OPSET, IR_VERSION = 17, 8  # read by ONNX Runtime from 1.12 (2022) on
DATA_SUFFIX = ".data"  # of the file beside the model that holds large tables
INLINE_BYTES = 1 << 30  # protobuf ends at 2 GiB, and is read into memory twice
EXTERNAL_FROM = 1 << 10  # smaller tensors stay in the model
PAGE = 4096  # ONNX Runtime maps tensors that begin at a page
OUTSIDE = 1 << 62  # in place of a wrong id: Gather refuses it


def bag_input(feature: str) -> str:
    """Return the name of the input of a feature whose bags may have any number of ids."""
    return f"{IDS}_{feature}"


class ModelGraph:
    """The nodes and tensors of a model.

    Attributes:
        inputs: names, with their types and shapes.
        outputs: LOGITS and PROBABILITIES, or PREDICTIONS where labels are numbers.
        tensors: weights by name.
    """

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
        """Build the graph of a model with tables in fp32.

        num_embeddings: rows of each feature's table, in the model's order. multi_hot: features whose bags may have any
        number of ids. precision: fp32, fp16 or int8. correction: added to the logits.
        """
        self.tensors: dict[str, NDArray[Any]] = {}
        self._nodes: list[Any] = []
        self._precision = precision
        self._weights = _table_weights(model)
        self._packed: dict[str, tuple[str, str | None]] = {}
        self._dense_is_one = not isinstance(model.dense_arch, NoVectors | NumericVectors)
        self._embedding_dim = _width(model.dense_arch) if isinstance(model.dense_arch, nn.Sequential) else 0
        self.inputs: dict[str, tuple[int, tuple[str | int, ...]]] = {}
        if num_dense:
            self.inputs[DENSE] = TensorProto.FLOAT, ("samples", num_dense)
        single = [feature for feature in num_embeddings if feature not in multi_hot]
        if single:
            self.inputs[IDS] = TensorProto.INT64, ("samples", len(single))
        for number, feature in enumerate(feature for feature in num_embeddings if feature in multi_hot):
            self.inputs[bag_input(feature)] = TensorProto.INT64, ("samples", f"bag_{number}")
        dense = self._dense_vectors(model)
        sparse = self._sparse_vectors(model, num_embeddings, single)
        logits = self._apply(model.over_arch, self._interact(model.interaction, dense, sparse))
        if model.linear is not None:
            weights = self._op("Gather", sparse, self._integers(0), axis=2)  # [B, F, 1]
            linear = self._op("ReduceSum", weights, self._integers(1), keepdims=0)
            logits = self._op("Add", logits, self._op("Mul", linear, self._scalar(model.linear)))
        if correction:
            logits = self._op("Add", logits, self._scalar(correction))
        self.outputs = [LOGITS, PROBABILITIES] if has_clicks else [PREDICTIONS]
        self._op("Squeeze", logits, self._integers(1), output=self.outputs[0])
        if has_clicks:
            self._op("Sigmoid", LOGITS, output=PROBABILITIES)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def save(self, path: Path, inline_bytes: int = INLINE_BYTES) -> list[Path]:
        """Write the model, its large tensors to a file beside it if they have more than `inline_bytes`.

        Returns:
            The files.
        """
        data = path.with_name(path.name + DATA_SUFFIX)
        is_external = self.num_bytes > inline_bytes
        tensors = _write_external(self.tensors, data) if is_external else _inline(self.tensors)
        graph = helper.make_graph(
            self._nodes,
            "dlrm",
            [helper.make_tensor_value_info(name, *kind) for name, kind in self.inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("samples",)) for name in self.outputs],
            tensors,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="clickwork"
        )
        path.write_bytes(model.SerializeToString())
        # Given a path, the checker also reads models beyond protobuf's 2 GiB.
        onnx.checker.check_model(str(path))
        files = [path, *([data] if is_external else [])]
        for file in files:
            sync(file)
        return files

    # ---- parts of a graph

    def _op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; return its output."""
        name = output or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def _constant(self, value: NDArray[Any] | Tensor, name: str | None = None) -> str:
        """Add a tensor; return its name."""
        name = name or f"constant_{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(value.numpy() if isinstance(value, Tensor) else value)
        return name

    def _integers(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _scalar(self, value: float, kind: Any = np.float32) -> str:
        return self._constant(np.array(value, kind))

    # ---- dense features

    def _dense_vectors(self, model: DLRM) -> str | None:
        """[B, D] of dense_arch, [B, N, D] of dense features with a vector each; None without any."""
        arch = model.dense_arch
        if isinstance(arch, NoVectors):
            return None
        if isinstance(arch, NumericVectors):
            column = self._op("Unsqueeze", DENSE, self._integers(2))
            return self._op("Mul", column, self._constant(arch.weight.detach()))
        if DENSE in self.inputs:
            return self._apply(arch, DENSE)
        # Without dense features, the number of samples comes from another input.
        shape = self._op("Shape", next(iter(self.inputs)), start=0, end=1)
        shape = self._op("Concat", shape, self._integers(1), axis=0)
        return self._apply(arch, self._op("Expand", self._constant(np.ones((1, 1), np.float32)), shape))

    def _apply(self, module: nn.Module, inputs: str) -> str:
        """Add layers from [B, n] to [B, m]."""
        if isinstance(module, nn.Sequential):
            for part in module:
                inputs = self._apply(part, inputs)
            return inputs
        if isinstance(module, nn.Linear):
            weight, bias = self._constant(module.weight.detach()), self._constant(module.bias.detach())
            outputs = self._op("Gemm", inputs, weight, bias, transB=1)
            return self._op("Relu", outputs) if isinstance(module, Layer) and module.relu else outputs
        if isinstance(module, BatchNorm):
            parts = (module.weight.detach(), module.bias.detach(), module.running_mean, module.running_var)
            constants = [self._constant(part) for part in parts]
            return self._op("BatchNormalization", inputs, *constants, epsilon=EPSILON)
        if isinstance(module, Bias):
            return self._op("Add", inputs, self._constant(module.bias.detach()))
        if isinstance(module, nn.ReLU):
            return self._op("Relu", inputs)
        # Dropout does nothing once a model is trained.
        assert isinstance(module, Dropout), type(module)
        return inputs

    # ---- sparse features

    def _sparse_vectors(self, model: DLRM, num_embeddings: Mapping[str, int], single: Sequence[str]) -> str:
        """[B, F, D], the features' vectors in their order."""
        arch = model.sparse_arch
        assert isinstance(arch, SparseArch)
        columns = {name: f"column_{number}" for number, name in enumerate(single)}
        if single:
            rows = self._constant(np.array([num_embeddings[name] for name in single], np.int64))
            checked = self._checked(IDS, rows, self._op("Less", IDS, self._scalar(0, np.int64)))
            self._nodes.append(helper.make_node("Split", [checked], list(columns.values()), axis=1))
        owners = {feature: embedding for embedding in arch.embeddings for feature in embedding.features}
        vectors = []
        for feature in arch.feature_names:
            embedding, mask = owners[feature], None
            if feature in columns:
                ids = columns[feature]
            else:
                name, rows = bag_input(feature), self._scalar(num_embeddings[feature], np.int64)
                checked = self._checked(name, rows, self._op("Less", name, self._scalar(-1, np.int64)))
                # A bag's end is filled with -1; row 0 is read in its place, and the mask removes it.
                ids = self._op("Max", checked, self._scalar(0, np.int64))
                is_id = self._op("GreaterOrEqual", name, self._scalar(0, np.int64))
                mask = self._op("Cast", is_id, to=TensorProto.FLOAT)
            vector = self._vector(arch, embedding, ids, mask)
            if embedding.key in arch.projections:
                weight = arch.projections[embedding.key].get_parameter("weight").detach().t()
                vector = self._op("MatMul", vector, self._constant(weight))
            vectors.append(vector)
        return self._op("Concat", *vectors, axis=1)

    def _checked(self, ids: str, rows: str, is_low: str) -> str:
        """Ids, with OUTSIDE in place of those that are too low or not below `rows`."""
        # Gather counts negative ids from the end of a table, so it would read a row for them.
        is_wrong = self._op("Or", is_low, self._op("GreaterOrEqual", ids, rows))
        return self._op("Where", is_wrong, self._scalar(OUTSIDE, np.int64), ids)

    def _vector(self, arch: SparseArch, embedding: Embedding, ids: str, mask: str | None) -> str:
        """[B, 1, d] of the bags [B, M]; mask [B, M]: 1 where there is an id, None if there is one everywhere."""
        if embedding.operation is None:
            vectors = self._rows(embedding.tables[0], ids)
        else:
            divisor = self._scalar(embedding.collisions, np.int64)
            quotients = self._op("Div", ids, divisor)
            remainders = self._op("Sub", ids, self._op("Mul", quotients, divisor))
            parts = [
                self._rows(table, part) for table, part in zip(embedding.tables, (quotients, remainders), strict=True)
            ]
            if embedding.operation is QROperation.pooled_mult:
                return self._op("Mul", *(self._pooled(embedding, part, mask) for part in parts))
            if embedding.operation is QROperation.concat:
                vectors = self._op("Concat", *parts, axis=2)
            else:
                vectors = self._op("Add" if embedding.operation is QROperation.add else "Mul", *parts)
        if embedding.row_weights is not None:
            weights = arch.row_weights[embedding.key].weight
            assert isinstance(weights, Tensor)
            vectors = self._op("Mul", vectors, self._op("Gather", self._constant(weights.detach()), ids))
        return self._pooled(embedding, vectors, mask)

    def _pooled(self, embedding: Embedding, vectors: str, mask: str | None) -> str:
        """[B, M, d] to [B, 1, d]."""
        if mask is None:
            return vectors
        axes = self._integers(1)
        masked = self._op("Mul", vectors, self._op("Unsqueeze", mask, self._integers(2)))
        sums = self._op("ReduceSum", masked, axes)
        if embedding.pooling is not Pooling.mean:
            return sums
        # An empty bag has the mean 0.
        count = self._op("Max", self._op("ReduceSum", mask, axes), self._scalar(1))
        return self._op("Div", sums, self._op("Unsqueeze", count, self._integers(2)))

    def _rows(self, table: TableSpec, ids: str) -> str:
        """[B, M, d] float32, a table's rows."""
        if table.name not in self._packed:
            self._packed[table.name] = self._pack(table)
        values, scale_and_bias = self._packed[table.name]
        rows = self._op("Gather", values, ids)
        if self._precision is TablePrecision.fp32:
            return rows
        rows = self._op("Cast", rows, to=TensorProto.FLOAT)
        if scale_and_bias is None:
            return rows
        name = f"scale_{len(self._nodes)}"
        pairs = self._op("Cast", self._op("Gather", scale_and_bias, ids), to=TensorProto.FLOAT)
        self._nodes.append(helper.make_node("Split", [pairs], [name, f"{name}_bias"], axis=2))
        return self._op("Add", self._op("Mul", rows, name), f"{name}_bias")

    def _pack(self, table: TableSpec) -> tuple[str, str | None]:
        """Add a table's values in the graph's precision, and of integers their rows' scale and bias [n, 2]."""
        weight = self._weights[table.name]
        if self._precision is TablePrecision.fp32:
            return self._constant(weight, table.name), None
        values, scale_and_bias = packed_rows(weight, self._precision)
        if scale_and_bias is None:
            return self._constant(values.contiguous().view(torch.float16), table.name), None
        pairs = scale_and_bias.contiguous().view(torch.float16)
        return self._constant(values, table.name), self._constant(pairs, f"{table.name}.scale_and_bias")

    # ---- interactions

    def _interact(self, module: nn.Module, dense: str | None, sparse: str) -> str:
        """Add the interaction of dense vectors and [B, F, D], to over_arch's inputs [B, n]."""
        if isinstance(module, ScalarPairsInteraction):
            assert dense is not None
            elements = self._op("Concat", self._op("Flatten", sparse), dense, axis=1)
            column, row = (self._op("Unsqueeze", elements, self._integers(axis)) for axis in (2, 1))
            return self._op("Concat", self._pairs(self._op("Mul", column, row), module.pairs), dense, axis=1)
        vectors = self._join(dense, sparse)
        if isinstance(module, DotInteraction):
            matrix = self._op("MatMul", vectors, self._op("Transpose", vectors, perm=[0, 2, 1]))
            products = self._pairs(matrix, module.pairs)
            return self._op("Concat", dense, products, axis=1) if dense and self._dense_is_one else products
        flat = self._op("Flatten", vectors)
        if isinstance(module, CatInteraction):
            return flat
        if isinstance(module, SumInteraction):
            return self._op("ReduceSum", flat, self._integers(1))
        if isinstance(module, DCNInteraction):
            crossed = self._cross(module.crossnet, flat)
            if module.deep_arch is None:
                return crossed
            return self._op("Concat", crossed, self._apply(module.deep_arch, flat), axis=1)
        assert isinstance(module, ProjectionInteraction), type(module)
        assert dense is not None
        dim = self._embedding_dim
        left, right = (
            self._op("Reshape", self._apply(branch, flat), self._integers(-1, *shape))
            for branch, shape in (
                (module.branch1, (_width(module.branch1) // dim, dim)),
                (module.branch2, (dim, _width(module.branch2) // dim)),
            )
        )
        return self._op("Concat", dense, self._op("Flatten", self._op("MatMul", left, right)), axis=1)

    def _join(self, dense: str | None, sparse: str) -> str:
        """[B, F, D], behind dense features' vectors if there are any."""
        if dense is None:
            return sparse
        if self._dense_is_one:
            dense = self._op("Unsqueeze", dense, self._integers(1))
        return self._op("Concat", dense, sparse, axis=1)

    def _pairs(self, products: str, pairs: Tensor) -> str:
        """Pick pairs [P] of [B, V, V]."""
        return self._op("Gather", self._op("Flatten", products), self._constant(pairs), axis=1)

    def _cross(self, module: nn.Module, inputs: str) -> str:
        """Add DCN v2's cross layers, [B, n] to the same."""
        outputs = inputs
        for layer in _cross_layers(module):
            product = outputs
            for weight in layer[:-1]:
                product = self._op("MatMul", product, self._constant(weight.detach().t()))
            biased = self._op("Add", product, self._constant(layer[-1].detach()))
            outputs = self._op("Add", self._op("Mul", inputs, biased), outputs)
        return outputs


def _width(branch: nn.Sequential) -> int:
    return [layer for layer in branch.modules() if isinstance(layer, nn.Linear)][-1].out_features


def _cross_layers(module: nn.Module) -> list[tuple[Tensor, ...]]:
    """Return each layer's matrices, in the order in which they multiply, and its bias."""
    if isinstance(module, CrossNet):
        return [(layer.weight, layer.bias) for layer in module.layers if isinstance(layer, nn.Linear)]
    assert isinstance(module, LowRankCrossNet), type(module)
    return list(zip(module.V_kernels, module.W_kernels, module.bias, strict=True))


def _table_weights(model: DLRM) -> dict[str, Tensor]:
    """Return the values of each table, [n, d]."""
    return {
        name: parameter.detach()
        for key, parameter in model.sparse_arch.named_parameters()
        if (name := table_of(f".{key}")) is not None
    }


def _inline(tensors: Mapping[str, NDArray[Any]]) -> list[TensorProto]:
    """Return tensors that the model's file holds."""
    return [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]


def _write_external(tensors: Mapping[str, NDArray[Any]], path: Path) -> list[TensorProto]:
    """Write large tensors to a file, each from a page's beginning on; return all of them as the model names them."""
    entries = []
    with open(path, "wb") as file:
        for name, tensor in tensors.items():
            if tensor.nbytes < EXTERNAL_FROM:
                entries.append(numpy_helper.from_array(tensor, name))
                continue
            file.write(b"\0" * (-file.tell() % PAGE))
            entry = TensorProto(name=name, dims=tensor.shape, data_location=TensorProto.EXTERNAL)
            entry.data_type = helper.np_dtype_to_tensor_dtype(tensor.dtype)
            for key, value in {"location": path.name, "offset": file.tell(), "length": tensor.nbytes}.items():
                entry.external_data.add(key=key, value=str(value))
            entries.append(entry)
            # A table is written from its own memory, as a copy might not fit.
            file.write(tensor.reshape(-1).view(np.uint8).data)
    return entries
