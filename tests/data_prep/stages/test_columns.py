"""A unit's values on disk, against the values that were given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.files import Crc32
from data_prep.job import ChunkRecord
from data_prep.stages.columns import ValueBuffer, column_blocks, read_column, read_dictionary, write_columns
from data_prep.vocabulary import count_values

ROWS = 9000
DISTINCT = (1, 256, 257, 2000, 10**9)  # of a column: codes of one byte up to 256, of two, no codes


def write(tmp_path: Path, values: np.ndarray, coded: bool) -> tuple[Any, ChunkRecord]:
    files: Any = {"chunk_path": lambda *chunk: tmp_path / chunk[2], "checksum": lambda suffix: Crc32}
    schema = SimpleNamespace(single=[f"cat_{i}" for i in range(values.shape[1])])
    job: Any = SimpleNamespace(**files, schema=schema, table=None, block_rows=1024)
    buffer = ValueBuffer(tmp_path / "values", values.shape[1])
    for block in np.split(values, [3, 3, 5000]):
        buffer.append(block)
    record = ChunkRecord(0, 0, len(values), 0, {})
    codings = [count_values(buffer.column(i)).coding if coded else None for i in range(values.shape[1])]
    record.dictionaries, record.files["columns"] = write_columns(job, (0, 0), buffer, codings)
    return job, record


@pytest.mark.parametrize("coded", [True, False])
def test_any_rows_of_a_unit_are_read_as_they_were(tmp_path: Path, coded: bool) -> None:
    rng = np.random.default_rng(0)
    values = np.stack([rng.integers(0, distinct, ROWS) for distinct in DISTINCT], axis=1).astype(np.uint32)
    values *= np.uint32(2_654_435_761)  # odd, so that different values stay different, and use all 32 bits
    job, record = write(tmp_path, values, coded)
    assert record.dictionaries == ([len(np.unique(values[:, i])) for i in range(4)] + [0] if coded else [0] * 5)
    dictionaries = [read_dictionary(job, record, feature) for feature in job.schema.single]
    for start, stop in ((0, ROWS), (0, 1), (1023, 1025), (1024, 2048), (4000, 8999), (8999, ROWS), (5, 5), (9, 5)):
        blocks = [
            [column.copy() if d is None else d[column] for column, d in zip(block, dictionaries, strict=True)]
            for _, block in column_blocks(job, record, start, stop)
        ]
        assert sum(number for number, _ in column_blocks(job, record, start, stop)) == max(0, stop - start)
        for i in range(len(DISTINCT) if blocks else 0):
            np.testing.assert_array_equal(np.concatenate([block[i] for block in blocks]), values[start:stop, i])
    for i in range(len(DISTINCT)):
        np.testing.assert_array_equal(read_column(job, record, i), values[:, i])
    per_row = record.files["columns"].bytes / ROWS
    assert (per_row < 13) if coded else (20 <= per_row < 20.1)  # 1 + 1 + 2 + 2 + 4 bytes and dictionaries


def test_a_unit_without_rows_or_columns(tmp_path: Path) -> None:
    for shape in ((0, 2), (0, 0), (5, 0)):
        job, record = write(tmp_path, np.zeros(shape, np.uint32), coded=True)
        assert sum(number for number, _ in column_blocks(job, record, 0, shape[0])) == shape[0]
        assert all(read_dictionary(job, record, feature) is None for feature in job.schema.single)
