"""Embedding lookups: the module that turns the bag of each sparse feature into a vector [D].

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

    order: None if vectors come in the features' order; else the place [F] of each feature's vector, and its inverse.
    """

    values: Tensor
    order: Order = None


class TableArch(nn.Module):
    """Tables and their lookup.

    Attributes:
        tables: weight matrices, in the order of their declaration.
        feature_of: maps each key of a table's ids to the feature that the ids are derived from.
    """

    tables: list[TableSpec]
    feature_of: dict[str, str]


class SparseArch(TableArch):
    """Lookup, pooling, and projection to vectors of one width.

    Attributes:
        feature_names: F names, in the order of the vectors that come out.
        bags: tables whose lookup pools the rows; None if there are none.
        rows: the other tables, one collection per width.
    """

    def __init__(self, embeddings: Sequence[Embedding], feature_names: Sequence[str], embedding_dim: int) -> None:
        """feature_names: the keys of batches, in order."""
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
        self._order: Order = None  # order of pooled vectors, and its inverse; None: the features' order
        self._order_known = False

    def forward(self, sparse_features: KeyedJaggedTensor) -> Callable[[], Vectors]:
        """Look up F bags per sample; call the result once: it waits for other processes' vectors."""
        features = self.table_ids(sparse_features)
        pooled = None if self.bags is None else self.bags(features)
        if pooled is not None and self._is_as_pooled:
            return lambda: self._as_pooled(pooled)
        rows = {key: ids for collection in self.rows.values() for key, ids in collection(features).items()}
        return lambda: Vectors(self._assemble({} if pooled is None else pooled.to_dict(), rows, sparse_features))

    def table_ids(self, sparse_features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the ids that index the tables: the features' own, or their quotients and remainders."""
        return sparse_features if self.divide is None else self.divide(sparse_features)

    @property
    def collections(self) -> list[nn.Module]:
        """Collections of tables, sharded or not, in which `table_ids` are looked up."""
        return [*([] if self.bags is None else [self.bags]), *self.rows.values()]

    @property
    def _is_as_pooled(self) -> bool:
        return self.divide is None and not (len(self.rows) or len(self.projections) or len(self.row_weights))

    def _assemble(
        self, pooled: dict[str, Tensor], rows: dict[str, JaggedTensor], sparse_features: KeyedJaggedTensor
    ) -> Tensor:
        """Return vectors [B, F, D] from the lookups' results."""
        vectors = {}
        for embedding in self.embeddings:
            for feature in embedding.features:
                if embedding.by_id:
                    vector = self._pool(embedding, feature, rows, sparse_features)
                else:
                    vector = _combine(embedding, pooled[feature], pooled.get(feature + REMAINDER))
                    if embedding.row_weights is not None:  # bags have one id here
                        vector = vector * self.row_weights[embedding.key](sparse_features[feature].values())
                if embedding.key in self.projections:
                    vector = self.projections[embedding.key](vector)
                vectors[feature] = vector
        return torch.stack([vectors[feature] for feature in self.feature_names], dim=1)

    def _pool(
        self, embedding: Embedding, feature: str, rows: dict[str, JaggedTensor], sparse_features: KeyedJaggedTensor
    ) -> Tensor:
        """Return vectors [B, d]: rows combined and weighted id by id, then summed or averaged over each bag."""
        lengths = rows[feature].lengths()
        second = rows[feature + REMAINDER].values() if embedding.operation is not None else None
        values = _combine(embedding, rows[feature].values(), second)
        if embedding.row_weights is not None:
            values = values * self.row_weights[embedding.key](sparse_features[feature].values())
        sums = torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)
        return sums / lengths.clamp(min=1).unsqueeze(1) if embedding.pooling is Pooling.mean else sums

    def _as_pooled(self, pooled: KeyedTensor) -> Vectors:
        """Return pooled vectors with their order: a sharded collection groups features by the rank that has them."""
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
    """Return the lookup that the configuration asks for; `num_embeddings`: rows by feature, in the batches' order.

    multi_hot: features whose bags may have more or fewer ids than one; None: all.
    initial: read initial row weights from their files; False if a checkpoint's are loaded.
    """
    embeddings = make_embeddings(config, num_embeddings, multi_hot)
    for embedding in embeddings:
        # FBGEMM's kernels, on CPUs and GPUs, are for fp32, fp16 and fp8.
        if embedding.tables[0].storage is Storage.bf16:
            raise UserError(
                f"model.tables.storage=bf16: FBGEMM trains no bf16 tables ({embedding.name}); use fp16 or fp32"
            )
    if not initial:
        embeddings = [replace(embedding, row_weights_path=None) for embedding in embeddings]
    return SparseArch(embeddings, list(num_embeddings), config.embedding_dim)


def _combine(embedding: Embedding, first: Tensor, second: Tensor | None) -> Tensor:
    """Combine rows of quotients and remainders by the embedding's operation; without one, return the first."""
    if embedding.operation is None or second is None:
        return first
    if embedding.operation is QROperation.add:
        return first + second
    if embedding.operation is QROperation.concat:
        return torch.cat([first, second], dim=1)
    return first * second


class _RowWeights(nn.Module):
    """One weight per category; a learned one is a parameter, which the dense optimizer trains."""

    weight: Tensor

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        weight = _initial_row_weights(embedding)
        if embedding.row_weights is RowWeights.learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [L] to weights [L, 1]."""
        return nn.functional.embedding(ids, self.weight)


def _projection(width: int, embedding_dim: int) -> nn.Linear:
    """Return the projection of a mixed-dimension table's vectors to D, initialised as facebookresearch/dlrm does."""
    projection = nn.Linear(width, embedding_dim, bias=False)
    nn.init.xavier_uniform_(projection.weight)
    return projection


def _initial_row_weights(embedding: Embedding) -> Tensor:
    """Return row weights [rows, 1] float32: those of the embedding's file, else ones."""
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
    """Return a collection of tables whose lookup pools the rows."""
    pooling = {True: PoolingType.MEAN, False: PoolingType.SUM}
    configs = [EmbeddingBagConfig(**_settings(table), pooling=pooling[table.mean]) for table in tables]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def row_collection(tables: Sequence[TableSpec]) -> EmbeddingCollection:
    """Return a collection of tables of one width, whose lookup returns the rows one by one."""
    return EmbeddingCollection(
        tables=[EmbeddingConfig(**_settings(table)) for table in tables], device=torch.device("meta")
    )


def _settings(table: TableSpec) -> dict[str, Any]:
    """Return TorchRec's settings of any table."""
    return {
        "name": table.name,
        "feature_names": list(table.keys),
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "data_type": _DATA_TYPES[table.storage],
        "init_fn": _leave_as_is,
    }


def _leave_as_is(weight: Tensor) -> Tensor:
    """Leave the weight alone: TorchRec would draw initial values in an order that depends on the layout.

    They are filled in afterwards.
    """
    return weight


class QuotientsAndRemainders(nn.Module):
    """Turns ids of quotient-remainder features into quotients; the remainders follow under keys of their own."""

    collisions: Tensor

    def __init__(self, features: Sequence[str], collisions: Sequence[int]) -> None:
        """features: the input's keys, in order; collisions: each one's divisor, 1 if it is not divided."""
        super().__init__()
        self._keys = [*features, *(f + REMAINDER for f, c in zip(features, collisions, strict=True) if c > 1)]
        self._divided = [number for number, divisor in enumerate(collisions) if divisor > 1]
        self.register_buffer("collisions", torch.tensor(collisions, dtype=torch.int32), persistent=False)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Map F keys of B bags to these and one more per quotient-remainder feature, with bags of the same lengths."""
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
