"""The value counts of a chunk on disk, against NumPy's own counting."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.files import Crc32
from data_prep.dataset.options import VocabularyOrder
from data_prep.job import ChunkRecord
from data_prep.stages.fit import ChunkCounts, load_runs, write_counts
from data_prep.vocabulary import Run, merge_in_parts

FEATURES = ("none", "few", "many")


def column_of(values: NDArray[np.uint32], index: int) -> NDArray[np.uint32]:
    return values[:, index].copy()


@pytest.mark.parametrize("max_bytes", [0, 1 << 30])  # read part by part, read at once
def test_runs_are_as_numpy_counts_the_chosen_rows(tmp_path: Path, max_bytes: int) -> None:
    rng = np.random.default_rng(0)
    files: Any = {"chunk_path": lambda *chunk: tmp_path / "-".join(map(str, chunk)), "checksum": lambda suffix: Crc32}
    rules, schema = SimpleNamespace(order=VocabularyOrder.first_appearance), SimpleNamespace(sparse=FEATURES, ragged=())
    job: Any = SimpleNamespace(**files, rules=rules, schema=schema)
    records, columns, rows = [], [], []
    for chunk, size in enumerate((0, 1, 20_000)):
        values = rng.integers(0, (1, 50, 2**32), (size, 3)).astype(np.uint32)
        row_numbers = np.flatnonzero(rng.random(size) < 0.9)
        lengths, digest, _ = write_counts(job, (0, chunk), "counts", partial(column_of, values), row_numbers)
        records.append(ChunkRecord(0, chunk, size, 0, {"counts": digest}, distinct=lengths))
        columns.append(values[row_numbers])
        rows.append(row_numbers)
    for feature in range(len(FEATURES)):
        runs = load_runs([ChunkCounts(record, "counts", 0).range(job, feature) for record in records], max_bytes)
        for run, values, row_numbers in zip(runs, columns, rows, strict=True):
            expected, first, counts = np.unique(values[:, feature], return_index=True, return_counts=True)
            np.testing.assert_array_equal(run.values, expected)
            assert run.entries == len(expected)
            for start, stop in ((0, run.entries), (run.entries // 3, run.entries // 2)):
                part = run.part(start, stop)
                np.testing.assert_array_equal(part.values, expected[start:stop])
                np.testing.assert_array_equal(part.counts, counts[start:stop])
                np.testing.assert_array_equal(part.first, row_numbers[first][start:stop])


def test_rows_of_chunks_far_after_the_first_are_numbered_on() -> None:
    parts: list[Any] = [np.array(part, np.uint32) for part in ([5, 9], [1, 2], [3, 2**32 - 1])]
    runs = [Run(*parts) for _ in range(2)]
    (run,) = merge_in_parts(runs, begins=[2**33, 2**34])
    assert run.values.tolist() == [5, 9]
    assert run.counts.tolist() == [2, 4]
    assert run.first.tolist() == [2**33 + 3, 2**33 + 2**32 - 1]
