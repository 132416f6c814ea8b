"""Datasets of a user's own table in format versions 1 to 3, as they were written then: still checked, and encoded for.

tests/golden/table has a table, and the datasets that were made of it when a category was known by its CRC-32.
"""

from pathlib import Path

import numpy as np
import pytest

from data_prep.dataset.format import open_shard
from data_prep.encoding.encoder import Encoder
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import REPOSITORY

GOLDEN = REPOSITORY / "tests/golden/table"


@pytest.mark.parametrize("name", ["vocabulary", "hash"])
def test_new_rows_get_the_ids_that_their_shards_have(name: str) -> None:
    root: Path = GOLDEN / name
    manifest = verify_dataset(root)
    encoder = Encoder.load(root)
    block = encoder.parse((GOLDEN / "rows.csv").read_bytes(), "rows.csv")
    encoded, unknown = encoder.encode(block), encoder.unknown(block)
    begin = 0
    for split, entry in manifest.splits.items():
        for shard in entry.shards:
            arrays, rows = open_shard(root, split, shard, manifest), slice(begin, begin + shard.rows)
            np.testing.assert_array_equal(encoded.labels[rows], arrays.labels[:, 0])
            np.testing.assert_array_equal(encoded.dense[rows], arrays.dense)
            np.testing.assert_array_equal(encoded.sparse[rows], arrays.sparse)
            bags, expected = encoded.bags[0].part(rows.start, rows.stop), arrays.bags[0]
            np.testing.assert_array_equal(bags.ids, expected.ids)
            np.testing.assert_array_equal(bags.lengths, expected.lengths)
            begin += shard.rows
    assert begin == manifest.rows == len(unknown)
    assert unknown.any() == (name == "vocabulary")
