"""HR@10 and NDCG@10 of groups of rows against plain loops."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from app.metrics.quality import group_metrics, grouped_auc
from tests.oracles.ranks import ranked

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_those_of_plain_loops(seed: int) -> None:
    """Also with ties, rows that stand twice, several positives, and groups of one label."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 50)
    groups = np.repeat(rng.permutation(50), lengths).astype(np.int32)
    rows = rng.integers(0, 60, len(groups)) + 1000 * groups
    score_of = {row: np.float32(rng.integers(-9, 9) if seed % 2 else rng.normal()) for row in np.unique(rows)}
    logits = np.array([score_of[row] for row in rows], np.float32)
    labels = (rng.random(len(groups)) < 0.1).astype(np.float32)
    labels[groups == 3], labels[groups == 4] = 0, 1
    mixed = rng.permutation(len(groups))
    values = group_metrics(logits[mixed], labels[mixed], groups[mixed], rows[mixed])
    expected = ranked(logits, labels, groups, rows)
    assert (values["hr_at_10"], values["ndcg_at_10"]) == pytest.approx(expected, abs=1e-12)
    assert 0 < expected[1] < expected[0] < 1
    assert values["gauc"] == grouped_auc(logits, labels, groups)["gauc"]


def test_a_constant_model_hits_nothing() -> None:
    labels = np.zeros(40, np.float32)
    labels[[0, 20]] = 1
    values = group_metrics(np.zeros(40, np.float32), labels, np.repeat([0, 1], 20), np.arange(40))
    assert (values["hr_at_10"], values["ndcg_at_10"], values["gauc"]) == (0.0, 0.0, None)


def test_a_negative_that_is_the_positive_itself_does_not_count() -> None:
    logits = np.array([3, 3, *range(4, 13)], np.float32)  # nine above it, and its own row again
    labels = np.eye(1, 11, dtype=np.float32)[0]
    rows = np.array([7, 7, *range(20, 29)])
    values = group_metrics(logits, labels, np.zeros(11, np.int32), rows)
    assert values["hr_at_10"] == 1.0
    assert values["ndcg_at_10"] == pytest.approx(math.log(2) / math.log(11))
    rows[1] = 8
    assert group_metrics(logits, labels, np.zeros(11, np.int32), rows)["hr_at_10"] == 0.0


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("size", [0, 3])
def test_groups_of_one_label_have_no_ranks(label: int, size: int) -> None:
    values = group_metrics(np.arange(size, dtype=np.float32), np.full(size, label, np.float32), *[np.arange(size)] * 2)
    assert values == {"gauc": None, "gauc_users": 0, "hr_at_10": None, "ndcg_at_10": None}


@pytest.mark.parametrize(("model", "hr", "ndcg"), [("gmf", 0.6368, 0.3691), ("mlp", 0.6710, 0.3963)])
def test_the_published_weights_of_ncf_have_the_published_figures(model: str, hr: float, ndcg: float) -> None:
    """The places of the 6,040 positives, as benchmarks.peers.ncf_weights recorded them from the published files."""
    counts = json.loads((GOLDEN / "ncf_places.json").read_text())[model]
    places = np.repeat(np.arange(100), counts)
    logits = np.tile(np.arange(100, dtype=np.float32), (len(places), 1))
    logits[:, 0] = 99.5 - places  # the positive, above all but as many negatives
    labels = np.zeros_like(logits)
    labels[:, 0] = 1
    groups = np.repeat(np.arange(len(places)), 100)
    values = group_metrics(logits.reshape(-1), labels.reshape(-1), groups, np.tile(np.arange(100), len(places)))
    assert (round(values["hr_at_10"] or 0, 4), round(values["ndcg_at_10"] or 0, 4)) == (hr, ndcg)
