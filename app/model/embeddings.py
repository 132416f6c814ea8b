"""Tables of a model, their sizes and initial values, and the lookup that turns each bag into a vector [D].

Shapes: B samples, F sparse features, D embedding_dim, d the width of a table, L ids of a feature.
"""

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)

from app.config.model import (
    DEFAULT_MIN_ROWS,
    ModelConfig,
    Pooling,
    QROperation,
    RowWeights,
    Storage,
    TableInit,
    TableKind,
    TableOverride,
    TablesConfig,
    override_of,
    settings_of,
)
from app.model.layers import Order
from common.errors import UserError

DEFAULT_ALPHA = 0.3
REMAINDER = "_r"  # suffix of a feature's remainder, and of the table that the remainder indexes
# FBGEMM holds rows whose width is a multiple of this.
FBGEMM_MULTIPLE = 4
# The rows that one stream draws. All initial values depend on it, so another number would change every run.
INIT_BLOCK_ROWS = 65_536
VALUE_BYTES = {Storage.fp32: 4, Storage.fp16: 2, Storage.bf16: 2}


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
    """The vectors of one or more features: a table, or two that stand for it.

    rows: number of categories; ids are below it. width: of its vectors before they are projected to D. operation,
    collisions: for quotient-remainder tables only. row_weights, row_weights_path: for weighted pooling only.
    """

    name: str
    features: tuple[str, ...]
    rows: int
    width: int
    pooling: Pooling
    operation: QROperation | None
    collisions: int
    row_weights: RowWeights | None
    row_weights_path: str | None
    tables: tuple[TableSpec, ...]

    @property
    def key(self) -> str:
        """Name for modules; they may not be called `keys` or `values`, as a feature may."""
        return f"t_{self.name}"

    @property
    def by_id(self) -> bool:
        """Return whether rows are combined or weighted before they are pooled."""
        return self.tables[0].by_id


def make_embeddings(
    config: ModelConfig, num_embeddings: Mapping[str, int], multi_hot: Collection[str] | None = None
) -> list[Embedding]:
    """Return the embeddings of all features, in the order of their first feature; `num_embeddings`: rows by feature.

    A shared table has as many rows as its largest feature needs. `multi_hot`: features whose bags may have more or
    fewer ids than one (None: all). The lookup pools a bag of one id, since pooling changes nothing there.
    """
    tables, owners = config.tables, _owners(config.tables, num_embeddings)
    names = list(dict.fromkeys(owners.values()))
    rows = {name: max(num_embeddings[f] for f in owners if owners[f] == name) for name in names}
    alpha = DEFAULT_ALPHA if tables.alpha is None else tables.alpha
    rule_widths = alpha_rule(list(rows.values()), config.embedding_dim, alpha, tables.power_of_2 is not False)
    embeddings = []
    for name, rule_width in zip(names, rule_widths, strict=True):
        settings = settings_of(tables, name)
        min_rows = DEFAULT_MIN_ROWS if tables.min_rows is None else tables.min_rows
        # The bound is facebookresearch/dlrm's. An override that names a kind applies at any size.
        if override_of(tables, name).kind is None and rows[name] <= min_rows:
            settings = replace(settings, kind=TableKind.plain)
        width = config.embedding_dim
        if settings.kind is TableKind.mixed_dimension:
            width = storable_width(rule_width, width) if settings.dim is None else settings.dim
        features = tuple(feature for feature in num_embeddings if owners[feature] == name)
        is_multi_hot = multi_hot is None or not set(multi_hot).isdisjoint(features)
        embeddings.append(_make_embedding(name, features, rows[name], width, settings, is_multi_hot))
    specs = [table for embedding in embeddings for table in embedding.tables]
    for names in ([table.name for table in specs], [key for table in specs for key in table.keys]):
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"model.tables: {name} would have two meanings; rename a column or a shared table")
    return embeddings


def _make_embedding(
    name: str, features: tuple[str, ...], rows: int, width: int, settings: TableOverride, multi_hot: bool
) -> Embedding:
    """Return the embedding `name` of these features, with one table, or two for quotients and remainders.

    width: of the vector that it gives. multi_hot: whether a bag may have more or fewer ids than one.
    """
    operation = settings.qr_operation if settings.kind is TableKind.qr else None
    weighted = settings.pooling is Pooling.weighted
    if weighted and settings.row_weights is RowWeights.fixed and settings.row_weights_path is None:
        raise UserError(
            f"model.tables.overrides.{name}.row_weights_path=null: fixed weights come from a file; without one they "
            "are all 1, which is pooling=sum"
        )
    # The vector of a single id can be weighted or multiplied after pooling, which is faster than id by id.
    by_id = multi_hot and (weighted or operation is QROperation.mult)
    collisions = settings.qr_collisions or 1
    shapes = {f"t_{name}": (rows, width)}
    if operation is not None:
        dim = width // 2 if operation is QROperation.concat else width
        shapes = {f"t_{name}_q": (-(-rows // collisions), dim), f"t_{name}{REMAINDER}": (collisions, dim)}
    tables = []
    for number, (table, (height, dim)) in enumerate(shapes.items()):
        keys = tuple(feature + REMAINDER for feature in features) if number else features
        init = TableInitRange(-1 / math.sqrt(height), 1 / math.sqrt(height))
        if settings.init is TableInit.normal:
            init = TableInitRange(std=settings.init_std)
        elif settings.init is TableInit.facebookresearch and operation is not None:
            # facebookresearch/dlrm's uniform_(weight, sqrt(1 / rows)) leaves the upper bound at 1.
            init = TableInitRange(1 / math.sqrt(rows), 1.0)
        mean = settings.pooling is Pooling.mean
        tables.append(TableSpec(table, keys, height, dim, init, settings.storage or Storage.fp32, mean, by_id))
    return Embedding(
        name=name,
        features=features,
        rows=rows,
        width=width,
        pooling=settings.pooling or Pooling.sum,
        operation=operation,
        collisions=collisions if operation is not None else 1,
        row_weights=settings.row_weights if weighted else None,
        row_weights_path=settings.row_weights_path,
        tables=tuple(tables),
    )


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


def alpha_rule(num_embeddings: Sequence[int], base_dim: int, alpha: float, power_of_2: bool) -> list[int]:
    """Return the width of each table by its rows: the power rule of Ginart et al. 2019 (arXiv:1909.11810), algorithm 1.

    d_i = base_dim * (n_min / n_i)^alpha, at least 1, is rounded to an integer and then, with `power_of_2`, to the
    nearest power of 2 in the logarithm, as in facebookresearch/dlrm's md_solver. It never exceeds base_dim.
    """
    rows = np.asarray(num_embeddings, np.float64)
    dims = np.rint(np.maximum(1.0, base_dim * (rows.min() / rows) ** alpha))
    if power_of_2:
        dims = 2.0 ** np.rint(np.log2(dims))
    return [int(dim) for dim in np.minimum(dims, base_dim)]


def storable_width(dim: int, base_dim: int) -> int:
    """Return the width that FBGEMM can hold: the next multiple of 4, at most base_dim."""
    return min(-(-dim // FBGEMM_MULTIPLE) * FBGEMM_MULTIPLE, base_dim)


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


class Vectors(NamedTuple):
    """The features' vectors [B, F, D] float32.

    order: None if vectors come in the features' order; else the place [F] of each feature's vector, and its inverse.
    """

    values: Tensor
    order: Order = None


class TableArch(nn.Module):
    """Tables, in the order of their declaration, and their lookup.

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
        self.divide: QuotientsAndRemainders | None = None
        divisors = {feature: embedding.collisions for embedding in embeddings for feature in embedding.features}
        if max(divisors.values()) > 1:
            self.divide = QuotientsAndRemainders(self.feature_names, [divisors[name] for name in self.feature_names])
        self.projections = nn.ModuleDict()
        self.row_weights = nn.ModuleDict()
        for embedding in embeddings:
            if embedding.width < embedding_dim:
                # The projection of a mixed-dimension table's vectors to D, initialised as facebookresearch/dlrm does.
                projection = nn.Linear(embedding.width, embedding_dim, bias=False)
                nn.init.xavier_uniform_(projection.weight)
                self.projections[embedding.key] = projection
            if embedding.row_weights is not None:
                self.row_weights[embedding.key] = _RowWeights(embedding)
        self._order: Order = None  # order of pooled vectors, and its inverse; None: the features' order
        self._order_known = False

    def forward(self, sparse_features: KeyedJaggedTensor) -> Callable[[], Vectors]:
        """Look up F bags per sample; call the result once: it waits for other processes' vectors."""
        features = self.table_ids(sparse_features)
        pooled = None if self.bags is None else self.bags(features)
        # Without further parts no vector is copied into the features' order: interactions take the order along.
        has_more = self.divide is not None or len(self.rows) or len(self.projections) or len(self.row_weights)
        if pooled is not None and not has_more:
            return lambda: self._order_pooled(pooled)
        rows = {key: ids for collection in self.rows.values() for key, ids in collection(features).items()}
        return lambda: Vectors(self._assemble({} if pooled is None else pooled.to_dict(), rows, sparse_features))

    def table_ids(self, sparse_features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the ids that index the tables: the features' own, or their quotients and remainders."""
        return sparse_features if self.divide is None else self.divide(sparse_features)

    @property
    def collections(self) -> list[nn.Module]:
        """Collections of tables, sharded or not, in which `table_ids` are looked up."""
        return [*([] if self.bags is None else [self.bags]), *self.rows.values()]

    def _assemble(
        self, pooled: dict[str, Tensor], rows: dict[str, JaggedTensor], sparse_features: KeyedJaggedTensor
    ) -> Tensor:
        """Return vectors [B, F, D] from the lookups' results."""
        vectors = {}
        for embedding in self.embeddings:
            for feature in embedding.features:
                if embedding.by_id:
                    # Vectors [B, d]: rows combined and weighted id by id, then summed or averaged over each bag.
                    lengths = rows[feature].lengths()
                    second = rows[feature + REMAINDER].values() if embedding.operation is not None else None
                    values = _combine(embedding, rows[feature].values(), second)
                    if embedding.row_weights is not None:
                        values = values * self.row_weights[embedding.key](sparse_features[feature].values())
                    sums = torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)
                    # The mean of an empty bag is 0, not NaN.
                    vector = sums / lengths.clamp(min=1).unsqueeze(1) if embedding.pooling is Pooling.mean else sums
                else:
                    vector = _combine(embedding, pooled[feature], pooled.get(feature + REMAINDER))
                    if embedding.row_weights is not None:  # bags have one id here
                        vector = vector * self.row_weights[embedding.key](sparse_features[feature].values())
                if embedding.key in self.projections:
                    vector = self.projections[embedding.key](vector)
                vectors[feature] = vector
        return torch.stack([vectors[feature] for feature in self.feature_names], dim=1)

    def _order_pooled(self, pooled: KeyedTensor) -> Vectors:
        """Return pooled vectors with their order: a sharded collection groups features by the rank that has them."""
        values = pooled.values().view(-1, len(self.feature_names), pooled.length_per_key()[0])
        # The names of a sharded collection never change, and comparing them in each step would take the host's time.
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
    # The checkpoint holds the weights, so their file may be gone.
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
        weight = torch.ones(embedding.rows, 1)
        if embedding.row_weights_path is not None:
            path = Path(embedding.row_weights_path)
            try:
                # A pickle could run code.
                values = np.load(path, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise UserError(f"{path}: not a readable .npy file ({error})") from error
            if values.shape != (embedding.rows,) or values.dtype.kind != "f" or not np.isfinite(values).all():
                raise UserError(
                    f"{path}: {values.dtype} {values.shape}; the row weights of {embedding.name} must be "
                    f"{embedding.rows} finite floating-point numbers"
                )
            weight = torch.from_numpy(values.astype(np.float32)).unsqueeze(1)
        if embedding.row_weights is RowWeights.learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [L] to weights [L, 1]."""
        return nn.functional.embedding(ids, self.weight)


def row_collection(tables: Sequence[TableSpec]) -> EmbeddingCollection:
    """Return a collection of tables of one width, whose lookup returns the rows one by one."""
    configs = [EmbeddingConfig(**_settings(table)) for table in tables]
    return EmbeddingCollection(tables=configs, device=torch.device("meta"))


def _settings(table: TableSpec) -> dict[str, Any]:
    """Return TorchRec's settings of any table."""
    return {
        "name": table.name,
        "feature_names": list(table.keys),
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "data_type": {Storage.fp32: DataType.FP32, Storage.fp16: DataType.FP16}[table.storage],
        # TorchRec would draw initial values in an order that depends on the layout; they are filled in afterwards.
        "init_fn": lambda weight: weight,
    }


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
        # Given the output's size, the host need not wait for the device to add up the lengths.
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
