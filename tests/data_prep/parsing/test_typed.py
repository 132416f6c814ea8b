"""Values with types, of Parquet, JSON lines and memory: as the same rows in text, or refused by row and column."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from data_prep.codec.convert import to_column, to_list
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding import Encoder, read_new_rows
from data_prep.lookup import VocabularyTexts
from data_prep.parsing import readers
from data_prep.parsing.readers import Parquet
from data_prep.parsing.table import Chunk, FileLayout
from data_prep.sources.files import Source, resolve_sources
from tests.data_prep.conftest import SPLITS, Capture, load_split, prepare, sums
from tests.data_prep.tables import HASHED, make, paths, write

NAN = float("nan")
TIME = datetime(2025, 5, 8, 6, 45)


IN_MEMORY: list[tuple[Any, list[Any]]]
IN_MEMORY = [([1.5, NAN, None, pd.NA, pd.NaT, np.float32("nan")], [1.5, *[None] * 5]), (iter([1, NAN]), [1, None])]
IN_MEMORY += [((1, "a", True, Decimal("0.5")), [1, "a", True, Decimal("0.5")]), (range(3), [0, 1, 2]), ([], [])]
IN_MEMORY += [(np.array([1.5, NAN], dtype), [1.5, None]) for dtype in (np.float64, np.float16, ">f8")]
IN_MEMORY += [(np.array([1, 2], ">i4"), [1, 2]), (np.array([2**63, 3], np.uint64), [2**63, 3])]
IN_MEMORY += [(np.array([True, False]), [True, False]), (np.array([1.5, NAN, 2.5])[::2], [1.5, 2.5])]
IN_MEMORY += [(np.ma.MaskedArray([1, 2], [True, False]), [None, 2]), (np.array(["a", "nan"]), ["a", "nan"])]
IN_MEMORY += [(np.array(["a", NAN, None, 3], object), ["a", None, None, 3])]
IN_MEMORY += [(np.array([TIME, "NaT"], "M8[ns]"), [TIME, None]), (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]])]
IN_MEMORY += [(pd.Series([1, None], dtype="Int64"), [1, None]), (pd.Series([TIME, None]), [TIME, None])]
IN_MEMORY += [(pd.Series(["a", None], dtype="category"), ["a", None]), (pl.Series([1.5, NAN, None]), [1.5, None, None])]
IN_MEMORY += [(pl.Series([[1, 2], [], None]), [[1, 2], [], None])]
IN_MEMORY += [(pl.Series([date(2025, 5, 8), None]), [date(2025, 5, 8), None])]
IN_MEMORY += [(pa.array([1.5, NAN, None], from_pandas=False), [1.5, None, None])]
IN_MEMORY += [(pa.chunked_array([[1.5], [NAN]]), [1.5, None])]


@pytest.mark.parametrize(("values", "expected"), IN_MEMORY)
def test_missing_values_of_every_library_are_null(values: Any, expected: list[Any]) -> None:
    column = to_column(values, "x")
    assert isinstance(column, list | pa.Array)
    assert to_list(column) == expected


ROWS = 1700
COLUMNS = ["number", "text", "tags"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Three row groups, of which the first is several chunks and the others are one."""
    numbers = range(ROWS)
    columns = [list(numbers), [f"t{i % 7}" for i in numbers], [["x"] * (i % 3) for i in numbers]]
    table = pa.table(columns, COLUMNS)
    with pq.ParquetWriter(tmp_path / "rows.parquet", table.schema) as writer:
        for start, stop in ((0, 1500), (1500, 1550), (1550, ROWS)):
            writer.write_table(table.slice(start, stop - start), row_group_size=1500)
    monkeypatch.setattr(readers, "BATCH_ROWS", 128)
    [source] = resolve_sources(str(tmp_path / "rows.parquet"))
    return source


def read(source: Source, chunk: Chunk) -> tuple[list[Any], list[str]]:
    """A chunk's rows, and what an error calls the first of each batch."""
    rows: list[Any] = []
    places: list[str] = []
    for batch, _ in Parquet().batches(source, chunk, COLUMNS, FileLayout(tuple(COLUMNS), lists=["tags"])):
        rows += list(zip(*(batch.columns[name].to_pylist() for name in COLUMNS), strict=True))
        places.append(batch.locator(0))
    return rows, places


ORDERS: list[Callable[[list[int]], list[int]]] = [lambda numbers: numbers, lambda numbers: numbers[::-1]]
ORDERS += [lambda numbers: numbers[::2] + numbers[1::2], lambda numbers: [0, 0, 2, 1]]


@pytest.mark.parametrize("order", ORDERS, ids=["forward", "backward", "every other one first", "one twice"])
def test_chunks_are_the_rows_in_any_order(source: Source, order: Callable[[list[int]], list[int]]) -> None:
    table = pq.read_table(source.path)
    expected = list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
    chunks = Parquet().chunks(source, FileLayout(lists=["tags"]), 41, 15_000)
    assert [chunk.rows.groups for chunk in chunks[-2:]] == [(0, 1), (1, 3)]
    begins = [chunk.rows.row + chunk.rows.first for chunk in chunks]
    for number in order(list(range(len(chunks)))):
        rows, places = read(source, chunks[number])
        assert rows == expected[begins[number] : begins[number] + chunks[number].rows.rows]
        group, first = next((g, f) for g, f in ((2, 1550), (1, 1500), (0, 0)) if f <= begins[number])
        assert f"row group {group}, row {begins[number] - first + 1} of it" in places[0]


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
    for number, columns in enumerate(tables):
        write(tmp_path / f"raw/part-{number}.parquet", columns)
    prepare(*paths(tmp_path, SCHEMA.replace("dt", "item"), "raw"), *KEEP_ORDER)
    labels, dense, ids = load_split(tmp_path / "out", "train")
    assert labels.tolist() == [0, 1] * 3
    assert dense[:, 0].tolist() == [0, 0, 1.5, 0, 2, 3]
    assert names_of(tmp_path / "out", "user", ids[:, 0]) == ["3", "4", "3", "", "", ""]
    assert names_of(tmp_path / "out", "item", ids[:, 1]) == ["", "", "a", "b", "b", ""]


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


NUM_VECTORS, SIZE = 40, 3
VECTORS = np.random.default_rng(0).standard_normal((NUM_VECTORS, SIZE)).round(4).astype(np.float32).astype(np.float64)
NAMES = ["price", "e_0", "e_1", "e_2", "age"]
DENSE = "dense: [price, {column: e, vector: 3%s}, age]\n"
VECTOR_SCHEMA = f"label: label\n{DENSE}sparse: [user]\n"
Cells = list[Any]


def vector_columns(cells: Cells) -> dict[str, Cells]:
    labels, users = [row % 2 for row in range(NUM_VECTORS)], [f"u{row}" for row in range(NUM_VECTORS)]
    numbers = {
        "price": [row / 4 for row in range(NUM_VECTORS)],
        "e": cells,
        "age": [row + 1.0 for row in range(NUM_VECTORS)],
    }
    return {"label": labels, "user": users, **numbers, "e_1": [1] * NUM_VECTORS}


def lists_of_vectors() -> Cells:
    """Vectors as lists; the third is missing, the fifth empty."""
    cells: Cells = [[float(value) for value in vector] for vector in VECTORS]
    cells[2], cells[4] = None, []
    return cells


def texts_of_vectors(separator: str) -> Cells:
    return ["" if cell is None else separator.join(map(repr, cell)) for cell in lists_of_vectors()]


def expected_vectors() -> np.ndarray:
    vectors = VECTORS.copy()
    vectors[[2, 4]] = 0
    rows = np.arange(NUM_VECTORS)
    return np.column_stack([rows / 4, vectors, rows + 1]).astype(np.float32)


VECTOR_FORMS = [
    ("rows.csv", texts_of_vectors(" "), ', separator: " "'),
    ("rows.csv", texts_of_vectors(";"), ', separator: ";"'),
    ("rows.jsonl", lists_of_vectors(), ""),
    ("rows.jsonl", texts_of_vectors("|"), ', separator: "|"'),
    ("rows.parquet", lists_of_vectors(), ""),
    ("rows.parquet", texts_of_vectors(" "), ', separator: " "'),
]


@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=300", "data.workers=2")])
@pytest.mark.parametrize(("name", "cells", "separator"), VECTOR_FORMS)
def test_vectors_are_numbers(tmp_path: Path, name: str, cells: Cells, separator: str, more: tuple[str, ...]) -> None:
    _, dense, _ = make(tmp_path, vector_columns(cells), VECTOR_SCHEMA % separator, *HASHED, *more, name=name)
    assert np.array_equal(dense, expected_vectors())
    manifest = load_manifest(tmp_path / "out")
    assert manifest.schema["dense"] == NAMES
    encoder = Encoder.load(tmp_path / "out")
    rows = read_new_rows(tmp_path / name, encoder.shape(encoder.input_columns))
    assert np.array_equal(encoder.encode(encoder.parse_columns(rows.columns, "new")).dense, expected_vectors())
    for typed in (
        lists_of_vectors(),
        pa.array(lists_of_vectors(), pa.list_(pa.float32())),
        texts_of_vectors(separator[-2:-1] or "|"),
    ):
        block = encoder.parse_columns(vector_columns(typed), "new")
        np.testing.assert_array_equal(encoder.encode(block).dense, expected_vectors())


WEIGHTED = "label: label\ndense: [price]\nsparse: [user, {column: tags, separator: '|'}]\nweight: weight\n"
WITHOUT_BAGS = WEIGHTED.replace("{column: tags, separator: '|'}", "tags")
NUMBERS = WITHOUT_BAGS.replace("label: label", "label: {column: price, kind: number}").replace(
    "[price]", "[weight_again]"
)
NUM_WEIGHTS = 600
# Each with another way from a chunk to a shard.
WAYS = [
    pytest.param(WITHOUT_BAGS, ["data.split.method=fraction", *HASHED], id="whole-chunks"),
    pytest.param(WITHOUT_BAGS, ["data.split.method=random", "data.chunk_bytes=4000"], id="scattered"),
    pytest.param(NUMBERS, ["data.split.method=random", "data.chunk_bytes=4000"], id="scattered-numbers-as-labels"),
    pytest.param(WEIGHTED, ["data.split.method=random", "data.chunk_bytes=4000"], id="bags"),
]


def weighted_columns() -> dict[str, list[Any]]:
    """Return a table whose prices equal its weights; float32 rounds neither 0.1 + 0.2 nor 1e-30 to itself."""
    weights = [[0.0, 0.5, 1.0, 0.1 + 0.2, 1e-30, 3e38, 7.25][row % 7] for row in range(NUM_WEIGHTS)]
    names = [f"u{row % 5}" for row in range(NUM_WEIGHTS)]
    labels = [row % 2 for row in range(NUM_WEIGHTS)]
    prices = dict.fromkeys(("price", "weight", "weight_again"), weights)
    return {"label": labels, "user": names, "tags": names, **prices}


@pytest.mark.medium
@pytest.mark.parametrize(("schema", "keys"), WAYS)
def test_rows_keep_their_weights_and_workers_change_no_byte(tmp_path: Path, schema: str, keys: list[str]) -> None:
    write(tmp_path / "rows.csv", weighted_columns())
    for workers, out in ((1, "out"), (2, "other")):
        usual = [*paths(tmp_path, schema, out=out), "data.dense_transform=raw", f"data.workers={workers}"]
        prepare(*usual, *(key for key in keys if key != "data.dense_transform=raw"))
    manifest, other = load_manifest(tmp_path / "out"), load_manifest(tmp_path / "other")
    assert manifest.digest == other.digest
    assert sums(tmp_path / "out") == sums(tmp_path / "other")
    assert manifest.schema["weight"] == "weight"
    weights = {}
    for split in SPLITS:
        shards = [open_shard(tmp_path / "out", split, shard, manifest) for shard in manifest.splits[split].shards]
        weights[split] = np.concatenate([each.weights for each in shards])
        np.testing.assert_array_equal(weights[split], np.concatenate([each.dense for each in shards]))
        if schema is NUMBERS:
            np.testing.assert_array_equal(weights[split], np.concatenate([each.labels for each in shards]))
    expected = np.sort(np.array(weighted_columns()["weight"], np.float32))
    np.testing.assert_array_equal(np.sort(np.concatenate(list(weights.values()))[:, 0]), expected)
    assert manifest.encoding["mean_weight"] == pytest.approx(weights["train"].mean(dtype=np.float64), rel=1e-14)
