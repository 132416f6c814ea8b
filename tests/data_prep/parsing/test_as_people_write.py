"""Text tables as people and programs write them: read as meant, or refused by name; never silently wrong."""

import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.format import load_manifest
from data_prep.encoding.encoder import Encoder
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, load_split

SCHEMA = "label: label\ndense: [price]\nsparse: [user, item]\n"
HASHED = ("data.encoding=hash", "data.max_ind_range=1000", "data.dense_transform=raw")


def make(
    directory: Path, content: bytes | str, schema: str = SCHEMA, *more: str, name: str = "rows.csv"
) -> list[NDArray[Any]]:
    """The dataset of a table, in the order of its rows: labels, dense, ids."""
    (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (directory / "schema.yaml").write_text(schema)
    paths = [f"data.raw={directory}/{name}", f"data.schema={directory}/schema.yaml", f"data.path={directory}/out"]
    preprocess(config(*paths, "data.split.method=fraction", *(more or HASHED)))
    verify_dataset(directory / "out")
    splits = [load_split(directory / "out", split) for split in ("train", "val", "test")]
    return [np.concatenate(parts) for parts in zip(*splits, strict=True)]


def ids(texts: list[str] | tuple[int | str, ...]) -> list[int]:
    return [oracle.text_value(str(text)) % 1000 for text in texts]


ROW = "{label},{price},u{i},i{i}\n"


def table(rows: int = 40, **changes: str) -> str:
    """A CSV of `rows` rows; changes: row number (r5) -> the line to put there."""
    lines = [ROW.format(label=i % 2, price=i / 4, i=i) for i in range(rows)]
    for number, line in changes.items():
        lines[int(number[1:]) - 2] = line
    return "label,price,user,item\n" + "".join(lines)


# ---- quotes and line ends

BREAKS = {
    "a row in two": (table(r9='1,2.0,u1,"a\n0,3,u2,item 3,b"\n'), 9),
    "as many fields as a row": ("label,price,user,item\n" + '1,2.0,u1,"a\n0,3,u2,b"\n' + "1,2,u,i\n" * 30, 2),
    "never closed": (table(r9='1,2.0,u1,"a\n'), 9),
    "never closed, in the last row": (table(r41='1,2.0,u1,"a\n'), 41),
    "never closed, no newline": (table() + '1,2.0,u1,"a', 42),
    "a lone quote": (table(r9='"\n'), 9),
    "in the header": ('label,price,user,"item\nno"\n1,2,u,i\n', 1),
    "CRLF": (table(r9='1,2.0,u1,"a\n').replace("\n", "\r\n"), 9),
}


@pytest.mark.parametrize("case", BREAKS)
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=40",)], ids=["one chunk", "chunks"])
def test_a_line_that_ends_inside_quotes_is_refused_where_the_quote_opens(
    tmp_path: Path, case: str, more: tuple[str, ...]
) -> None:
    content, row = BREAKS[case]
    with pytest.raises(UserError, match=rf"rows\.csv: row {row}: ends inside quotes; .* remove the line break"):
        make(tmp_path, content, SCHEMA, *HASHED, *more)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_row_is_the_opening_one_in_a_compressed_file(tmp_path: Path) -> None:
    content = gzip.compress(BREAKS["a row in two"][0].encode())
    with pytest.raises(UserError, match="row 9: ends inside quotes"):
        make(tmp_path, content, SCHEMA, *HASHED, "data.chunk_bytes=40", name="rows.csv.gz")


def test_quotes_that_close_are_read(tmp_path: Path) -> None:
    lines = ['0,"1","say ""hi""","a,b"\n', '1,2,5" pipe,"x"y\n', '0,3,,""\n'] * 5
    _, dense, sparse = make(tmp_path, "label,price,user,item\n" + "".join(lines))
    assert dense[:3, 0].tolist() == [1, 2, 3]
    assert sparse[:3].tolist() == [ids(['say "hi"', "a,b"]), ids(['5" pipe', "xy"]), ids(["", ""])]


@pytest.mark.parametrize("schema", [SCHEMA, "header: false\nlabel: 0\nsparse: [2, 3]\n"])
def test_returns_alone_end_no_lines_and_are_named(tmp_path: Path, schema: str) -> None:
    with pytest.raises(UserError, match=r"row 1: lines end in carriage returns alone; convert the file: tr '\\r'"):
        make(tmp_path, table().replace("\n", "\r"), schema)


def test_returns_in_a_row_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 9: lines end in carriage returns alone"):
        make(tmp_path, table(r9="1,2,u,i\r0,3,v,j\n"))


def test_returns_alone_in_criteo_s_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_bytes((b"1" + b"\t" * 39 + b"\r") * 3)
    with pytest.raises(UserError, match="row 1: lines end in carriage returns alone"):
        preprocess(config(f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/out"))


@pytest.mark.parametrize("blank", ["\n", "\r\n", "\n\n\n", "\n\r\n\n"])
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=40",)], ids=["one chunk", "chunks"])
def test_blank_lines_at_the_end_are_no_rows(tmp_path: Path, blank: str, more: tuple[str, ...]) -> None:
    labels, dense, _ = make(tmp_path, table() + blank, SCHEMA, *HASHED, *more)
    assert labels.tolist() == [i % 2 for i in range(40)]
    assert dense[:, 0].tolist() == [i / 4 for i in range(40)]
    assert load_manifest(tmp_path / "out").rows == 40


def test_rows_after_a_blank_line_keep_their_numbers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 12, column price: 'x' is not a number"):
        make(tmp_path, table(r9="\n", r12="1,x,u,i\n"))


# ---- numbers

WORDS = ["True", "False", "true", "false", "TRUE", "yes", "no", "Yes", "1", "0"]


@pytest.mark.parametrize(
    ("rule", "expected"), [("== clicked", [1, 0, 0]), ("!= not", [1, 0, 1]), ("==clicked", [1, 0, 0])]
)
def test_texts_are_labels_by_a_rule(tmp_path: Path, rule: str, expected: list[int]) -> None:
    text = "Was it clicked,price,user,item\n" + "clicked,1,u,i\nnot,2,u,i\nnot at all,3,u,i\n" * 10
    schema = SCHEMA.replace("label: label", f"label: Was it clicked {rule}")
    labels, _, _ = make(tmp_path, text, schema)
    assert labels.tolist() == expected * 10


def test_texts_without_a_rule_are_refused_with_one_that_works(tmp_path: Path) -> None:
    text = "Was it clicked,price,user,item\n" + "1,1,u,i\nnot,2,u,i\nclicked,3,u,i\n" * 10
    with pytest.raises(
        UserError, match=r"row 3, column Was it clicked: 'not' is not a number \(texts: 'not', 'clicked'\)"
    ) as error:
        make(tmp_path, text, SCHEMA.replace("label: label", "label: Was it clicked"))
    rule = str(error.value).rpartition("as in ")[2]
    labels, _, _ = make(tmp_path, text, SCHEMA.replace("label: label", rule), "data.overwrite=true")
    assert labels.tolist() == [0, 1, 0] * 10
    with pytest.raises(UserError, match="row 2, column Was it clicked: no value"):
        make(tmp_path, text.replace("1,1", ",1"), SCHEMA.replace("label: label", rule), "data.overwrite=true")


def test_truth_values_are_labels_and_numbers(tmp_path: Path) -> None:
    text = "label,price,user,item\n" + "".join(f"{word},{word},u,{word}\n" for word in WORDS * 3)
    labels, dense, sparse = make(tmp_path, text)
    assert labels.tolist() == [1, 0, 1, 0, 1, 1, 0, 1, 1, 0] * 3
    assert dense[:, 0].tolist() == labels.tolist()
    assert sparse[:10, 1].tolist() == ids(WORDS)


@pytest.mark.parametrize(
    "text", ["1_000", "１２", "0x10", "nan", "-inf", "Infinity", "1e999", "1,5", "1.2.3", "--1", "."]
)
def test_what_is_no_number(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"row 9, column price: .* is not a number"):
        make(tmp_path, table(r9=f'1,"{text}",u,i\n'))


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000), (" 2 ", 2), ("+.5", 0.5), ("3.", 3), ("-0", 0), ("", 0)])
def test_what_is_a_number(tmp_path: Path, text: str, value: float) -> None:
    assert make(tmp_path, table(r9=f"1,{text},u,i\n"))[1][7, 0] == value


EUROPEAN = SCHEMA + 'delimiter: ";"\ndecimal: ","\nthousands: "."\nmissing: ["NA", "NULL", "\\\\N"]\n'


def test_numbers_and_marks_by_schema(tmp_path: Path) -> None:
    texts = {
        "1,5": 1.5,
        "1.234,25": 1234.25,
        "-1.234.567": -1234567,
        "12": 12,
        "NA": 0,
        "\\N": 0,
        "": 0,
        "1234,5": 1234.5,
    }
    rows = "".join(f"1;{text};{text};NULL\n0;0;u;i\n" for text in texts)
    _, dense, sparse = make(tmp_path, "label;price;user;item\n" + rows, EUROPEAN)
    assert dense[::2, 0].tolist() == list(texts.values())
    assert sparse[8::2].tolist() == [[ids([""])[0], ids([""])[0]]] * 3 + [ids(["1234,5", ""])]
    encoder = Encoder.load(tmp_path / "out")
    new = encoder.encode(encoder.parse(b"user;item;price\nNA;i;1.234,5\n", "new", labelled=False))
    assert (new.dense.tolist(), new.sparse.tolist()) == ([[1234.5]], [ids(["", "i"])])
    block = encoder.parse_columns({"price": ["2,5"], "user": ["NA"], "item": ["i"]}, "new")
    assert encoder.encode(block).dense.tolist() == [[2.5]]


@pytest.mark.parametrize("text", ["12.5", "1.23", "1.2345", "1.234.5", "1,5,0", "1_0"])
def test_thousands_are_groups_of_three(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"row 2, column price: .* is not a number"):
        make(tmp_path, f"label;price;user;item\n1;{text};u;i\n" + "0;1;u;i\n" * 9, EUROPEAN)


@pytest.mark.parametrize(
    ("transform", "text"), [("raw", "1e39"), ("raw", "-3.5e38"), ("minmax", "1.7e308"), ("minmax", "-1e308")]
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_beyond_a_transform_are_refused(tmp_path: Path, transform: str, text: str, kind: str) -> None:
    """Else the dataset has infinities, which training refuses."""
    name, content = "rows.csv", table(r9=f"1,{text},u,i\n").encode()
    if kind == "parquet":
        name, prices = "rows.parquet", np.arange(40) / 4
        prices[7] = float(text)
        sink = pa.BufferOutputStream()
        columns = {"label": np.arange(40) % 2, "price": prices, "user": ["u"] * 40, "item": ["i"] * 40}
        pq.write_table(pa.table(columns), sink)
        content = sink.getvalue().to_pybytes()
    place = "row 9, column price" if kind == "csv" else "row group 0, row 8 of it, column price"
    with pytest.raises(UserError, match=rf"{place}: .* is beyond .*; set data\.dense_transform=signed_log1p") as error:
        make(tmp_path, content, SCHEMA, *HASHED[:2], f"data.dense_transform={transform}", name=name)
    assert str(tmp_path / name) in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()
    dense = make(tmp_path, content, SCHEMA, *HASHED[:2], name=name)[1]
    assert np.isfinite(dense).all()


def test_a_tiny_span_is_finite(tmp_path: Path) -> None:
    dense = make(
        tmp_path,
        table(r9="1,5e-324,u,i\n").replace(".", "0e-330").replace("5e-3240e-330", "5e-324"),
        SCHEMA,
        *HASHED[:2],
        "data.dense_transform=minmax",
    )[1]
    assert np.isfinite(dense).all()


# ---- dates

DATES = (
    "label: label\ndense: [{column: t, part: hour}, {column: t, part: timestamp}]\n"
    "sparse: [user, {column: t, part: weekday}, {column: t, part: date}, {column: t, part: month}]\n"
)
TIMES = [
    "2024-02-29 23:59:58",
    "1969-12-31T00:00:01",
    "",
    "2024-01-01",
    "2024-06-01T12:00:00+02:00",
    "2000-01-01T05:06:07Z",
]
PARTS = {  # hour, timestamp, weekday (Monday 0), days since 1970, month; in UTC
    "2024-02-29 23:59:58": (23, 1709251198, 3, 19782, 2),
    "1969-12-31T00:00:01": (0, -86399, 2, -1, 12),
    "": (0, 0, "", "", ""),
    "2024-01-01": (0, 1704067200, 0, 19723, 1),
    "2024-06-01T12:00:00+02:00": (10, 1717236000, 5, 19875, 6),
    "2000-01-01T05:06:07Z": (5, 946703167, 5, 10957, 1),
}


def test_parts_of_dates_in_text_and_parquet_alike(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},u{i},{time}\n" for i, time in enumerate(TIMES * 3))
    _, dense, sparse = make(tmp_path, "label,user,t\n" + rows, DATES)
    expected: list[tuple[Any, ...]] = [PARTS[time] for time in TIMES]
    np.testing.assert_array_equal(dense[:6], np.array([parts[:2] for parts in expected], np.float32))
    assert sparse[:6, 1:].tolist() == [ids(parts[2:]) for parts in expected]
    manifest = load_manifest(tmp_path / "out")
    assert manifest.schema["dense"] == ["t_hour", "t_timestamp"]
    assert manifest.schema["sparse"] == ["user", "t_weekday", "t_date", "t_month"]

    seconds = [PARTS[time][1] if time else None for time in TIMES * 3]
    times = pa.array(seconds, pa.timestamp("s")).cast(pa.timestamp("ns"))
    columns = {"label": [i % 2 for i in range(18)], "user": [f"u{i}" for i in range(18)], "t": times}
    for name, column in (
        ("stamps", times),
        ("zoned", times.cast(pa.timestamp("us", "Europe/Berlin"))),
        ("text", pa.array(TIMES * 3)),
    ):
        directory = tmp_path / name
        directory.mkdir()
        pq.write_table(pa.table(columns | {"t": column}), directory / "t.parquet")
        _, same_dense, same_sparse = make(directory, (directory / "t.parquet").read_bytes(), DATES, name="t.parquet")
        np.testing.assert_array_equal(same_dense, dense)
        np.testing.assert_array_equal(same_sparse, sparse)

    encoder = Encoder.load(tmp_path / "out")
    assert encoder.input_columns == ("t", "user")
    new = encoder.encode(encoder.parse_columns({"user": ["u1"], "t": [TIMES[0]]}, "new"))
    assert new.dense.tolist() == dense[:1].tolist()
    np.testing.assert_array_equal(new.sparse[:, 1:], sparse[:1, 1:])


@pytest.mark.parametrize(("form", "text"), [("%d.%m.%Y %H:%M", "29.02.2024 23:59"), ("epoch", "1709251140")])
def test_formats_of_dates(tmp_path: Path, form: str, text: str) -> None:
    schema = f'header: false\nlabel: 0\nsparse: [1, {{column: 2, part: hour, format: "{form}"}}]\n'
    sparse = make(tmp_path, f"1,u,{text}\n0,u,\n" * 9, schema)[2]
    assert sparse[:2, 1].tolist() == ids(["23", ""])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (DATES, "row 3, column t: '01/02/2024' is not an ISO 8601 date or time; .* another format in the schema"),
        (DATES.replace("hour", "hours"), "key dense, .*: hours is not known; did you mean hour"),
        (DATES.replace("hour", "fortnight"), "key dense, .*: give a column, .*parts are year, month"),
        (DATES.replace("hour", "hour, format: '%H'"), "row 2, column t: '2024-01-01' is not a time of format %H"),
        (DATES.replace("{column: t, part: hour}", "t_hour"), "no column t_hour"),
        (DATES.replace("part: weekday", "part: date"), "column t_date is named twice"),
        (SCHEMA + "decimal: ','\nthousands: ','", "keys decimal and thousands: give one character each"),
        (SCHEMA + "decimal: 5", "keys decimal and thousands"),
        (SCHEMA + "missing: NA", "key missing: give a list of texts"),
    ],
)
def test_bad_schemas(tmp_path: Path, schema: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make(tmp_path, "label,user,t\n1,u,2024-01-01\n0,u,01/02/2024\n", schema)
    assert "\n" not in str(error.value)


def test_dates_in_parquet_without_a_part_are_refused_with_the_remedy(tmp_path: Path) -> None:
    columns = {"label": [0, 1] * 9, "user": ["u"] * 18, "t": pa.array([0] * 18, pa.timestamp("us"))}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    for schema in ("label: label\nsparse: [user, t]", "label: label\ndense: [t]\nsparse: [user]"):
        with pytest.raises(UserError, match=r"column t: time.*; use a part of it: \{column: t, part: hour\}"):
            make(tmp_path, content, schema, name="t.parquet")
    make(tmp_path, content, "label: label\nsparse: [user, {column: t, part: hour}]", name="t.parquet")
    with pytest.raises(UserError, match="key missing: has no effect"):
        make(tmp_path, content, "missing: [NA]\nlabel: label\nsparse: [user]", name="t.parquet")


def test_a_parquet_file_without_rows(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"label": pa.array([], pa.int8()), "user": pa.array([], pa.string())}), tmp_path / "t.parquet"
    )
    with pytest.raises(UserError, match=r"t\.parquet: no rows in it; get it again"):
        make(tmp_path, (tmp_path / "t.parquet").read_bytes(), "label: label\nsparse: [user]", name="t.parquet")


@pytest.mark.parametrize(("name", "message"), [("none.yaml", "no such file; check data.schema"), ("", "a directory")])
def test_a_schema_that_is_not_there(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "rows.csv").write_text(table())
    paths = [f"data.raw={tmp_path}/rows.csv", f"data.schema={tmp_path}/{name}", f"data.path={tmp_path}/out"]
    with pytest.raises(UserError, match=message):
        preprocess(config(*paths))


def test_a_mark_of_byte_order_is_only_that_at_the_start(tmp_path: Path) -> None:
    """In no chunk but the first, and not in the first row after the header."""
    text = "\ufefflabel,user\n" + "\ufeff1,u\n" * 30
    with pytest.raises(UserError, match=r"row 2, column label: .* is not a number"):
        make(tmp_path, text, "label: label\nsparse: [user]", *HASHED, "data.chunk_bytes=20")
    sparse = make(tmp_path, "\ufefflabel,user\n" + "1,\ufeffu\n0,v\n" * 30, "label: label\nsparse: [user]")[2]
    assert sparse[:2, 0].tolist() == ids(["\ufeffu", "v"])


@pytest.mark.parametrize("kind", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_a_missing_date_is_0_as_a_number(tmp_path: Path, kind: str) -> None:
    parts = ("year", "month", "day", "weekday", "hour", "minute", "second", "date", "timestamp")
    times = [datetime(2024, 2, 29, 13, 5, 9), None] * 20
    dense_columns = ", ".join(f"{{column: t, part: {part}}}" for part in parts)
    schema = f"label: label\ndense: [{dense_columns}]\nsparse: [user]\n"
    content: bytes | str
    if kind == "csv":
        lines = (f"{i % 2},{'' if time is None else time.isoformat()},u{i % 3}\n" for i, time in enumerate(times))
        content = "label,t,user\n" + "".join(lines)
    else:
        sink = pa.BufferOutputStream()
        columns = {"label": np.arange(40) % 2, "t": pa.array(times, pa.timestamp("s")), "user": ["u"] * 40}
        pq.write_table(pa.table(columns), sink)
        content = sink.getvalue().to_pybytes()
    dense = make(tmp_path, content, schema, *HASHED, name=f"rows.{kind}")[1]
    days = (datetime(2024, 2, 29) - datetime(1970, 1, 1)).days
    assert dense[0].tolist() == [2024, 2, 29, 3, 13, 5, 9, days, np.float32(days * 86_400 + 13 * 3600 + 309)]
    assert not dense[1::2].any()


# ---- positions and names


NUMBERED = "b,1,0,label\n" + "".join(f"x{i},y{i % 3},z{i % 5},{i % 2}\n" for i in range(40))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("label: label\nsparse: [0]\n", r"column 0: is a position \(b\) and the name of another column; write 'b'"),
        ("label: label\nsparse: [b, 0]\n", r"column 0: is a position \(b\)"),
        ("label: 0 >= 1\nsparse: [b]\n", r"column 0: is a position \(b\).*of a label \{column: \"0\", …\}"),
        ("label: label\nsparse: [{column: 0, separator: '|'}]\n", r"column 0: is a position"),
    ],
)
def test_a_number_that_is_a_position_and_a_name_is_refused(schema: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        make(tmp_path, NUMBERED, schema)


def test_a_number_in_quotes_is_a_name_and_one_without_a_position(tmp_path: Path) -> None:
    z_ids = ids([f"z{i % 5}" for i in range(40)])
    assert make(tmp_path, NUMBERED, 'label: label\nsparse: ["0", 1]\n')[2].T.tolist() == [
        z_ids,
        ids([f"y{i % 3}" for i in range(40)]),
    ]
    labels, _, _ = make(tmp_path, NUMBERED, 'label: 3 >= 1\nsparse: ["0"]\n', *HASHED, "data.overwrite=true")
    assert labels.tolist() == [i % 2 for i in range(40)]


def test_a_first_row_of_values_is_not_one_of_names(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},a{i}\n" for i in range(40))
    for schema in ("label: 0\nsparse: [1]\n", "label: 0 >= 1\nsparse: [1]\n"):
        with pytest.raises(UserError, match=r"rows.csv: row 1: '0' is a label, not a column's name; .*header: false"):
            make(tmp_path, rows, schema)
    words = "".join(f"{('yes', 'no')[i % 2]},a{i}\n" for i in range(40))
    with pytest.raises(UserError, match=r"row 1: 'yes' is a label"):
        make(tmp_path, words, "label: 0 == yes\nsparse: [1]\n")
    assert len(make(tmp_path, words, "header: false\nlabel: 0 == yes\nsparse: [1]\n")[0]) == 40
    numbered = "0,1\n" + rows  # pandas names the columns of an array so
    assert len(make(tmp_path, numbered, "label: 0\nsparse: [1]\n", *HASHED, "data.overwrite=true")[0]) == 40


@pytest.mark.parametrize("line", ['1,2.0,u1,"say \\"u13\\""\n', '1,2.0,"{\\"a\\": 1}",c\n', '1,2.0,"\\"x",c\n'])
def test_quotes_escaped_by_a_backslash_are_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'rows.csv: row 9: \\" in quotes, where a backslash escapes nothing; write a'):
        make(tmp_path, table(r9=line))


def test_quotes_within_a_field_stay_as_they_are(tmp_path: Path) -> None:
    fields = ['5" disk', 'a "b" c', 'a"', "\\"]
    text = "label,price,user,item\n" + "".join(f"{i % 2},1,{fields[i % 4]},x\n" for i in range(40))
    assert make(tmp_path, text)[2][:, 0].tolist() == ids([fields[i % 4] for i in range(40)])
    quoted = "label,price,user,item\n" + "".join(
        '{},1,"{}",x\n'.format(i % 2, fields[i % 4].replace('"', '""')) for i in range(40)
    )
    assert make(tmp_path, quoted, SCHEMA, *HASHED, "data.overwrite=true")[2][:, 0].tolist() == ids(
        [fields[i % 4] for i in range(40)]
    )


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("%Y-%m-%d %H:%M %p", "%p has an effect with %I alone"),
        ("%Y-%m-%d %I:%M", "%I counts hours to 12 and needs %p"),
        ("%Y %W", "%U and %W have an effect with a weekday alone"),
        ("%d.%m. %H:%M", "%d needs a year"),
    ],
)
def test_formats_that_would_be_ignored_in_part_are_refused(form: str, message: str, tmp_path: Path) -> None:
    schema = f'label: label\nsparse: [item, {{column: user, part: hour, format: "{form}"}}]\n'
    with pytest.raises(UserError, match=f"format {form}: {message}"):
        make(tmp_path, table(), schema)
