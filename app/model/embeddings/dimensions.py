"""Widths of mixed-dimension tables."""

from collections.abc import Sequence

import numpy as np

FBGEMM_MULTIPLE = 4


def alpha_rule(num_embeddings: Sequence[int], base_dim: int, alpha: float, power_of_2: bool) -> list[int]:
    """Width of each table by its rows: the power rule of Ginart et al. 2019 (arXiv:1909.11810), algorithm 1.

    d_i = base_dim * (n_min / n_i)^alpha, at least 1, rounded to an integer and then, if so asked, to the nearest
    power of 2 in the logarithm: facebookresearch/dlrm's md_solver. Where that would exceed base_dim it is base_dim.
    """
    rows = np.asarray(num_embeddings, np.float64)
    dims = np.rint(np.maximum(1.0, base_dim * (rows.min() / rows) ** alpha))
    if power_of_2:
        dims = 2.0 ** np.rint(np.log2(dims))
    return [int(dim) for dim in np.minimum(dims, base_dim)]


def as_stored(dim: int, base_dim: int) -> int:
    """The width that FBGEMM can hold: the next multiple of 4."""
    return min(-(-dim // FBGEMM_MULTIPLE) * FBGEMM_MULTIPLE, base_dim)
