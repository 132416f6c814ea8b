"""What Criteo's columns look like, for rows that shall look like them.

Cardinalities are those of Criteo Kaggle's 45,840,617 rows. Everything else was fitted to its first 1,999 rows: shares
of missing values; for categories the exponent of the bounded Zipf law under which two rows share a value as often;
for integers the lognormal law, rounded down, nearest to their quantiles.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
ZIPF_EXPONENTS = (
    2.03, 1.05, 1.06, 1.12, 2.61, 2.12, 0.76, 2.3, 4.25, 1.36, 0.79, 1.06, 0.79, 1.87, 0.87, 1.06, 1.45,
    0.95, 2.08, 1.28, 1.06, 2.32, 1.8, 1.18, 1.62, 1.07,
)  # fmt: skip
CATEGORY_MISSING = (
    0, 0, 0.034, 0.034, 0, 0.12, 0, 0, 0, 0, 0, 0.034, 0, 0, 0, 0.034, 0, 0, 0.44, 0.44, 0.034, 0.76, 0,
    0.034, 0.44, 0.44,
)  # fmt: skip
INTEGER_MISSING = (0.45, 0, 0.21, 0.22, 0.026, 0.22, 0.043, 0.0005, 0.043, 0.45, 0.043, 0.76, 0.22)
INTEGER_LOG_MEAN = (0.1, 1.8, 2.0, 1.6, 7.3, 3.6, 1.2, 2.0, 3.6, 0.0, 0.5, -1.2, 1.7)
INTEGER_LOG_DEVIATION = (1.7, 2.7, 1.5, 1.1, 2.8, 1.8, 1.9, 1.3, 1.8, 0.5, 0.9, 1.8, 1.3)
INTEGER_SHIFT = (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # the second column has negatives, as in Criteo

# columns whose categories interact: small ones whose values are seldom missing, which few rows suffice to learn
INTERACTING = (0, 1, 4, 5, 7, 13, 16, 22)


class Columns(NamedTuple):
    """Categorical columns: how many values, the exponents of their Zipf laws, shares missing, which interact."""

    cardinality: NDArray[np.int64]
    exponent: NDArray[np.float64]
    missing: NDArray[np.float32]
    interacting: tuple[int, ...]


def criteo_columns(max_cardinality: int) -> Columns:
    """Criteo Kaggle's columns, the large ones shrunk so that the largest has `max_cardinality` values.

    They shrink with the square root of their size, and none grows: at 10,131,227 they are Kaggle's own.
    """
    kaggle = np.array(KAGGLE_CARDINALITIES, np.float64)
    cardinality = np.minimum(kaggle, np.ceil(max_cardinality * np.sqrt(kaggle / kaggle.max()))).astype(np.int64)
    missing = np.array(CATEGORY_MISSING, np.float32)
    return Columns(cardinality, np.array(ZIPF_EXPONENTS), missing, INTERACTING)
