"""Ids by stack distances, against facebookresearch/dlrm's algorithm in plain lists; the dataset and its refusals."""

from pathlib import Path

import numpy as np
import pytest

from data_prep.dataset.format import load_manifest
from data_prep.synthetic import seeded_generator
from data_prep.verify import verify_dataset
from extensions.locality.trace import Trace
from tests.data_prep.conftest import load_split, prepare, sums
from tests.error_lines import refused


def write_trace(path: Path, ids: int, distances: list[int], shares: list[float]) -> Path:
    lines = (range(ids), distances, shares)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{', '.join(map(str, line))}\n" for line in lines), encoding="utf-8")
    return path


def drawn_trace(path: Path, seed: int) -> tuple[int, list[int], list[float]]:
    rng = np.random.default_rng(seed)
    ids = int(rng.integers(1, 40))
    distances = [0, *sorted(rng.choice(np.arange(1, ids + 1), int(rng.integers(1, ids + 1)), replace=False).tolist())]
    shares = np.cumsum(rng.dirichlet(np.ones(len(distances)))).tolist()
    shares[-1] = 1.0
    write_trace(path, ids, distances, shares)
    return ids, distances, shares


@pytest.mark.parametrize("seed", range(20))
def test_ids_are_those_of_plain_lists(seed: int, tmp_path: Path) -> None:
    ids, distances, shares = drawn_trace(tmp_path / "a.log", seed)
    padding, stack, used, expected = bool(seed % 2), list(range(ids)), 0, []
    for uniform in seeded_generator([seed]).random(500):
        share = float(uniform)
        if used < distances[-1]:
            share *= max(total for distance, total in zip(distances, shares, strict=True) if distance <= used)
        elif padding:
            share = shares[0] + (1 - shares[0]) * share
        distance = next(each for each, total in zip(distances, shares, strict=True) if share <= total)
        used += distance == 0
        stack.append(stack.pop(0 if distance == 0 else len(stack) - distance))
        expected.append(stack[-1])
    trace = Trace(tmp_path / "a.log", [seed], padding)
    assert [*trace.draw(123), *trace.draw(377)] == expected


@pytest.mark.medium
def test_a_dataset_by_traces(tmp_path: Path) -> None:
    """The seed decides every byte, whatever the workers."""
    write_trace(tmp_path / "traces/near.log", 500, [0, 1, 4, 100], [0.1, 0.5, 0.9, 1.0])
    write_trace(tmp_path / "traces/three.log", 3, [0, 1, 3], [0.2, 0.6, 1.0])
    keys = ["data.source=trace", f"data.trace.directory={tmp_path}/traces", "data.trace.rows=30000"]
    manifest = prepare(*keys, "data.trace.eval_rows=50", f"data.path={tmp_path}/made")
    assert verify_dataset(tmp_path / "made") == manifest
    assert manifest.num_embeddings == {"near": 500, "three": 3}
    assert [manifest.splits[split].rows for split in ("train", "val", "test")] == [30_000, 50, 50]
    labels, dense, sparse = load_split(tmp_path / "made", "train")
    assert np.mean(sparse[1:, 0] == sparse[:-1, 0]) == pytest.approx(0.4, abs=0.02)  # the share of distance 1
    assert labels.mean() == pytest.approx(0.25, abs=0.01)
    assert abs(np.corrcoef(labels, dense.T)[0, 1:]).max() < 0.03
    prepare(*keys, "data.trace.eval_rows=50", f"data.path={tmp_path}/again", "data.workers=3")
    assert sums(tmp_path / "again") == sums(tmp_path / "made")
    assert load_manifest(tmp_path / "again") == prepare(*keys, "data.trace.eval_rows=50", f"data.path={tmp_path}/again")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"data.trace.directory=\S+: no file NAME.log there"),
        ("1, 2\n0, 1\n", r"a.log: no stack-distance file \(.*\); it needs three lines of numbers between commas"),
        ("1, 2\n1, 0\n0.5, 1\n", "do not fit"),
        ("1, 2\n0, 1\n0.5, 0.9\n", "do not fit"),
        ("1, 2\n0, 3\n0.5, 1\n", "a.log: distances must be whole, from 0 to at most 2, of as many different ids"),
    ],
)
def test_other_files_are_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.log").write_text(content)
    keys = ["data.source=trace", f"data.trace.directory={tmp_path}", f"data.path={tmp_path}/new"]
    refused(message, prepare, *keys)
    assert not (tmp_path / "new").exists()
