import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.parsing.criteo import PADDING, empty_block, max_rows, parse_bytes, parse_lines
from tests.data_prep import oracle
from tests.data_prep.conftest import run
from tests.error_lines import error_line, refused

INTEGERS = st.none() | st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(-20, 200)
CATEGORIES = st.none() | st.integers(0, 2**32 - 1)
ROWS = st.tuples(
    st.integers(0, 1), st.lists(INTEGERS, min_size=13, max_size=13), st.lists(CATEGORIES, min_size=26, max_size=26)
)


def row(
    label: str = "0", integers: tuple[str, ...] = ("1",) * 13, categories: tuple[str, ...] = ("68fd1e64",) * 26
) -> bytes:
    return "\t".join([label, *integers, *categories]).encode()


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=8), st.booleans(), st.booleans(), st.sampled_from(["x", "X", "08x"]))
def test_round_trip(
    rows: list[tuple[int, list[int | None], list[int | None]]], carriage_return: bool, last_newline: bool, style: str
) -> None:
    end = "\r\n" if carriage_return else "\n"
    lines = []
    for label, integers, categories in rows:
        dense = ["" if value is None else str(value) for value in integers]
        sparse = ["" if value is None else format(value, style) for value in categories]
        lines.append("\t".join([str(label), *dense, *sparse]))
    text = end.join(lines) + (end if last_newline else "")
    block = parse_bytes(text.encode(), "text")
    assert block.labels.tolist() == [label for label, _, _ in rows]
    assert block.dense.tolist() == [[v or 0 for v in integers] for _, integers, _ in rows]
    assert block.sparse.tolist() == [[v or 0 for v in categories] for _, _, categories in rows]


EDGES = {"2147483647": 2**31 - 1, "-2147483648": -(2**31), "0000000000000012": 12, "-0": 0, "99999999": 99999999}
EDGES |= {"123456789": 123456789, "-1234567": -1234567}


@pytest.mark.parametrize("text", EDGES)
def test_integers_at_the_edge(text: str) -> None:
    assert parse_bytes(row(integers=(text,) * 13), "text").dense[0].tolist() == [EDGES[text]] * 13


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(label="2"), "row 3, column label: '2' is not a label"),
        (row(label=""), "row 3, column label: '' is not a label"),
        (row(integers=("1",) * 4 + ("1x",) + ("1",) * 8), "row 3, column int_4: '1x' is not an integer"),
        (row(integers=("+1",) * 13), "column int_0: '\\+1' is not an integer"),
        (row(integers=("2147483648",) * 13), "column int_0: '2147483648' does not fit 32 bits"),
        (row(categories=("68fd1e64",) * 25 + ("xyz",)), "column cat_25: 'xyz' is not a hexadecimal category"),
        (row(categories=("68fd1e645",) * 26), "column cat_0: '68fd1e645' is longer than 8 hexadecimal digits"),
        (row(categories=("68\xfd",) * 26), "column cat_0: .* is not a hexadecimal category"),
        (row(categories=("68fd1e64",) * 25), "row 3: 39 columns, but a row has 40; column cat_25 is missing"),
        (row(categories=("68fd1e64",) * 27), "row 3: 41 columns, but a row has 40; something follows column cat_25"),
        (b"", "row 3: empty line"),
    ],
)
def test_bad_rows_are_named(bad: bytes, message: str) -> None:
    good = row()
    line = refused(message, parse_bytes, b"\n".join([good, good, bad, good, b""]), "day_0.tsv")
    assert line.startswith("day_0.tsv: row 3")


@pytest.mark.medium
@pytest.mark.parametrize(("packed", "workers"), [(True, 2), (False, 2), (False, 1)])
def test_a_bad_row_is_counted_from_the_file_s_start(tmp_path: Path, packed: bool, workers: int) -> None:
    lines = oracle.make_rows(60, seed=5).splitlines(keepends=True)
    fields = lines[56].split(b"\t")
    lines[56] = b"\t".join([*fields[:20], b"x", *fields[21:]])
    path = tmp_path / ("day_0.gz" if packed else "day_0")
    path.write_bytes(gzip.compress(b"".join(lines)) if packed else b"".join(lines))
    process = run(f"data.raw={path}", f"data.path={tmp_path}/out", f"data.workers={workers}", "data.chunk_bytes=2000")
    assert (process.returncode, process.stdout) == (2, "")
    assert error_line(process.stderr.splitlines()[-1]).startswith(f"error: {path}: row 57, column cat_6: 'x'")
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.medium
@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(0, 3).flatmap(lambda n: st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=2)), max_size=n)),
)
def test_a_batch_is_parsed_up_to_its_first_invalid_row(seed: int, changes: list[tuple[float, bytes]]) -> None:
    text = bytearray(oracle.make_rows(12, seed=seed))
    for share, replacement in changes:
        place = int(share * (len(text) - 1))
        text[place : place + 1] = replacement
    text += b"" if text.endswith(b"\n") else b"\n"
    buffer = np.zeros(len(text) + PADDING, np.uint8)
    buffer[: len(text)] = np.frombuffer(bytes(text), np.uint8)
    block = empty_block(max_rows(len(text)))
    rows, position = parse_lines(buffer, 0, len(text), *block)
    lines = bytes(text)[:-1].split(b"\n")
    first = next((number for number, line in enumerate(lines) if not is_row(line)), len(lines))
    assert (rows, position) == (first, sum(len(line) + 1 for line in lines[:first]))
    if rows == len(lines):
        fields = [line.removesuffix(b"\r").split(b"\t") for line in lines]
        np.testing.assert_array_equal(block.labels[:rows], [int(row[0]) for row in fields])
        np.testing.assert_array_equal(block.dense[:rows], [[int(f or b"0") for f in row[1:14]] for row in fields])
        np.testing.assert_array_equal(block.sparse[:rows], [[int(f or b"0", 16) for f in row[14:]] for row in fields])


def is_row(line: bytes) -> bool:
    form = rb"[01](\t(-?[0-9]+)?){13}(\t[0-9a-fA-F]{0,8}){26}\r?"
    integers = re.fullmatch(form, line) and line.split(b"\t")[1:14]
    return bool(integers) and all(-(2**31) <= int(field or b"0") < 2**31 for field in integers or [])
