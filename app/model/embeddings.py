"""Tables of a model, their sizes and initial values, and the lookup that turns each bag into a vector [D].

Shapes: B samples, F sparse features, D embedding_dim, d the width of a table, L ids of a feature.
"""

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)

from app.config.kinds import TableForms
from app.config.model import ModelConfig, Storage, TablesConfig, settings_of
from app.model.layers import Order
from common.errors import UserError
from common.extensions import rows_of_extensions

# FBGEMM holds rows whose width is a multiple of this.
FBGEMM_MULTIPLE = 4
# The rows that one stream draws. All initial values depend on it, so another number would change every run.
INIT_BLOCK_ROWS = 65_536
VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


class TableInitRange(NamedTuple):
    """Uniform in [low, high), or normal around 0 with a standard deviation."""

    low: float = 0.0
    high: float = 0.0
    std: float | None = None


class Features(NamedTuple):
    """Features that a model is made for.

    num_embeddings: rows by feature, in the batches' order. num_dense: N, for a dataset of rows. multi_hot: features of
    rows whose bags may have more or fewer ids than one; None: all. schema: of a dataset of another kind, else None.
    """

    num_embeddings: Mapping[str, int]
    num_dense: int = 0
    multi_hot: Collection[str] | None = None
    schema: object = None


@dataclass(frozen=True)
class TableSpec:
    """A weight matrix [num_embeddings, embedding_dim].

    keys: names of the ids that index it. mean: pool bags by their mean instead of their sum. by_id: lookups return its
    rows one by one, since they are combined or weighted before pooling.
    """

    name: str
    keys: tuple[str, ...]
    num_embeddings: int
    embedding_dim: int
    init: TableInitRange
    storage: Storage
    mean: bool
    by_id: bool

    @property
    def bytes(self) -> int:
        """Bytes of its values, as they are stored."""
        return self.num_embeddings * self.embedding_dim * VALUE_BYTES[self.storage]


@dataclass(frozen=True)
class Embedding:
    """The vectors of one or more features, by a table. An extension's may have several tables, and more parts.

    rows: number of categories; ids are below it. files: that its parts were read from.
    """

    name: str
    features: tuple[str, ...]
    rows: int
    tables: tuple[TableSpec, ...]
    files: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name for modules; they may not be called `keys` or `values`, as a feature may."""
        return f"t_{self.name}"


def make_embeddings(
    config: ModelConfig, num_embeddings: Mapping[str, int], multi_hot: Collection[str] | None = None
) -> list[Embedding]:
    """Return the embeddings of all features, in the order of their first feature; `num_embeddings`: rows by feature.

    A shared table has as many rows as its largest feature needs. `multi_hot`: features whose bags may have more or
    fewer ids than one (None: all). The lookup pools a bag of one id, since pooling changes nothing there.
    """
    owners = _owners(config.tables, num_embeddings)
    names = list(dict.fromkeys(owners.values()))
    rows = {name: max(num_embeddings[f] for f in owners if owners[f] == name) for name in names}
    make = next((forms.embedding for forms in rows_of_extensions(TableForms)), plain_embedding)
    embeddings = []
    for name in names:
        features = tuple(feature for feature in num_embeddings if owners[feature] == name)
        is_multi_hot = multi_hot is None or not set(multi_hot).isdisjoint(features)
        embeddings.append(make(config, name, features, rows, is_multi_hot))
    specs = [table for embedding in embeddings for table in embedding.tables]
    # Parameters go by the names of tables, and ids by their keys.
    for used in ([table.name for table in specs], [key for table in specs for key in table.keys]):
        for name in used:
            if used.count(name) > 1:
                raise UserError(f"model.tables: {name} would have two meanings; rename a column or a shared table")
    return embeddings


def plain_embedding(
    config: ModelConfig, name: str, features: tuple[str, ...], rows: Mapping[str, int], is_multi_hot: bool
) -> Embedding:
    """Return the embedding `name` of these features, with a table of a row for each category.

    rows: of all embeddings, by name. is_multi_hot: whether a bag may have more or fewer ids than one.
    """
    settings = settings_of(config.tables, name)
    init = uniform_range(rows[name]) if settings.init != "normal" else TableInitRange(std=settings.init_std)
    table = TableSpec(
        f"t_{name}",
        features,
        rows[name],
        config.embedding_dim,
        init,
        settings.storage or "fp32",
        mean=settings.pooling == "mean",
        by_id=False,
    )
    return Embedding(name, features, rows[name], (table,))


def uniform_range(rows: int) -> TableInitRange:
    """Return the initial range of a table with this number of rows, as in TorchRec and in facebookresearch/dlrm."""
    return TableInitRange(-1 / math.sqrt(rows), 1 / math.sqrt(rows))


def _owners(tables: TablesConfig, features: Mapping[str, int]) -> dict[str, str]:
    """Return the embedding's name for each feature, in order of features: its own name, or the shared table's."""
    owners: dict[str, str] = {}
    for name, members in tables.shared.items():
        if name in features:
            raise UserError(f"model.tables.shared.{name}: a feature has this name; give the shared table another")
        if len(members) < 2:
            raise UserError(f"model.tables.shared.{name}={members}: a shared table has at least two features")
        for feature in members:
            _require_known(f"model.tables.shared.{name}", feature, features)
            if feature in owners:
                raise UserError(f"model.tables.shared.{name}: {feature} is in {owners[feature]} already")
            owners[feature] = name
    for name in tables.overrides:
        if name in owners:
            raise UserError(
                f"model.tables.overrides.{name}: its table is shared; give model.tables.overrides.{owners[name]}"
            )
        if name not in tables.shared:
            _require_known("model.tables.overrides", name, features)
    return {feature: owners.get(feature, feature) for feature in features}


def _require_known(key: str, feature: str, features: Mapping[str, int]) -> None:
    if feature not in features:
        raise UserError(f"{key}: the dataset has no sparse feature {feature}; it has {', '.join(features)}")


def initial_rows(seed: int, table: TableSpec, start: int, stop: int) -> NDArray[np.float32]:
    """Return the initial values of a table's rows [start, stop), [stop - start, d] float32.

    Each block of rows has its own counter-based stream, so values do not depend on the layout or number of processes.
    """
    # The key depends on the table's name, so further tables leave its values as they are.
    key = np.frombuffer(hashlib.sha256(f"{seed}/{table.name}".encode()).digest()[:16], dtype=np.uint64)
    rows = np.empty((stop - start, table.embedding_dim), dtype=np.float32)
    for block in range(start // INIT_BLOCK_ROWS, -(-stop // INIT_BLOCK_ROWS)):
        first = block * INIT_BLOCK_ROWS
        last = min(first + INIT_BLOCK_ROWS, table.num_embeddings)
        stream = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, block]))
        draw = stream.random if table.init.std is None else stream.standard_normal
        # A block is always drawn whole: normal draws take varying numbers of random words, so none can be left out.
        values = draw((last - first, table.embedding_dim), dtype=np.float32)
        low, high = max(start, first), min(stop, last)
        rows[low - start : high - start] = values[low - first : high - first]
    if table.init.std is not None:
        rows *= np.float32(table.init.std)
    else:
        rows *= np.float32(table.init.high - table.init.low)
        rows += np.float32(table.init.low)
    return rows


def table_of(key: str) -> str | None:
    """Return the table to which a parameter of this name belongs; None for dense parameters."""
    match = re.search(r"\.(?:embedding_bags|embeddings)\.(.+)\.weight$", key)
    return match[1] if match else None


# The features' vectors [B, F, D] float32, and their order: None if they come in the features' order; else the place [F]
# of each feature's vector, and its inverse.
Vectors: TypeAlias = tuple[Tensor, Order]


class TableArch(nn.Module):
    """Tables, in the order of their declaration, and their lookup.

    feature_of: maps each key of a table's ids to the feature that the ids are derived from.
    """

    tables: list[TableSpec]
    feature_of: dict[str, str]

    def table_ids(self, sparse_features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the ids that index the tables: the features' own."""
        return sparse_features

    @property
    def settings_before_layers(self) -> Mapping[str, str]:
        """Return, by key=value of `model.tables` that puts dense parameters behind a lookup, the value to give."""
        return {}


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Return the numbers of parameters of a whole model, sharded or not: embedding, dense and total."""
    [arch] = [part for part in model.modules() if isinstance(part, TableArch)]
    embedding = sum(table.num_embeddings * table.embedding_dim for table in arch.tables)
    dense = sum(parameter.numel() for name, parameter in model.named_parameters() if not table_of(name))
    return {"embedding": embedding, "dense": dense, "total": embedding + dense}


class SparseArch(TableArch):
    """Lookup and pooling of plain tables.

    Attributes:
        feature_names: F names, in the order of the vectors that come out.
        bags: tables whose lookup pools the rows; None if there are none.
        rows: tables that are looked up id by id, as no plain one is; one collection per width.
    """

    def __init__(self, embeddings: Sequence[Embedding], feature_names: Sequence[str]) -> None:
        """feature_names: the keys of batches, in order."""
        super().__init__()
        self.feature_names, self.embeddings = list(feature_names), list(embeddings)
        self.tables = [table for embedding in embeddings for table in embedding.tables]
        self.feature_of = {
            key: feature
            for embedding in embeddings
            for table in embedding.tables
            for key, feature in zip(table.keys, embedding.features, strict=True)
        }
        pooling = {True: PoolingType.MEAN, False: PoolingType.SUM}
        pooled = [table for table in self.tables if not table.by_id]
        bags = [EmbeddingBagConfig(**_settings(table), pooling=pooling[table.mean]) for table in pooled]
        self.bags: nn.Module | None = None
        if bags:
            self.bags = EmbeddingBagCollection(tables=bags, device=torch.device("meta"))
        # TorchRec's collection of single rows takes tables of one width only.
        by_width: dict[int, list[TableSpec]] = {}
        for table in self.tables:
            if table.by_id:
                by_width.setdefault(table.embedding_dim, []).append(table)
        self.rows = nn.ModuleDict({f"dim_{width}": row_collection(by_width[width]) for width in sorted(by_width)})
        self._order: Order = None  # order of pooled vectors, and its inverse; None: the features' order
        self._order_known = False

    def forward(self, sparse_features: KeyedJaggedTensor) -> Callable[[], Vectors]:
        """Look up F bags per sample; call the result once: it waits for other processes' vectors."""
        assert self.bags is not None
        pooled = self.bags(sparse_features)
        # No vector is copied into the features' order: interactions take the order along.
        return lambda: self._order_pooled(pooled)

    @property
    def collections(self) -> list[nn.Module]:
        """Collections of tables, sharded or not, in which `table_ids` are looked up."""
        return [*([] if self.bags is None else [self.bags]), *self.rows.values()]

    def _order_pooled(self, pooled: KeyedTensor) -> Vectors:
        """Return pooled vectors with their order: a sharded collection groups features by the rank that has them."""
        # All features have vectors of one width, D, so the first one's tells it.
        values = pooled.values().view(-1, len(self.feature_names), pooled.length_per_key()[0])
        # The names of a sharded collection never change, and comparing them in each step would take the host's time.
        if not self._order_known:
            keys = list(pooled.keys())
            if keys != self.feature_names:
                order = torch.tensor([keys.index(name) for name in self.feature_names], device=values.device)
                self._order = order, order.argsort()
            self._order_known = True
        return values, self._order


def make_sparse_arch(
    config: ModelConfig,
    num_embeddings: Mapping[str, int],
    multi_hot: Collection[str] | None = None,
    initial: bool = True,
) -> SparseArch:
    """Return the lookup that the configuration asks for; `num_embeddings`: rows by feature, in the batches' order.

    multi_hot: features whose bags may have more or fewer ids than one; None: all.
    initial: read initial values from their files; False if a checkpoint's are loaded, whose files may be gone.
    """
    embeddings = make_embeddings(config, num_embeddings, multi_hot)
    for embedding in embeddings:
        # FBGEMM's kernels, on CPUs and GPUs, are for fp32, fp16 and fp8.
        if embedding.tables[0].storage == "bf16":
            raise UserError(
                f"model.tables.storage=bf16: FBGEMM trains no bf16 tables ({embedding.name}); use fp16 or fp32"
            )
    if all(type(embedding) is Embedding for embedding in embeddings):
        return SparseArch(embeddings, list(num_embeddings))
    [forms] = rows_of_extensions(TableForms)
    return forms.arch(embeddings, list(num_embeddings), config.embedding_dim, initial)


def row_collection(tables: Sequence[TableSpec]) -> EmbeddingCollection:
    """Return a collection of tables of one width, whose lookup returns the rows one by one."""
    configs = [EmbeddingConfig(**_settings(table)) for table in tables]
    return EmbeddingCollection(tables=configs, device=torch.device("meta"))


def _settings(table: TableSpec) -> dict[str, Any]:
    """Return TorchRec's settings of a table, the same for a collection of bags and one of rows."""
    return {
        "name": table.name,
        "feature_names": list(table.keys),
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "data_type": {"fp32": DataType.FP32, "fp16": DataType.FP16}[table.storage],
        # TorchRec would draw initial values in an order that depends on the layout; they are filled in afterwards.
        "init_fn": lambda weight: weight,
    }
