"""pyarrow's reading of a block against Python's csv: the same rows, or none, whatever bytes it holds."""

import csv
import io
import random

import pyarrow as pa
import pytest

from common.errors import UserError
from data_prep.parsing.readers import read_exact, read_fast
from tests.data_prep.conftest import seeds

PLAIN_DELIMITERS = (",", ";", "|", "\t", " ", ":", "'", "\\", "#", "e", "0", "\x01")
DELIMITERS = (*PLAIN_DELIMITERS[:4], *PLAIN_DELIMITERS, "§", "€")
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
    """The batch's rows, of which every field is text."""
    assert batch.schema == pa.schema([(str(position), pa.string()) for position in range(batch.num_columns)])
    assert not any(column.null_count for column in batch.columns)
    return [list(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def exact_rows(block: bytes, delimiter: str, row: int) -> list[list[str]] | None:
    """The rows by csv; None where it refuses."""
    try:
        return read_exact(block, delimiter, "rows.csv", row)[0]
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
    return exact_rows(block, delimiter, row) if batch is None else rows_of(batch)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_blocks(seed: int) -> None:
    """Where pyarrow reads a block, csv reads the same; cut anywhere, a text is the same rows, or refused, as whole."""
    draw, fast = random.Random(seed), 0
    for number in range(BLOCKS):
        delimiter, row = draw.choice(DELIMITERS), draw.randint(1, 2)
        block = drawn_block(draw, delimiter)
        about = f"seed {seed}, block {number}: {block!r} by {delimiter!r}"
        exact = exact_rows(block, delimiter, row)
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
    """What is wrong in a column that is not read is refused as in one that is read."""
    draw, fast = random.Random(seed), 0
    for number in range(BLOCKS):
        delimiter, width = draw.choice(DELIMITERS), draw.randint(1, 4)
        block = drawn_block(draw, delimiter)
        places = draw.sample(range(width), draw.randint(1, width))
        batch = read_fast(block, delimiter, places, width)
        if batch is not None:
            about = f"seed {seed}, block {number}: {block!r} by {delimiter!r}, columns {places} of {width}"
            exact = exact_rows(block, delimiter, 2)
            assert exact is not None, about
            assert all(len(fields) == width for fields in exact), about
            expected = [[row[place] for row in exact] for place in places]
            assert [column.to_pylist() for column in batch.columns] == expected, about
            fast += 1
    assert fast > BLOCKS // 20


@pytest.mark.medium
@pytest.mark.parametrize("delimiter", PLAIN_DELIMITERS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ordinary_blocks_are_read_by_pyarrow(delimiter: str, end: str) -> None:
    """Whatever csv.writer makes of text without line breaks."""
    draw = random.Random(f"{delimiter}{end}")
    texts = [*FIELDS, '"', 'say "so"', delimiter, f"a{delimiter}b", "\u2028", "\ufeff", "\x1c", "x" * 5000]
    for number in range(20):
        columns = draw.randint(2, 9)
        rows = [[draw.choice(texts) for _ in range(columns)] for _ in range(draw.randint(1, 300))]
        rows[0][0] = "first"
        stream = io.StringIO(newline="")
        csv.writer(stream, delimiter=delimiter, lineterminator=end).writerows(rows)
        block = stream.getvalue().encode()
        batch = read_all(block if number % 2 else block.removesuffix(end.encode()), delimiter)
        assert batch is not None
        assert rows_of(batch) == rows


def test_one_column_is_read_by_pyarrow() -> None:
    for block in (b"a\nb\n", b'a\n""\nb', b"a"):
        batch = read_all(block, ",")
        assert batch is not None
        assert rows_of(batch) == read_exact(block, ",", "rows.csv", 1)[0]


LONG = b"x" * (csv.field_size_limit() + 1)
NOT_READ = [b'a,b\nx,"y\n', b'a,b\nx,"y', b'a,"x\ny"\n']  # an open quote in the last row
NOT_READ += [b'a,"x\ny"\rz,w\n']  # a lone carriage return makes up for a quoted line break
NOT_READ += [b"a,b\n\nc,d\n", b"a,b\r\n\r\nc,d\r\n", b"\na,b\n", b"a\n\nb\n"]  # blank lines are no rows
NOT_READ += [b"a,b\rc,d\n", b"a,b\r", b"a,\xff\n", b"a,\xed\xa0\x80\n", b"\xef\xbb\xbfa,b\n", b"a,b\nc\n"]
NOT_READ += [b"a,b\nc,d,e\n", b"a,b\0\n", b"a,b\nc," + LONG + b"\n", LONG + b",a\n", b"", b"\n"]


@pytest.mark.parametrize("block", NOT_READ, ids=lambda block: repr(block[:20]))
def test_what_pyarrow_does_not_read(block: bytes) -> None:
    assert read_all(block, ",") is None


@pytest.mark.parametrize("delimiter", ["§", '"', "\n", "\r", "\0", ""])
def test_delimiters_that_pyarrow_does_not_take(delimiter: str) -> None:
    assert read_fast(f"a{delimiter}b\n".encode(), delimiter, [0, 1], 2) is None
