"""Dictionaries merged, capped and ranked against Python's own counting."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dataset.options import VocabularyOrder
from data_prep.vocabulary import (
    Entries,
    NumberedValues,
    merge_dictionaries,
    most_frequent,
    rank_values,
    spill_parts,
    write_ranked,
)
from tests.error_lines import refused

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
LIMITS = st.none() | st.integers(0, 20)
NUMBERS = st.tuples(st.sampled_from([0, 2**33]), st.integers(0, 3), LIMITS, st.sampled_from([200, 2000, 1 << 20]))


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=4), NUMBERS, st.sampled_from(list(VocabularyOrder)), st.booleans())
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
    digests = write_ranked(numbered, directory / "order.npy", paths, directory, part_bytes)
    assert [digest.bytes for digest in digests] == [path.stat().st_size for path in paths]
    assert np.load(paths[0]).tolist() == [VALUE_OF[text] for text in expected]
    if with_texts:
        content, offsets = bytes(np.load(paths[1])), np.load(paths[2]).tolist()
        assert [content[a:b].decode() for a, b in pairwise(offsets)] == expected


def test_two_texts_of_one_value_are_refused_by_name() -> None:
    columns = [[("ann", True), ("cy", True)], [("bob", True), ("ann", True)]]
    value_of = {"ann": 3, "cy": 9, "bob": 3}
    dictionaries = [InMemory(column, value_of) for column in columns]
    message = r"^data\.raw: column user: 'ann' and 'bob' have the same value of 64 bits"
    refused(message, lambda: list(merge_dictionaries("user", dictionaries, 1 << 20, [0, 2], 1)))


def test_unused_part(tmp_path: Path) -> None:
    assert list(merge_dictionaries("c", [InMemory([])], 1 << 20, [0], 1)) == []
    numbered = NumberedValues(tmp_path / "numbered", with_texts=True)
    assert list(numbered.runs(iter([]))) == []
