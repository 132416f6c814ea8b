"""One id per feature to a bag of ids, as MLPerf v2's synthetic multi-hot data has them.

Each id has a fixed bag: itself, then ids drawn once and for all. The draws are those of the MLPerf reference, from
one stream of NumPy's legacy generator over all tables in turn, so the bags are the same, whether rows are expanded
while they are read or beforehand on disk.
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError

MLPERF_SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
PARETO_SHAPE = 0.25
BLOCK_VALUES = 1 << 22


class Distribution(Enum):
    """How a bag's further ids are drawn: evenly, or few ids very often."""

    uniform = "uniform"
    pareto = "pareto"


class MultiHotTables:
    """Bags of all ids of all features.

    `tables[f]` is [num_embeddings of f, size of f - 1] int32, memory-mapped: the ids that follow the id itself.
    """

    def __init__(self, tables: list[NDArray[np.int32]]) -> None:
        self.tables = tables

    @property
    def sizes(self) -> list[int]:
        """Ids per bag of every feature."""
        return [1 + table.shape[1] for table in self.tables]

    @classmethod
    def build(
        cls,
        directory: Path,
        num_embeddings: Sequence[int],
        sizes: Sequence[int] = MLPERF_SIZES,
        distribution: Distribution = Distribution.uniform,
        seed: int = 0,
    ) -> "MultiHotTables":
        """Draw the bags and keep them in `directory`, one .npy file per feature; memory does not grow with them.

        Raises:
            UserError: not one size of at least 1 per feature.
        """
        if len(sizes) != len(num_embeddings) or min(sizes, default=1) < 1:
            raise UserError(
                f"multi-hot sizes: {len(sizes)} given for {len(num_embeddings)} features; give one per feature, "
                "each at least 1"
            )
        directory.mkdir(parents=True, exist_ok=True)
        rng = np.random.RandomState(seed)  # the reference's generator
        tables = []
        for feature, (rows, size) in enumerate(zip(num_embeddings, sizes, strict=True)):
            if size == 1:
                tables.append(np.zeros((rows, 0), np.int32))
                continue
            path = directory / f"{feature}.npy"
            table = np.lib.format.open_memmap(path, "w+", np.int32, (rows, size - 1))
            step = max(1, BLOCK_VALUES // (size - 1))
            for start in range(0, rows, step):
                shape = (min(step, rows - start), size - 1)
                table[start : start + step] = _draw(rng, distribution, rows, shape)
            table.flush()
            tables.append(np.load(path, mmap_mode="r"))
        return cls(tables)

    def expand(self, feature: int, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Bags of one feature: [rows] ids to [rows, size] int32, the id itself first."""
        return np.concatenate((ids[:, None], self.tables[feature][ids]), axis=1, dtype=np.int32)


def _draw(
    rng: np.random.RandomState, distribution: Distribution, rows: int, shape: tuple[int, int]
) -> NDArray[np.integer]:
    """Further ids, each below `rows`."""
    if distribution is Distribution.uniform:
        return rng.randint(0, rows, size=shape)
    drawn = rng.pareto(a=PARETO_SHAPE, size=shape)
    with np.errstate(invalid="ignore"):  # beyond int32 the reference overflows too
        return drawn.astype(np.int32) % rows
