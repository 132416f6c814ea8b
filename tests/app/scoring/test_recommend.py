"""Candidates: files that can be read and others, and the same scores as evaluation gives."""

import csv
import gzip
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.metrics import log_loss

from app.scoring import fill_from_user, ignored_columns
from common.errors import UserError
from data_prep.codec.files import NewRows, Shape
from data_prep.encoding import read_new_rows
from tests.app.conftest import SMALL, Command
from tests.app.run_files import summary
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare
from tests.error_lines import refused

ROWS = 700


@pytest.fixture
def run(tmp_path: Path, run_app: Command) -> dict[str, Any]:
    """A run on rows of which the last 100 are validation and test."""
    (tmp_path / "raw.tsv").write_bytes(oracle.make_rows(ROWS, seed=4))
    prepare(f"data.raw={tmp_path}/raw.tsv", f"data.path={tmp_path}/data")
    return train(run_app, tmp_path)


def train(run_app: Command, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    """The figures of its evaluation."""
    run_app("train", *SMALL, "data.path=data", "run.name=r", "train.max_steps=9", "eval.split=test", *overrides)
    return summary(tmp_path / "runs/r")["eval"]


def ranking(run_app: Command, tmp_path: Path, candidates: str, *overrides: str) -> list[dict[str, Any]]:
    run_app("recommend", "run=runs/r", f"candidates={candidates}", "top_k=null", "out=out.json", *overrides)
    return json.loads((tmp_path / "out.json").read_bytes())["ranking"]


@pytest.mark.slow("processes")
def test_ids_are_expanded_as_they_were_in_training(run_app: Command, tmp_path: Path) -> None:
    text = oracle.make_rows(400, seed=4)
    (tmp_path / "raw.tsv").write_bytes(text)
    prepare(f"data.raw={tmp_path}/raw.tsv", f"data.path={tmp_path}/data")
    sizes = f"data.multi_hot.sizes={[1 + i % 3 for i in range(26)]}".replace(" ", "")
    figures = train(run_app, tmp_path, sizes)
    lines = text.decode().splitlines(keepends=True)[-figures["samples"] :]
    (tmp_path / "test.tsv").write_text("".join(lines))
    ranked = ranking(run_app, tmp_path, "test.tsv")
    labels = [int(lines[int(candidate["candidate"]) - 1][0]) for candidate in ranked]
    assert log_loss(labels, [c["probability"] for c in ranked]) == pytest.approx(figures["logloss"], rel=1e-6)


@pytest.mark.medium
def test_values_out_of_vocabulary_are_told(run: dict[str, Any], run_app: Command, tmp_path: Path) -> None:
    fields = (tmp_path / "raw.tsv").read_text().splitlines()[0].split("\t")
    strange = [*fields]
    strange[1 + 13 + 2], strange[1 + 13 + 7] = "deadbee1", "deadbee2"
    (tmp_path / "c.tsv").write_text("".join("\t".join(row) + "\n" for row in (fields, strange)))
    process = run_app("recommend", "run=runs/r", "candidates=c.tsv", "top_k=2", "out=out.csv")
    assert "cat_2 1, cat_7 1" in process.stderr
    assert len(process.stdout.splitlines()) == 3
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert {row["candidate"]: row["out_of_vocabulary"] for row in rows} == {"1": "", "2": "cat_2 cat_7"}


RAW = ("label", "age", "city")


def read(path: Path, columns: list[str] | None = None) -> NewRows:
    return read_new_rows(path, Shape(RAW, ",", "label", columns))


def texts(rows: NewRows, *columns: str) -> list[list[str]]:
    return [rows.texts(column) for column in columns or rows.columns]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "age,city\n1,x\n2\n", "row 3: 1 columns"),
        ("a.tsv", "1\t2\tx\n1\t2\tx\ty\n", "row 2: 4 columns"),
        ("a.parquet", "PAR", "not readable as Parquet"),
        ("a.csv", 'age,city\n1,"x\ny"\n', "row 2: ends inside quotes"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "age,city\n1,x\n2,y\n\n\n",
        "\nage,city\n1,x\n2,y",
        "\ufeffage,city\r\n1,x\r\n2,y\r\n",
        "age;city\n1;x\n2;y\n",
        "age|city\n1|x\n2|y\n",
        "1;x\n2;y\n",
    ],
)
def test_rows_as_people_write_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    new_rows = read(tmp_path / "a.csv")
    assert texts(new_rows, "age", "city") == [["1", "2"], ["x", "y"]]


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_json_as_other_programs_write_it(tmp_path: Path, mark: str, ending: str) -> None:
    """Only a line feed ends a line: U+2028, U+2029, U+0085, form feeds may stand in a string."""
    cities = ["a\u2028b", "c\u2029d\u0085e", "\x7f\x1c".replace("\x1c", "")]
    lines = [json.dumps({"age": number, "city": city}, ensure_ascii=False) for number, city in enumerate(cities)]
    (tmp_path / "a.jsonl").write_text(mark + f"{ending}{ending} \t{ending}".join([*lines, ""]), newline="")
    (tmp_path / "a.json").write_text(mark + "[" + ",".join(lines) + "]")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    for name in ("a.jsonl", "a.json", "c.jsonl.gz"):
        new_rows = read(tmp_path / name)
        assert texts(new_rows, "age", "city") == [["0", "1", "2"], cities]
    (tmp_path / "b.jsonl").write_text(f'{mark}\n\n{{"age": 1}}\n\n{{"age"\n')
    refused(r"b\.jsonl: row 5: not JSON", read, tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").write_text('{"age": 1e400}\n')
    refused(r"b\.jsonl: row 1: not JSON", read, tmp_path / "b.jsonl")


def test_columns_that_are_not_read_may_be_anything(tmp_path: Path) -> None:
    times = [datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2)]
    columns = [pa.array([1, 2]), pa.array(["x", "y"]), pa.array(times), pa.array([[1], [2, 3]]), pa.array([1.5, 2.5])]
    pyarrow.parquet.write_table(pa.table(columns, ["age", "city", "when", "seen", "seen"]), tmp_path / "a.parquet")
    rows = [{"age": 1, "city": "x", "seen": [1]}, {"age": 2, "city": "y", "when": {"day": 2}}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.csv").write_text("seen,age,seen,city\n1,1,1,x\n2,2,3,y\n")
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        new_rows = read(tmp_path / name, ["age", "city"])
        assert texts(new_rows, "age", "city") == [["1", "2"], ["x", "y"]]
        assert "seen" in ignored_columns(new_rows, ["age", "city"], spare=[])
    with pytest.raises(UserError, match=r"a\.parquet: row 1, column when: 2026-01-01 .* is neither text nor a number"):
        texts(read(tmp_path / "a.parquet", ["age", "when"]), "when")
    (tmp_path / "b.jsonl").write_text('{"age": {"years": 1}}\n')
    with pytest.raises(UserError, match=r"b\.jsonl: row 1, column age: \{'years': 1\} is neither text nor a number"):
        texts(read(tmp_path / "b.jsonl"), "age")
    for name in ("a.parquet", "a.csv"):
        refused("a column is named twice, seen; rename one", read, tmp_path / name, ["age", "seen"])


PARTS: dict[str, tuple[dict[str, dict[str, list[Any]]], str | list[list[str]]]] = {
    "gaps.parquet": (
        {"0": {"age": [1], "city": ["x"]}, "1": {"age": [2.5], "city": ["y"]}},
        [["1", "2.5"], ["x", "y"]],
    ),
    "partition.parquet": ({"city=z/0": {"age": [1]}}, [["1"], ["z"]]),
    "other.parquet": ({"seen=z/0": {"age": [1], "city": ["x"], "seen": ["q"]}}, [["1"], ["x"]]),
    "types.parquet": ({"0": {"age": [1]}, "1": {"age": ["x"]}}, "not readable as Parquet .*incompatible types"),
    "twice.parquet": ({"city=z/0": {"age": [1], "city": ["x"]}}, "a column is named twice, city; rename one"),
    "directory": ({"0": {"age": [1], "city": ["x"]}}, "unknown kind of file; give one whose name ends in"),
}


@pytest.mark.parametrize("name", PARTS)
def test_directories_of_parquet(tmp_path: Path, name: str) -> None:
    parts, expected = PARTS[name]
    for part, columns in parts.items():
        path = tmp_path / name / f"{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table(columns), path)
    if isinstance(expected, str):
        refused(rf"{name}: .*{expected}", read, tmp_path / name, ["age", "city"])
    else:
        # A column of fractions has the whole number 1 as 1.0, which is text 1.
        assert texts(read(tmp_path / name, ["age", "city"]), "age", "city") == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_what_the_user_fills_does_not_depend_on_the_other_candidates(tmp_path: Path, order: tuple[int, ...]) -> None:
    items = [{"id": 1, "price": 7}, {"id": 2}, {"id": 3, "price": None}]
    (tmp_path / "ads.jsonl").write_text("".join(json.dumps(items[i]) + "\n" for i in order))
    (tmp_path / "user.jsonl").write_text('{"price": 4, "age": 30}\n')
    user = read(tmp_path / "user.jsonl")
    joined = fill_from_user(read(tmp_path / "ads.jsonl"), user)
    prices = dict(zip(*texts(joined, "id", "price"), strict=True))
    assert prices == {"1": "7", "2": "4", "3": ""}
    assert texts(joined, "age") == [["30"] * 3]
    (tmp_path / "ads.jsonl").write_text(json.dumps(items[1]) + "\n")
    alone = fill_from_user(read(tmp_path / "ads.jsonl"), user)
    assert texts(alone, "price") == [["4"]]
