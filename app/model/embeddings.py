"""Embedding lookups: the module that makes a vector of D of each sparse feature's bag.

Shapes: B samples, F sparse features, D embedding_dim, d the width of a table, L ids of a feature.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchrec import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)

from app.config import ModelConfig
from app.config.tables import Pooling, QROperation, RowWeights, Storage
from app.model.interaction import Order
from app.model.tables import REMAINDER, Embedding, TableSpec, make_embeddings
from common.errors import UserError

_DATA_TYPES = {Storage.fp32: DataType.FP32, Storage.fp16: DataType.FP16}


class Vectors(NamedTuple):
    """The features' vectors [B, F, D] float32.

    order: None if they come in the features' order; else the place [F] of each feature's vector, and its inverse.
    """

    values: Tensor
    order: Order = None


class TableArch(nn.Module):
    """Tables and their lookup.

    Attributes:
        tables: weight matrices, in the order of their declaration.
        feature_of: by key of a table's ids, the feature that they are derived from.
    """

    tables: list[TableSpec]
    feature_of: dict[str, str]


class SparseArch(TableArch):
    """Lookup, pooling, and projection to vectors of one width.

    Attributes:
        feature_names: F, in the order of the vectors that come out.
        bags: the tables whose lookup pools the rows; None if there is none.
        rows: the others, one collection for each width.
    """

    def __init__(self, embeddings: Sequence[Embedding], feature_names: Sequence[str], embedding_dim: int) -> None:
        """feature_names: the keys of batches, in order.

        Raises:
            UserError: a file of row weights is invalid.
        """
        super().__init__()
        self.feature_names, self.embeddings = list(feature_names), list(embeddings)
        self.tables = [table for embedding in embeddings for table in embedding.tables]
        self.feature_of = {
            key: f for e in embeddings for t in e.tables for key, f in zip(t.keys, e.features, strict=True)
        }
        pooled = [table for table in self.tables if not table.by_id]
        self.bags: nn.Module | None = bag_collection(pooled) if pooled else None
        widths = sorted({table.embedding_dim for table in self.tables if table.by_id})
        self.rows = nn.ModuleDict(
            {f"dim_{d}": row_collection([t for t in self.tables if t.by_id and t.embedding_dim == d]) for d in widths}
        )
        self.divide: QuotientsAndRemainders | None = None
        divisors = {feature: embedding.collisions for embedding in embeddings for feature in embedding.features}
        if max(divisors.values()) > 1:
            self.divide = QuotientsAndRemainders(self.feature_names, [divisors[name] for name in self.feature_names])
        self.projections = nn.ModuleDict()
        self.row_weights = nn.ModuleDict()
        for embedding in embeddings:
            if embedding.width < embedding_dim:
                self.projections[embedding.key] = _projection(embedding.width, embedding_dim)
            if embedding.row_weights is not None:
                self.row_weights[embedding.key] = _RowWeights(embedding)
        self._order: Order = None  # of pooled vectors, and its inverse; None: as they are
        self._order_known = False

    def forward(self, sparse_features: KeyedJaggedTensor) -> Callable[[], Vectors]:
        """Look up F bags a sample; what is returned, called once, waits for other processes' vectors."""
        features = self.table_ids(sparse_features)
        pooled = None if self.bags is None else self.bags(features)
        if pooled is not None and self._is_as_pooled:
            return lambda: self._as_pooled(pooled)
        rows = {key: ids for collection in self.rows.values() for key, ids in collection(features).items()}
        return lambda: Vectors(self._assemble({} if pooled is None else pooled.to_dict(), rows, sparse_features))

    def table_ids(self, sparse_features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The ids that index the tables: the features' own, or their quotients and remainders."""
        return sparse_features if self.divide is None else self.divide(sparse_features)

    @property
    def collections(self) -> list[nn.Module]:
        """The collections of tables, sharded or not, which `table_ids` are looked up in."""
        return [*([] if self.bags is None else [self.bags]), *self.rows.values()]

    @property
    def _is_as_pooled(self) -> bool:
        """Whether the pooled bags are the vectors already."""
        return self.divide is None and not (len(self.rows) or len(self.projections) or len(self.row_weights))

    def _assemble(
        self, pooled: dict[str, Tensor], rows: dict[str, JaggedTensor], sparse_features: KeyedJaggedTensor
    ) -> Tensor:
        """[B, F, D] from the lookups' results."""
        vectors = {}
        for embedding in self.embeddings:
            for feature in embedding.features:
                if embedding.by_id:
                    vector = self._pool(embedding, feature, rows, sparse_features)
                else:
                    vector = _combine(embedding, pooled[feature], pooled.get(feature + REMAINDER))
                    if embedding.row_weights is not None:  # one id a bag
                        vector = vector * self.row_weights[embedding.key](sparse_features[feature].values())
                if embedding.key in self.projections:
                    vector = self.projections[embedding.key](vector)
                vectors[feature] = vector
        return torch.stack([vectors[feature] for feature in self.feature_names], dim=1)

    def _pool(
        self, embedding: Embedding, feature: str, rows: dict[str, JaggedTensor], sparse_features: KeyedJaggedTensor
    ) -> Tensor:
        """[B, d]: rows combined and weighted id by id, then summed or averaged over each bag."""
        lengths = rows[feature].lengths()
        second = rows[feature + REMAINDER].values() if embedding.operation is not None else None
        values = _combine(embedding, rows[feature].values(), second)
        if embedding.row_weights is not None:
            values = values * self.row_weights[embedding.key](sparse_features[feature].values())
        sums = torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)
        return sums / lengths.clamp(min=1).unsqueeze(1) if embedding.pooling is Pooling.mean else sums

    def _as_pooled(self, pooled: KeyedTensor) -> Vectors:
        """A sharded collection returns its features grouped by the rank that holds them."""
        values = pooled.values().view(-1, len(self.feature_names), pooled.length_per_key()[0])
        if not self._order_known:
            keys = list(pooled.keys())
            if keys != self.feature_names:
                order = torch.tensor([keys.index(name) for name in self.feature_names], device=values.device)
                self._order = order, order.argsort()
            self._order_known = True
        return Vectors(values, self._order)


def make_sparse_arch(
    config: ModelConfig,
    num_embeddings: Mapping[str, int],
    multi_hot: Collection[str] | None = None,
    initial: bool = True,
) -> SparseArch:
    """The embeddings that the configuration asks for; `num_embeddings`: rows by feature, in the batches' order.

    multi_hot: features whose bags may have another number of ids than one; None: all.
    initial: read initial row weights from their files; False where a checkpoint's are loaded.

    Raises:
        UserError: settings that do not fit the features, or a storage that FBGEMM does not train.
    """
    embeddings = make_embeddings(config, num_embeddings, multi_hot)
    for embedding in embeddings:
        if embedding.tables[0].storage is Storage.bf16:  # its kernels, of CPUs and GPUs, are for fp32, fp16 and fp8
            raise UserError(
                f"model.tables.storage=bf16: FBGEMM trains no bf16 tables ({embedding.name}); use fp16 or fp32"
            )
    if not initial:
        embeddings = [replace(embedding, row_weights_path=None) for embedding in embeddings]
    return SparseArch(embeddings, list(num_embeddings), config.embedding_dim)


def _combine(embedding: Embedding, first: Tensor, second: Tensor | None) -> Tensor:
    """Quotients' and remainders' rows by the embedding's operation; without one, the first as it is."""
    if embedding.operation is None or second is None:
        return first
    if embedding.operation is QROperation.add:
        return first + second
    if embedding.operation is QROperation.concat:
        return torch.cat([first, second], dim=1)
    return first * second


class _RowWeights(nn.Module):
    """One weight a category: a parameter if it is learned, which the dense optimizer trains."""

    weight: Tensor

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        weight = _initial_row_weights(embedding)
        if embedding.row_weights is RowWeights.learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, ids: Tensor) -> Tensor:
        """[L] ids to [L, 1] weights."""
        return nn.functional.embedding(ids, self.weight)


def _projection(width: int, embedding_dim: int) -> nn.Linear:
    """Projection of a mixed-dimension table's vectors to D, initialised as facebookresearch/dlrm does."""
    projection = nn.Linear(width, embedding_dim, bias=False)
    nn.init.xavier_uniform_(projection.weight)
    return projection


def _initial_row_weights(embedding: Embedding) -> Tensor:
    """[rows, 1] float32: those of its file, else ones.

    Raises:
        UserError: the file is not an array of one finite number a row.
    """
    if embedding.row_weights_path is None:
        return torch.ones(embedding.rows, 1)
    path = Path(embedding.row_weights_path)
    try:
        weights = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable .npy file ({error})") from error
    if weights.shape != (embedding.rows,) or weights.dtype.kind != "f" or not np.isfinite(weights).all():
        raise UserError(
            f"{path}: {weights.dtype} {weights.shape}; the row weights of {embedding.name} must be {embedding.rows} "
            "finite floating-point numbers"
        )
    return torch.from_numpy(weights.astype(np.float32)).unsqueeze(1)


def bag_collection(tables: Sequence[TableSpec]) -> EmbeddingBagCollection:
    """Tables whose lookup pools the rows."""
    pooling = {True: PoolingType.MEAN, False: PoolingType.SUM}
    configs = [EmbeddingBagConfig(**_settings(table), pooling=pooling[table.mean]) for table in tables]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def row_collection(tables: Sequence[TableSpec]) -> EmbeddingCollection:
    """Tables, all of one width, whose lookup returns the rows one by one."""
    return EmbeddingCollection(
        tables=[EmbeddingConfig(**_settings(table)) for table in tables], device=torch.device("meta")
    )


def _settings(table: TableSpec) -> dict[str, Any]:
    """TorchRec's settings of any table."""
    return {
        "name": table.name,
        "feature_names": list(table.keys),
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "data_type": _DATA_TYPES[table.storage],
        "init_fn": _leave_as_is,
    }


def _leave_as_is(weight: Tensor) -> Tensor:
    """TorchRec draws initial values in an order that depends on the layout; they are filled in afterwards."""
    return weight


class QuotientsAndRemainders(nn.Module):
    """Each quotient-remainder feature's ids become quotients; its remainders follow under a key of their own."""

    collisions: Tensor

    def __init__(self, features: Sequence[str], collisions: Sequence[int]) -> None:
        """features: the keys that come in, in order; collisions: the divisor of each, 1 where there is none."""
        super().__init__()
        self._keys = [*features, *(f + REMAINDER for f, c in zip(features, collisions, strict=True) if c > 1)]
        self._divided = [number for number, divisor in enumerate(collisions) if divisor > 1]
        self.register_buffer("collisions", torch.tensor(collisions, dtype=torch.int32), persistent=False)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """F keys of B bags to F keys and one more for each quotient-remainder feature, bags of the same lengths."""
        ids, lengths, stride = features.values(), features.lengths(), features.stride()
        counts, starts = features.length_per_key(), features.offset_per_key()
        per_key = lengths.view(-1, stride).sum(dim=1)
        divisors = self.collisions.to(ids.dtype).repeat_interleave(per_key, output_size=ids.numel())
        quotients = torch.div(ids, divisors, rounding_mode="floor")
        remainders = ids - quotients * divisors
        return KeyedJaggedTensor(
            keys=self._keys,
            values=torch.cat([quotients, *(remainders[starts[f] : starts[f + 1]] for f in self._divided)]),
            lengths=torch.cat([lengths, *(lengths[f * stride : (f + 1) * stride] for f in self._divided)]),
            stride=stride,
            length_per_key=[*counts, *(counts[f] for f in self._divided)],
        )
