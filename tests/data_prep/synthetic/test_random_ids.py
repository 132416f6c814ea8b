from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.config import IdDistribution, RandomConfig
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding import Encoder
from data_prep.synthetic import draw_ids
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import SPLITS, prepare, sums
from tests.error_lines import refused

SMALL = ["data.source=random", "data.random.rows=3000", "data.random.eval_rows=500"]
SMALL += ["data.random.tables=[50,7,1,100000]"]


def bags_of(root: Path, split: str) -> list[tuple[Any, ...]]:
    """values and lengths of every feature, one-hot or not."""
    manifest = load_manifest(root)
    [shard] = manifest.splits[split].shards
    arrays = open_shard(root, split, shard, manifest)
    one_hot, ragged = iter(arrays.sparse.T), iter(arrays.bags)
    return [
        (bag.ids, bag.lengths) if name in manifest.ragged and (bag := next(ragged)) else (next(one_hot), None)
        for name in manifest.schema["sparse"]
    ]


def test_one_hot_uniform_ids(tmp_path: Path) -> None:
    manifest = prepare(*SMALL, f"data.path={tmp_path}/out")
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
    first = prepare(*SMALL, f"data.path={root}")
    before = sums(root)
    train, test = (bags_of(root, split)[3][0][:500] for split in ("train", "test"))
    assert (train == test).mean() < 0.01
    assert prepare(*SMALL, f"data.path={root}", "data.workers=3") == first
    refused("another dataset", prepare, *SMALL, f"data.path={root}", "data.random.seed=1")
    prepare(*SMALL, f"data.path={root}", "data.random.seed=1", "data.overwrite=true")
    assert not set(before.values()) & set(sums(root).values())
    prepare(*SMALL, f"data.path={tmp_path}/again", "data.workers=3")
    assert sums(tmp_path / "again") == before


@pytest.mark.parametrize(("vary", "means"), [("false", [3, 1, 2, 20]), ("true", [2, 1, 1.5, 10.5])])
def test_bags_of_fixed_and_of_any_size(tmp_path: Path, vary: str, means: list[float]) -> None:
    overrides = ["data.random.bag_sizes=[3,1,2,20]", f"data.random.bags_vary={vary}"]
    manifest = prepare(*SMALL, *overrides, f"data.path={tmp_path}")
    verify_dataset(tmp_path)
    assert manifest.ragged == (["cat_0", "cat_2", "cat_3"] if vary == "false" else [f"cat_{i}" for i in range(4)])
    for (_, lengths), mean, size in zip(bags_of(tmp_path, "train"), means, (3, 1, 2, 20), strict=True):
        if lengths is None:
            assert (vary, size) == ("false", 1)
            continue
        assert lengths.mean() == pytest.approx(mean, rel=0.05)
        assert (lengths.min(), lengths.max()) == ((1, size) if vary == "true" else (size, size))


def test_ids_follow_a_power_law(tmp_path: Path) -> None:
    """Counts against the laws' own formulas, within three deviations."""
    rows = 40_000
    table = ["data.source=random", f"data.random.rows={rows}", "data.random.tables=[1000]", "data.random.eval_rows=0"]
    prepare(*table, "data.random.distribution=zipf", "data.random.exponent=1.3", f"data.path={tmp_path}/zipf")
    counts = np.bincount(bags_of(tmp_path / "zipf", "train")[0][0], minlength=1000) / rows
    p = np.arange(1, 1001.0) ** -1.3
    p /= p.sum()
    assert (np.abs(counts - p)[:50] < 3.5 * np.sqrt(p / rows)[:50]).all()
    prepare(*table, "data.random.distribution=pareto", f"data.path={tmp_path}/pareto")
    counts = np.bincount(bags_of(tmp_path / "pareto", "train")[0][0], minlength=1000) / rows
    starts = 1.0 + np.arange(0, 2_000_000).reshape(-1, 1000)  # P(floor(x) = k) of shape 0.25, over ids modulo 1000
    p = (starts**-0.25 - (starts + 1) ** -0.25).sum(axis=0)
    p += (starts[-1, -1] + 1) ** -0.25 / 1000  # what lies beyond is spread evenly
    assert (np.abs(counts - p)[:50] < 3.5 * np.sqrt(p / rows)[:50]).all()


def test_named_tables_can_be_cut(tmp_path: Path) -> None:
    overrides = ["data.random.rows=10", "data.random.eval_rows=0", "data.random.max_rows_per_table=1000"]
    manifest = prepare("data.source=random", *overrides, "data.random.bag_sizes=mlperf_v2", f"data.path={tmp_path}/out")
    assert len(manifest.num_embeddings) == 26
    assert max(manifest.num_embeddings.values()) == 1000
    assert sum(len(values) for values, _ in bags_of(tmp_path / "out", "train")) == 2140


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
