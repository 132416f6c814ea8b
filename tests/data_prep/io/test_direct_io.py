import errno

import numpy as np
import pytest

from data_prep.io.direct_io import Part, read_at_once, read_parts, read_rows


def test_parts_of_any_size_at_any_place(tmp_path):
    """Each is as it should be while it may be used, whatever is being read behind it."""
    content = np.random.default_rng(0).integers(0, 256, 300_000).astype(np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    places = [(0, 4096), (5, 100_000), (4096, 0), (299_999, 1), (1, 299_999), (8191, 2), (0, 300_000)]
    seen = 0
    for (offset, size), found in zip(places, read_parts([Part(path, *p) for p in places], "test"), strict=True):
        np.testing.assert_array_equal(found, content[offset : offset + size])
        seen += 1
    assert seen == len(places)
    for _ in range(2):  # the second time where the first ones were
        for (offset, size), found in zip(
            places, read_at_once([Part(path, *p) for p in places], "test at once"), strict=True
        ):
            np.testing.assert_array_equal(found, content[offset : offset + size])


@pytest.mark.parametrize("width", [0, 3])
def test_rows_of_an_array(tmp_path, width):
    array = np.arange(1000 * width, dtype=np.int32).reshape(1000, width)
    np.save(tmp_path / "array.npy", array)
    blocks = [(0, 10), (10, 10), (990, 1000), (0, 1000)]
    for (start, stop), rows in zip(
        blocks, read_rows(tmp_path / "array.npy", blocks, width, np.int32, "test"), strict=True
    ):
        np.testing.assert_array_equal(rows, array[start:stop])


def test_a_file_that_became_shorter_is_named(tmp_path):
    (tmp_path / "short").write_bytes(bytes(100))
    with pytest.raises(OSError, match="shorter than it was") as caught:
        list(read_parts([Part(tmp_path / "short", 50, 100)], "test"))
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "short"))
