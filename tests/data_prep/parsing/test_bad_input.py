"""Through the command line: exit status 2, one line that names the fault, nothing that passes for a dataset."""

import gzip
from pathlib import Path

import pytest

from tests.data_prep import oracle
from tests.data_prep.conftest import run
from tests.error_lines import error_line


@pytest.mark.parametrize(("packed", "workers"), [(True, 2), (False, 2), (False, 1)])
def test_a_bad_row_is_counted_from_the_file_s_start(tmp_path: Path, packed: bool, workers: int) -> None:
    """Whatever chunk it lies in, and with more than one worker."""
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


def test_a_bad_key_is_one_line(tmp_path: Path) -> None:
    process = run(f"data.raw={tmp_path}/absent.tsv", f"data.path={tmp_path}/out")
    assert (process.returncode, process.stdout) == (2, "")
    assert "absent.tsv: no such file" in error_line(process.stderr)
    assert not (tmp_path / "out").exists()
