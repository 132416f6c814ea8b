"""Values to ids without a vocabulary, and what TorchRec does to ids of one; see data_prep/encoding/lookup.py for those.

A dataset's ids are all made by data_prep/stages/encode.py and a new row's by data_prep/encoding/encoder.py, with the
functions of this package.
"""

import numpy as np
from numpy.typing import NDArray

from common.jit import jit


@jit
def hash_block(sparse: NDArray[np.uint32], modulus: np.uint32, ids: NDArray[np.int32]) -> None:
    """ids[r, f] = sparse[r, f] modulo `modulus`, both contiguous.

    The quotient by floating point is off by one at most, and unlike the integer instruction it is vectorised.
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
    """value modulo max_ind_range as int32, in `ids` if given."""
    ids = np.empty(sparse.shape, np.int32) if ids is None else ids
    hash_block(sparse, np.uint32(max_ind_range), ids)
    return ids


def torchrec_ids(ids: NDArray[np.int32], rounds: bool, modulus: int | None) -> None:
    """Change ids in place as TorchRec does once they are contiguous.

    Args:
        rounds: its shuffle of the train split makes them float32 for a while.
        modulus: its reader wraps them; None where it does not.
    """
    if rounds:
        ids[:] = ids.astype(np.float32)
    if modulus is not None:
        ids %= np.int32(modulus)
