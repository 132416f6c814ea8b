"""Values with types, of Parquet and JSON lines: read as the same rows in text, or refused by row and column."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_prep.encoding import Encoder, Shape, read_new_rows
from data_prep.lookup import VocabularyTexts
from tests.data_prep.tables import make, table, write
from tests.error_lines import refused


def test_decimals_are_the_numbers_of_their_text(tmp_path: Path) -> None:
    """Arrow casts decimal 2.3 to the double above the one that 2.3 is."""
    texts = [f"{number / 10:.1f}" for number in range(40)]
    decimals = pa.array([Decimal(text) for text in texts], pa.decimal128(5, 1))
    columns = {"score": decimals, "user": texts}
    labels = make(tmp_path, columns, "label: score > 2.3\nsparse: [user]", name="t.parquet")[0]
    assert labels.tolist() == [int(float(text) > 2.3) for text in texts]


def test_text_in_a_column_of_json_s_lists_is_one_value(tmp_path: Path) -> None:
    """No schema has named a separator."""
    columns = {"label": [0, 1] * 30, "tags": [["a b", "c"], "rock|pop", "rock|pop"] * 20}
    make(tmp_path, columns, "label: label\nsparse: [tags]", "data.encoding=vocabulary", name="rows.jsonl")
    names = VocabularyTexts(tmp_path / "out", "tags")
    assert sorted(names[number] for number in range(1, len(names) + 1)) == ["a b", "c", "rock|pop"]


@pytest.mark.medium
def test_a_member_that_some_objects_and_files_lack(tmp_path: Path) -> None:
    """It is an empty field; lists are lists in all files if they are in one."""
    rows = {"label": [0, 1] * 20, "user": [f"u{row}" for row in range(40)]}
    write(tmp_path / "more.jsonl", {"label": [1] * 20, "user": ["x"] * 20, "tags": [["a", "b"]] * 20})
    raw = f"data.raw=[{tmp_path}/rows.jsonl,{tmp_path}/more.jsonl]"
    make(tmp_path, rows, "label: label\nsparse: [user, tags]", raw, "data.split.method=random", name="rows.jsonl")
    assert len(VocabularyTexts(tmp_path / "out", "tags")) == 2


NESTED = [
    pa.array([["a"], ["b"]]),
    pa.array([{"a": 1}, {"a": 2}]),
    pa.array([[["a"]], [["b"]]]),
    pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
]


@pytest.mark.parametrize("values", NESTED, ids=["list", "struct", "list of lists", "list of categories"])
def test_nested_candidates_are_refused_by_column(tmp_path: Path, values: Any) -> None:
    make(tmp_path, table(), "label: label\ndense: [price]\nsparse: [user]\n")
    parse = Encoder.load(tmp_path / "out").parse_columns
    refused(r"row 1, column user: .* is not a category", parse, {"price": [1.0, 2.0], "user": values}, "new")
    refused(r"row 1, column price: .* is not a number", parse, {"price": values, "user": ["a", "b"]}, "new")


def test_integers_of_any_length(tmp_path: Path) -> None:
    columns = {"label": [0, 1] * 20, "price": list(range(40)), "user": ["u"] * 40}
    make(tmp_path, columns, "label: label\ndense: [price]\nsparse: [user]\n", name="rows.jsonl")
    encoder = Encoder.load(tmp_path / "out")
    block = encoder.parse_columns({"price": [2**70], "user": ["u"]}, "new")
    assert encoder.encode(block).dense[0, 0] == 2**70
    columns = {"price": [10**400], "user": ["u"]}
    refused(r"row 1, column price: 1000.* is not a number", encoder.parse_columns, columns, "new")


def test_json_too_deep_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": ' + "[" * 100_000 + "\n")
    refused("row 2: not JSON", read_new_rows, tmp_path / "a.jsonl", Shape(("a",), ",", "label"))


def test_a_delimiter_that_does_not_divide_is_not_asked(tmp_path: Path) -> None:
    """By | a quote opens and never closes."""
    (tmp_path / "a.csv").write_text('u1|"x,i1\n')
    new = read_new_rows(tmp_path / "a.csv", Shape(("label", "user", "item"), ",", "label"))
    assert [values.to_pylist() for values in new.columns.values()] == [['u1|"x'], ["i1"]]


def test_booleans_of_parquet(tmp_path: Path) -> None:
    truths = [row % 3 == 0 for row in range(42)]
    columns = {"label": [0, 1] * 21, "new": truths}
    sparse = make(tmp_path, columns, "label: label\nsparse: [new]", name="t.parquet")[2]
    encoder = Encoder.load(tmp_path / "out")
    ids_of_booleans = encoder.encode(encoder.parse_columns({"new": pa.array(truths)}, "new")).sparse
    texts = pa.array([str(int(truth)) for truth in truths])
    ids_of_texts = encoder.encode(encoder.parse_columns({"new": texts}, "new")).sparse
    assert ids_of_booleans.tolist() == ids_of_texts.tolist() == sparse.tolist()
    message = r"row 1, column new: 'True' is spelled otherwise .*write integers as 3"
    refused(message, encoder.parse_columns, {"new": ["True"]}, "new")


@pytest.mark.parametrize("value", ["NaN", "[1, Infinity]", "-Infinity"])
def test_numbers_that_json_does_not_have_are_named_by_column(value: str, tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(f'[{{"user": "a"}}, {{"user": {value}}}]')
    message = r"new.json: column user: -?(NaN|Infinity), which JSON does not have"
    refused(message, read_new_rows, tmp_path / "new.json", Shape(("label", "user"), ",", "label"))
