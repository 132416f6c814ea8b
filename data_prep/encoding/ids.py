"""Ids without a vocabulary, and TorchRec's changes to ids; see data_prep/encoding/lookup.py for vocabularies.

data_prep/stages/encode.py makes all ids of a dataset, and data_prep/encoding/encoder.py those of new rows; both call
the functions of this package.
"""

import numpy as np
from numpy.typing import NDArray

from common.jit import jit


@jit
def hash_block(sparse: NDArray[np.uint32], modulus: np.uint32, ids: NDArray[np.int32]) -> None:
    """Write sparse[r, f] modulo `modulus` to ids[r, f]; both arrays are contiguous.

    Floating-point quotients are off by one at most and, unlike integer division, are vectorised.
    """
    values, results = sparse.reshape(-1), ids.reshape(-1)
    divisor = np.int64(modulus)
    inverse = 1.0 / divisor
    for i in range(len(values)):
        value = np.int64(values[i])
        remainder = value - np.int64(np.float64(value) * inverse) * divisor
        remainder += divisor if remainder < 0 else 0
        remainder -= divisor if remainder >= divisor else 0
        results[i] = np.int32(remainder)


def encode_hash(
    sparse: NDArray[np.uint32], max_ind_range: int, ids: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """Return value modulo max_ind_range as int32, in `ids` if given."""
    ids = np.empty(sparse.shape, np.int32) if ids is None else ids
    hash_block(sparse, np.uint32(max_ind_range), ids)
    return ids


def torchrec_ids(ids: NDArray[np.int32], rounds: bool, modulus: int | None) -> None:
    """Repeat TorchRec's changes to contiguous ids, in place.

    Args:
        rounds: round to float32, as TorchRec's shuffle of the train split does.
        modulus: wrap ids at this number of rows, as TorchRec's reader does; None: do not.
    """
    if rounds:
        ids[:] = ids.astype(np.float32)
    if modulus is not None:
        ids %= np.int32(modulus)
