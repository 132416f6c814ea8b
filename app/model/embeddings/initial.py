"""Initial values of tables, which depend on nothing but seed, table and row."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from app.model.embeddings.spec import Table

INIT_BLOCK_ROWS = 65_536


def initial_rows(seed: int, table: Table, start: int, stop: int) -> NDArray[np.float32]:
    """Initial values of a table's rows [start, stop), [stop - start, d] float32.

    Each block of rows has a counter-based stream of its own: the same for every layout and number of processes.
    """
    key = np.frombuffer(hashlib.sha256(f"{seed}/{table.name}".encode()).digest()[:16], dtype=np.uint64)
    rows = np.empty((stop - start, table.embedding_dim), dtype=np.float32)
    for block in range(start // INIT_BLOCK_ROWS, -(-stop // INIT_BLOCK_ROWS)):
        first = block * INIT_BLOCK_ROWS
        last = min(first + INIT_BLOCK_ROWS, table.num_embeddings)
        stream = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, block]))
        draw = stream.random if table.init.std is None else stream.standard_normal
        values = draw((last - first, table.embedding_dim), dtype=np.float32)
        low, high = max(start, first), min(stop, last)
        rows[low - start : high - start] = values[low - first : high - first]
    if table.init.std is not None:
        rows *= np.float32(table.init.std)
    else:
        rows *= np.float32(table.init.high - table.init.low)
        rows += np.float32(table.init.low)
    return rows
