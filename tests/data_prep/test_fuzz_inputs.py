"""Input files flipped, cut, quoted and re-encoded: refused in one line, or read as the csv module does."""

import csv
import gzip
import io
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from common.errors import UserError
from data_prep.dataset.format import MANIFEST_NAME
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import SPLITS, config, load_rows
from tests.data_prep.tables import paths

EXAMPLES = int(os.environ.get("CLICKWORK_FUZZ_EXAMPLES", "75"))
FUZZ = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
SCHEMA = "label: label\ndense: [price]\nsparse: [user, {column: tags, separator: '|'}]\n"
HASHED = ("data.encoding=hash", "data.max_ind_range=1000", "data.dense_transform=raw", "data.split.held_out=0")
PRICES = ["0", "1", "1.5", "-2e3", "", "1_000", "nan", "inf", "1e39", " 7 ", "yes", "True", "0x1", "１"]
TEXTS = st.text("ab|,\"'\\\n\r\t é\x00\ufeff", max_size=5)
LABELS = st.sampled_from(["0", "1", "1", "0", "True", "no", "2", ""])
BREAKS = ["\n", "\n", "\r\n", "\r", "\n\n"]
INSERTED = [b'"', b"\\", b"\n", b"\r", b",", b"\x00", b"\xff", b"\xef\xbb\xbf", b'""', b"\n\n", b'",\n"']


# Keys of the schema, options of csv, and the charset.
DIALECTS: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "utf-8-sig"),
    ("quoting: none\n", {"quoting": csv.QUOTE_NONE}, "utf-8-sig"),
    ("escape: '\\'\n", {"escapechar": "\\"}, "utf-8-sig"),
    ("escape: '\\'\nquoting: none\n", {"escapechar": "\\", "quoting": csv.QUOTE_NONE}, "utf-8-sig"),
    ("charset: latin-1\n", {}, "latin-1"),
    ("charset: shift_jis\n", {}, "shift_jis"),
]


@st.composite
def files(draw: Any) -> Any:
    """A table as csv.writer writes it, then maybe damaged, re-encoded or compressed."""
    rows = draw(st.lists(st.tuples(LABELS, st.sampled_from(PRICES), TEXTS, TEXTS), min_size=1, max_size=8))
    stream = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(stream, lineterminator=draw(st.sampled_from(BREAKS)), quoting=quoting)
    writer.writerow(["label", "price", "user", "tags"])
    try:
        writer.writerows(rows)
    except csv.Error:  # Python 3.10 takes no null character between quotes
        reject()
    content = stream.getvalue().encode(draw(st.sampled_from(["utf-8"] * 6 + ["utf-8-sig", "utf-16"])))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if kind == "flip" and at < len(content):
            content = content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + draw(st.sampled_from(INSERTED)) + content[at:]
        else:
            content += content[at:]
    if draw(st.integers(0, 4)) == 0:
        content = gzip.compress(content, mtime=0)
        content = content[: draw(st.integers(len(content) - 4, len(content)))]
    return content


def read_by_csv(content: bytes, charset: str, options: dict[str, Any]) -> Any:
    text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode(charset)
    rows = [fields for fields in csv.reader(io.StringIO(text, newline=""), **options) if fields]
    at = [rows[0].index(name) for name in ("label", "price", "user", "tags")]
    return [[fields[i] for i in at] for fields in rows[1:]]


WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


def number(text: str) -> float | None:
    word = text.strip().lower()
    return WORDS[word] if word in WORDS else float(text or 0)


def prepare(content: bytes, schema: str, *overrides: str, name: str = "rows.csv") -> Any:
    """The dataset's arrays; None where the input is refused, in one line, and nothing of a dataset is there."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        (directory / name).write_bytes(content)
        raw, schema_key, out = paths(directory, schema, name)
        fault = None
        try:
            preprocess(config(raw, out, *([schema_key] if schema else []), *HASHED, *overrides))
        except UserError as error:
            fault = str(error)
        if fault is None:
            verify_dataset(directory / "out")
            return load_rows(directory / "out")
        assert len(fault.splitlines()) == 1, fault
        assert str(directory) in fault
        assert not any((directory / "out" / name).exists() for name in (*SPLITS, "vocab", MANIFEST_NAME))
        return None


@pytest.mark.slow("examples")
@FUZZ
@given(content=files(), chunk=st.sampled_from(["30", "100", "1MiB"]), dialect=st.sampled_from(DIALECTS))
def test_tables(content: Any, chunk: Any, dialect: Any) -> None:
    keys, options, charset = dialect
    arrays = prepare(content, SCHEMA + keys, f"data.chunk_bytes={chunk}")
    if arrays is None:
        return
    rows = read_by_csv(content, charset, options)
    labels, dense, sparse = arrays
    assert labels.tolist() == [number(row[0]) for row in rows]
    prices = [np.float32(number(row[1])) for row in rows]
    assert dense[:, 0].tolist() == prices
    assert all(map(math.isfinite, prices))
    assert sparse[:, 0].tolist() == [oracle.text_value(row[2]) % 1000 for row in rows]
