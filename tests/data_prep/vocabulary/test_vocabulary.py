from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dataset.options import VocabularyOrder
from data_prep.lookup import build_table
from data_prep.vocabulary import count_values, merge_in_parts, most_frequent, rank_values, spill_parts
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
            runs.append(count_values(np.array(values, np.uint32)).run)
        else:
            runs.append(count_values(np.array(values, np.uint32), np.arange(begin, begin + len(values))).run)
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


@pytest.mark.parametrize("distinct", [1, 5_000, 12_000, 40_000, 10**9])
def test_columns_that_repeat_and_others_are_counted_alike(distinct: int) -> None:
    """Few values are counted by a table, many by sorting; NumPy knows no such difference."""
    rng = np.random.default_rng(distinct)
    column = rng.integers(0, distinct, 60_000).astype(np.uint32)
    column[:20_000] = rng.permutation(column[:20_000] % 3000)  # that it repeats at first proves nothing
    column *= np.uint32(2_654_435_761)  # odd, so that different values stay different, and use all 32 bits
    values, first, counts = np.unique(column, return_index=True, return_counts=True)
    rows = np.arange(7, 7 + len(column))
    run, coding = count_values(column.copy(), rows)
    unordered = count_values(column.copy()).run
    assert (coding is None) == (distinct > 20_000)
    if coding is not None:
        np.testing.assert_array_equal(coding.dictionary[coding.codes], column)
        assert coding.codes.dtype == (np.uint8 if distinct <= 256 else np.uint16)
    np.testing.assert_array_equal(run.values, values)
    np.testing.assert_array_equal(run.counts, counts)
    np.testing.assert_array_equal(run.first, first + 7)
    np.testing.assert_array_equal(unordered.values, values)
    np.testing.assert_array_equal(unordered.counts, counts)
    assert not unordered.first.any()


def test_many_parts_are_used() -> None:
    runs = [count_values(np.arange(i, 4000, 3, dtype=np.uint32)).run for i in range(3)]
    parts = list(merge_in_parts(runs, 64 * 100))
    assert len(parts) > 10
    assert max(len(part.values) for part in parts) < 1000


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
    unknown = table.look_up(values, ids)
    position = {value: i + first_id for i, value in enumerate(keys)}
    assert ids.tolist() == [position.get(value, unknown_id) for value in values.tolist()]
    assert unknown == sum(value not in position for value in queries)
