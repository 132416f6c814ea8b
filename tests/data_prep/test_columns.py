from types import SimpleNamespace

import numpy as np

from data_prep.columns import raw_blocks


def test_some_rows_of_a_unit(tmp_path):
    """Values lie block by block, in each column by column; any rows are found, however they lie to the blocks."""
    job = SimpleNamespace(schema=SimpleNamespace(single=("a", "b")), unit_path=lambda *unit: tmp_path / "raw")
    record = SimpleNamespace(source=0, chunk=0, rows=9, block_rows=[3, 0, 4, 2])
    values = np.random.default_rng(0).integers(0, 2**32, (9, 2), np.uint32)
    blocks = np.split(values, np.cumsum(record.block_rows)[:-1])
    (tmp_path / "raw").write_bytes(b"".join(np.ascontiguousarray(block.T).tobytes() for block in blocks))
    for start in range(9):
        for stop in range(start + 1, 10):
            found = [block.T.copy() for block in raw_blocks(job, record, start, stop)]
            np.testing.assert_array_equal(np.concatenate(found), values[start:stop])
    everything = [block.T.copy() for block in raw_blocks(job, record)]
    np.testing.assert_array_equal(np.concatenate(everything), values)
