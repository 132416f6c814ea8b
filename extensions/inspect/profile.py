"""One pass over all rows of a table: figures of its columns, and a sample of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.sample import mix
from data_prep.parsing.formats import Chunk, Size
from extensions.inspect.columns import ColumnFigures
from extensions.inspect.layout import Files

CHUNK_BYTES = 8 << 20
SAMPLE_ROWS, SAMPLE_VALUES = 50_000, 2_000_000  # most rows and fields of the sample
ROW_BYTES = 41


@dataclass
class Sample:
    """Some of the rows, chosen by a hash of their number: all rows of a small table, in their order.

    numbers: row numbers from 0. columns: the texts of each column, or lists of texts.
    """

    limit: int
    share: float = 1.0
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, begin: int, columns: dict[str, list[Any]], rows: int) -> None:
        """Add a batch of rows, the first of which has the number `begin`; halve the sample until it is small enough."""
        numbers = np.arange(begin, begin + rows)
        self.columns = self.columns or {name: [] for name in columns}
        is_kept = self._is_kept(numbers)
        self.numbers = np.concatenate([self.numbers, numbers[is_kept]])
        for name, values in columns.items():
            self.columns[name] += [values[index] for index in np.flatnonzero(is_kept).tolist()]
        while len(self.numbers) > self.limit:
            self.share /= 2
            kept = np.flatnonzero(self._is_kept(self.numbers)).tolist()
            self.numbers = self.numbers[kept]
            self.columns = {name: [values[index] for index in kept] for name, values in self.columns.items()}

    def _is_kept(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.share == 1:
            return np.ones(len(numbers), np.bool_)
        return mix(numbers.astype(np.uint64)) < np.uint64(int(self.share * 2**64))


@dataclass
class TableProfile:
    """Figures of a table.

    rows: number of rows. columns: figures of each column, by name, in file order.
    """

    files: Files
    rows: int
    columns: dict[str, ColumnFigures]
    sample: Sample

    @property
    def is_sampled(self) -> bool:
        """Return whether the sample lacks rows."""
        return len(self.sample.numbers) < self.rows

    def scope(self) -> str:
        """Return which rows the figures are of."""
        if not self.is_sampled:
            return f"all {self.rows:,} rows"
        return (
            f"all {self.rows:,} rows; rates and distributions of {len(self.sample.numbers):,} of them, drawn by a hash"
        )


def read_profile(files: Files) -> TableProfile:
    """Read all rows of the files once."""
    names = [column.name for column in files.columns]
    figures = {column.name: ColumnFigures(column.name, column.kind) for column in files.columns}
    sample = Sample(min(SAMPLE_ROWS, max(1000, SAMPLE_VALUES // len(names))))
    rows = 0
    for source in files.sources:
        size = Size(max(ROW_BYTES, 8 * len(names)), files.layout.lists)
        for chunk in _chunks(files, source, size):
            for batch, _ in files.form.batches(source, chunk, names, files.layout):
                texts: dict[str, list[Any]] = {name: list(figures[name].add(batch.columns[name])) for name in names}
                sample.add(rows, texts, batch.rows)
                rows += batch.rows
    if not rows:
        path = files.sources[0].path
        raise UserError(f"{path}: no rows in it; get it again, or leave it out of {files.sources[0].key}")
    return TableProfile(files, rows, figures, sample)


def _chunks(files: Files, source: Any, size: Size) -> Sequence[Chunk]:
    return files.form.chunks(source, size, CHUNK_BYTES)
