"""Label rules: what each form means on text and on typed values, and what is refused; see tests/oracles, too."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.errors import UserError
from tests.data_prep.parsing.test_as_people_write import HASHED, make
from tests.data_prep.parsing.test_typed_tables import lines, parquet

TRUTHS = [True, False, True]
FIVES = [5, 4, 5]
ALLOW = "data.allow_degenerate=true"


def labels(directory: Path, name: str, values: list[Any], schema: str, *more: str) -> list[int]:
    """The labels of a column `l` in a file of a kind, by its name's ending."""
    users = [f"u{row}" for row in range(len(values))]
    content: bytes | str
    if name.endswith(".parquet"):
        content = parquet(directory / name, {"l": values, "user": users})
    elif name.endswith(".jsonl"):
        content = lines([{"l": value, "user": user} for value, user in zip(values, users, strict=True)])
    else:
        content = "l,user\n" + "".join(f'"{value}",{user}\n' for value, user in zip(values, users, strict=True))
    return list(map(int, make(directory, content, f"{schema}\nsparse: [user]\n", *HASHED, *more, name=name)[0]))


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize(
    ("values", "rule", "expected"),
    [
        (TRUTHS, "== true", [1, 0, 1]),
        (TRUTHS, "!= false", [1, 0, 1]),
        (TRUTHS, "== 'True'", [1, 0, 1]),
        (FIVES, "== 5.", [1, 0, 1]),
        (FIVES, "== 5e0", [1, 0, 1]),
        (FIVES, "== +5", [1, 0, 1]),
        (FIVES, '== "5"', [1, 0, 1]),
        ([0.5, 1.0], "== .5", [1, 0]),
        ([" >50K", " <=50K"], "== >50K", [1, 0]),
        ([" >50K", ">50K"], "== ' >50K'", [1, 0]),
        (["no", "yes", "NO", "maybe"], "== no", [1, 0, 1, 0]),
        (["None", "like"], "== like", [0, 1]),
    ],
)
def test_a_rule_means_the_same_for_every_kind_of_file(
    name: str, values: list[Any], rule: str, expected: list[int], tmp_path: Path
) -> None:
    schema = f"label: {{column: l, rule: {rule!r}}}" if "'" not in rule else f'label: {{column: l, rule: "{rule}"}}'
    assert labels(tmp_path, name, values, schema, ALLOW) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("label: l === 5", r"write == 5, or the text in quotes"),
        ("label: l = purchase", r"l = purchase: not a rule, as in l == purchase"),
        ("label: l => 5", r"l => 5: not a rule, as in l == 5; operators are >=, "),
        ("label: l >= many", r">= many: >= needs a number; texts take == and !="),
        ("label: l > true", r"> true: > needs a number"),
        ('label: {column: l, rule: "== \'a"}', r"the quote is not closed"),
        ('label: l >= 4.5\ndecimal: ","', r'4.5 is no number by decimal: ","; write it as the file does'),
        ('label: l >= 4.5\ndecimal: ","\nthousands: "."', r'by decimal: "," and thousands: "\."'),
    ],
)
def test_what_is_no_rule_is_refused(schema: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        labels(tmp_path, "rows.csv", FIVES, schema)


def test_a_rule_s_number_is_written_as_the_file_s_are(tmp_path: Path) -> None:
    schema = 'label: l >= 1.000\ndecimal: ","\nthousands: "."'
    assert labels(tmp_path, "rows.csv", ["1.000", "999,5", "1,5", "2.000,25"], schema, ALLOW) == [1, 0, 0, 1]


@pytest.mark.parametrize("mark", ["NULL", "N/A", "nan", "\\N", "  "])
def test_a_missing_label_is_refused_however_it_is_written(mark: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows.csv: row 3, column l: .* stands for a missing value; correct or remove"):
        labels(tmp_path, "rows.csv", ["yes", mark, "no"], "label: l == yes")
    if mark.strip():
        assert labels(tmp_path, "rows.csv", ["yes", mark, "no"], f"label: l == {mark}", ALLOW) == [0, 1, 0]


def test_a_nan_among_typed_labels_is_refused(tmp_path: Path) -> None:
    values = pa.array([5.0, float("nan"), 4.0])
    content = parquet(tmp_path / "t.parquet", {"l": values, "user": ["a", "b", "c"]})
    for rule in ("== 5", "== like"):
        with pytest.raises(UserError, match="column l: nan"):
            make(tmp_path, content, f"label: l {rule}\nsparse: [user]\n", *HASHED, name="t.parquet")


def test_labels_of_one_class_are_refused_with_their_values(tmp_path: Path) -> None:
    values = ["- 50000"] * 5 + ["50000+"] * 2
    message = (
        r"rows.csv, column l: every label is 0 by the rule == 50000\+\., so no model can learn from them; values of 7 "
        r"rows are '- 50000' \(5\), '50000\+' \(2\); correct the column or its rule in data.schema, or give "
        r"data.allow_degenerate=true"
    )
    with pytest.raises(UserError, match=message):
        labels(tmp_path, "rows.csv", values, "label: l == 50000+.")
    assert not (tmp_path / "out/manifest.json").exists()
    assert labels(tmp_path, "rows.csv", values, "label: l == 50000+.", ALLOW) == [0] * 7
    assert labels(tmp_path, "rows.csv", values, "label: l == 50000+", ALLOW, "data.overwrite=true") == [0] * 5 + [1] * 2
