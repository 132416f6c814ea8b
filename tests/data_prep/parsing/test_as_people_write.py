"""Text tables as people and programs write them are read as meant; test_refusals.py has what is refused."""

from pathlib import Path

import numpy as np
import pytest

from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from tests.data_prep.conftest import prepare
from tests.data_prep.parsing.test_refusals import EUROPEAN, NUMBERED
from tests.data_prep.tables import ALLOW, HASHED, SCHEMA, ids, make, paths, refused_table, table
from tests.error_lines import refused

# As written, and what it means.
FIELDS = {'"say ""hi"""': 'say "hi"', '"a,b"': "a,b", '5" pipe': '5" pipe', '"x"y': "xy", '""': "", "": ""}
FIELDS |= {'a "b" c': 'a "b" c', 'a"': 'a"', "\\": "\\", '"5"" disk"': '5" disk', '"\\"': "\\"}


def test_fields_with_quotes(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},{i},{field},x\n" for i, field in enumerate([*FIELDS] * 3))
    _, dense, sparse = make(tmp_path, "label,price,user,item\n" + rows)
    assert dense[:, 0].tolist() == list(range(len(FIELDS) * 3))
    assert sparse[:, 0].tolist() == ids([*FIELDS.values()] * 3)


@pytest.mark.parametrize("blank", ["\n", "\r\n", "\n\n\n", "\n\r\n\n"])
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=40",)], ids=["one chunk", "chunks"])
def test_blank_lines_at_the_end_are_no_rows(tmp_path: Path, blank: str, more: tuple[str, ...]) -> None:
    labels, dense, _ = make(tmp_path, table() + blank, SCHEMA, *HASHED, *more)
    assert labels.tolist() == [i % 2 for i in range(40)]
    assert dense[:, 0].tolist() == [i / 4 for i in range(40)]


@pytest.mark.parametrize("blank", ["", "\n" * 60])
def test_a_chunk_without_rows_of_lists(tmp_path: Path, blank: str) -> None:
    text = f"label,{'tags':_<50}\n{blank}" + "1,a|b\n0,\n" * 20
    schema = f"label: label\nsparse: [{{column: {'tags':_<50}, separator: '|'}}]\n"
    make(tmp_path, text, schema, *HASHED, "data.chunk_bytes=50")
    assert load_manifest(tmp_path / "out").rows == 40


def test_truth_values_are_labels_and_numbers(tmp_path: Path) -> None:
    words = ["True", "False", "true", "false", "TRUE", "yes", "no", "Yes", "1", "0", "1.0"]
    text = "label,price,user,item\n" + "".join(f"{word},{word},u,{word}\n" for word in words * 3)
    labels, dense, sparse = make(tmp_path, text)
    assert labels.tolist() == [1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1] * 3
    assert "positive" not in load_manifest(tmp_path / "out").encoding["table"]
    assert dense[:, 0].tolist() == labels.tolist()
    assert sparse[:11, 1].tolist() == ids(words)


NUMBERS = [
    (SCHEMA, ",", {"1e3": 1000, " 2 ": 2, "+.5": 0.5, "3.": 3, "-0": 0, "": 0, "5e-324": 0}),
    (EUROPEAN, ";", {"1,5": 1.5, "1.234,25": 1234.25, "-1.234.567": -1234567, "12": 12, "NA": 0, "\\N": 0, "": 0}),
    (EUROPEAN, ";", {"1234,5": 1234.5}),
]


@pytest.mark.parametrize(("schema", "delimiter", "numbers"), NUMBERS)
def test_numbers(tmp_path: Path, schema: str, delimiter: str, numbers: dict[str, float]) -> None:
    rows = "".join("1,{},u,i\n0,0,NULL,i\n".replace(",", delimiter).format(text) for text in numbers)
    _, dense, sparse = make(tmp_path, "label,price,user,item\n".replace(",", delimiter) + rows, schema)
    assert dense[::2, 0].tolist() == list(numbers.values())
    assert sparse[1, 0] == ids(["" if "missing" in schema else "NULL"])[0]
    encoder = Encoder.load(tmp_path / "out")
    new = delimiter.join(("user", "item", "price")) + "".join(f"\nu{delimiter}i{delimiter}{text}" for text in numbers)
    block = encoder.parse(f"{new}\n".encode(), "new", labelled=False)
    assert encoder.encode(block).dense[:, 0].tolist() == list(numbers.values())


def test_a_tiny_span_is_finite(tmp_path: Path) -> None:
    content = "label,price,user,item\n" + "1,5e-324,u,i\n0,0,v,j\n" * 20
    assert np.isfinite(make(tmp_path, content, SCHEMA, *HASHED[:2], "data.dense_transform=minmax")[1]).all()


def test_a_mark_of_byte_order_is_only_that_at_the_start(tmp_path: Path) -> None:
    sparse = make(tmp_path, "\ufefflabel,user\n" + "1,\ufeffu\n0,v\n" * 30, "label: label\nsparse: [user]")[2]
    assert sparse[:2, 0].tolist() == ids(["\ufeffu", "v"])


POSITIONS: list[tuple[str, str, dict[str, int]]] = [
    (NUMBERED, 'label: label\nsparse: ["0", 1]\n', {"z{}": 5, "y{}": 3}),  # a number in quotes is a name
    (NUMBERED, 'label: 3 >= 1\nsparse: ["0"]\n', {"z{}": 5}),
    # pandas names the columns of an array so
    ("0,1\n" + "".join(f"{i % 2},z{i % 5}\n" for i in range(40)), "label: 0\nsparse: [1]\n", {"z{}": 5}),
]


@pytest.mark.parametrize(("content", "schema", "columns"), POSITIONS)
def test_positions_and_numbers_as_names(tmp_path: Path, content: str, schema: str, columns: dict[str, int]) -> None:
    labels, _, sparse = make(tmp_path, content, schema)
    assert labels.tolist() == [i % 2 for i in range(40)]
    assert sparse.T.tolist() == [ids([name.format(i % size) for i in range(40)]) for name, size in columns.items()]


def test_a_rule_s_number_is_written_as_the_file_s_are(tmp_path: Path) -> None:
    text = 'l,user\n"1.000",a\n"999,5",b\n"1,5",c\n"2.000,25",d\n'
    schema = 'label: l >= 1.000\nsparse: [user]\ndecimal: ","\nthousands: "."'
    assert make(tmp_path, text, schema, *HASHED, ALLOW)[0].tolist() == [1, 0, 0, 1]


def test_labels_of_one_class_are_refused_with_their_values(tmp_path: Path) -> None:
    text = "l,user\n" + "- 50000,a\n" * 5 + "50000+,b\n" * 2
    message = (
        r"rows.csv, column l: every label is 0 by the rule == 50000\+\., so no model can learn from them; values of 7 "
        r"rows are '- 50000' \(5\), '50000\+' \(2\); correct the column or its rule in data.schema, or give "
        r"data.allow_degenerate=true"
    )
    schema = "label: l == 50000+%s\nsparse: [user]\n"
    refused_table(tmp_path, text, schema % ".", message)
    assert make(tmp_path, text, schema % ".", *HASHED, ALLOW)[0].tolist() == [0] * 7
    assert make(tmp_path, text, schema % "", *HASHED, ALLOW, "data.overwrite=true")[0].tolist() == [0] * 5 + [1] * 2


def test_columns_of_parquet_by_position_and_a_file_cut_off(tmp_path: Path) -> None:
    columns = {"user": [f"u{i}" for i in range(40)], "rating": list(range(40)), "genres": [["a"]] * 40}
    make(tmp_path, columns, "label: {column: 1, rule: '>= 4'}\nsparse: [0, 2]\n", name="rows.parquet")
    manifest = load_manifest(tmp_path / "out")
    assert (manifest.schema["label"], manifest.schema["sparse"]) == ("rating", ["user", "genres"])
    assert (manifest.encoding["table"]["rule"], manifest.encoding["table"]["names"]) == (">= 4", list(columns))
    path = tmp_path / "rows.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    refused("not readable as Parquet", prepare, *paths(tmp_path, SCHEMA, "rows.parquet", "other"))
