"""Generated rows: their teacher, text and order; random ids by their laws."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep import synthetic as teacher_module
from data_prep.config import IdDistribution, RandomConfig, SyntheticConfig
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding import Encoder
from data_prep.lookup import encode_dense
from data_prep.synthetic import (
    INTERACTING,
    KAGGLE_CARDINALITIES,
    LOG_DEVIATION,
    LOG_MEAN,
    Teacher,
    calibrated_teacher,
    day_rows,
    day_text,
    draw_ids,
    draw_rows,
    logits_of,
)
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import REFERENCE, SPLITS, prepare, sums
from tests.error_lines import refused

SMALL = SyntheticConfig(rows=40_001, days=2, seed=7, max_cardinality=500)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return calibrated_teacher(SMALL, 0)


def test_the_same_bytes_for_any_number_of_threads(teacher: Teacher) -> None:
    one = list(day_text(SMALL, teacher, 1, threads=1))
    three = list(day_text(SMALL, teacher, 1, threads=3))
    assert [text for text, _ in one] == [text for text, _ in three]
    assert len(one) == 2
    assert sum(len(rows.labels) for _, rows in one) == day_rows(SMALL, 1) == 20_000
    other_seed, _ = next(iter(day_text(replace(SMALL, seed=8), teacher, 1, threads=1)))
    other_day, _ = next(iter(day_text(SMALL, teacher, 0, threads=1)))
    assert len({one[0][0], other_seed, other_day}) == 3


def test_logits_follow_from_the_columns(teacher: Teacher) -> None:
    rows = draw_rows(teacher, 3, 1, 2, 200)
    log = encode_dense(np.where(rows.integer_present, rows.integers, 0).astype(np.int32)).astype(np.float64)
    score = np.clip((log - LOG_MEAN) / LOG_DEVIATION, -2.5, 2.5)
    index = teacher.first + rows.ranks
    present = rows.category_present
    effects = np.where(present, teacher.main[index], 0).sum(axis=1)
    vectors = [
        np.where(present[:, column, None], teacher.factors[start + rows.ranks[:, column]], 0).astype(np.float64)
        for column, start in zip(INTERACTING, teacher.first_factor, strict=True)
    ]
    pairs, triples = np.zeros(200), np.zeros(200)
    for i, j in combinations(range(len(vectors)), 2):
        pairs += np.einsum("ra,ab,rb->r", vectors[i], teacher.pair_forms[i, j], vectors[j])
    for i, j, k in combinations(range(len(vectors)), 3):
        triples += np.einsum("ra,rb,rc,abc->r", vectors[i], vectors[j], vectors[k], teacher.triple_forms[i, j, k])
    expected = teacher.intercept + score @ teacher.slope + effects + pairs + triples
    np.testing.assert_allclose(logits_of(teacher, rows), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(pairs).max() > 0.1
    assert np.abs(triples).max() > 0.1


@pytest.mark.slow("examples")
def test_columns_look_like_criteos() -> None:
    """Missing values, integers' distributions and how often two rows share a category, against 1,999 real rows."""
    real = json.loads((REFERENCE / "criteo_statistics.json").read_text())
    rows = draw_rows(calibrated_teacher(SyntheticConfig(max_cardinality=max(KAGGLE_CARDINALITIES)), 0), 0, 0, 0, 10_000)
    for column in range(13):
        criteo_column = real["integers"][column]
        present = rows.integer_present[:, column]
        assert present.mean() == pytest.approx(1 - teacher_module.INTEGER_MISSING[column], abs=0.02)
        assert present.mean() == pytest.approx(criteo_column["present"], abs=0.04)
        integers = np.sort(rows.integers[present, column])
        below = np.searchsorted(integers, criteo_column["values"], side="right") / len(integers)
        assert np.abs(below - criteo_column["cumulative"]).max() < 0.16, f"integer {column}"
    for column in range(26):
        criteo_column = real["categories"][column]
        present = rows.category_present[:, column]
        assert present.mean() == pytest.approx(1 - teacher_module.CATEGORY_MISSING[column], abs=0.02)
        assert present.mean() == pytest.approx(criteo_column["present"], abs=0.06)
        chance = chance_to_share(rows.ranks[present, column])
        assert chance == pytest.approx(criteo_column["chance_to_share"], rel=0.25), f"category {column}"
    assert (rows.integers < 0).any(axis=0).tolist() == [column == 1 for column in range(13)]


def chance_to_share(values: NDArray[np.int32]) -> float:
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))


@pytest.mark.medium
def test_drift_turns_the_effects() -> None:
    for drift, expected in ((0.0, 1.0), (0.1, np.cos(0.3)), (np.pi / 6, 0.0)):
        teachers = [calibrated_teacher(replace(SMALL, drift=drift), day) for day in (0, 3)]
        for name in ("main", "factors"):
            first, later = (getattr(teacher, name).ravel() for teacher in teachers)
            assert np.corrcoef(first, later)[0, 1] == pytest.approx(expected, abs=0.15)


RANDOM = ["data.source=random", "data.random.rows=3000", "data.random.eval_rows=500"]
RANDOM += ["data.random.tables=[50,7,1,100000]"]


def bags_of(root: Path, split: str) -> list[tuple[Any, ...]]:
    manifest = load_manifest(root)
    [shard] = manifest.splits[split].shards
    arrays = open_shard(root, split, shard, manifest)
    one_hot, ragged = iter(arrays.sparse.T), iter(arrays.bags)
    return [
        (bag.ids, bag.lengths) if name in manifest.ragged and (bag := next(ragged)) else (next(one_hot), None)
        for name in manifest.schema["sparse"]
    ]


def test_one_hot_uniform_ids(tmp_path: Path) -> None:
    manifest = prepare(*RANDOM, f"data.path={tmp_path}/out")
    assert verify_dataset(tmp_path / "out") == manifest
    assert list(manifest.num_embeddings.values()) == [50, 7, 1, 100000]
    assert [manifest.splits[split].rows for split in SPLITS] == [3000, 500, 500]
    assert manifest.label_rate == pytest.approx(0.25, abs=0.03)
    counts = np.bincount(bags_of(tmp_path / "out", "train")[1][0], minlength=7)
    assert counts.sum() == 3000
    assert ((counts - 3000 / 7) ** 2 / (3000 / 7)).sum() < 22.5  # chi squared of 6 degrees: once in a thousand
    refused("not made from raw rows", Encoder.load, tmp_path / "out")


def test_splits_and_seeds_differ_and_a_seed_decides_every_byte(tmp_path: Path) -> None:
    root = tmp_path / "out"
    first = prepare(*RANDOM, f"data.path={root}")
    before = sums(root)
    train, test = (bags_of(root, split)[3][0][:500] for split in ("train", "test"))
    assert (train == test).mean() < 0.01
    assert prepare(*RANDOM, f"data.path={root}", "data.workers=3") == first
    refused("another dataset", prepare, *RANDOM, f"data.path={root}", "data.random.seed=1")
    prepare(*RANDOM, f"data.path={root}", "data.random.seed=1", "data.overwrite=true")
    assert not set(before.values()) & set(sums(root).values())
    prepare(*RANDOM, f"data.path={tmp_path}/again", "data.workers=3")
    assert sums(tmp_path / "again") == before


def test_ids_follow_pareto_s_law(tmp_path: Path) -> None:
    rows = 40_000
    table = ["data.source=random", f"data.random.rows={rows}", "data.random.tables=[1000]", "data.random.eval_rows=0"]
    prepare(*table, "data.random.distribution=pareto", f"data.path={tmp_path}/pareto")
    counts = np.bincount(bags_of(tmp_path / "pareto", "train")[0][0], minlength=1000) / rows
    starts = 1.0 + np.arange(0, 2_000_000).reshape(-1, 1000)  # P(floor(x) = k) of shape 0.25, over ids modulo 1000
    p = (starts**-0.25 - (starts + 1) ** -0.25).sum(axis=0)
    p += (starts[-1, -1] + 1) ** -0.25 / 1000  # what lies beyond is spread evenly
    assert (np.abs(counts - p)[:50] < 3.5 * np.sqrt(p / rows)[:50]).all()


@pytest.mark.parametrize(("exponent", "rows"), [(0.5, 7), (1.05, 1000), (3.0, 1), (2.0, 2), (1.05, 2**31 - 1)])
def test_zipf_s_law_is_that_of_whole_numbers(exponent: float, rows: int) -> None:
    """Counts against the law itself, whatever the exponent and the table; of a large table its first ids."""
    count = 200_000
    config = RandomConfig(distribution=IdDistribution.zipf, exponent=exponent)
    ids = draw_ids(np.random.default_rng(1), config, rows, count)
    assert 0 <= ids.min() <= ids.max() < rows
    weights = np.arange(1, min(rows, 10**6) + 1.0) ** -exponent
    total = weights.sum()
    if rows > 10**6:  # the rest of the sum by its integral, after Euler and Maclaurin
        power = 1 - exponent
        total += ((rows + 0.5) ** power - (10**6 + 0.5) ** power) / power
    p = weights[:40] / total
    shares = np.bincount(ids[ids < 40], minlength=len(p))[: len(p)] / count
    assert (np.abs(shares - p) <= 4.5 * np.sqrt(p * (1 - p) / count) + 1e-12).all()
