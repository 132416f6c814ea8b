"""Mistakes in own tables and their schemas: each is refused in one line that names its place and what to do."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_prep.conftest import prepare
from tests.data_prep.tables import HASHED, SCHEMA, Content, make, paths, refused_table, table, write
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
ESCAPE = SCHEMA + 'escape: "%s"\n'
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
    (table(r41='1,2.0,u1,"a\n'), SCHEMA, f"row 41: {QUOTE}"),
    (table().replace("\n", "\r"), SCHEMA, f"row 1: {RETURNS}"),
    (table(r9="1,2,u,i\r0,3,v,j\n"), SCHEMA, f"row 9: {RETURNS}"),
    (table(r12=f"1,{MOMENT},u,i\n"), SCHEMA, f"row 12, column price: '{MOMENT}' is not a number; {AS_A_PART}"),
    (table(r9='1,2.0,u1,"say \\"u13\\""\n'), SCHEMA, BACKSLASH),
    ("\ufefflabel,user\n" + "\ufeff1,u\n" * 30, sparse("user"), "row 2, column label: .* is not a number"),
    (table(r9="1,2,u\udcff,i\n").encode(errors="surrogateescape"), SCHEMA, "row 9: not UTF-8"),
    # The dialect.
    (table(r9="1,2,\x81,i\n").encode("latin-1"), SCHEMA + CP1252, "row 9: not text in the charset cp1"),
    ("\ufeff" + table(), SCHEMA + CP1252, "row 1: begins with the byte-order mark of UTF-8, not of charset cp1252; l"),
    (table(), SCHEMA + "charset: utf-16", r"key charset: utf-16 is .*: iconv -f utf-16 -t UTF-8 < .*rows\.csv > NEW$"),
    (table(), SCHEMA + "charset: cp037", "key charset: cp037 is unknown to Python, or writes delimiters and line ends"),
    *((table(), f"{SCHEMA}charset: {name}", f"key charset: {name} is unknown") for name in ("klingon", "1252")),
    (table(), SCHEMA + "quoting: all", "key quoting: give csv, or none"),
    *((table(), ESCAPE % mark, "key escape: give one punctuation mark") for mark in ("\\\\\\\\", ",", '\\"', "a")),
    (table(r9="1,2,u,i\\\n"), ESCAPE % "\\\\", "row 9: ends after an escape; a row is one line"),
    (table(r9='1,2,"u,v",i\n'), SCHEMA + "quoting: none\n", "row 9: 5 columns, but a row has 4"),
    # Rows and numbers.
    (table(r9="1,2,u\n"), SCHEMA, "row 9: 3 columns, but a row has 4"),
    (table().replace("\n", ",\n").replace(",\n", "\n", 1), SCHEMA, "row 2: ends in a delimiter, unlike row 1"),
    (table(r9=",2,u,i\n"), SCHEMA, "row 9, column label: no value"),
    *(
        (table(r9=f'1,"{text}",u,i\n'), SCHEMA, "row 9, column price: .* is not a number")
        for text in ["1_000", "１２", "0x10", "nan", "-inf", "Infinity", "1e999", "1,5", "1.2.3", "--1", ".", "cheap"]
    ),
    *(
        (f"label;price;user;item\n1;{text};u;i\n" + "0;1;u;i\n" * 9, EUROPEAN, "row 2, column price: .* is not a numb")
        for text in ["12.5", "1.23", "1.2345", "1.234.5", "1,5,0", "1_0"]
    ),
    # Columns and names.
    ("label,user,user\n1,a,b\n", sparse("user"), r"rows\.csv: row 1: two columns user; rename one"),
    ("y,user.id\n1,2\n0,3\n", "label: y\nsparse: [user.id]\n", "sparse column"),
    (NUMBERED, sparse("0"), f"{POSITION} and the name of another column; write 'b'"),
    (NUMBERED, "label: 0 >= 1\nsparse: [b]\n", rf'{POSITION}.*of a label \{{column: "0", …\}}'),
    (PLAIN, "label: 0\nsparse: [1]\n", "row 1: '0' is a label, not a column's name; .*header: false"),
    # The schema.
    (table(), "label: [", "not readable as YAML"),
    (table(), "label: label", "lacks sparse; add it"),
    (table(), "lable: label\nsparse: [user]", r"key lable is not known; did you mean label\?$"),
    (table(), sparse("user") + "seperator: x", "key seperator is not known; the file.s is delimiter, and a column.s "),
    (table(), sparse(""), "sparse at least one"),
    (table(), sparse("user, user"), "column user is named twice"),
    (table(), "label: stars\nsparse: [user]", "no column stars, .*; it has label, price, user, item; correct one of"),
    (table(), 'delimiter: "\\t"\n' + SCHEMA, 'no column label, .*, or write delimiter: "," in the schema$'),
    (table(), "label: 7\nsparse: [user]", "column 7: the file has 4 columns"),
    (table(), "header: false\nlabel: 3\nsparse: [user]", "'user' is not a column; of these files columns are posit"),
    (table(), sparse("{column: user, part: weekdays}"), "weekdays is not known; did you mean weekday?"),
    (table(r2="3,1,u,i\n"), SCHEMA, "row 2, column label: .* is not a label"),
    (table(), SCHEMA + "decimal: ','\nthousands: ','", "keys decimal and thousands: give one character each"),
    (table(), SCHEMA + "missing: NA", "key missing: give a list of texts"),
    # Dates.
    (TIMES, DATES, "row 3, column t: '01/02/2024' is not an ISO 8601 date or time; .* another format in the schema"),
    (TIMES, DATES.replace("hour", "fortnight"), "key dense, .*: give a column, .*parts are year, month"),
    (TIMES, DATES.replace("hour", "hour, format: '%H'"), "row 2, column t: '2024-01-01' is not a time of format %H"),
    (TIMES, DATES.replace("part: weekday", "part: date"), "column t_date is named twice"),
    (table(), FORMAT % "%Y-%m-%d %H:%M %p", "format %Y-%m-%d %H:%M %p: %p has an effect with %I alone"),
    (table(), FORMAT % "%Y-%m-%d %I:%M", "format %Y-%m-%d %I:%M: %I counts hours to 12 and needs %p"),
    (table(), FORMAT % "%Y %W", "format %Y %W: %U and %W have an effect with a weekday alone"),
    (table(), FORMAT % "%d.%m. %H:%M", r"format %d\.%m\. %H:%M: %d needs a year"),
    (times(98 * 10**10), PART % ", format: epoch", f"row 9, column user: .* in the future as seconds{WRITE_MS}"),
    (times(1_709_251_198_000), PART % "", f"is not an ISO 8601 date or time{WRITE_MS}"),
    (table(), PART % ", format: epoch_s", "format epoch_s: is not known; give epoch, epoch_ms, epoch_us, epoch_ns, or"),
    (table(), SCHEMA + "time: {column: user, part: hour}", "key time, .*: give a column, or"),
    # Transforms.
    (table(), SCALED % "log", "transforms are raw, log1p, signed_log1p, standard, minmax, quantile"),
    # Labels.
    (FIVES, LABEL % "=== 5", "write == 5, or the text in quotes"),
    (FIVES, LABEL % "= purchase", "l = purchase: not a rule, as in l == purchase"),
    (FIVES, LABEL % ">= many", ">= many: >= needs a number; texts take == and !="),
    (FIVES, 'label: {column: l, rule: "== \'a"}\nsparse: [user]\n', "the quote is not closed"),
    (FIVES, 'decimal: ","\n' + LABEL % ">= 4.5", '4.5 is no number by decimal: ","; write it as the file does'),
    *(
        (f"l,user\nyes,a\n{mark},b\nno,c\n", LABEL % "== yes", "row 3, column l: .* stands for a missing value; corr")
        for mark in ("NULL", "N/A", "nan", "\\N", "  ")
    ),
    (table(r9="1,,u,i\n"), NUMBER, "row 9, column price: no value"),
    (table(r9="1,good,u,i\n"), NUMBER, "row 9, column price: 'good' is not a number"),
    (table(r9="1,1e39,u,i\n"), NUMBER, r"row 9, column price: 1e\+39 is beyond 3\.4e38"),
    (table(), NUMBER.replace("number", 'number, rule: ">= 4"'), r"schema\.yaml: key label: .*kind: number"),
    (table(), NUMBER.replace("column: price, ", ""), r"schema\.yaml: key label: .*kind: number"),
    *(
        (f"l,user\nyes,u\n1,v\n{mark},w\nno,x\n", POSITIVE % '["yes", "1"]', rf"rows\.csv: row 4, column l: .*{fault}")
        for mark, fault in (("", "no value"), *((mark, "stands for a missing value") for mark in ("NA", "null", "  ")))
    ),
    ("l,user\nyes,u\n1,v\n,w\nno,x\n", LABEL % "== ''", r"rows\.csv: row 4, column l: no value"),
    *(
        (FIVES, POSITIVE % entry, r'key label, positive: give a list of texts in quotes, e\.g\. \["yes", "1"\]')
        for entry in ('"yes"', "[yes]", "[1]", "[]")
    ),
    (FIVES, POSITIVE % '["a"], rule: "> 1"', "key label: rule and positive both say what is 1"),
    (FIVES, POSITIVE % '["a"], kind: number', "key label: positive makes labels of 0 and 1"),
    # Weights.
    (table(r4="1,-1,u,i\n"), WEIGHT, NO_WEIGHT),
    *((table(r4=f"1,{x},u,i\n"), WEIGHT, f"row 4, column price: '{x}' is not a number") for x in ("inf", "nan", "x")),
    (table(r4="1,,u,i\n"), WEIGHT, "row 4, column price: no value"),
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
    ("parquet", {"price": ["cheap"] * COUNT}, SCHEMA, "column price: text, not numbers"),
    ("parquet", {"item": [3.0] * 29 + [0.5] * 11}, SCHEMA, "row group 2, row 6 of it, column item: 0.5 is not a categ"),
    ("parquet", {"item": np.full(COUNT, 2**24, np.float32)}, SCHEMA, r"item: 1.67772e\+07 is rounded, as a float32"),
    ("parquet", {"item": [[0.5]] * COUNT}, SCHEMA, "item: list of numbers; .*write {column: item, vector: 64} in"),
    ("parquet", at("label", 6, float("nan")), NUMBER.replace("price", "label"), "row 7 of it, column label: nan"),
    ("parquet", at("price", 6, None), NUMBER, "row group 0, row 7 of it, column price: no value"),
    ("parquet", at("label", 6, float("nan")), "label: label == 1\nsparse: [user]\n", "column label: nan"),
    *(
        ("parquet", {}, f"{line}\n{SCHEMA}", f"key {line.partition(':')[0]}: has no effect, as .* is a parquet file")
        for line in ("delimiter: ';'", "missing: [NA]", "quoting: none", "escape: '\\'", "charset: cp1252")
    ),
    ("parquet", {}, sparse("{column: tags, separator: '|'}"), "holds lists .* leave the separator out"),
    ("parquet", {}, sparse("{column: item, separator: '|'}"), "which no separator divides"),
    ("parquet", {}, sparse("users"), "no column users"),
    ("parquet", {}, CRITEO, "row group 0, row 3 of it, column price: .* is not a label"),
    ("parquet", STAMPS, sparse("user"), USE_A_PART),
    ("parquet", {name: pa.array([], pa.int8()) for name in COLUMNS}, SCHEMA, "no rows in it; get it again"),
    ("parquet", {"user": [98 * 10**10] * COUNT}, PART % ", format: epoch", WRITE_MS[2:]),
    ("parquet", {"user": [1_709_251_198] * COUNT}, PART % "", "integer, but .* has no format for it; numbers need one"),
    ("jsonl", {"user": [98 * 10**7] * COUNT}, PART % ", format: epoch_ms", "of 1970 as milliseconds; it looks like se"),
    ("jsonl", {"user": [True] * COUNT}, PART % ", format: epoch", "'True' is not a time of format epoch"),
    ("jsonl", {}, sparse("colour"), "no column colour, .*put a row that has it among the first"),
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


@pytest.mark.parametrize("method", ["group", "time"])
def test_a_rounded_column_decides_no_split(tmp_path: Path, method: str) -> None:
    start = 1_600_000_000 + 10 * np.arange(COUNT)
    write(tmp_path / "rows.parquet", {**COLUMNS, "at": pa.array(start.astype(np.float32))})
    keys = [f"data.split.method={method}", "data.split.column=at"]
    message = (
        r"row 1 of it, column at: 1.6e\+09 is rounded, as a float32 from 2\^24 on; write the column as int64 or text"
    )
    refused(message, prepare, *paths(tmp_path, SCHEMA, "rows.parquet"), *keys)


USER = sparse("user")
REMEDIES: list[tuple[str, str, str, str]] = [  # a table, its schema, what is to be done, and the schema then
    ("user;label\n1;1\n2;0\n", USER, 'write delimiter: ";" in the schema$', f'delimiter: ";"\n{USER}'),
    ("1,1\n2,0\n", USER, "write header: false and name columns by pos", "header: false\nlabel: 1\nsparse: [0]\n"),
    (table(r3="0,1e39,u,i\n"), SCALED % "raw", BEYOND, SCALED % "signed_log1p"),
    ("User,label\n1,1\n2,0\n", sparse("user"), "no column user, .*; it has User, label; correct", sparse("User")),
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


def test_the_row_is_the_opening_one_in_a_compressed_file(tmp_path: Path) -> None:
    content = gzip.compress(table(r9='1,2.0,u1,"a\n0,3,u2,item 3,b"\n').encode())
    refused_table(tmp_path, content, SCHEMA, "row 9: ends inside quotes", "data.chunk_bytes=40", name="rows.csv.gz")


def test_json_lines_by_another_name(tmp_path: Path) -> None:
    content, message = '{"label": 1, "user": "x"}\n' * 9, r"rows\.json: name JSON lines \.jsonl, and write an array"
    for text in (content, f"[{content[:-1]}]".replace("\n", ",")):
        refused_table(tmp_path, text, sparse("user"), message, name="rows.json")


OWN_KEYS = [
    ("data.schema={0}/none.yaml", "no such file; check data.schema"),
    ("data.schema={0}/", "a directory"),
    ("data.encoding=torchrec", r"data\.encoding=torchrec: "),
    ("data.dense_transform=torchrec", r"data\.dense_transform=torchrec: "),
    ("data.source=synthetic data.synthetic.rows=10", r"data\.(raw|schema)=.*: these rows are Criteo's"),
    ("data.source=criteo_1tb data.remote.mirrors=[]", r"data\.(raw|schema)=.*: these rows are Criteo's"),
    ("data.schema=null", r"name its columns in data\.schema=FILE"),
]


@pytest.mark.parametrize(("more", "message"), OWN_KEYS)
def test_keys_that_own_tables_do_not_have(tmp_path: Path, more: str, message: str) -> None:
    (tmp_path / "rows.csv").write_text(table())
    raw, *given = paths(tmp_path, SCHEMA)
    refused(message, prepare, *([] if "source" in more else [raw]), *given, *more.format(tmp_path).split())


def test_negatives_and_clicks_are_not_of_labels_that_are_numbers(tmp_path: Path) -> None:
    drop = "data.sampling.negative_drop_rate=0.5"
    refused_table(tmp_path, table(), NUMBER, r"data\.sampling\.negative_drop_rate=0\.5: .* leave it out", drop)
    make(tmp_path, table(), NUMBER)
    refused("overwrite=true", make, tmp_path, table(), "label: price >= 3\nsparse: [user]\n")
