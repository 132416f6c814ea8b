"""In pieces of which size a job works, to stay within its memory, changes no byte."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from data_prep import job_setup, pipeline
from data_prep.encoding.lookup import SortedTable, plan_passes
from data_prep.engine import job as job_module
from data_prep.engine import job as memory_budget
from data_prep.stages import write as gather
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import Capture, prepare, sums
from tests.data_prep.tables import write


def passes(allowance: int) -> Callable[..., Any]:
    """A plan of passes whose lookup tables have so many bytes."""

    def plan(data: Any, job: Any, workers: int, values: dict[str, int]) -> Any:
        table_slices = plan_passes(values, allowance)
        assert len(table_slices) > 3
        assert any(each.bits for slices in table_slices for each in slices) == (allowance < 40_000)
        return workers, tuple(table_slices)

    return plan


Constants = list[tuple[ModuleType | type, str, Any]]
WINDOWS: Constants = [(memory_budget, "WINDOWS_PER_BUDGET", 2**31 // 4 // 40)]
PARTS: Constants = [(gather, "WINDOW_ROWS", 190), (gather, "PART_ROWS", 1)]
PARTS += [(job_module, f"{name}_BLOCK_ROWS", 37) for name in ("MIN", "MAX")]
SMALL_BUDGET: Constants = [(SortedTable, "bytes_for", staticmethod(lambda values: values << 20))]
SMALL_BUDGET += [(memory_budget, "PARENT_BYTES", 480 << 20), (memory_budget, "MIN_PASS_BYTES", 48 << 20)]
# The keys, and constants that are others; slow ones are of stages that a quick one is of, too.
QUICK: list[tuple[str, Constants]] = [
    ("data.encoding=amd_blog", WINDOWS + PARTS),
    ("data.encoding=torchrec_fixed", PARTS),
    ("data.encoding=vocabulary", [(pipeline, "plan_encoding", passes(40_000))]),
    ("data.schema=schema.yaml data.raw=rows.csv", [(job_setup, "MIN_OWN_CHUNK_BYTES", 700)]),
    ("data.schema=schema.yaml data.raw=rows.csv data.memory_budget=512MiB", SMALL_BUDGET),
]
MANY_PASSES: Constants = [(pipeline, "plan_encoding", passes(3_000))]
SLOW = [("data.encoding=dlrm_kaggle", WINDOWS), ("data.encoding=torchrec", WINDOWS)]
SLOW += [(f"data.encoding={encoding}", MANY_PASSES) for encoding in ("vocabulary", "amd_blog", "torchrec_fixed")]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("keys", "constants"), CASES)
def test_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, keys: str, constants: Any) -> None:
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
    assert bool(re.search(r"encoding in \d+ passes", capsys.readouterr().err)) == (constants is SMALL_BUDGET)
    assert sums(tmp_path / "pieces") == sums(tmp_path / "whole")
    assert pieces.digest == whole.digest
    assert pieces.extra["out_of_vocabulary"] == whole.extra["out_of_vocabulary"]
    verify_dataset(tmp_path / "pieces")
