"""Mistakes in own tables and their schemas: each is refused in one line that names its place and what to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_prep.tables import HASHED, SCHEMA, Content, make, refused_table, table
from tests.error_lines import refused

QUOTE = "ends inside quotes; .* remove the line break"
RETURNS = "lines end in carriage returns alone; convert the file: tr"
BACKSLASH = r'row 9: \\" in quotes, where a backslash escapes nothing; write a'
CRITEO = "label: price\nsparse: [user]\n"
DATES = (
    "label: label\ndense: [{column: t, part: hour}, {column: t, part: timestamp}]\n"
    "sparse: [user, {column: t, part: weekday}, {column: t, part: date}, {column: t, part: month}]\n"
)
TIMES = "label,user,t\n1,u,2024-01-01\n0,u,01/02/2024\n"
NUMBERED = "b,1,0,label\n" + "".join(f"x{i},y{i % 3},z{i % 5},{i % 2}\n" for i in range(40))
POSITION = r"column 0: is a position \(b\)"
PLAIN = "".join(f"{i % 2},a{i}\n" for i in range(40))
EUROPEAN = SCHEMA + 'delimiter: ";"\ndecimal: ","\nthousands: "."\nmissing: ["NA", "NULL", "\\\\N"]\n'
FORMAT = 'label: label\nsparse: [item, {column: user, part: hour, format: "%s"}]\n'
LABEL = "label: l %s\nsparse: [user]\n"
FIVES = "l,user\n" + "5,a\n4,b\n5,c\n" * 10
POSITIVE = "label: {column: l, positive: %s}\nsparse: [user]\n"
CP1252 = "charset: cp1252\n"
MOMENT, AS_A_PART = "2026-01-02 03:04:05", "write {column: NAME, part: weekday}"
SCALED = "label: label\ndense: [{column: price, transform: %s}]\nsparse: [user]\n"
BEYOND = r"row 3, column price: '1e39' is beyond 3.4e\+38, .*; set transform: signed_log1p for it in data\.schema;"
NO_WEIGHT = "row 4, column price: -1 is not a weight, from 0 to 3.4e38, the largest float32; correct the row"
WEIGHT = "label: label\nsparse: [user]\nweight: price\n"
NUMBER = "label: {column: price, kind: number}\nsparse: [user]\n"
PART = "label: label\nsparse: [{column: user, part: year%s}]\n"
WRITE_MS = r"; it looks like milliseconds; write `\{column: user, part: year, format: epoch_ms\}`"


def sparse(entry: str) -> str:
    return f"label: label\nsparse: [{entry}]\n"


def times(value: Any) -> str:
    return table(40, r9=f"1,2,{value},i\n", **{f"r{row}": "1,2,,i\n" for row in (*range(2, 9), *range(10, 42))})


# Text of a table, its schema, what the line says.
TEXTS: list[tuple[str | bytes, str, str]] = [
    # Quotes and line ends: the row is where a quote opens.
    (table(r9='1,2.0,u1,"a\n0,3,u2,item 3,b"\n'), SCHEMA, f"row 9: {QUOTE}"),
    (table(r9="1,2,u,i\r0,3,v,j\n"), SCHEMA, f"row 9: {RETURNS}"),
    (table(r12=f"1,{MOMENT},u,i\n"), SCHEMA, f"row 12, column price: '{MOMENT}' is not a number; {AS_A_PART}"),
    (table(r9='1,2.0,u1,"say \\"u13\\""\n'), SCHEMA, BACKSLASH),
    (table(r9="1,2,u\udcff,i\n").encode(errors="surrogateescape"), SCHEMA, "row 9: not UTF-8"),
    # The dialect.
    (table(r9="1,2,\x81,i\n").encode("latin-1"), SCHEMA + CP1252, "row 9: not text in the charset cp1"),
    ("\ufeff" + table(), SCHEMA + CP1252, "row 1: begins with the byte-order mark of UTF-8, not of charset cp1252; l"),
    (table(), SCHEMA + "charset: utf-16", r"key charset: utf-16 is .*: iconv -f utf-16 -t UTF-8 < .*rows\.csv > NEW$"),
    (table(), SCHEMA + "charset: cp037", "key charset: cp037 is unknown to Python, or writes delimiters and line ends"),
    # Rows and numbers.
    (table(r9="1,2,u\n"), SCHEMA, "row 9: 3 columns, but a row has 4"),
    (table(r9=",2,u,i\n"), SCHEMA, "row 9, column label: no value"),
    *(
        (table(r9=f'1,"{text}",u,i\n'), SCHEMA, "row 9, column price: .* is not a number")
        for text in ["1_000", "１２", "0x10", "nan", "-inf", "1e999", "1.2.3", "."]
    ),
    *(
        (f"label;price;user;item\n1;{text};u;i\n" + "0;1;u;i\n" * 9, EUROPEAN, "row 2, column price: .* is not a numb")
        for text in ["12.5", "1.23", "1.2345", "1,5,0"]
    ),
    # Columns and names.
    ("label,user,user\n1,a,b\n", sparse("user"), r"rows\.csv: row 1: two columns user; rename one"),
    (NUMBERED, sparse("0"), f"{POSITION} and the name of another column; write 'b'"),
    (PLAIN, "label: 0\nsparse: [1]\n", "row 1: '0' is a label, not a column's name; .*header: false"),
    # The schema.
    (table(), "label: [", "not readable as YAML"),
    (table(), "lable: label\nsparse: [user]", r"key lable is not known; did you mean label\?$"),
    (table(), "- label", "not a mapping; write one `key: value` a line, of which label and sparse are needed$"),
    (table(), "label: label\nsparse: user", r"key 'sparse' is \"user\"; give a list, of at least one column or"),
    (
        table(),
        "label: {column: label, positve: [1]}\nsparse: [user]",
        "'label.positve' is not known; give a column, or",
    ),
    (table(), "label: stars\nsparse: [user]", "no column stars, .*; it has label, price, user, item; correct one of"),
    (table(), 'delimiter: "\\t"\n' + SCHEMA, 'no column label, .*, or write delimiter: "," in the schema$'),
    (table(), "header: false\nlabel: 3\nsparse: [user]", "'user' is not a column; of these files columns are posit"),
    (table(r2="3,1,u,i\n"), SCHEMA, "row 2, column label: .* is not a label"),
    # Dates.
    (TIMES, DATES, "row 3, column t: '01/02/2024' is not an ISO 8601 date or time; .* another format in the schema"),
    (table(), FORMAT % "%Y-%m-%d %I:%M", "format %Y-%m-%d %I:%M: %I counts hours to 12 and needs %p"),
    (table(), FORMAT % "%Y %W", "format %Y %W: %U and %W have an effect with a weekday alone"),
    (times(98 * 10**10), PART % ", format: epoch", f"row 9, column user: .* in the future as seconds{WRITE_MS}"),
    (times(1_709_251_198_000), PART % "", f"is not an ISO 8601 date or time{WRITE_MS}"),
    # Transforms.
    (table(), SCALED % "log", "transforms are raw, log1p, signed_log1p, standard, minmax, quantile"),
    # Labels.
    (FIVES, LABEL % "=== 5", "write == 5, or the text in quotes"),
    (FIVES, LABEL % "= purchase", "l = purchase: not a rule, as in l == purchase"),
    (FIVES, LABEL % ">= many", ">= many: >= needs a number; texts take == and !="),
    *(
        (f"l,user\nyes,a\n{mark},b\nno,c\n", LABEL % "== yes", "row 3, column l: .* stands for a missing value; corr")
        for mark in ("NULL", "N/A", "nan", "\\N", "  ")
    ),
    *(
        (f"l,user\nyes,u\n1,v\n{mark},w\nno,x\n", POSITIVE % '["yes", "1"]', rf"rows\.csv: row 4, column l: .*{fault}")
        for mark, fault in (("", "no value"), *((mark, "stands for a missing value") for mark in ("NA", "null", "  ")))
    ),
    # Weights.
    (table(r4="1,-1,u,i\n"), WEIGHT, NO_WEIGHT),
    *((table(r4=f"1,{x},u,i\n"), WEIGHT, f"row 4, column price: '{x}' is not a number") for x in ("inf", "nan", "x")),
]


@pytest.mark.medium
@pytest.mark.parametrize(("content", "schema", "message"), TEXTS)
def test_a_text(tmp_path: Path, content: str | bytes, schema: str, message: str) -> None:
    line = refused_table(tmp_path, content, schema, message)
    assert str(tmp_path) in line
    assert refused_table(tmp_path, content, schema, message, "data.chunk_bytes=40") == line


COUNT = 40
COLUMNS: dict[str, Any] = {
    "label": [i % 2 for i in range(COUNT)],
    "price": [float(i) for i in range(COUNT)],
    "user": [f"u{i}" for i in range(COUNT)],
    "item": list(range(COUNT)),
    "tags": [["a", "b"]] * COUNT,
    "joined": ["a, b"] * COUNT,
}
STAMPS = {"user": pa.array([0] * COUNT, pa.timestamp("us"))}
USE_A_PART = r"column user: time.*; use a part of it: \{column: user, part: weekday\}"


def at(name: str, place: int, value: Any) -> dict[str, Any]:
    return {name: [*COLUMNS[name][:place], value, *COLUMNS[name][place + 1 :]]}


# The form of the file, columns that differ, the schema, what the line says.
TYPED: list[tuple[str, dict[str, Any], str, str]] = [
    ("parquet", at("label", 29, None), SCHEMA, "row group 2, row 6 of it, column label: no value"),
    ("parquet", at("price", 14, float("inf")), SCHEMA, "row group 1, row 3 of it, column price: inf is not a number"),
    ("parquet", {"item": [3.0] * 29 + [0.5] * 11}, SCHEMA, "row group 2, row 6 of it, column item: 0.5 is not a categ"),
    ("parquet", {"item": np.full(COUNT, 2**24, np.float32)}, SCHEMA, r"item: 1.67772e\+07 is rounded, as a float32"),
    ("parquet", at("label", 6, float("nan")), NUMBER.replace("price", "label"), "row 7 of it, column label: nan"),
    ("parquet", {}, f"delimiter: ';'\n{SCHEMA}", "key delimiter: has no effect, as .* is a parquet file"),
    ("parquet", {}, sparse("{column: tags, separator: '|'}"), "holds lists .* leave the separator out"),
    ("parquet", {}, CRITEO, "row group 0, row 3 of it, column price: .* is not a label"),
    ("parquet", STAMPS, sparse("user"), USE_A_PART),
    ("parquet", {"user": [98 * 10**10] * COUNT}, PART % ", format: epoch", WRITE_MS[2:]),
    ("parquet", {"user": [1_709_251_198] * COUNT}, PART % "", "integer, but .* has no format for it; numbers need one"),
    ("jsonl", {"user": [True] * COUNT}, PART % ", format: epoch", "'True' is not a time of format epoch"),
    ("jsonl", at("user", 3, float("nan")), SCHEMA, "row 4, column user: NaN, which JSON does not have"),
]


@pytest.mark.parametrize(("form", "changes", "schema", "message"), TYPED)
def test_a_typed_table(tmp_path: Path, form: str, changes: dict[str, Any], schema: str, message: str) -> None:
    content: Content = {**COLUMNS, **changes}
    if form == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(content), sink, row_group_size=12)
        content = sink.getvalue().to_pybytes()
    message = rf"rows\.{form}.*{message}|schema\.yaml.*{message}"
    assert str(tmp_path) in refused_table(tmp_path, content, schema, message, name=f"rows.{form}")


USER = sparse("user")
REMEDIES: list[tuple[str, str, str, str]] = [  # a table, its schema, what is to be done, and the schema then
    ("user;label\n1;1\n2;0\n", USER, 'write delimiter: ";" in the schema$', f'delimiter: ";"\n{USER}'),
    ("1,1\n2,0\n", USER, "write header: false and name columns by pos", "header: false\nlabel: 1\nsparse: [0]\n"),
    (table(r3="0,1e39,u,i\n"), SCALED % "raw", BEYOND, SCALED % "signed_log1p"),
    ("yes,a\nno,b\n" * 20, "label: 0 == yes\nsparse: [1]", "'yes' is", "header: false\nlabel: 0 == yes\nsparse: [1]"),
]


@pytest.mark.parametrize(("content", "schema", "message", "remedy"), REMEDIES)
def test_a_remedy_works(tmp_path: Path, content: str, schema: str, message: str, remedy: str) -> None:
    refused_table(tmp_path, content, schema, message)
    make(tmp_path, content, remedy)


def test_the_rule_that_a_refusal_of_texts_suggests_works(tmp_path: Path) -> None:
    text = "Was it clicked,user\n" + "1,u\nnot,u\nclicked,u\n" * 10
    message = r"row 3, column Was it clicked: 'not' is not a number \(texts: 'not', 'clicked'\)"
    rule = refused_table(tmp_path, text, "label: Was it clicked\nsparse: [user]", message).rpartition("as in ")[2]
    assert make(tmp_path, text, f"{rule}\nsparse: [user]")[0].tolist() == [0, 1, 0] * 10
    empty, message = text.replace("1,u", ",u"), "row 2, column Was it clicked: no value"
    refused(message, make, tmp_path, empty, f"{rule}\nsparse: [user]", *HASHED, "data.overwrite=true")


@pytest.mark.parametrize("text", ["1e39", "-3.5e38", "1.7e308", "-1e308"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_beyond_a_transform(tmp_path: Path, text: str, kind: str) -> None:
    transform = "minmax" if text.endswith("308") else "raw"
    content: Content = {**COLUMNS, **at("price", 7, float(text))} if kind == "parquet" else table(r9=f"1,{text},u,i\n")
    place = "row 9, column price" if kind == "csv" else "row group 0, row 8 of it, column price"
    message = rf"rows\.{kind}.*{place}: .* is beyond .*; set data\.dense_transform=signed_log1p"
    refused_table(tmp_path, content, SCHEMA, message, f"data.dense_transform={transform}", name=f"rows.{kind}")
    assert np.isfinite(make(tmp_path, content, SCHEMA, *HASHED[:2], name=f"rows.{kind}")[1]).all()
