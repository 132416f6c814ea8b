"""The tables of extensions.special_tables, their lookup, and their vectors in an exported graph.

Shapes: B samples, F sparse features, D embedding_dim, d the width of a table, L ids of a feature.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torchrec import JaggedTensor, KeyedJaggedTensor

from app.config.model import ModelConfig, override_of, settings_of
from app.model.embeddings import (
    FBGEMM_MULTIPLE,
    Embedding,
    SparseArch,
    TableInitRange,
    Vectors,
    plain_embedding,
    uniform_range,
)
from common.errors import UserError
from extensions.special_tables import QROperation, RowWeights

# The bound is facebookresearch/dlrm's.
DEFAULT_MIN_ROWS, DEFAULT_ALPHA, DEFAULT_COLLISIONS = 200, 0.3, 4
REMAINDER = "_r"  # suffix of a feature's remainder, and of the table that the remainder indexes


@dataclass(frozen=True, kw_only=True)
class SpecialEmbedding(Embedding):
    """The vectors of one or more features: a table, or two that stand for it.

    width: of its vectors before they are projected to D. operation, collisions: of quotient-remainder tables.
    row_weights: whether its rows are weighted; `files` then has the weights' file, if there is one.
    """

    width: int
    operation: QROperation | None
    collisions: int
    row_weights: RowWeights | None


def embedding(
    config: ModelConfig, name: str, features: tuple[str, ...], rows: Mapping[str, int], is_multi_hot: bool
) -> Embedding:
    """Return the embedding `name` of these features, with one table, or two for quotients and remainders.

    rows: of all embeddings, by name. is_multi_hot: whether a bag may have more or fewer ids than one.
    """
    tables: Any = config.tables
    settings: Any = settings_of(config.tables, name)
    override: Any = override_of(config.tables, name)
    kind, height = settings.kind or "plain", rows[name]
    # An override that names a kind applies at any size.
    if override.kind is None and height <= (DEFAULT_MIN_ROWS if tables.min_rows is None else tables.min_rows):
        kind = "plain"
    plain = plain_embedding(config, name, features, rows, is_multi_hot)
    if kind == "plain" and settings.row_weights is None:
        return plain
    if settings.row_weights == "fixed" and override.row_weights_path is None:
        raise UserError(
            f"model.tables.overrides.{name}.row_weights_path=null: fixed weights come from a file; without one they "
            "are all 1, which is row_weights=null"
        )
    width = config.embedding_dim
    if kind == "mixed_dimension" and settings.dim is not None:
        width = settings.dim
    elif kind == "mixed_dimension":
        alpha = DEFAULT_ALPHA if tables.alpha is None else tables.alpha
        rule_widths = alpha_rule(list(rows.values()), config.embedding_dim, alpha, tables.power_of_2 is not False)
        width = storable_width(rule_widths[list(rows).index(name)], config.embedding_dim)
    operation = (settings.qr_operation or "mult") if kind == "qr" else None
    collisions = (settings.qr_collisions or DEFAULT_COLLISIONS) if kind == "qr" else 1
    # The rows and the width of each table, by its name.
    shapes = {f"t_{name}": (height, width)}
    if operation is not None:
        dim = width // 2 if operation == "concat" else width
        shapes = {f"t_{name}_q": (-(-height // collisions), dim), f"t_{name}{REMAINDER}": (collisions, dim)}
    specs = []
    for number, (table, (table_rows, dim)) in enumerate(shapes.items()):
        init = uniform_range(table_rows)
        if settings.init == "normal":
            init = TableInitRange(std=settings.init_std)
        elif settings.init == "facebookresearch" and operation is not None:
            # facebookresearch/dlrm's uniform_(weight, sqrt(1 / rows)) leaves the upper bound at 1.
            init = TableInitRange(1 / math.sqrt(height), 1.0)
        specs.append(
            replace(
                plain.tables[0],
                name=table,
                keys=tuple(feature + REMAINDER for feature in features) if number else features,
                num_embeddings=table_rows,
                embedding_dim=dim,
                init=init,
                # The vector of a single id can be weighted or multiplied after pooling, which is faster than id by id.
                by_id=is_multi_hot and (settings.row_weights is not None or operation == "mult"),
            )
        )
    return SpecialEmbedding(
        name=name,
        features=features,
        rows=height,
        tables=tuple(specs),
        files=() if override.row_weights_path is None else (override.row_weights_path,),
        width=width,
        operation=cast(QROperation | None, operation),
        collisions=collisions,
        row_weights=settings.row_weights,
    )


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


class SpecialSparseArch(SparseArch):
    """Lookup of tables of which some are not plain, pooling, and projection to vectors of one width."""

    def __init__(
        self, embeddings: Sequence[Embedding], feature_names: Sequence[str], embedding_dim: int, initial: bool
    ) -> None:
        """initial: read weights of rows from their files; False if a checkpoint's are loaded."""
        super().__init__(embeddings, feature_names)
        self.divide: QuotientsAndRemainders | None = None
        self.projections = nn.ModuleDict()
        self.row_weights = nn.ModuleDict()
        divisors = dict.fromkeys(self.feature_names, 1)
        for one in embeddings:
            if not isinstance(one, SpecialEmbedding):
                continue
            divisors |= dict.fromkeys(one.features, one.collisions)
            if one.width < embedding_dim:
                # The projection of a mixed-dimension table's vectors to D, initialised as facebookresearch/dlrm does.
                projection = nn.Linear(one.width, embedding_dim, bias=False)
                nn.init.xavier_uniform_(projection.weight)
                self.projections[one.key] = projection
            if one.row_weights is not None:
                self.row_weights[one.key] = _RowWeights(one, initial)
        if max(divisors.values()) > 1:
            self.divide = QuotientsAndRemainders(self.feature_names, list(divisors.values()))

    def forward(self, sparse_features: KeyedJaggedTensor) -> Callable[[], Vectors]:
        """Look up F bags per sample; call the result once: it waits for other processes' vectors."""
        features = self.table_ids(sparse_features)
        pooled = None if self.bags is None else self.bags(features)
        has_more = self.divide is not None or len(self.rows) or len(self.projections) or len(self.row_weights)
        # Plain tables alone give vectors that only have to be brought into order.
        if pooled is not None and not has_more:
            return lambda: self._order_pooled(pooled)
        rows = {key: ids for collection in self.rows.values() for key, ids in collection(features).items()}
        return lambda: (self._assemble({} if pooled is None else pooled.to_dict(), rows, sparse_features), None)

    def table_ids(self, sparse_features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the ids that index the tables: the features' own, or their quotients and remainders."""
        return sparse_features if self.divide is None else self.divide(sparse_features)

    @property
    def settings_before_layers(self) -> Mapping[str, str]:
        """Return settings of `model.tables` that put dense parameters behind a lookup, and what to give instead."""
        settings = {}
        if len(self.projections):
            settings["kind=mixed_dimension"] = "plain (or qr)"
        for one in self.embeddings:
            if isinstance(one, SpecialEmbedding) and one.row_weights is not None:
                settings[f"row_weights={one.row_weights}"] = "null"
        if len(self.rows):
            settings["qr_operation=mult"] = "add (or concat)"
        return settings

    def _assemble(
        self, pooled: dict[str, Tensor], rows: dict[str, JaggedTensor], sparse_features: KeyedJaggedTensor
    ) -> Tensor:
        """Return vectors [B, F, D] from the lookups' results by feature: `pooled` [B, d], `rows` [ids, d]."""
        vectors = {}
        for one in self.embeddings:
            for feature in one.features:
                if not isinstance(one, SpecialEmbedding):
                    vectors[feature] = pooled[feature]
                    continue
                if one.tables[0].by_id:
                    # Vectors [B, d]: rows combined and weighted id by id, then summed or averaged over each bag.
                    lengths = rows[feature].lengths()
                    second = rows[feature + REMAINDER].values() if one.operation is not None else None
                    values = _combine(one.operation, rows[feature].values(), second)
                    if one.row_weights is not None:
                        values = values * self.row_weights[one.key](sparse_features[feature].values())
                    sums = torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)
                    # The mean of an empty bag is 0, not NaN.
                    vector = sums / lengths.clamp(min=1).unsqueeze(1) if one.tables[0].mean else sums
                else:
                    vector = _combine(one.operation, pooled[feature], pooled.get(feature + REMAINDER))
                    if one.row_weights is not None:  # bags have one id here
                        vector = vector * self.row_weights[one.key](sparse_features[feature].values())
                if one.key in self.projections:
                    vector = self.projections[one.key](vector)
                vectors[feature] = vector
        return torch.stack([vectors[feature] for feature in self.feature_names], dim=1)


def _combine(operation: QROperation | None, first: Tensor, second: Tensor | None) -> Tensor:
    """Combine rows of quotients and remainders by the operation; without one, return the first."""
    if operation is None or second is None:
        return first
    if operation == "add":
        return first + second
    if operation == "concat":
        return torch.cat([first, second], dim=-1)
    return first * second


class _RowWeights(nn.Module):
    """One weight per category; a learned one is a parameter, which the dense optimizer trains."""

    weight: Tensor

    def __init__(self, one: SpecialEmbedding, initial: bool) -> None:
        super().__init__()
        weight = torch.ones(one.rows, 1)
        for path in map(Path, one.files if initial else ()):
            try:
                # A pickle could run code.
                values = np.load(path, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise UserError(f"{path}: not a readable .npy file ({error})") from error
            if values.shape != (one.rows,) or values.dtype.kind != "f" or not np.isfinite(values).all():
                raise UserError(
                    f"{path}: {values.dtype} {values.shape}; the row weights of {one.name} must be "
                    f"{one.rows} finite floating-point numbers"
                )
            weight = torch.from_numpy(values.astype(np.float32)).unsqueeze(1)
        if one.row_weights == "learned":
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [L] to weights [L, 1]."""
        return nn.functional.embedding(ids, self.weight)


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


def served_vectors(
    served: Any, arch: SpecialSparseArch, one: SpecialEmbedding, ids: Tensor, mask: Tensor | None
) -> Tensor:
    """Return a feature's vectors [B, 1, D] of the bags `ids` [B, M] in an extensions.export.directory.ServedModel.

    mask [B, M]: 1 where there is an id; None: there is one everywhere.
    """
    mean, second = one.tables[0].mean, None
    if one.operation is None:
        vectors = served.look_up(one.tables[0], ids)
    else:
        # ONNX rounds quotients of integers toward 0, which is down, as no id is negative.
        quotients = torch.div(ids, one.collisions, rounding_mode="trunc")
        vectors = served.look_up(one.tables[0], quotients)
        second = served.look_up(one.tables[1], ids - quotients * one.collisions)
    if one.operation == "pooled_mult":
        vectors, second = served.pool_bags(vectors, mask, mean), served.pool_bags(second, mask, mean)
    vectors = _combine(one.operation, vectors, second)
    if one.row_weights is not None:
        vectors = vectors * arch.row_weights[one.key](ids)
    if one.operation != "pooled_mult":
        vectors = served.pool_bags(vectors, mask, mean)
    projected: Tensor = arch.projections[one.key](vectors) if one.key in arch.projections else vectors
    return projected
