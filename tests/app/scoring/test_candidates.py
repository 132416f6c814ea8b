"""Files of candidates that cannot be read are named, with the row and the column."""

import gzip
import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from app.scoring import fill_from_user, ignored_columns
from common.errors import UserError
from data_prep.encoder import NewRows, Shape, read_new_rows
from tests.error_lines import refused

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
        ("a.csv", "age,age,city\n1,2,x\n", "row 1: a column is named twice"),
        ("a.jsonl", '{"age": 1}\n{"age"\n', "row 2: not JSON"),
        ("a.jsonl", '{"age": 1}\n[1]\n', "row 2: not an object"),
        ("a.json", '{"age": 1}', "give a list of objects"),
        ("a.json", "[", "not JSON"),
        ("a.parquet", "PAR", "not readable as Parquet"),
        ("a.png", "", "unknown kind of file"),
        ("a.csv", 'age,city\n1,"x\n', "row 2: ends inside quotes"),
        ("a.csv", 'age,city\n1,"x\ny"\n', "row 2: ends inside quotes"),
        ("a.csv", "age,city\n\n\n1,x\n2\n", "row 5: 1 columns"),
        ("a.csv", "PK\x03\x04...", "zip, which is not read; convert it: unzip"),
        ("a.csv.bz2", "BZh91AY&SY...", "damaged, or cut off"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert words in str(error.value)


def test_text_without_names_is_not_read_by_another_delimiter_than_the_dataset_s(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('1;"x,y\n')
    refused(r"a\.csv: row 1: ends inside quotes", read_new_rows, tmp_path / "a.csv", Shape(RAW, ";", "label"))


def test_text_that_is_not_utf_8_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"age,city\n1,\xff\n")
    refused(r"a\.csv: row 2: not UTF-8", read, tmp_path / "a.csv")
    refused(r"b\.csv: No such file", read, tmp_path / "b.csv")


@pytest.mark.parametrize(
    "text",
    [
        "age,city\n1,x\n2,y\n\n\n",
        "\nage,city\n1,x\n2,y",
        "\ufeffage,city\r\n1,x\r\n2,y\r\n",
        'age,city\n1,"x"\n2,y\n',
        "age;city\n1;x\n2;y\n",
        "age\tcity\n1\tx\n2\ty\n",
        "age|city\n1|x\n2|y\n",
        "0;1;x\n0;2;y\n",
        "1;x\n2;y\n",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_as_people_write_them(tmp_path: Path, text: str, packed: bool) -> None:
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    new_rows = read(path)
    assert texts(new_rows, "age", "city") == [["1", "2"], ["x", "y"]]


def test_a_cut_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"age,city\n1,x\n")[:-9])
    refused("damaged, or cut off", read, tmp_path / "a.csv.gz")


def test_columns_wanted_and_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,title,id\n1,x,7\n")
    new_rows = read(path)
    refused("no column city", ignored_columns, new_rows, ["age", "city"], spare=["id"])
    assert ignored_columns(new_rows, ["age"], spare=["id"]) == ["title"]


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


def test_the_user_is_one_row_and_candidates_go_before(tmp_path: Path) -> None:
    (tmp_path / "ads.csv").write_text("city,id\nx,1\ny,2\n")
    (tmp_path / "user.csv").write_text("age,city\n30,z\n")
    ads, user = (read(tmp_path / name) for name in ("ads.csv", "user.csv"))
    joined = fill_from_user(ads, user)
    assert texts(joined, "age", "city", "id") == [["30", "30"], ["x", "y"], ["1", "2"]]
    refused("2 rows; the user is one row", fill_from_user, ads, ads)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_what_the_user_fills_does_not_depend_on_the_other_candidates(tmp_path: Path, order: tuple[int, ...]) -> None:
    """As in {"user": …, "candidates": […]}: what a candidate lacks is the user's, a null of its own is empty."""
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


def test_a_directory_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    """As Spark writes it."""
    (tmp_path / "a.parquet").mkdir()
    for part, values in enumerate((["1", "2"], ["3"])):
        pyarrow.parquet.write_table(pa.table({"age": values}), tmp_path / f"a.parquet/part-{part}.parquet")
    assert texts(read(tmp_path / "a.parquet")) == [["1", "2", "3"]]
