"""Values and their ids: spellings, encoded values, dictionaries counted, merged, capped and ranked, and look-ups."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.codec.values import text_key, text_values
from data_prep.dataset.options import VocabularyOrder
from data_prep.lookup import build_table, encode_dense
from data_prep.vocabulary import (
    Entries,
    NumberedValues,
    count_values,
    merge_dictionaries,
    merge_in_parts,
    most_frequent,
    rank_values,
    spill_parts,
    write_ranked,
)
from tests.data_prep import oracle

VALUES = st.lists(st.integers(0, 40) | st.integers(0, 2**32 - 1), max_size=120)


# The gap between the rows of units, the threshold, the limit, bytes of a part.
LIMITS, GAPS = st.none() | st.integers(0, 20), st.sampled_from([0, 2**31, 2**33])
NUMBERS = st.tuples(GAPS, st.integers(0, 3), LIMITS, st.sampled_from([96, 960, 1 << 20]))


@pytest.mark.medium
@settings(max_examples=120, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=5), NUMBERS, st.sampled_from(list(VocabularyOrder)))
def test_counted_merged_capped_and_ordered(
    tmp_path_factory: pytest.TempPathFactory, units: list[list[int]], numbers: Any, order: VocabularyOrder
) -> None:
    (gap, threshold, limit, part_bytes), runs, begin = numbers, [], 7
    for values in units:
        if order is VocabularyOrder.frequency:
            runs.append(count_values(np.array(values, np.uint32))[0])
        else:
            runs.append(count_values(np.array(values, np.uint32), np.arange(begin, begin + len(values)))[0])
        assert dict(zip(runs[-1].values.tolist(), runs[-1].counts.tolist(), strict=True)) == Counter(values)
        assert runs[-1].values.tolist() == sorted(set(values))
        begin += len(values) + gap
    everything = [value for values in units for value in values]
    merged = [value for part in merge_in_parts(runs, part_bytes) for value in part.values.tolist()]
    assert merged == sorted(set(everything))
    ranked = oracle.vocabulary(np.array(everything, np.int64), threshold)[:limit]
    expected = ranked
    if order is VocabularyOrder.value:
        expected = sorted(ranked)
    elif order is VocabularyOrder.first_appearance:
        expected = [value for value in dict.fromkeys(everything) if value in set(ranked)]
    path = tmp_path_factory.mktemp("vocab") / "cat_0.npy"
    parts = spill_parts(merge_in_parts(runs, part_bytes, threshold=threshold), path.parent / "all")
    if limit is not None and parts:
        parts = spill_parts(most_frequent(parts, limit), path.parent / "kept")
    number = rank_values(parts, path, order)
    assert np.load(path).tolist() == expected
    assert number == len(expected)


@pytest.mark.medium
@settings(max_examples=100, deadline=None)
@given(st.booleans(), st.data(), st.sampled_from([(1, 0), (2, 1), (0, 0), (3, 7)]))
def test_lookup(is_wide: bool, data: st.DataObject, ids_from: tuple[int, int]) -> None:
    """Of values of 32 bits in a hash table, of 64 bits in a sorted one."""
    dtype = np.uint64 if is_wide else np.uint32
    numbers = st.integers(0, 2**64 - 1) if is_wide else st.integers(0, 40) | st.integers(0, 2**32 - 1)
    keys = data.draw(st.lists(numbers, unique=True, max_size=200))
    queries = data.draw(st.lists(numbers, max_size=100))
    first_id, unknown_id = ids_from
    table: Any = build_table(np.array(keys, dtype), first_id, unknown_id)
    values = np.array(queries + keys, dtype)
    ids = np.empty(len(values), np.int32)
    table.look_up(values, ids)
    position = {value: i + first_id for i, value in enumerate(keys)}
    assert ids.tolist() == [position.get(value, unknown_id) for value in values.tolist()]


VALUE_OF = {"": 2**64 - 1, "a": 0, "b": 2**63, "Été": 2**63 - 1, "c": 5} | {f"v{i}": i * 2**58 + 9 for i in range(40)}
COLUMNS = st.lists(st.tuples(st.sampled_from(list(VALUE_OF)), st.booleans()), max_size=60)  # text, whether it counts


class InMemory:
    """The dictionary of a column of texts, of which some rows count."""

    def __init__(self, column: list[tuple[str, bool]], value_of: dict[str, int] = VALUE_OF) -> None:
        self.texts = sorted({text for text, _ in column}, key=value_of.__getitem__)
        rows = [[i for i, (text, counts) in enumerate(column) if counts and text == each] for each in self.texts]
        self.counts = np.array([len(each) for each in rows], np.int64)
        self.first = np.array([each[0] if each else 0 for each in rows], np.int64)
        self.values = np.array([value_of[text] for text in self.texts], np.uint64)
        self.entries, self.text_bytes = len(self.texts), sum(len(text.encode()) for text in self.texts)

    def part(self, start: int, stop: int) -> Entries:
        part = slice(start, stop)
        texts = pa.array(self.texts[part], pa.large_string())
        return Entries(self.values[part], self.counts[part], self.first[part], texts)


# The gap between the rows of columns, the threshold, the limit, bytes of a part.
TEXT_LIMITS = st.none() | st.integers(0, 20)
TEXT_NUMBERS = st.tuples(
    st.sampled_from([0, 2**33]), st.integers(0, 3), TEXT_LIMITS, st.sampled_from([200, 2000, 1 << 20])
)


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=4), TEXT_NUMBERS, st.sampled_from(list(VocabularyOrder)), st.booleans())
def test_values_and_texts_are_in_the_order_of_their_ids(
    tmp_path_factory: pytest.TempPathFactory, columns: Any, numbers: Any, order: VocabularyOrder, with_texts: bool
) -> None:
    directory, (gap, threshold, limit, part_bytes) = tmp_path_factory.mktemp("fit"), numbers
    begins = [7 + i * (60 + gap) for i in range(len(columns))]
    texts = [text for column in columns for text, counts in column if counts]
    counts = Counter(texts)
    ranked = sorted((text for text in counts if counts[text] >= threshold), key=lambda t: (-counts[t], VALUE_OF[t]))
    top_texts = set(ranked[:limit])
    expected = [text for text in ranked if text in top_texts]
    if order is VocabularyOrder.value:
        expected.sort(key=VALUE_OF.__getitem__)
    elif order is VocabularyOrder.first_appearance:
        expected = [text for text in dict.fromkeys(texts) if text in top_texts]
    entries = merge_dictionaries("c", [InMemory(column) for column in columns], part_bytes, begins, threshold)
    numbered = NumberedValues(directory / "numbered", with_texts)
    parts = spill_parts(numbered.runs(entries), directory / "all")
    if limit is not None and sum(len(part.values) for part in parts) > limit:
        parts = spill_parts(most_frequent(parts, limit), directory / "kept")
    assert rank_values(parts, directory / "order.npy", order) == len(expected)
    paths = [directory / name for name in ("c.npy", "c.texts.npy", "c.offsets.npy")[: 3 if with_texts else 1]]
    digests = write_ranked(numbered, directory / "order.npy", paths, directory / "ranks.npy")
    assert [digest.bytes for digest in digests] == [path.stat().st_size for path in paths]
    assert np.load(paths[0]).tolist() == [VALUE_OF[text] for text in expected]
    if with_texts:
        content, offsets = bytes(np.load(paths[1])), np.load(paths[2]).tolist()
        assert [content[a:b].decode() for a, b in pairwise(offsets)] == expected


EDGES = ["", "0", "00", "01", "-1", "1.0", "٣", str(2**63 - 1), str(2**63), str(2**64), "9" * 20, "9" * 40, " 1", "Été"]


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.lists(st.text() | st.integers(0, 2**64 + 5).map(str) | st.sampled_from(EDGES), max_size=30))
def test_values_are_whole_numbers_or_hashes(texts: list[str]) -> None:
    texts = [text for text in texts if text.isprintable()]  # no lone surrogates, which no file of text has
    expected = [oracle.text_value(text) for text in texts]
    values = text_values(pa.array(texts, pa.string()))
    assert values.dtype == np.uint64
    assert values.tolist() == expected
    assert [text_key(text) % 2**64 for text in texts] == expected  # users and items of events, likewise


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(65_530, 65_540), min_size=1, max_size=20))
def test_dense_is_the_double_precision_logarithm_rounded_once(values: list[int]) -> None:
    dense = encode_dense(np.array(values, np.int32)[:, None])
    assert dense.dtype == np.float32
    assert dense[:, 0].tolist() == [np.float32(math.log1p(max(value, 0))) for value in values]
