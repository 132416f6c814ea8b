"""Slow and plain: the same rows parsed and encoded without any code of data_prep."""

import math
from collections import Counter

import numpy as np

from tests.oracles.own_tables import value_of

NUM_DENSE, NUM_SPARSE = 13, 26
MISSING = -(2**31)
text_value = value_of  # what a category of a user's own table is known by


def parse(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """labels [rows] int32, dense [rows, 13] int32 (MISSING), sparse [rows, 26] uint32 (missing 0)."""
    rows = [line.split("\t") for line in text.decode().splitlines()]
    assert {len(row) for row in rows} <= {1 + NUM_DENSE + NUM_SPARSE}
    labels = np.array([int(row[0]) for row in rows], np.int32)
    dense = np.array([[int(field) if field else MISSING for field in row[1:14]] for row in rows], np.int32)
    sparse = np.array([[int(field or "0", 16) for field in row[14:]] for row in rows], np.uint32)
    return labels, dense.reshape(-1, NUM_DENSE), sparse.reshape(-1, NUM_SPARSE)


def encode_dense(dense: np.ndarray) -> np.ndarray:
    """log(1 + max(x, 0)) in double precision, rounded once."""
    rows = [[np.float32(math.log1p(max(int(x), 0))) for x in row] for row in dense]
    return np.array(rows, np.float32).reshape(dense.shape)


def vocabulary(values: np.ndarray, threshold: int = 1, cap: int | None = None) -> list[int]:
    """Values by falling count, ties by rising value."""
    counts = Counter(values.tolist())
    ranked = sorted((value for value in counts if counts[value] >= threshold), key=lambda v: (-counts[v], v))
    return ranked if cap is None else ranked[: cap - 1]


def encode_vocabulary(sparse: np.ndarray, train_rows: int, threshold: int = 1, cap: int | None = None) -> np.ndarray:
    ids = np.zeros(sparse.shape, np.int32)
    for column in range(sparse.shape[1]):
        ranked = vocabulary(sparse[:train_rows, column], threshold, cap)
        table = {value: i + 1 for i, value in enumerate(ranked)}
        ids[:, column] = [table.get(value, 0) for value in sparse[:, column].tolist()]
    return ids


def seventh(rows: int) -> tuple[int, int, int]:
    """Rows of train, val and test where one file's last seventh is held out."""
    held_out = max(rows // 7, min(2, rows - 1) if rows > 2 else 0)
    return rows - held_out, held_out - held_out // 2, held_out // 2


def make_rows(rows: int, seed: int, values: int = 50) -> bytes:
    """Random rows: few values per column, missing fields, negatives, large integers."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        fields = [str(rng.integers(2))]
        for _ in range(NUM_DENSE):
            kind = rng.integers(10)
            number = rng.integers(-3, 50) if kind < 6 else rng.integers(-(2**31) + 1, 2**31)
            fields.append("" if kind == 9 else str(number))
        for column in range(NUM_SPARSE):
            value = int(rng.zipf(1.3)) % values * 2654435761 % 2**32
            fields.append("" if rng.integers(12) == 0 else f"{(value + column) % 2**32:08x}")
        lines.append("\t".join(fields))
    return ("\n".join(lines) + "\n").encode()
