"""Text tables as people and programs write them: numbers, dates, dialects, labels; pyarrow's reading against csv's."""

import csv
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.values import charset_named
from data_prep.dataset.format import load_manifest
from data_prep.dataset.options import COMPARISONS
from data_prep.encoding import Encoder, read_new_rows
from data_prep.parsing.readers import exact_rows, read_fast
from tests.data_prep.conftest import Capture, seeds
from tests.data_prep.parsing.test_refusals import EUROPEAN
from tests.data_prep.tables import HASHED, SCHEMA, ids, make
from tests.error_lines import refused

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
    (tmp_path / "new.txt").write_text(f"{new}\n")
    block = encoder.parse_columns(read_new_rows(tmp_path / "new.txt", encoder.shape()).columns, "new")
    assert encoder.encode(block).dense[:, 0].tolist() == list(numbers.values())


SECONDS = [1_709_251_198, 946_703_167, -86_399]  # 2024-02-29T23:59:58, 2000-01-01T05:06:07, 1969-12-31T00:00:01
EXPECTED_PARTS = [ids((2024, 23, 58)), ids((2000, 5, 7)), ids((1969, 0, 1)), ids(("", "", ""))]
UNITS = {"epoch": 1, "epoch_ms": 10**3, "epoch_us": 10**6, "epoch_ns": 10**9}
# The kinds of file, the format, values.
DATES: list[tuple[str, str | None, list[Any]]] = [
    *(("csv jsonl parquet", form, [each * unit for each in SECONDS]) for form, unit in UNITS.items()),
    ("csv jsonl parquet", "epoch", [each + 0.5 for each in SECONDS]),
    ("csv jsonl parquet", "epoch_ms", [1000 * each + 0.5 for each in SECONDS]),
    ("csv", None, ["2024-02-29 23:59:58.999999999", "2000-01-01T06:06:07.5+01:00", "1969-12-31T00:00:01.25Z"]),
    ("jsonl parquet", '"%Y%m%d%H%M%S"', [20240229235958, 20000101050607, 19691231000001]),
    ("jsonl parquet", '"%Y%m%d%H%M%S"', [20240229235958.0, 20000101050607.0, 19691231000001.0]),
]


PARTS = [(suffix, *rest) for suffixes, *rest in DATES for suffix in suffixes.split()]


@pytest.mark.parametrize(("suffix", "form", "values"), PARTS)
def test_parts(tmp_path: Path, suffix: str, form: str | None, values: list[Any]) -> None:
    entry = "" if form is None else f", format: {form}"
    parts = ", ".join(f"{{column: t, part: {part}{entry}}}" for part in ("year", "hour", "second"))
    columns = {"label": [0, 1] * 12, "t": [*values, None] * 6}
    sparse = make(tmp_path, columns, f"label: label\nsparse: [{parts}]\n", name=f"rows.{suffix}")[2]
    assert sparse.tolist() == EXPECTED_PARTS * 6


QUOTES = ['5" pipe', '"a', 'b"', '""', '"x"y', "", "say \\N", '\\"', "it's", "é", "\\"]
ESCAPED = ["a\\,b", 'say \\"hi\\"', '"in \\"quotes\\""', "\\\\", "c\\\\", '"d,e"', "\\x", "", "é\\,", '"say ""so"""']
ESCAPED += ["plain"]
CHARSETS = {
    "windows-1252": ["€5", "é", "“so”", "a b"],
    "latin-1": ["é", "ß", "\x85", "ÿ"],
    "cp1251": ["Привет", "мир", "a"],
    "koi8-r": ["Привет", "мир", "a"],
    "shift_jis": ["表示", "ソ|能", "ポ", "a\\b"],  # its second bytes may be backslashes and bars
    "gb18030": ["中文", "𠀀", "a|b", "é"],
    "big5": ["功能", "許蓋"],
    "euc_jp": ["表示", "能"],
    "utf-8-sig": ["é", "表"],
}


def text(fields: list[str]) -> str:
    rows = [f"{row % 2},{row / 4},{field},i{row % 3}\n" for row, field in enumerate(fields * 4)]
    return "label,price,user,item\n" + "".join(rows)


def by_pandas(content: bytes, **options: Any) -> list[list[str]]:
    frame = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, skip_blank_lines=True, **options)
    return [frame[name].tolist() for name in ("label", "price", "user", "item")]


def require_new_rows(path: Path, arrays: list[NDArray[Any]]) -> None:
    """The encoder gives the dataset's arrays for its own file."""
    encoder = Encoder.load(path.parent / "out")
    rows = read_new_rows(path, encoder.shape(encoder.input_columns))
    encoded = encoder.encode(encoder.parse_columns(rows.columns, "new", labelled=True))
    for one, other in zip((encoded.labels, encoded.dense, encoded.sparse), arrays, strict=True):
        assert np.array_equal(one, other)


ESCAPE = 'escape: "\\\\"\n'
UNQUOTED = ["a\\,b", 'say \\"hi\\"', '"', "\\\\", '"x', "\\x"]
# A file, keys of its schema, and options of pandas.
DIALECTS: list[tuple[str, str, dict[str, Any]]] = [
    (text(QUOTES), "quoting: none\n", {"quoting": 3}),
    (text(ESCAPED), ESCAPE, {"escapechar": "\\"}),
    (text(ESCAPED).replace("\n", "\r\n"), ESCAPE, {"escapechar": "\\"}),
    (text(UNQUOTED), f"{ESCAPE}quoting: none\n", {"escapechar": "\\", "quoting": 3}),
    *((text([*words, f'"{words[0]},"']), f"charset: {name}\n", {"encoding": name}) for name, words in CHARSETS.items()),
]


@pytest.mark.medium
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=70", "data.workers=2")])
@pytest.mark.parametrize(("rows", "keys", "of_pandas"), DIALECTS)
def test_dialects(tmp_path: Path, rows: str, keys: str, of_pandas: Any, more: tuple[str, ...]) -> None:
    charset = of_pandas.get("encoding", "utf-8")
    content = rows.encode(charset)
    arrays = make(tmp_path, content, SCHEMA + keys, *HASHED, *more)
    labels, prices, users, items = by_pandas(content, **of_pandas)
    expected = [list(map(int, labels)), list(map(float, prices)), [ids(users), ids(items)]]
    assert [arrays[0].tolist(), arrays[1][:, 0].tolist(), arrays[2].T.tolist()] == expected
    entry = load_manifest(tmp_path / "out").encoding["table"]
    assert entry.get("quoting", "csv") == ("none" if "quoting" in keys else "csv")
    assert entry.get("charset", "utf-8") == charset_named(charset)
    require_new_rows(tmp_path / "rows.csv", arrays)


POSITIVE = 'label: {column: l, positive: ["yes", "1"]}\nsparse: [user]\n'
PLAIN = "label: l\nsparse: [user]\n"


def labelled(labels: list[Any]) -> dict[str, list[Any]]:
    return {"l": labels, "user": [f"u{row}" for row in range(len(labels))]}


LABELS: list[tuple[str, list[Any]]] = [
    ("rows.csv", ["yes", "no", "1", "0", "maybe", "Yes", " yes", "1.0"]),
    ("rows.jsonl", ["yes", "no", 1, 0, "maybe", True, "Yes", 1.0]),
    ("rows.parquet", ["yes", "no", "1", "0", "maybe", "Yes", " yes", "1.0"]),
]


@pytest.mark.parametrize(("name", "labels"), LABELS)
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=60", "data.workers=2")])
def test_positive_values_are_1_others_0(tmp_path: Path, name: str, labels: list[Any], more: tuple[str, ...]) -> None:
    expected = [int(label in ("yes", "1") or (not isinstance(label, str) and label == 1)) for label in labels * 5]
    assert make(tmp_path, labelled(labels * 5), POSITIVE, *HASHED, *more, name=name)[0].tolist() == expected
    assert load_manifest(tmp_path / "out").encoding["table"]["positive"] == ["yes", "1"]
    block = Encoder.load(tmp_path / "out").parse_columns(labelled(labels), "new", labelled=True)
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
        assert make(tmp_path, labelled(values), schema, *more, name=name)[0].tolist() == expected, label


PAIRS: list[tuple[Any, Any]] = [("y", "n"), ("T", "F"), ("Click", "No_Click"), ("clicked", "not_clicked")]
PAIRS += [("POSITIVE", "negative"), ("pos", " neg"), (1, -1), ("+1", "-1")]


@pytest.mark.parametrize(("one", "zero"), PAIRS)
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_known_pairs_need_no_rule(tmp_path: Path, capsys: Capture, one: Any, zero: Any, name: str) -> None:
    labels = [zero, one, zero, zero] * 5
    assert make(tmp_path, labelled(labels), PLAIN, name=name)[0].tolist() == [0, 1, 0, 0] * 5
    assert f"schema.yaml: label l: {one} is 1, {zero} is 0\n" in capsys.readouterr().err
    table = load_manifest(tmp_path / "out").encoding["table"]
    assert (table["positive"], table["negative"]) == ([str(one)], [str(zero)])
    message = f"new: row 1, column l: 'x' is neither {one} nor {zero}".replace("+", r"\+")
    refused(message, Encoder.load(tmp_path / "out").parse_columns, labelled(["x"]), "new", labelled=True)


DELIMITERS = (*",;|\t", *",;|\t :'\\#e0\x01", "§", "€")
NO_TEXT = [b"\0", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
SIGNS = ['""', "\r\n", "\n", *"\"\r\n \t\v\f\x1c\x85\u2028é日'\\#a"]
ATOMS = [*NO_TEXT, *(sign.encode() for sign in SIGNS), b"end", b"NA"]
QUOTE = '""'  # in a field in quotes
FIELDS = ["", "a", "NA", "null", "nan", "NULL", "#N/A", "1.5", "-0", "true", " x ", "é", "日本", "end", "2026-01-31"]
BLOCKS = 1000
SEEDS = seeds(1, 25)


def drawn_field(draw: random.Random, delimiter: str, nastiness: float) -> bytes:
    if draw.random() < nastiness:
        return b"".join(draw.choice([*ATOMS, delimiter.encode()]) for _ in range(draw.randint(0, 5)))
    text = draw.choice(FIELDS)
    if draw.random() < 0.7:
        return text.encode()
    return f'"{text}{draw.choice(["", delimiter, QUOTE])}"'.encode()


def drawn_block(draw: random.Random, delimiter: str) -> bytes:
    """Lines of any bytes, or of mostly good ones; the last may lack its end."""
    nastiness = draw.choice([0, 0, 0.02, 0.1, 0.4])
    columns, end = draw.randint(1, 4), draw.choice([b"\n", b"\n", b"\r\n"])
    block = draw.choice([b"", b"\xef\xbb\xbf"]) if draw.random() < nastiness else b""
    for _ in range(draw.randint(0, 6)):
        width = draw.randint(0, 5) if draw.random() < nastiness / 2 else columns
        block += delimiter.encode().join(drawn_field(draw, delimiter, nastiness) for _ in range(width))
        block += draw.choice([b"\n", b"\r\n", b"\r", b"", b"\n\n", b"\n\r\n"]) if draw.random() < nastiness / 3 else end
    return block[:-1] if draw.random() < 0.2 else block


def rows_of(batch: pa.RecordBatch) -> list[list[str]]:
    assert batch.schema == pa.schema([(str(position), pa.string()) for position in range(batch.num_columns)])
    assert not any(column.null_count for column in batch.columns)
    return [list(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def rows_by_csv(block: bytes, delimiter: str, row: int) -> list[list[str]] | None:
    """The rows by csv; None where it refuses."""
    try:
        return [fields for _, fields in exact_rows(block, delimiter, "rows.csv", row)]
    except UserError:
        return None


def read_all(block: bytes, delimiter: str) -> pa.RecordBatch | None:
    """All columns by pyarrow, as many as csv takes the first line for."""
    first = block.partition(b"\n")[0].decode(errors="replace")
    try:
        width = len(next(csv.reader([first], delimiter=delimiter)))
    except csv.Error:
        width = 1 + first.count(delimiter)
    return read_fast(block, delimiter, range(width), width)


def read(block: bytes, delimiter: str, row: int) -> list[list[str]] | None:
    """The rows by pyarrow where it reads the block, else by csv."""
    batch = read_all(block, delimiter)
    return rows_by_csv(block, delimiter, row) if batch is None else rows_of(batch)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_blocks(seed: int) -> None:
    """Where pyarrow reads a block, csv reads the same; cut anywhere, a text is the same rows, or refused, as whole."""
    draw, fast = random.Random(seed), 0
    for number in range(BLOCKS):
        delimiter, row = draw.choice(DELIMITERS), draw.randint(1, 2)
        block = drawn_block(draw, delimiter)
        about = f"seed {seed}, block {number}: {block!r} by {delimiter!r}"
        exact = rows_by_csv(block, delimiter, row)
        if (batch := read_all(block, delimiter)) is not None:
            assert rows_of(batch) == exact, about
            fast += 1
        cut = block.find(b"\n", draw.randint(0, len(block))) + 1
        parts = [(block[:cut], row), (block[cut:], row + block[:cut].count(b"\n"))]
        pieces = [read(part, delimiter, first) for part, first in parts if part]
        rows = [fields for piece in pieces if piece is not None for fields in piece]
        assert (None if None in pieces else rows) == exact, about
    assert fast > BLOCKS // 4


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_blocks_of_which_some_columns_are_read(seed: int) -> None:
    draw, fast = random.Random(seed), 0
    for number in range(BLOCKS):
        delimiter, width = draw.choice(DELIMITERS), draw.randint(1, 4)
        block = drawn_block(draw, delimiter)
        places = draw.sample(range(width), draw.randint(1, width))
        batch = read_fast(block, delimiter, places, width)
        if batch is not None:
            about = f"seed {seed}, block {number}: {block!r} by {delimiter!r}, columns {places} of {width}"
            exact = rows_by_csv(block, delimiter, 2)
            assert exact is not None, about
            assert all(len(fields) == width for fields in exact), about
            expected = [[row[place] for row in exact] for place in places]
            assert [column.to_pylist() for column in batch.columns] == expected, about
            fast += 1
    assert fast > BLOCKS // 20
