"""Figures of each table after training: rows that differ from their initial values, and norms of rows."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from app.config.tables import Storage
from app.model.tables import INIT_BLOCK_ROWS, TableSpec, initial_rows
from app.record.documents import TableFigures

MAX_BLOCKS = 8  # blocks of INIT_BLOCK_ROWS rows; a larger table is sampled by this many, evenly spaced


class TableMeter:
    """Counts and norms of table rows, measured while their blocks pass by for another purpose."""

    def __init__(self, tables: Sequence[TableSpec], seed: int, counts_touched: bool) -> None:
        """seed: of the initial values. counts_touched: whether a row's values change only if it is looked up."""
        self._tables, self._seed, self._counts_touched = {table.name: table for table in tables}, seed, counts_touched
        self._rows_seen = dict.fromkeys(self._tables, 0)
        self._norms: dict[str, list[NDArray[np.float32]]] = {name: [] for name in self._tables}
        self._touched = dict.fromkeys(self._tables, 0)

    def watch(self, parameters: Iterable[tuple[str, NDArray[np.float32]]]) -> Iterator[NDArray[np.float32]]:
        """Yield the arrays of parameters as they come; a table comes in consecutive blocks of rows [rows, d]."""
        for name, values in parameters:
            if name in self._tables:
                self._measure(self._tables[name], values)
            yield values

    def figures(self) -> dict[str, TableFigures]:
        """Return the figures of each table that passed by."""
        return {
            name: TableFigures(
                rows=len(norms := np.concatenate(parts)),
                rows_touched=self._touched[name] if self._counts_touched else None,
                mean_norm=float(norms.mean(dtype=np.float64)),
                largest_norm=float(norms.max()),
            )
            for name, parts in self._norms.items()
            if parts
        }

    def _measure(self, table: TableSpec, values: NDArray[np.float32]) -> None:
        start = self._rows_seen[table.name]
        stop = self._rows_seen[table.name] = start + len(values)
        for block in sampled_blocks(table.num_embeddings):
            first, last = max(start, block * INIT_BLOCK_ROWS), min(stop, (block + 1) * INIT_BLOCK_ROWS)
            if first >= last:
                continue
            rows = values[first - start : last - start]
            self._norms[table.name].append(np.sqrt(np.einsum("rd,rd->r", rows, rows)))
            if self._counts_touched:
                initial = initial_rows(self._seed, table, first, last)
                if table.storage is Storage.fp16:
                    initial = initial.astype(np.float16).astype(np.float32)
                self._touched[table.name] += int((rows != initial).any(axis=1).sum())


def sampled_blocks(num_rows: int) -> list[int]:
    """Return the numbers of the blocks of INIT_BLOCK_ROWS rows that a table's figures cover: all, or MAX_BLOCKS."""
    blocks = -(-num_rows // INIT_BLOCK_ROWS)
    if blocks <= MAX_BLOCKS:
        return list(range(blocks))
    return [int((place + 0.5) * blocks / MAX_BLOCKS) for place in range(MAX_BLOCKS)]
