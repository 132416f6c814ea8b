"""Tables of a model: its weight matrices, their widths and their initial values."""

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config import ModelConfig
from app.config.tables import (
    DEFAULT_MIN_ROWS,
    Pooling,
    QROperation,
    RowWeights,
    Storage,
    TableConfig,
    TableInit,
    TableKind,
    TableOverride,
    TablesConfig,
    override_of,
    settings_of,
)
from common.errors import UserError

DEFAULT_ALPHA = 0.3
REMAINDER = "_r"  # suffix of a feature's remainder, and of the table that the remainder indexes
FBGEMM_MULTIPLE = 4
INIT_BLOCK_ROWS = 65_536
VALUE_BYTES = {Storage.fp32: 4, Storage.fp16: 2, Storage.bf16: 2}


class TableInitRange(NamedTuple):
    """Uniform in [low, high), or normal around 0 with a standard deviation."""

    low: float = 0.0
    high: float = 0.0
    std: float | None = None


class Features(NamedTuple):
    """Features that a model is made for.

    Attributes:
        num_embeddings: rows by feature, in the batches' order.
        num_dense: N, for a dataset of rows.
        multi_hot: features of rows whose bags may have more or fewer ids than one; None: all.
        schema: of a dataset of another kind; None for rows.
    """

    num_embeddings: Mapping[str, int]
    num_dense: int = 0
    multi_hot: Collection[str] | None = None
    schema: object = None


@dataclass(frozen=True)
class TableSpec:
    """A weight matrix [num_embeddings, embedding_dim].

    Attributes:
        keys: names of the ids that index it.
        mean: pool bags by their mean instead of their sum.
        by_id: lookups return its rows one by one, since they are combined or weighted before pooling.
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

    Attributes:
        rows: number of categories; ids are below it.
        width: width of its vectors before they are projected to D.
        operation: for quotient-remainder tables only, as is `collisions`.
        row_weights: for weighted pooling only; `row_weights_path` is their file, if any.
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
        """Whether rows are combined or weighted before they are pooled."""
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
    ruled = alpha_rule(list(rows.values()), config.embedding_dim, alpha, tables.power_of_2 is not False)
    embeddings = []
    for name, by_rule in zip(names, ruled, strict=True):
        settings = settings_of(tables, name)
        override = override_of(tables, name)
        min_rows = DEFAULT_MIN_ROWS if tables.min_rows is None else tables.min_rows
        if override.kind is None and rows[name] <= min_rows:
            settings = replace(settings, kind=TableKind.plain)
        width = config.embedding_dim
        if settings.kind is TableKind.mixed_dimension:
            width = as_stored(by_rule, width) if settings.dim is None else settings.dim
        features = tuple(feature for feature in num_embeddings if owners[feature] == name)
        embeddings.append(
            _make_embedding(
                name,
                features,
                rows[name],
                width,
                settings,
                multi_hot is None or not set(multi_hot).isdisjoint(features),
            )
        )
    specs = [table for embedding in embeddings for table in embedding.tables]
    _require_distinct([table.name for table in specs])
    _require_distinct([key for table in specs for key in table.keys])
    return embeddings


def _make_embedding(
    name: str,
    features: tuple[str, ...],
    rows: int,
    width: int,
    settings: TableOverride,
    multi_hot: bool,
) -> Embedding:
    operation = settings.qr_operation if settings.kind is TableKind.qr else None
    weighted = settings.pooling is Pooling.weighted
    if weighted and settings.row_weights is RowWeights.fixed and settings.row_weights_path is None:
        raise UserError(
            f"model.tables.overrides.{name}.row_weights_path=null: fixed weights come from a file; without one they "
            "are all 1, which is pooling=sum"
        )
    by_id = multi_hot and (weighted or operation is QROperation.mult)
    collisions = settings.qr_collisions or 1
    shapes = {f"t_{name}": (rows, width)}
    if operation is not None:
        part = width // 2 if operation is QROperation.concat else width
        shapes = {f"t_{name}_q": (-(-rows // collisions), part), f"t_{name}{REMAINDER}": (collisions, part)}
    tables = []
    for number, (table, (height, dim)) in enumerate(shapes.items()):
        keys = tuple(feature + REMAINDER for feature in features) if number else features
        init = _init_of(settings, height, rows, operation is not None)
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


def _init_of(settings: TableConfig, height: int, rows: int, is_qr: bool) -> TableInitRange:
    """Return the initial values of a matrix of `height` rows that serves `rows` categories."""
    if settings.init is TableInit.normal:
        return TableInitRange(std=settings.init_std)
    if settings.init is TableInit.facebookresearch and is_qr:
        return TableInitRange(
            1 / math.sqrt(rows), 1.0
        )  # its uniform_(weight, sqrt(1 / rows)) leaves the upper bound at 1
    return TableInitRange(-1 / math.sqrt(height), 1 / math.sqrt(height))


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


def _require_distinct(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"model.tables: {name} would have two meanings; rename a column or a shared table")


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


def as_stored(dim: int, base_dim: int) -> int:
    """Return the width that FBGEMM can hold: the next multiple of 4, at most base_dim."""
    return min(-(-dim // FBGEMM_MULTIPLE) * FBGEMM_MULTIPLE, base_dim)


def initial_rows(seed: int, table: TableSpec, start: int, stop: int) -> NDArray[np.float32]:
    """Return the initial values of a table's rows [start, stop), [stop - start, d] float32.

    Each block of rows has its own counter-based stream, so values do not depend on the layout or number of processes.
    """
    key = np.frombuffer(hashlib.sha256(f"{seed}/{table.name}".encode()).digest()[:16], dtype=np.uint64)
    rows = np.empty((stop - start, table.embedding_dim), dtype=np.float32)
    for block in range(start // INIT_BLOCK_ROWS, -(-stop // INIT_BLOCK_ROWS)):
        first = block * INIT_BLOCK_ROWS
        last = min(first + INIT_BLOCK_ROWS, table.num_embeddings)
        stream = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, block]))
        draw = stream.random if table.init.std is None else stream.standard_normal
        values = draw((last - first, table.embedding_dim), dtype=np.float32)
        low, high = max(start, first), min(stop, last)
        rows[low - start : high - start] = values[low - first : high - first]
    if table.init.std is not None:
        rows *= np.float32(table.init.std)
    else:
        rows *= np.float32(table.init.high - table.init.low)
        rows += np.float32(table.init.low)
    return rows


_WEIGHT = re.compile(r"\.(?:embedding_bags|embeddings)\.(?P<table>.+)\.weight$")


def table_of(key: str) -> str | None:
    """Return the table to which a parameter of this name belongs; None for dense parameters."""
    match = _WEIGHT.search(key)
    return match["table"] if match else None
