"""Labels by value: the positive values of a schema, known pairs of words, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from data_prep.dataset.format import load_manifest
from data_prep.dataset.table_spec import COMPARISONS
from data_prep.encoding import Encoder
from data_prep.parsing import labels as label_values
from tests.data_prep.conftest import Capture
from tests.data_prep.tables import HASHED, make, refused_table
from tests.error_lines import refused

POSITIVE = 'label: {column: l, positive: ["yes", "1"]}\nsparse: [user]\n'
PLAIN = "label: l\nsparse: [user]\n"


def columns(labels: list[Any]) -> dict[str, list[Any]]:
    return {"l": labels, "user": [f"u{row}" for row in range(len(labels))]}


VALUES: list[tuple[str, list[Any]]] = [
    ("rows.csv", ["yes", "no", "1", "0", "maybe", "Yes", " yes", "1.0"]),
    ("rows.jsonl", ["yes", "no", 1, 0, "maybe", True, "Yes", 1.0]),
    ("rows.parquet", ["yes", "no", "1", "0", "maybe", "Yes", " yes", "1.0"]),
]


@pytest.mark.parametrize(("name", "labels"), VALUES)
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=60", "data.workers=2")])
def test_positive_values_are_1_others_0(tmp_path: Path, name: str, labels: list[Any], more: tuple[str, ...]) -> None:
    expected = [int(label in ("yes", "1") or (not isinstance(label, str) and label == 1)) for label in labels * 5]
    assert make(tmp_path, columns(labels * 5), POSITIVE, *HASHED, *more, name=name)[0].tolist() == expected
    assert load_manifest(tmp_path / "out").encoding["table"]["positive"] == ["yes", "1"]
    block = Encoder.load(tmp_path / "out").parse_columns(columns(labels), "new", labelled=True)
    assert block.labels.tolist() == expected[: len(labels)]


BIG = 2**53


@pytest.mark.medium
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_integers_beyond_float64_are_compared_exactly(tmp_path: Path, name: str) -> None:
    values, more = [BIG + 1, BIG, 5, BIG + 2, 10**18 + 1] * 4, (*HASHED, "data.overwrite=true")
    schemas = {f'{{column: l, positive: ["{BIG + 1}"]}}': [value == BIG + 1 for value in values]}
    for name_of, compare in COMPARISONS.items():
        schemas[f"l {name_of} {BIG + 1}"] = [compare(value, BIG + 1) for value in values]
    for label, expected in schemas.items():
        schema = f"label: {label}\nsparse: [user]\n"
        assert make(tmp_path, columns(values), schema, *more, name=name)[0].tolist() == expected, label


def test_a_positive_value_may_be_a_mark_of_missing_ones(tmp_path: Path) -> None:
    schema = POSITIVE.replace('"1"', '"NA"')
    assert make(tmp_path, columns(["yes", "NA", "no"] * 4), schema)[0].tolist() == [1, 1, 0] * 4


def test_a_positive_value_that_no_row_has_is_refused(tmp_path: Path) -> None:
    message = (
        r'rows\.csv, column l: no row has the label "1" of positive; values of 9 rows are \'no\' \(6\), '
        r"'yes' \(3\); correct positive in data\.schema, or leave the value out"
    )
    refused_table(tmp_path, columns(["yes", "no", "no"] * 3), POSITIVE, message, "data.allow_degenerate=true")
    assert make(tmp_path, columns(["yes", "no", "no"] * 3), POSITIVE.replace(', "1"', ""))[0].tolist() == [1, 0, 0] * 3


PAIRS: list[tuple[Any, Any]] = [("y", "n"), ("T", "F"), ("Click", "No_Click"), ("clicked", "not_clicked")]
PAIRS += [("POSITIVE", "negative"), ("pos", " neg"), (1, -1), ("+1", "-1")]


@pytest.mark.parametrize(("one", "zero"), PAIRS)
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_known_pairs_need_no_rule(tmp_path: Path, capsys: Capture, one: Any, zero: Any, name: str) -> None:
    labels = [zero, one, zero, zero] * 5
    assert make(tmp_path, columns(labels), PLAIN, name=name)[0].tolist() == [0, 1, 0, 0] * 5
    assert f"schema.yaml: label l: {one} is 1, {zero} is 0\n" in capsys.readouterr().err
    table = load_manifest(tmp_path / "out").encoding["table"]
    assert (table["positive"], table["negative"]) == ([str(one)], [str(zero)])
    message = f"new: row 1, column l: 'x' is neither {one} nor {zero}".replace("+", r"\+")
    refused(message, Encoder.load(tmp_path / "out").parse_columns, columns(["x"]), "new", labelled=True)


def test_a_third_value_and_a_missing_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_values, "CHUNK_BYTES", 30)  # the pair is known before the third value is read
    for label, fault in (("other", r"'other' is neither click nor no_click"), ("", "no value")):
        labels = ["click", "no_click"] * 3 + ["click", label]
        refused_table(tmp_path, columns(labels), PLAIN, rf"rows\.csv: row 9, column l: {fault}")


@pytest.mark.parametrize(
    ("name", "labels", "shown", "entry"),
    [
        ("rows.csv", ["2", "1", "1"], r"'2' \(3 rows\) and '1' \(6 rows\)", "2"),
        ("rows.parquet", [2, 1, 1], r"2 \(3 rows\) and 1 \(6 rows\)", "2"),
        ("rows.csv", ["click", "neg", "neg"], r"'click' \(3 rows\) and 'neg' \(6 rows\)", "click"),
        ("rows.csv", ["-1", "0", "0"], r"'-1' \(3 rows\) and '0' \(6 rows\)", "-1"),
    ],
)
def test_another_pair_has_its_remedy(tmp_path: Path, name: str, labels: list[Any], shown: str, entry: str) -> None:
    line = rf'label: \{{column: l, positive: \["{entry}"\]\}}'
    message = rf"{name}, column l: labels are {shown}, and nothing says which is 1; write in .*schema\.yaml {line}, or"
    line = refused_table(tmp_path, columns(labels * 3), PLAIN, message, name=name)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
    remedy = line.partition("schema.yaml ")[2].partition(", or")[0]
    expected = [int(str(label) == entry) for label in labels * 3]
    assert make(tmp_path, columns(labels * 3), f"{remedy}\nsparse: [user]\n", name=name)[0].tolist() == expected
