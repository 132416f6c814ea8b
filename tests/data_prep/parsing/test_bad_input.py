"""Through the command line: exit status 2, one line that names the fault, nothing that passes for a dataset."""

import gzip
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data_prep import oracle
from tests.data_prep.conftest import run
from tests.error_lines import error_line

GOOD = oracle.make_rows(60, seed=5)
LINES = GOOD.splitlines(keepends=True)


def with_row(number: int, change: Callable[..., Any]) -> bytes:
    """The good rows, row `number` (from 1) changed."""
    lines = list(LINES)
    fields = lines[number - 1].rstrip(b"\n").split(b"\t")
    lines[number - 1] = b"\t".join(change(fields)) + b"\n"
    return b"".join(lines)


def replaced(index: int, text: bytes) -> Callable[..., Any]:
    return lambda fields: [*fields[:index], text, *fields[index + 1 :]]


CASES = {
    "39 columns": (with_row(41, lambda f: f[:-1]), ["row 41", "39 columns", "cat_25"]),
    "41 columns": (with_row(41, lambda f: [*f, b"0"]), ["row 41", "41 columns"]),
    "not hexadecimal": (with_row(57, replaced(14 + 3, b"68fd1eg4")), ["row 57", "cat_3", "68fd1eg4"]),
    "nine digits": (
        with_row(57, replaced(14 + 3, b"68fd1e644")),
        ["row 57", "cat_3", "8 hexadecimal digits"],
    ),
    "a label of 2": (with_row(1, replaced(0, b"2")), ["row 1", "label", "'2'"]),
    "not an integer": (with_row(33, replaced(5, b"1e3")), ["row 33", "int_4", "1e3"]),
    "too large": (with_row(33, replaced(13, b"3000000000")), ["row 33", "int_12", "32 bits"]),
    "empty line": (b"".join([*LINES[:20], b"\n", *LINES[20:]]), ["row 21", "empty line"]),
    "cut in mid-row": (b"".join(LINES[:30]) + LINES[30][:50], ["row 31", "cut off"]),
    "a header": (b"label\t" + b"\t".join([b"x"] * 39) + b"\n" + GOOD, ["row 1", "names of columns"]),
    "a header of a table": (b"user\titem\trating\n1\t2\t3\n", ["row 1", "name them in data.schema=FILE"]),
    "empty file": (b"", ["empty file"]),
}


def assert_refused(process: subprocess.CompletedProcess[str], root: Path, words: list[str]) -> None:
    assert process.returncode == 2, process.stderr
    line = error_line(process.stderr)
    for word in words:
        assert word in line
    assert process.stdout == ""
    assert not root.exists()


@pytest.mark.parametrize("name", CASES)
def test_bad_rows(tmp_path: Path, name: str) -> None:
    content, words = CASES[name]
    (tmp_path / "day_0.tsv").write_bytes(content)
    process = run(f"data.raw={tmp_path}/day_0.tsv", f"data.path={tmp_path}/out", "data.workers=1")
    assert_refused(process, tmp_path / "out", [f"{tmp_path}/day_0.tsv", *words])


@pytest.mark.parametrize("packed", [True, False])
def test_a_bad_row_is_counted_from_the_file_s_start(tmp_path: Path, packed: bool) -> None:
    """Whatever chunk it lies in, and with more than one worker."""
    bad = with_row(57, replaced(20, b"x"))
    path = tmp_path / ("day_0.gz" if packed else "day_0")
    path.write_bytes(gzip.compress(bad) if packed else bad)
    process = run(f"data.raw={path}", f"data.path={tmp_path}/out", "data.workers=2", "data.chunk_bytes=2000")
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].startswith(f"error: {path}: row 57, column cat_6: 'x'")
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()


def damaged(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(byte ^ 0x55 for byte in content[middle : middle + 20]) + content[middle + 20 :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[: len(content) * 2 // 3], ["truncated gzip"]),
        (lambda content: content[:-4], ["truncated gzip"]),
        (damaged, ["damaged gzip"]),
        (lambda content: content[:-8] + bytes(4) + content[-4:], ["damaged gzip"]),
        (lambda content: content + b"garbage " * 10, ["damaged gzip"]),
        (lambda content: b"plain text", ["not a gzip file"]),
        (lambda content: gzip.compress(b""), ["no rows"]),
    ],
    ids=["truncated", "no trailer", "damaged", "wrong sum", "garbage behind", "not gzip", "nothing inside"],
)
def test_bad_gzip(tmp_path: Path, change: Callable[..., Any], words: list[str]) -> None:
    path = tmp_path / "day_0.gz"
    path.write_bytes(change(gzip.compress(GOOD)))
    process = run(f"data.raw={path}", f"data.path={tmp_path}/out")
    assert_refused(process, tmp_path / "out", [str(path), *words])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.raw={0}/absent.tsv"], ["absent.tsv", "no such file"]),
        (["data.raw={0}/*.tsv"], ["no file matches"]),
        ([], ["data.raw=None"]),
        (["data.rwa={0}/x"], ["rwa"]),
        (["data.raw={0}/good", "data.encoding=onehot"], ["onehot"]),
        (["data.raw={0}/good", "data.encoding=hash"], ["data.max_ind_range"]),
        (["data.raw={0}/good", "data.workers=0"], ["data.workers=0"]),
        (["data.raw={0}/good", "data.workers=many"], ["data.workers", "many"]),
        (["data.raw={0}/good", "data.memory_budget=1MiB"], ["data.memory_budget"]),
        (["data.raw={0}/good", "data.memory_budget=lots"], ["data.memory_budget=lots"]),
        (["data.raw={0}/good", "data.split.method=last_day"], ["last_day"]),
        (["data.raw={0}/good", "data.path={0}/good/out"], ["good"]),
        (["data.raw={0}/good", "data.path=null"], ["data.path"]),
    ],
    ids=str,
)
def test_bad_configuration(tmp_path: Path, overrides: list[str], words: list[str]) -> None:
    (tmp_path / "good").write_bytes(GOOD)
    arguments = [override.format(tmp_path) for override in overrides]
    assert_refused(run(f"data.path={tmp_path}/out", *arguments), tmp_path / "out", words)
