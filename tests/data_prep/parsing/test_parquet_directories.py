"""Parquet as Spark, pandas and databases write it: directories, types that gaps change, lists of any Arrow type."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder, read_new_rows
from data_prep.lookup import VocabularyTexts
from tests.data_prep.conftest import Capture, load_split, prepare
from tests.data_prep.tables import paths, write
from tests.error_lines import refused

PART_ROWS = 30
SCHEMA = "label: label\ndense: [price]\nsparse: [user, dt]\n"
KEEP_ORDER = ["data.split.method=fraction", "data.split.held_out=0", "data.dense_transform=raw"]


def write_spark(root: Path) -> None:
    """Two days of three parts, one of them without rows, and Spark's own files."""
    schema = pa.schema([("label", pa.int64()), ("price", pa.float64()), ("user", pa.string())])
    for day, folder in enumerate(("dt=2024-01-09", "dt=2024-01-10", "dt=__HIVE_DEFAULT_PARTITION__", "dt=a%3Ab")):
        (root / folder).mkdir(parents=True)
        for part in range(3):
            rows = 0 if part == 1 else PART_ROWS
            numbers = np.arange(rows) + 100 * day + 10 * part
            columns = [numbers % 2, numbers / 4.0, [f"u{number % 7}" for number in numbers]]
            pq.write_table(pa.table(columns, schema=schema), root / folder / f"part-0000{part}.snappy.parquet")
            (root / folder / f".part-0000{part}.snappy.parquet.crc").write_bytes(b"crc")
    (root / "_SUCCESS").write_bytes(b"")


def names_of(root: Path, feature: str, ids: Any) -> list[str]:
    texts = VocabularyTexts(root, feature)
    return [texts[number] for number in ids.tolist()]


def test_a_directory_of_spark_is_what_pyarrow_reads(tmp_path: Path, capsys: Capture) -> None:
    write_spark(tmp_path / "raw")
    prepare(*paths(tmp_path, SCHEMA, "raw"), *KEEP_ORDER)
    assert "skipped 4 files without rows: part-00001.snappy.parquet" in capsys.readouterr().err
    labels, dense, ids = load_split(tmp_path / "out", "train")
    partitioning = pads.HivePartitioning(pa.schema([("dt", pa.string())]), segment_encoding="uri")
    table = pads.dataset(tmp_path / "raw", format="parquet", partitioning=partitioning).to_table()
    assert labels.tolist() == table["label"].to_pylist()
    assert dense[:, 0].tolist() == table["price"].to_pylist()
    assert names_of(tmp_path / "out", "user", ids[:, 0]) == table["user"].to_pylist()
    days = [day or "" for day in table["dt"].to_pylist()]
    assert set(days) == {"2024-01-09", "2024-01-10", "", "a:b"}
    assert names_of(tmp_path / "out", "dt", ids[:, 1]) == days
    (tmp_path / "raw").rename(tmp_path / "new.parquet")  # as candidates are named
    encoder = Encoder.load(tmp_path / "out")
    new = read_new_rows(tmp_path / "new.parquet", encoder.shape())
    columns = {name: new.columns[name] for name in encoder.input_columns}
    np.testing.assert_array_equal(encoder.encode(encoder.parse_columns(columns, "new")).sparse, ids)


def test_types_that_differ_by_gaps_are_one(tmp_path: Path) -> None:
    """pandas makes float64 of integers with gaps, and a column without values has a type of its own."""
    (tmp_path / "raw").mkdir()
    tables: list[dict[str, Any]] = [
        {"label": [0, 1], "price": pa.nulls(2), "user": [3, 4], "item": pa.nulls(2)},
        {"label": [0.0, 1.0], "price": [1.5, None], "user": [3.0, None], "item": ["a", "b"]},
        {"label": [0, 1], "price": [2, 3], "user": pa.nulls(2), "item": ["b", None]},
    ]
    for number, table in enumerate(tables):
        write(tmp_path / f"raw/part-{number}.parquet", table)
    prepare(*paths(tmp_path, SCHEMA.replace("dt", "item"), "raw"), *KEEP_ORDER)
    labels, dense, ids = load_split(tmp_path / "out", "train")
    assert labels.tolist() == [0, 1] * 3
    assert dense[:, 0].tolist() == [0, 0, 1.5, 0, 2, 3]
    assert names_of(tmp_path / "out", "user", ids[:, 0]) == ["3", "4", "3", "", "", ""]
    assert names_of(tmp_path / "out", "item", ids[:, 1]) == ["", "", "a", "b", "b", ""]


def test_types_that_do_not_go_together_are_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for number, users in enumerate((["a", "b"], [1, 2])):
        write(tmp_path / f"raw/part-{number}.parquet", {"label": [0, 1], "user": users})
    message = r"part-1.parquet, column user: integer, but text in .*; write both files with"
    refused(message, prepare, *paths(tmp_path, "label: label\nsparse: [user]\n", "raw"))


TEXTS = [["a", "b"], ["b", "c"], ["a", "a"], ["d", "b"]] * 10
FLAT_TEXTS = [text for texts in TEXTS for text in texts]
PAIRS = pa.array(range(0, 81, 2), pa.int32())
LISTS = {
    "fixed size": pa.array(TEXTS, pa.list_(pa.string(), 2)),
    "categories": pa.ListArray.from_arrays(PAIRS, pa.array(FLAT_TEXTS).dictionary_encode()),
    "views": pa.array(TEXTS, pa.list_(pa.string_view())),
    "large": pa.array(TEXTS, pa.large_list(pa.large_string())),
    "list view": pa.array(TEXTS, pa.list_view(pa.string())),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_every_type_are_lists(name: str, tmp_path: Path) -> None:
    users = pa.array([f"u{row % 3}" for row in range(40)], pa.string_view())
    columns = {"label": [0, 1] * 20, "tags": LISTS[name], "user": users}
    write(tmp_path / "rows.parquet", columns, row_group_size=7)
    prepare(*paths(tmp_path, "label: label\nsparse: [tags, user]\n", "rows.parquet"), *KEEP_ORDER)
    [shard] = load_manifest(tmp_path / "out").splits["train"].shards
    values, offsets = (np.load(tmp_path / f"out/train/{shard.name}.{kind}.npy") for kind in ("values", "offsets"))
    assert np.diff(offsets).tolist() == [2] * 40
    assert names_of(tmp_path / "out", "tags", values) == FLAT_TEXTS
    assert names_of(tmp_path / "out", "user", load_split(tmp_path / "out", "train")[2][:, 0]) == users.to_pylist()
