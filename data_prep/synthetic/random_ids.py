"""`data.source=random`: random ids in tables and bags of any size, for measurements of speed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.config.keys import MAX_TABLE_ROWS, IdDistribution, RandomConfig
from data_prep.dataset.bags import Bags, offsets_of
from data_prep.dataset.format import SPLITS, ShardArrays
from data_prep.dataset.multi_hot import MLPERF_SIZES, MLPERF_V2
from data_prep.dataset.schema import Schema
from data_prep.synthetic.teacher import KAGGLE_CARDINALITIES

MLPERF_V2_TABLES = (
    40000000,
    39060,
    17295,
    7424,
    20265,
    3,
    7122,
    1543,
    63,
    40000000,
    3067956,
    405282,
    10,
    2209,
    11938,
    155,
    4,
    976,
    14,
    40000000,
    40000000,
    40000000,
    590152,
    12973,
    108,
    36,
)
TABLES: dict[str, Any] = {MLPERF_V2: MLPERF_V2_TABLES, "criteo_kaggle": KAGGLE_CARDINALITIES}
ZIPF_VERSION = 2  # version of zipf's ids; version 1 rounded a continuous law's numbers down
DEFAULT_EXPONENTS = {IdDistribution.zipf: 1.05, IdDistribution.pareto: 0.25}


class RandomRows:
    """A data_prep.stages.write_generated.Generator; keys, split and first row determine a shard."""

    def __init__(self, config: RandomConfig, threads: int) -> None:
        """Raise UserError for invalid values."""
        validate_random(config)
        tables: Any = TABLES.get(config.tables) if isinstance(config.tables, str) else config.tables
        limit = config.max_rows_per_table or MAX_TABLE_ROWS
        self._tables = [min(rows, limit) for rows in tables]
        self._sizes = bag_sizes(config, len(self._tables))
        self._config = config
        self._threads = threads
        names = [f"cat_{i}" for i in range(len(self._tables))]
        self._is_ragged = [config.bags_vary or size != 1 for size in self._sizes]
        dense = tuple(f"int_{i}" for i in range(config.num_dense))
        ragged = tuple(name for name, is_ragged in zip(names, self._is_ragged, strict=True) if is_ragged)
        self.schema = Schema("label", dense, tuple(names), ragged)
        self.num_embeddings = dict(zip(names, self._tables, strict=True))
        settings = {key: value.value if isinstance(value, Enum) else value for key, value in asdict(config).items()}
        if config.distribution is IdDistribution.zipf:
            settings["version"] = ZIPF_VERSION
        self.encoding: dict[str, Any] = {"name": "random", "random": settings}
        self.rows = dict(zip(SPLITS, (config.rows, config.eval_rows, config.eval_rows), strict=True))
        self.row_bytes = 4.0 * (1 + config.num_dense + sum(self._sizes)) + 8.0 * sum(self._is_ragged)

    def shard(self, split: str, start: int, rows: int) -> ShardArrays:
        """Return rows of a split."""
        key = [self._config.seed, SPLITS.index(split), start]
        rng = _generator([*key, 0])
        labels = (rng.random((rows, 1)) < self._config.click_rate).astype(np.int32)
        dense = rng.random((rows, self._config.num_dense), np.float32)
        with ThreadPoolExecutor(self._threads) as executor:
            columns = list(executor.map(lambda i: self._column(i, [*key, 1 + i], rows), range(len(self._tables))))
        one_hot = [c.values for c, ragged in zip(columns, self._is_ragged, strict=True) if not ragged]
        bags = tuple(c for c, ragged in zip(columns, self._is_ragged, strict=True) if ragged)
        sparse = np.stack(one_hot, axis=1) if one_hot else np.empty((rows, 0), np.int32)
        return ShardArrays(labels, dense, sparse, bags)

    def _column(self, feature: int, key: list[int], rows: int) -> Bags:
        rng = _generator(key)
        lengths = np.full(rows, self._sizes[feature], np.int64)
        if self._config.bags_vary:
            lengths = rng.integers(1, self._sizes[feature] + 1, rows)
        offsets = offsets_of(lengths)
        return Bags(draw_ids(rng, self._config, self._tables[feature], int(offsets[-1])), offsets)

    def extra(self) -> dict[str, Any]:
        """Return no further figures."""
        return {}


def _generator(key: list[int]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def draw_ids(rng: np.random.Generator, config: RandomConfig, table_rows: int, count: int) -> NDArray[np.int32]:
    """Draw ids [count] int32 of a table."""
    if config.distribution is IdDistribution.uniform:
        return rng.integers(0, table_rows, count, np.int32)
    exponent = config.exponent or DEFAULT_EXPONENTS[config.distribution]
    if config.distribution is IdDistribution.pareto:
        return (np.minimum(rng.pareto(exponent, count), 2.0**62).astype(np.int64) % table_rows).astype(np.int32)
    return _zipf_ids(rng, exponent, table_rows, count)


def _zipf_ids(rng: np.random.Generator, exponent: float, table_rows: int, count: int) -> NDArray[np.int32]:
    """Draw ids [count]; id k has exactly a probability in proportion to (k + 1) ** -exponent.

    Rejection-inversion after Hörmann and Derflinger (1996), for tables of any size. A number x from the continuous law
    is rounded to k. It is drawn again if it lies in the part of [k - 1/2, k + 1/2] that exceeds the probability of k.
    """
    power = 1.0 - exponent

    def area(x: Any) -> Any:
        return (x**power - 1.0) / power

    def inverse(y: Any) -> Any:
        return (1.0 + y * power) ** (1.0 / power)

    first, last = area(1.5) - 1.0, area(table_rows + 0.5)
    acceptance_bound = 2.0 - inverse(area(2.5) - 2.0**-exponent)  # x this close below k or closer is always accepted
    ids, remaining = np.empty(count, np.int32), np.arange(count)
    while len(remaining):
        under = last + rng.random(len(remaining)) * (first - last)
        x = inverse(under)
        k = np.clip(np.rint(x), 1, table_rows)
        is_accepted = (k - x <= acceptance_bound) | (under >= area(k + 0.5) - k**-exponent)
        ids[remaining[is_accepted]] = k[is_accepted].astype(np.int64) - 1
        remaining = remaining[~is_accepted]
    return ids


def bag_sizes(config: RandomConfig, num_features: int) -> list[int]:
    """Return the ids per bag of each feature; the maximum if bags vary."""
    sizes = MLPERF_SIZES if config.bag_sizes == MLPERF_V2 else config.bag_sizes
    sizes = [sizes] * num_features if isinstance(sizes, int) else sizes
    if isinstance(sizes, str) or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise UserError(
            f"data.random.bag_sizes={sizes}: give ids per bag, one number or one per feature, or {MLPERF_V2}"
        )
    if len(sizes) != num_features:
        raise UserError(f"data.random.bag_sizes: {len(sizes)} given for {num_features} features; give one per feature")
    return list(sizes)


def validate_random(config: RandomConfig) -> None:
    """Raise UserError for values that are invalid or without effect."""
    tables = TABLES.get(config.tables) if isinstance(config.tables, str) else config.tables
    if not tables or not all(isinstance(rows, int) and 1 <= rows <= MAX_TABLE_ROWS for rows in tables):
        raise UserError(f"data.random.tables={config.tables}: give the rows of every table, or {' or '.join(TABLES)}")
    if config.distribution is IdDistribution.zipf and config.exponent == 1:
        raise UserError("data.random.exponent=1: zipf cannot have 1 itself; give one beside it, such as 1.05")
