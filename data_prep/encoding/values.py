"""The 64-bit value of each category in a user's own table. No other module computes it.

Criteo's categories are 32-bit numbers already: see data_prep/parsing/criteo.py.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.spelling import are_digits

HASHED = np.uint64(1 << 63)  # set in values of texts that are no whole numbers
HASHED_AT_ONCE = 1 << 14
MAX_DIGITS = 19  # every whole number below 2^63 has at most as many


def text_values(texts: Any) -> NDArray[np.uint64]:
    """Return `text_key` of each text of an Arrow array, [n] uint64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_decimal = pc.and_(are_digits(texts), pc.less_equal(pc.binary_length(texts), MAX_DIGITS))
    is_number = np.array(is_decimal.to_numpy(zero_copy_only=False))
    numbers = texts.filter(is_decimal).cast(pa.uint64()).to_numpy()
    values = np.empty(len(texts), np.uint64)
    values[is_number] = numbers
    is_number[is_number] = numbers < HASHED
    values[~is_number] = _hashes(texts.filter(pa.array(~is_number)).cast(pa.binary()))
    return values


def _hashes(texts: Any) -> NDArray[np.uint64]:
    """Return the hash of each text; in parts, since Python objects take much memory."""
    hashes = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), HASHED_AT_ONCE):
        part = texts.slice(start, HASHED_AT_ONCE).to_pylist()
        hashes[start : start + len(part)] = np.frombuffer(b"".join(map(text_hash, part)), "<u8")
    return hashes | HASHED


def remainders(values: NDArray[Any], modulus: int) -> NDArray[np.int32]:
    """Return value modulo `modulus`: the exact ids of `hash`."""
    return (values % values.dtype.type(modulus)).astype(np.int32)


def text_key(text: str) -> int:
    """Return the key of a user or item: a whole number below 2^63 itself, or a negative hash of any other text."""
    if text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0") and len(text) < 20:
        number = int(text)
        if number < 1 << 63:
            return number
    return int.from_bytes(text_hash(text.encode()), "little") - (1 << 64) | -(1 << 63)


def text_hash(text: bytes) -> bytes:
    """Return eight bytes of BLAKE2b, which identify a user, item or category that is not a whole number."""
    return hashlib.blake2b(text, digest_size=8).digest()
