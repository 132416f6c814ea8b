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
from app.config.kinds import TableForms
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
from app.scoring import packed_rows
from common.extensions import rows_of_extensions
from common.files import sync

DENSE, IDS, LOGITS, PROBABILITIES, PREDICTIONS = "dense_features", "ids", "logits", "probabilities", "predictions"
OPSET, IR_VERSION = 17, 8  # read by ONNX Runtime from 1.12 (2022) on
DATA_SUFFIX = ".data"  # of the file beside the model that holds large tables
INLINE_BYTES = 1 << 30  # protobuf ends at 2 GiB, and is read into memory twice
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
        # The values of each table, [n, d].
        self._weights: dict[str, Tensor] = {}
        for key, parameter in model.sparse_arch.named_parameters():
            if (table := table_of(f".{key}")) is not None:
                self._weights[table] = parameter.detach()
        # By table: the names of its rows in the graph and, for integers, of each row's scale and bias.
        self._packed: dict[str, tuple[str, str | None]] = {}
        # Whether the dense features have one vector together, not one each.
        self._dense_is_one = not isinstance(model.dense_arch, NoVectors | NumericVectors)
        self._embedding_dim = _output_width(model.dense_arch) if isinstance(model.dense_arch, nn.Sequential) else 0
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
        logits = self._apply_layers(model.over_arch, self._apply_interaction(model.interaction, dense, sparse))
        if model.linear is not None:
            weights = self.add_node("Gather", sparse, self._add_integers(0), axis=2)  # [B, F, 1]
            linear = self.add_node("ReduceSum", weights, self._add_integers(1), keepdims=0)
            logits = self.add_node("Add", logits, self.add_node("Mul", linear, self.add_scalar(model.linear)))
        if correction:
            logits = self.add_node("Add", logits, self.add_scalar(correction))
        self.outputs = [LOGITS, PROBABILITIES] if has_clicks else [PREDICTIONS]
        self.add_node("Squeeze", logits, self._add_integers(1), output=self.outputs[0])
        if has_clicks:
            self.add_node("Sigmoid", LOGITS, output=PROBABILITIES)

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
        tensors = [numpy_helper.from_array(tensor, name) for name, tensor in self.tensors.items() if not is_external]
        if is_external:
            tensors = _write_external(self.tensors, data)
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

    def add_node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node of the ONNX operator `kind`; return the name of its output."""
        name = output or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def add_constant(self, value: NDArray[Any] | Tensor, name: str | None = None) -> str:
        """Add a tensor; return its name."""
        name = name or f"constant_{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(value.numpy() if isinstance(value, Tensor) else value)
        return name

    def _add_integers(self, *values: int) -> str:
        """Add a tensor [n] int64; return its name."""
        return self.add_constant(np.array(values, np.int64))

    def add_scalar(self, value: float, dtype: Any = np.float32) -> str:
        """Add a tensor of one value and no dimension; return its name."""
        return self.add_constant(np.array(value, dtype))

    # ---- dense features

    def _dense_vectors(self, model: DLRM) -> str | None:
        """Return [B, D] of dense_arch, or [B, N, D] of dense features with a vector each; None without any."""
        arch = model.dense_arch
        if isinstance(arch, NoVectors):
            return None
        if isinstance(arch, NumericVectors):
            column = self.add_node("Unsqueeze", DENSE, self._add_integers(2))
            return self.add_node("Mul", column, self.add_constant(arch.weight.detach()))
        if DENSE in self.inputs:
            return self._apply_layers(arch, DENSE)
        # Without dense features, the number of samples comes from another input.
        shape = self.add_node("Shape", next(iter(self.inputs)), start=0, end=1)
        shape = self.add_node("Concat", shape, self._add_integers(1), axis=0)
        return self._apply_layers(arch, self.add_node("Expand", self.add_constant(np.ones((1, 1), np.float32)), shape))

    def _apply_layers(self, module: nn.Module, inputs: str) -> str:
        """Add a module's layers to inputs [B, n]; return their outputs [B, m]."""
        if isinstance(module, nn.Sequential):
            for part in module:
                inputs = self._apply_layers(part, inputs)
            return inputs
        if isinstance(module, nn.Linear):
            weight, bias = self.add_constant(module.weight.detach()), self.add_constant(module.bias.detach())
            outputs = self.add_node("Gemm", inputs, weight, bias, transB=1)
            return self.add_node("Relu", outputs) if isinstance(module, Layer) and module.relu else outputs
        if isinstance(module, BatchNorm):
            parts = (module.weight.detach(), module.bias.detach(), module.running_mean, module.running_var)
            constants = [self.add_constant(part) for part in parts]
            return self.add_node("BatchNormalization", inputs, *constants, epsilon=EPSILON)
        if isinstance(module, Bias):
            return self.add_node("Add", inputs, self.add_constant(module.bias.detach()))
        if isinstance(module, nn.ReLU):
            return self.add_node("Relu", inputs)
        # Dropout does nothing once a model is trained.
        assert isinstance(module, Dropout), type(module)
        return inputs

    # ---- sparse features

    def _sparse_vectors(self, model: DLRM, num_embeddings: Mapping[str, int], single: Sequence[str]) -> str:
        """Return the features' vectors [B, F, D] in their order; single: features of one id."""
        arch = model.sparse_arch
        assert isinstance(arch, SparseArch)
        columns = {name: f"column_{number}" for number, name in enumerate(single)}
        if single:
            rows = self.add_constant(np.array([num_embeddings[name] for name in single], np.int64))
            checked = self._check_ids(IDS, rows, self.add_node("Less", IDS, self.add_scalar(0, np.int64)))
            self._nodes.append(helper.make_node("Split", [checked], list(columns.values()), axis=1))
        owners = {feature: embedding for embedding in arch.embeddings for feature in embedding.features}
        vectors = []
        for feature in arch.feature_names:
            embedding, mask = owners[feature], None
            if feature in columns:
                ids = columns[feature]
            else:
                name, rows = bag_input(feature), self.add_scalar(num_embeddings[feature], np.int64)
                checked = self._check_ids(name, rows, self.add_node("Less", name, self.add_scalar(-1, np.int64)))
                # A bag's end is filled with -1; row 0 is read in its place, and the mask removes it.
                ids = self.add_node("Max", checked, self.add_scalar(0, np.int64))
                is_id = self.add_node("GreaterOrEqual", name, self.add_scalar(0, np.int64))
                mask = self.add_node("Cast", is_id, to=TensorProto.FLOAT)
            if type(embedding) is Embedding:
                table = embedding.tables[0]
                vectors.append(self.pool_bags(self.look_up_rows(table, ids), mask, table.mean))
            else:
                [forms] = rows_of_extensions(TableForms)
                vectors.append(forms.add_to_graph(self, arch, embedding, ids, mask))
        return self.add_node("Concat", *vectors, axis=1)

    def _check_ids(self, ids: str, rows: str, is_low: str) -> str:
        """Return ids with OUTSIDE in place of those that are `is_low` or not below `rows`."""
        # Gather counts negative ids from the end of a table, so it would read a row for them.
        is_wrong = self.add_node("Or", is_low, self.add_node("GreaterOrEqual", ids, rows))
        return self.add_node("Where", is_wrong, self.add_scalar(OUTSIDE, np.int64), ids)

    def pool_bags(self, vectors: str, mask: str | None, mean: bool) -> str:
        """Return the sums or means [B, 1, d] of a bag's vectors [B, M, d].

        mask [B, M]: 1 where there is an id; None: there is one everywhere.
        """
        if mask is None:
            return vectors
        axes = self._add_integers(1)
        masked = self.add_node("Mul", vectors, self.add_node("Unsqueeze", mask, self._add_integers(2)))
        sums = self.add_node("ReduceSum", masked, axes)
        if not mean:
            return sums
        # An empty bag has the mean 0.
        count = self.add_node("Max", self.add_node("ReduceSum", mask, axes), self.add_scalar(1))
        return self.add_node("Div", sums, self.add_node("Unsqueeze", count, self._add_integers(2)))

    def look_up_rows(self, table: TableSpec, ids: str) -> str:
        """Return the name of the rows [B, M, d] float32 of a table at ids [B, M]; packed rows are unpacked there."""
        is_new = table.name not in self._packed
        if self._precision is TablePrecision.fp32:
            if is_new:
                self._packed[table.name] = self.add_constant(self._weights[table.name], table.name), None
            return self.add_node("Gather", self._packed[table.name][0], ids)
        if is_new:
            packed, scale_and_bias = packed_rows(self._weights[table.name], self._precision)
            if scale_and_bias is None:
                self._packed[table.name] = self.add_constant(packed.contiguous().view(torch.float16), table.name), None
            else:
                # Integers have a scale and a bias for each row, [n, 2].
                halves, name = scale_and_bias.contiguous().view(torch.float16), f"{table.name}.scale_and_bias"
                self._packed[table.name] = self.add_constant(packed, table.name), self.add_constant(halves, name)
        values, pairs = self._packed[table.name]
        rows = self.add_node("Cast", self.add_node("Gather", values, ids), to=TensorProto.FLOAT)
        if pairs is None:
            return rows
        name = f"scale_{len(self._nodes)}"
        gathered = self.add_node("Cast", self.add_node("Gather", pairs, ids), to=TensorProto.FLOAT)
        self._nodes.append(helper.make_node("Split", [gathered], [name, f"{name}_bias"], axis=2))
        return self.add_node("Add", self.add_node("Mul", rows, name), f"{name}_bias")

    # ---- interactions

    def _apply_interaction(self, module: nn.Module, dense: str | None, sparse: str) -> str:
        """Add the interaction of dense vectors and [B, F, D], to over_arch's inputs [B, n]."""
        if isinstance(module, ScalarPairsInteraction):
            assert dense is not None
            elements = self.add_node("Concat", self.add_node("Flatten", sparse), dense, axis=1)
            column, row = (self.add_node("Unsqueeze", elements, self._add_integers(axis)) for axis in (2, 1))
            return self.add_node(
                "Concat", self._pick_pairs(self.add_node("Mul", column, row), module.pairs), dense, axis=1
            )
        # The dense features' vectors, if there are any, stand before the sparse ones: [B, 1 + F, D] or [B, N + F, D].
        vectors = sparse
        if dense is not None:
            ahead = self.add_node("Unsqueeze", dense, self._add_integers(1)) if self._dense_is_one else dense
            vectors = self.add_node("Concat", ahead, sparse, axis=1)
        if isinstance(module, DotInteraction):
            matrix = self.add_node("MatMul", vectors, self.add_node("Transpose", vectors, perm=[0, 2, 1]))
            products = self._pick_pairs(matrix, module.pairs)
            return self.add_node("Concat", dense, products, axis=1) if dense and self._dense_is_one else products
        flat = self.add_node("Flatten", vectors)
        if isinstance(module, CatInteraction):
            return flat
        if isinstance(module, SumInteraction):
            return self.add_node("ReduceSum", flat, self._add_integers(1))
        if isinstance(module, DCNInteraction):
            # Of each cross layer [B, n] to [B, n]: its matrices in the order in which they multiply, then its bias.
            crossed, cross_net, layers = flat, module.crossnet, list[tuple[Any, ...]]()
            if isinstance(cross_net, CrossNet):
                layers = [(layer.weight, layer.bias) for layer in cross_net.layers if isinstance(layer, nn.Linear)]
            else:
                assert isinstance(cross_net, LowRankCrossNet), type(cross_net)
                layers = list(zip(cross_net.V_kernels, cross_net.W_kernels, cross_net.bias, strict=True))
            for layer in layers:
                product = crossed
                for weight in layer[:-1]:
                    product = self.add_node("MatMul", product, self.add_constant(weight.detach().t()))
                biased = self.add_node("Add", product, self.add_constant(layer[-1].detach()))
                crossed = self.add_node("Add", self.add_node("Mul", flat, biased), crossed)
            if module.deep_arch is None:
                return crossed
            return self.add_node("Concat", crossed, self._apply_layers(module.deep_arch, flat), axis=1)
        assert isinstance(module, ProjectionInteraction), type(module)
        assert dense is not None
        dim = self._embedding_dim
        left, right = (
            self.add_node("Reshape", self._apply_layers(branch, flat), self._add_integers(-1, *shape))
            for branch, shape in (
                (module.branch1, (_output_width(module.branch1) // dim, dim)),
                (module.branch2, (dim, _output_width(module.branch2) // dim)),
            )
        )
        return self.add_node("Concat", dense, self.add_node("Flatten", self.add_node("MatMul", left, right)), axis=1)

    def _pick_pairs(self, products: str, pairs: Tensor) -> str:
        """Return the products [B, P] of some pairs; products: [B, V, V]; pairs: [P] flat places among V * V."""
        return self.add_node("Gather", self.add_node("Flatten", products), self.add_constant(pairs), axis=1)


def _output_width(branch: nn.Sequential) -> int:
    """Return the number of outputs of a branch's last linear layer."""
    return [layer for layer in branch.modules() if isinstance(layer, nn.Linear)][-1].out_features


def _write_external(tensors: Mapping[str, NDArray[Any]], path: Path) -> list[TensorProto]:
    """Write large tensors to a file, each from a page's beginning on; return all of them as the model names them."""
    entries = []
    with open(path, "wb") as file:
        for name, tensor in tensors.items():
            if tensor.nbytes < 1 << 10:  # small tensors stay in the model
                entries.append(numpy_helper.from_array(tensor, name))
                continue
            # ONNX Runtime maps tensors that begin at a page.
            file.write(b"\0" * (-file.tell() % 4096))
            entry = TensorProto(name=name, dims=tensor.shape, data_location=TensorProto.EXTERNAL)
            entry.data_type = helper.np_dtype_to_tensor_dtype(tensor.dtype)
            for key, value in {"location": path.name, "offset": file.tell(), "length": tensor.nbytes}.items():
                entry.external_data.add(key=key, value=str(value))
            entries.append(entry)
            # A table is written from its own memory, as a copy might not fit.
            file.write(tensor.reshape(-1).view(np.uint8).data)
    return entries
