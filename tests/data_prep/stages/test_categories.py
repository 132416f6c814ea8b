"""The categories of a chunk, coded and stored, against the texts that were given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from common.files import Crc32
from data_prep.dataset.spelling import Form, TableBlock, TextColumn
from data_prep.job import ChunkRecord
from data_prep.stages.columns import (
    DICTIONARIES,
    CategoryBuffer,
    StoredDictionary,
    TableCategories,
    chunk_bags,
    read_codes,
    read_dictionary,
    write_code_counts,
)
from tests.data_prep import oracle


def encoded(texts: list[str]) -> Any:
    """A column as a block has it."""
    return pa.array(texts, pa.string()).dictionary_encode()


@pytest.mark.parametrize(("distinct", "dtype"), [(3, np.uint8), (256, np.uint8), (257, np.uint16), (70_000, np.uint32)])
def test_codes_are_as_narrow_as_they_can_be(distinct: int, dtype: Any) -> None:
    rng = np.random.default_rng(distinct)
    numbers = np.concatenate([rng.permutation(distinct), rng.integers(0, distinct, 500)])
    texts = [f"é{number}" if number % 3 else str(number) for number in numbers.tolist()]
    buffer = CategoryBuffer("user")
    for start, stop in ((0, 200), (200, 200), (200, len(texts))):
        buffer.append(encoded(texts[start:stop]), np.arange(start, stop))
    coded = buffer.finish(are_keys=True)
    value_of = {text: oracle.text_value(text) for text in texts}
    assert coded.codes.dtype == dtype
    assert coded.values[coded.codes].tolist() == [value_of[text] for text in texts]
    assert coded.values.tolist() == sorted(value_of.values())
    assert [value_of[text] for text in coded.texts.to_pylist()] == coded.values.tolist()
    values = np.array([value_of[text] for text in texts], np.uint64)
    _, first, counts = np.unique(values, return_index=True, return_counts=True)
    assert coded.counts.tolist() == counts.tolist()
    assert coded.first.tolist() == first.tolist()


@pytest.fixture
def chunk(tmp_path: Path) -> tuple[Any, ChunkRecord, list[str], list[list[str]]]:
    """A job, the record of its chunk, and the texts of both features."""
    rng = np.random.default_rng(1)
    users = [f"u{i}" for i in rng.integers(0, 300, 900)]
    tags = [[f"東{i}" for i in rng.integers(0, 9, rng.integers(0, 4))] for _ in users]
    files: Any = {"chunk_path": lambda *chunk: tmp_path / chunk[2], "checksum": lambda suffix: Crc32}
    schema = SimpleNamespace(sparse=("tags", "user"), single=("user",), ragged=("tags",))
    rules = SimpleNamespace(order="frequency")
    job: Any = SimpleNamespace(**files, schema=schema, rules=rules, table="one", block_rows=256)
    categories, record = TableCategories(job, 0, 0), ChunkRecord(0, 0, len(users), 0, {})
    for part in (slice(0, 500), slice(500, None)):
        offsets = np.cumsum([0, *(len(bag) for bag in tags[part])])
        columns = (
            TextColumn(encoded([tag for bag in tags[part] for tag in bag]), Form.TEXT, offsets),
            TextColumn(encoded(users[part]), Form.TEXT),
        )
        rows = len(users[part])
        categories.append(TableBlock(np.zeros(rows, np.int32), np.zeros((rows, 0)), columns))
    categories.finish(record)
    return job, record, users, tags


def test_stored_codes_and_dictionaries(chunk: Any) -> None:
    job, record, users, tags = chunk
    ids_of_users, ids_of_tags = (read_dictionary(job, record, name) for name in ("user", "tags"))
    assert ids_of_users is not None
    assert ids_of_tags is not None
    values = [oracle.text_value(user) for user in users]
    assert ids_of_users[read_codes(job, record, 0)].tolist() == values
    (bags,) = chunk_bags(job, 0, 0)
    assert ids_of_tags[bags.ids].tolist() == [oracle.text_value(tag) for bag in tags for tag in bag]
    assert bags.lengths.tolist() == [len(bag) for bag in tags]
    assert (record.sparse_low, record.sparse_high) == ([min(values)], [max(values)])


def test_parts_of_a_dictionary_of_some_rows(chunk: Any) -> None:
    job, record, users, tags = chunk
    rows: NDArray[np.int64] = np.flatnonzero(np.random.default_rng(2).random(len(users)) < 0.6)
    record.files["counts"] = write_code_counts(job, record, "counts", rows)
    for number, texts in enumerate((tags, [[user] for user in users])):
        for suffix, row_numbers in ((DICTIONARIES, range(len(users))), ("counts", rows.tolist())):
            stored = StoredDictionary(job, record, number, suffix)
            names = sorted({text for bag in texts for text in bag}, key=oracle.text_value)
            of_rows = [[row for row in row_numbers for text in texts[row] if text == name] for name in names]
            assert stored.text_bytes == sum(len(name.encode()) for name in names)
            for start, stop in ((0, stored.entries), (stored.entries // 3, stored.entries // 2)):
                part = stored.part(start, stop)
                assert part.texts.to_pylist() == names[start:stop]
                assert part.values.tolist() == [oracle.text_value(name) for name in names[start:stop]]
                assert part.counts.tolist() == [len(each) for each in of_rows[start:stop]]
                assert part.first.tolist() == [each[0] if each else 0 for each in of_rows[start:stop]]
