"""The rows and the model that all meet: Criteo's columns, tables of Kaggle's sizes up to a cap, one DLRM's layers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Rows of the tables of Criteo Kaggle without a frequency threshold.
KAGGLE_TABLES = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
                 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)  # fmt: skip
NUM_DENSE, DIM = 13, 16
DENSE_ARCH, OVER_ARCH = (512, 256, 64, DIM), (512, 256, 1)
LEARNING_RATE = 0.01


class Rows(NamedTuple):
    """labels [n] float32, dense [n, 13] float32, sparse [n, 26] int64, and rows of each table."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int64]
    tables: tuple[int, ...]


def make_rows(count: int, cap: int) -> Rows:
    """Long-tailed ids (rows * u^4, u uniform), a quarter of labels 1; the same for everybody."""
    rng = np.random.default_rng(0)
    tables = tuple(min(rows, cap) for rows in KAGGLE_TABLES)
    sparse = (rng.random((count, len(tables))) ** 4 * np.array(tables)).astype(np.int64)
    dense = np.log1p(rng.exponential(20, size=(count, NUM_DENSE))).astype(np.float32)
    labels = (rng.random(count) < 0.25).astype(np.float32)
    return Rows(labels, dense, sparse, tables)
