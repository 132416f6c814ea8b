"""In pieces of which size a job works, to stay within its memory, changes no byte."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from data_prep import job
from data_prep import job as job_module
from data_prep import job as memory_budget
from data_prep.stages import write as gather
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare, sums
from tests.data_prep.tables import write

Constants = list[tuple[ModuleType | type, str, Any]]
WINDOWS: Constants = [(memory_budget, "WINDOWS_PER_BUDGET", 2**31 // 4 // 40)]
PARTS: Constants = [(gather, "WINDOW_ROWS", 190), (gather, "PART_ROWS", 1)]
PARTS += [(job_module, f"{name}_BLOCK_ROWS", 37) for name in ("MIN", "MAX")]
# The keys, and constants that are others; slow ones are of stages that a quick one is of, too.
QUICK: list[tuple[str, Constants]] = [
    ("data.encoding=amd_blog", WINDOWS + PARTS),
    ("data.encoding=torchrec_fixed", PARTS),
    ("data.schema=schema.yaml data.raw=rows.csv", [(job, "MIN_OWN_CHUNK_BYTES", 700)]),
]
SLOW = [("data.encoding=dlrm_kaggle", WINDOWS), ("data.encoding=torchrec", WINDOWS)]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.medium
@pytest.mark.parametrize(("keys", "constants"), CASES)
def test_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, constants: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(450, seed=day, values=3000))
    tags = [["x|y", "z", ""][i % 3] for i in range(300)]
    write(tmp_path / "rows.csv", {"label": [0, 1] * 150, "user": [f"u{i % 150}" for i in range(300)], "tags": tags})
    (tmp_path / "schema.yaml").write_text("label: label\nsparse: [user, {column: tags, separator: '|'}]\n")
    words = ["data.raw=day_?", "data.chunk_bytes=40000", *keys.split()]
    whole = prepare(*words, "data.path=whole")
    for module, name, value in constants:
        monkeypatch.setattr(module, name, value)
    pieces = prepare(*words, "data.path=pieces")
    assert sums(tmp_path / "pieces") == sums(tmp_path / "whole")
    assert pieces.digest == whole.digest
    assert pieces.extra["out_of_vocabulary"] == whole.extra["out_of_vocabulary"]
    verify_dataset(tmp_path / "pieces")
