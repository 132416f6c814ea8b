"""Columns of float vectors, in every form of file, as dense features of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder, read_new_rows
from tests.data_prep.tables import HASHED, make, refused_table, write

ROWS, SIZE = 40, 3
VECTORS = np.random.default_rng(0).standard_normal((ROWS, SIZE)).round(4).astype(np.float32).astype(np.float64)
NAMES = ["price", "e_0", "e_1", "e_2", "age"]
DENSE = "dense: [price, {column: e, vector: 3%s}, age]\n"
SCHEMA = f"label: label\n{DENSE}sparse: [user]\n"
Cells = list[Any]


def columns(cells: Cells) -> dict[str, Cells]:
    labels, users = [row % 2 for row in range(ROWS)], [f"u{row}" for row in range(ROWS)]
    numbers = {"price": [row / 4 for row in range(ROWS)], "e": cells, "age": [row + 1.0 for row in range(ROWS)]}
    return {"label": labels, "user": users, **numbers, "e_1": [1] * ROWS}


def lists() -> Cells:
    """Vectors as lists; the third is missing, the fifth empty."""
    cells: Cells = [[float(value) for value in vector] for vector in VECTORS]
    cells[2], cells[4] = None, []
    return cells


def texts(separator: str) -> Cells:
    return ["" if cell is None else separator.join(map(repr, cell)) for cell in lists()]


def expected() -> np.ndarray:
    vectors = VECTORS.copy()
    vectors[[2, 4]] = 0
    rows = np.arange(ROWS)
    return np.column_stack([rows / 4, vectors, rows + 1]).astype(np.float32)


FORMS = [
    ("rows.csv", texts(" "), ', separator: " "'),
    ("rows.csv", texts(";"), ', separator: ";"'),
    ("rows.jsonl", lists(), ""),
    ("rows.jsonl", texts("|"), ', separator: "|"'),
    ("rows.parquet", lists(), ""),
    ("rows.parquet", texts(" "), ', separator: " "'),
]


@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=300", "data.workers=2")])
@pytest.mark.parametrize(("name", "cells", "separator"), FORMS)
def test_vectors_are_numbers(tmp_path: Path, name: str, cells: Cells, separator: str, more: tuple[str, ...]) -> None:
    _, dense, _ = make(tmp_path, columns(cells), SCHEMA % separator, *HASHED, *more, name=name)
    assert np.array_equal(dense, expected())
    manifest = load_manifest(tmp_path / "out")
    assert manifest.schema["dense"] == NAMES
    encoder = Encoder.load(tmp_path / "out")
    rows = read_new_rows(tmp_path / name, encoder.shape(encoder.input_columns))
    assert np.array_equal(encoder.encode(encoder.parse_columns(rows.columns, "new")).dense, expected())
    for typed in (lists(), pa.array(lists(), pa.list_(pa.float32())), texts(separator[-2:-1] or "|")):
        block = encoder.parse_columns(columns(typed), "new")
        np.testing.assert_array_equal(encoder.encode(block).dense, expected())


LISTS: list[pa.DataType] = [pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.float32())]
LISTS += [pa.list_(pa.float32(), SIZE), pa.list_(pa.int16())]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_every_kind_of_list_of_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    cells = [[1.0, 2.0, -3.0]] * ROWS
    table = {**columns(cells), "e": pa.array(cells, kind)}
    content = write(tmp_path / "rows.parquet", table, row_group_size=7).read_bytes()
    dense = make(tmp_path, content, SCHEMA % "", *HASHED, "data.chunk_bytes=400", name="rows.parquet")[1]
    assert dense[:, 1:4].tolist() == cells


def test_a_vector_is_kept_as_it_is_or_has_a_transform(tmp_path: Path) -> None:
    usual = make(tmp_path, columns(lists()), SCHEMA % "", "data.encoding=vocabulary", name="rows.jsonl")[1]
    assert np.array_equal(usual[:, 1:4], expected()[:, 1:4])
    np.testing.assert_allclose(usual[:, 0], np.log1p(expected()[:, 0]), rtol=1e-6)
    keys = ("data.encoding=vocabulary", "data.overwrite=true")
    scaled = make(tmp_path, columns(lists()), SCHEMA % ", transform: standard", *keys, name="rows.jsonl")[1]
    train = load_manifest(tmp_path / "out").splits["train"].rows
    vectors = expected()[:, 1:4].astype(np.float64)
    scale = (vectors - vectors[:train].mean(axis=0)) / vectors[:train].std(axis=0)
    np.testing.assert_allclose(scaled[:, 1:4], scale, rtol=1e-5, atol=1e-6)


FAULTS: list[tuple[str, Any, str, str]] = [
    ("rows.csv", "1 2", ', separator: " "', r"rows\.csv: row 8, column e: 2 numbers, but e is a vector of 3; correct"),
    ("rows.csv", "1 2 3 4", ', separator: " "', r"rows\.csv: row 8, column e: 4 numbers, but e is a vector of 3"),
    ("rows.csv", "1 2 x", ', separator: " "', r"rows\.csv: row 8, column e: 'x' is not a number"),
    ("rows.csv", "1 2 1e39", ', separator: " "', r"row 8, column e: '1e39' is beyond 3.4e\+38, .*: signed_log1p"),
    ("rows.jsonl", [1.0, 2.0], "", r"rows\.jsonl: row 7, column e: 2 numbers, but e is a vector of 3"),
    ("rows.jsonl", [1.0, None, 2.0], "", r"rows\.jsonl: row 7, column e: 2 numbers, but e is a vector of 3"),
    ("rows.jsonl", [1.0, "x", 2.0], "", r"rows\.jsonl: row 7, column e: 'x' is not a number"),
    ("rows.jsonl", 5.0, "", r"rows\.jsonl: row 7, column e: 1 numbers, but e is a vector of 3"),
    ("rows.parquet", [1.0, 2.0], "", r"row group 0, row 7 of it, column e: 2 numbers, but e is a vector of 3"),
    ("rows.parquet", [1.0, float("nan"), 2.0], "", r"row group 0, row 7 of it, column e: nan is not a number"),
]


@pytest.mark.parametrize(("name", "cell", "separator", "message"), FAULTS)
def test_a_bad_vector_is_refused_by_row(tmp_path: Path, name: str, cell: Any, separator: str, message: str) -> None:
    cells = texts(" ") if name == "rows.csv" else lists()
    cells[6] = cell
    for more in ((), ("data.chunk_bytes=300",)):
        refused_table(tmp_path, columns(cells), SCHEMA % separator, message, *more, name=name)


GIVE = "give a vector as {column: NAME, vector: 64}"
SEPARATOR = "column e: text; give the separator of its numbers, e.g. {column: e, vector: 3, sep"
SCHEMAS: list[tuple[str, Cells, str, str]] = [
    ("rows.csv", texts(" "), SCHEMA % "", SEPARATOR),
    ("rows.jsonl", lists(), SCHEMA % ', separator: " "', "column e: holds lists in .*; leave the separator out"),
    ("rows.parquet", [0.5] * ROWS, SCHEMA % "", r"rows\.parquet, column e: number, not lists of numbers"),
    ("rows.csv", texts(" "), SCHEMA % ', separator: ""', GIVE),
    ("rows.csv", texts(" "), SCHEMA % ", part: hour", GIVE),
    *(
        ("rows.jsonl", lists(), (SCHEMA % "").replace("3", size), f"{GIVE}, of at most 16384 numbers")
        for size in ("0", "-1", "x", "1.5", "100000", "true")
    ),
    ("rows.jsonl", lists(), (SCHEMA % "").replace("age", "e_1"), "column e_1 is named twice; a column has one use"),
    *(
        ("rows.parquet", lists(), schema, r"column e: list of numbers.*write {column: e, vector: 64} in dense")
        for schema in ("label: label\ndense: [e]\nsparse: [user]\n", "label: label\nsparse: [e]\n")
    ),
]


@pytest.mark.parametrize(("name", "cells", "schema", "message"), SCHEMAS)
def test_refused_schemas(tmp_path: Path, name: str, cells: Cells, schema: str, message: str) -> None:
    refused_table(tmp_path, columns(cells), schema, message, name=name)
