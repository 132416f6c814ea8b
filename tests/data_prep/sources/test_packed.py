"""Files compressed by bzip2, xz and zstd have the rows of the plain file; damaged ones are refused."""

import bz2
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_prep.encoding import Shape, read_new_rows
from tests.data_prep.conftest import load_rows, prepare
from tests.data_prep.tables import paths
from tests.error_lines import refused

LINES = [{"label": row % 2, "user": f"u{row % 7}", "price": row / 4} for row in range(3_000)]
TEXTS = {
    "jsonl": "".join(json.dumps(line) + "\n" for line in LINES).encode(),
    "csv": ("label,user,price\n" + "".join("{label},{user},{price}\n".format(**line) for line in LINES)).encode(),
}
SCHEMA, SHAPE = "label: label\ndense: [price]\nsparse: [user]\n", Shape(("label", "user", "price"), ",", "label")


def in_two_streams(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Compress as parallel programs (pbzip2, pixz) do."""
    return lambda content: compress(content[:5_000]) + compress(content[5_000:])


def by_zstd(content: bytes) -> bytes:
    """Compress by pyarrow."""
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "bzip2": (".bz2", bz2.compress),
    "bzip2 in two streams": (".bz2", in_two_streams(bz2.compress)),
    "xz": (".xz", lzma.compress),
    "xz in two streams": (".xz", in_two_streams(lzma.compress)),
    "zstd": (".zst", by_zstd),
    "zstd in two streams": (".zst", in_two_streams(by_zstd)),
}


def make(directory: Path, name: str, content: bytes) -> Path:
    (directory / name).write_bytes(content)
    keys = paths(directory, SCHEMA, name, out=f"{name}.out")
    prepare(*keys, "data.split.method=fraction", "data.chunk_bytes=3000")
    return directory / f"{name}.out"


@pytest.mark.medium
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_plain_file(tmp_path: Path, form: str, kind: str) -> None:
    suffix, compress = FORMS[form]
    plain = make(tmp_path, f"rows.{kind}", TEXTS[kind])
    packed = make(tmp_path, f"rows.{kind}{suffix}", compress(TEXTS[kind]))
    for one, other in zip(load_rows(plain), load_rows(packed), strict=True):
        np.testing.assert_array_equal(one, other)
    new = read_new_rows(tmp_path / f"rows.{kind}{suffix}", SHAPE)
    assert list(map(str, new.columns["user"])) == [line["user"] for line in LINES]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_whole_is_refused(tmp_path: Path, form: str) -> None:
    suffix, compress = FORMS[form]
    name, packed = form.partition(" ")[0], compress(TEXTS["csv"])
    middle = len(packed) // 2
    cases = {
        "cut": (packed[:-12], f"truncated {name} file"),
        "damaged": (packed[:middle] + bytes(40) + packed[middle + 40 :], f"damaged {name} file"),
        "followed": (packed + b"rows,that,follow\n", f"damaged {name} file"),
    }
    for case, (content, words) in cases.items():
        refused(words, make, tmp_path, f"{case}.csv{suffix}", content)
        assert not (tmp_path / f"{case}.csv{suffix}.out/manifest.json").exists()
        refused("damaged, or cut off", read_new_rows, tmp_path / f"{case}.csv{suffix}", SHAPE)


def test_a_plain_file_with_their_ending_is_refused(tmp_path: Path) -> None:
    refused(r"not a zstd file, though named \.zst", make, tmp_path, "rows.csv.zst", TEXTS["csv"])
