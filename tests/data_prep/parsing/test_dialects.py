"""Text files without quoting, with an escape or in another charset, beside pandas and pyarrow reading them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from data_prep.dataset.format import load_manifest
from data_prep.dataset.spelling import charset_named
from data_prep.encoding import Encoder, read_new_rows
from tests.data_prep.tables import HASHED, SCHEMA, ids, make, table
from tests.error_lines import refused

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


def by_arrow(content: bytes, encoding: str = "utf8", **options: Any) -> list[list[str]]:
    parse = arrow_csv.ParseOptions(**options)
    types = dict.fromkeys(("label", "price", "user", "item"), pa.string())
    convert = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    read = arrow_csv.ReadOptions(encoding=encoding)
    return [column.to_pylist() for column in arrow_csv.read_csv(io.BytesIO(content), read, parse, convert).columns]


def require_new_rows(path: Path, arrays: list[NDArray[Any]]) -> None:
    """The encoder gives the dataset's arrays for its own file, as bytes and as a file of new rows."""
    encoder = Encoder.load(path.parent / "out")
    rows = read_new_rows(path, encoder.shape(encoder.input_columns))
    for block in (encoder.parse(path.read_bytes(), "new"), encoder.parse_columns(rows.columns, "new", labelled=True)):
        encoded = encoder.encode(block)
        for one, other in zip((encoded.labels, encoded.dense, encoded.sparse), arrays, strict=True):
            assert np.array_equal(one, other)


ESCAPE = 'escape: "\\\\"\n'
UNQUOTED = ["a\\,b", 'say \\"hi\\"', '"', "\\\\", '"x', "\\x"]
# A file, keys of its schema, and options of pandas and pyarrow, which does not take both of these.
DIALECTS: list[tuple[str, str, dict[str, Any], dict[str, Any] | None]] = [
    (text(QUOTES), "quoting: none\n", {"quoting": 3}, {"quote_char": False}),
    (text(ESCAPED), ESCAPE, {"escapechar": "\\"}, {"escape_char": "\\"}),
    (text(ESCAPED).replace("\n", "\r\n"), ESCAPE, {"escapechar": "\\"}, {"escape_char": "\\"}),
    (text(UNQUOTED), f"{ESCAPE}quoting: none\n", {"escapechar": "\\", "quoting": 3}, None),
    *(
        (text([*words, f'"{words[0]},"']), f"charset: {name}\n", {"encoding": name}, {"encoding": name})
        for name, words in CHARSETS.items()
    ),
]


@pytest.mark.medium
@pytest.mark.parametrize("more", [(), ("data.chunk_bytes=70", "data.workers=2")])
@pytest.mark.parametrize(("rows", "keys", "of_pandas", "of_arrow"), DIALECTS)
def test_dialects(tmp_path: Path, rows: str, keys: str, of_pandas: Any, of_arrow: Any, more: tuple[str, ...]) -> None:
    charset = of_pandas.get("encoding", "utf-8")
    content = rows.encode(charset)
    arrays = make(tmp_path, content, SCHEMA + keys, *HASHED, *more)
    readings = [by_pandas(content, **of_pandas), *([] if of_arrow is None else [by_arrow(content, **of_arrow)])]
    for labels, prices, users, items in readings:
        expected = [list(map(int, labels)), list(map(float, prices)), [ids(users), ids(items)]]
        assert [arrays[0].tolist(), arrays[1][:, 0].tolist(), arrays[2].T.tolist()] == expected
    entry = load_manifest(tmp_path / "out").encoding["table"]
    assert entry.get("quoting", "csv") == ("none" if "quoting" in keys else "csv")
    assert entry.get("charset", "utf-8") == charset_named(charset)
    require_new_rows(tmp_path / "rows.csv", arrays)


def test_the_null_mark_of_mysql_is_not_the_letter_n(tmp_path: Path) -> None:
    fields = ["\\N", "N", "a\\N", "\\\\N", "\\,\\N", '"\\N"']
    content = "label,price,user,item\n" + "".join(f"{i % 2},\\N,{field},\\N\n" for i, field in enumerate(fields * 4))
    arrays = make(tmp_path, content, f'{SCHEMA}{ESCAPE}missing: ["\\\\N"]\n')
    assert arrays[1][:, 0].tolist() == [0.0] * 24
    assert arrays[2].T.tolist() == [ids(["", "N", "aN", "", ",N", "N"] * 4), ids([""] * 24)]
    message = r"rows\.csv: row 2, column price: '.*N' is not a number"
    refused(message, make, tmp_path / "out", content, SCHEMA + ESCAPE)


def test_the_defaults_are_recorded_as_if_they_were_not_given(tmp_path: Path) -> None:
    for number, keys in enumerate(("", "quoting: csv\nescape: ''\ncharset: UTF8\ndecimal: '.'\nmissing: []\n")):
        make(tmp_path, table(), SCHEMA + keys, *HASHED, "data.overwrite=true")
        entry = load_manifest(tmp_path / "out").encoding["table"]
        assert {"quoting", "escape", "charset", "transforms", "vectors", "positive"}.isdisjoint(entry), number


def test_new_rows_with_the_mark_of_utf_8_are_refused(tmp_path: Path) -> None:
    make(tmp_path, text(["é"] * 9).encode("cp1252"), SCHEMA + "charset: cp1252\n")
    encoder, path = Encoder.load(tmp_path / "out"), tmp_path / "new.csv"
    path.write_text("\ufeffuser,item,price\né,i,1\n", encoding="utf-8")
    message = r"new\.csv: row 1: begins with the byte-order mark of UTF-8"
    refused(message, read_new_rows, path, encoder.shape(encoder.input_columns))


def test_names_of_columns_are_of_the_charset(tmp_path: Path) -> None:
    content = "label,größe\n" + "1,é\n0,ü\n" * 9
    schema = "label: label\nsparse: [größe]\ncharset: windows-1252\n"
    assert make(tmp_path, content.encode("cp1252"), schema)[2][:, 0].tolist() == ids(["é", "ü"] * 9)
