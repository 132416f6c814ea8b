"""Chunks of Parquet are the file's rows in whatever order they are read, and front to back each group is read once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.dataset.table_spec import Table
from data_prep.parsing import readers
from data_prep.parsing.formats import Chunk, FileLayout, Size, table_size
from data_prep.parsing.readers import Parquet
from data_prep.sources.discover import Source, resolve_sources
from tests.data_prep.tables import write

ROWS = 1700
COLUMNS = ["number", "text", "tags"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Three row groups, of which the first is several chunks and the others are one."""
    numbers = range(ROWS)
    columns = [list(numbers), [f"t{i % 7}" for i in numbers], [["x"] * (i % 3) for i in numbers]]
    table = pa.table(columns, COLUMNS)
    with pq.ParquetWriter(tmp_path / "rows.parquet", table.schema) as writer:
        for start, stop in ((0, 1500), (1500, 1550), (1550, ROWS)):
            writer.write_table(table.slice(start, stop - start), row_group_size=1500)
    monkeypatch.setattr(readers, "BATCH_ROWS", 128)
    [source] = resolve_sources(str(tmp_path / "rows.parquet"))
    return source


def read(source: Source, chunk: Chunk) -> tuple[list[Any], list[str]]:
    """A chunk's rows, and what an error calls the first of each batch."""
    rows: list[Any] = []
    places: list[str] = []
    for batch, _ in Parquet().batches(source, chunk, COLUMNS, FileLayout(tuple(COLUMNS), lists=["tags"])):
        rows += list(zip(*(batch.columns[name].to_pylist() for name in COLUMNS), strict=True))
        places.append(batch.locator(0))
    return rows, places


ORDERS: list[Callable[[list[int]], list[int]]] = [lambda numbers: numbers, lambda numbers: numbers[::-1]]
ORDERS += [lambda numbers: numbers[::2] + numbers[1::2], lambda numbers: [0, 0, 2, 1]]


@pytest.mark.parametrize("order", ORDERS, ids=["forward", "backward", "every other one first", "one twice"])
def test_chunks_are_the_rows_in_any_order(source: Source, order: Callable[[list[int]], list[int]]) -> None:
    table = pq.read_table(source.path)
    expected = list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
    chunks = Parquet().chunks(source, Size(41, ["tags"]), 15_000)
    assert [chunk.rows.groups for chunk in chunks[-2:]] == [(0, 1), (1, 3)]
    begins = [chunk.rows.row + chunk.rows.first for chunk in chunks]
    for number in order(list(range(len(chunks)))):
        rows, places = read(source, chunks[number])
        assert rows == expected[begins[number] : begins[number] + chunks[number].rows.rows]
        group, first = next((g, f) for g, f in ((2, 1550), (1, 1500), (0, 0)) if f <= begins[number])
        assert f"row group {group}, row {begins[number] - first + 1} of it" in places[0]


def test_a_group_is_read_once_for_its_chunks(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Parquet().chunks(source, Size(41, ["tags"]), 15_000)
    opened: list[Chunk] = []

    class Counted(readers._GroupReader):
        def __init__(self, *arguments: object) -> None:
            opened.append(chunk)
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(readers, "_GroupReader", Counted)
    for chunk in chunks:
        read(source, chunk)
    assert len(chunks) > 3
    assert opened == [chunks[0], chunks[-1]]
    assert not readers._unfinished


def test_a_chunk_of_rows_that_take_no_room_in_the_file_is_not_larger_in_memory(tmp_path: Path) -> None:
    columns = {"click": np.zeros(100_000, np.int8), "a": np.zeros(100_000, np.int32)}
    (source,) = resolve_sources(str(write(tmp_path / "t.parquet", columns)))
    table = Table(",", True, "click", (), ("a",), None, ("click", "a"), format="parquet")
    rows = [chunk.rows.rows for chunk in Parquet().chunks(source, table_size(table), 41_000)]
    assert (sum(rows), max(rows) <= 1000) == (100_000, True)
