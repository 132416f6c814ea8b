import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from common.errors import UserError
from data_prep.config import SyntheticConfig
from data_prep.dense import encode_dense
from data_prep.parse import MISSING_INTEGER, parse_bytes
from data_prep.pipeline import preprocess
from data_prep.synthetic import (
    calibrated_teacher,
    category_value,
    day_blocks,
    day_rows,
    draw_rows,
    generate_days,
)
from data_prep.teacher import PROBABILITY_STEPS, bayes_scores, category_ranks
from tests.data_prep.conftest import config, sums

SMALL = SyntheticConfig(rows=40_001, days=2, seed=7, max_cardinality=500)


@pytest.fixture(scope="module")
def teacher():
    return calibrated_teacher(SMALL)


def test_the_same_bytes_for_any_number_of_threads(teacher):
    one = list(day_blocks(SMALL, teacher, 1, threads=1))
    three = list(day_blocks(SMALL, teacher, 1, threads=3))
    assert [block.text for block in one] == [block.text for block in three]
    assert len(one) == 2
    assert sum(int(block.histogram.sum()) for block in one) == day_rows(SMALL, 1) == 20_000
    other_seed = next(iter(day_blocks(replace(SMALL, seed=8), teacher, 1, threads=1)))
    other_day = next(iter(day_blocks(SMALL, teacher, 0, threads=1)))
    assert len({one[0].text, other_seed.text, other_day.text}) == 3


def test_rows_are_what_was_drawn(teacher):
    drawn = draw_rows(teacher, SMALL.seed, 0, 0, 300)
    text = next(iter(day_blocks(replace(SMALL, rows=600), teacher, 0, threads=1))).text
    block = parse_bytes(text, "day_0")
    expected = np.where(drawn.integer_present, drawn.integers, MISSING_INTEGER)
    np.testing.assert_array_equal(block.dense, expected)
    for column in range(26):
        ranks = drawn.ranks[:, column]
        values = [int(category_value(rank, teacher.salt[column])) for rank in ranks]
        np.testing.assert_array_equal(block.sparse[:, column], np.where(drawn.category_present[:, column], values, 0))
        assert len(set(values)) == len(set(ranks.tolist()))


def test_logits_follow_from_the_columns(teacher):
    """The teacher's formula, written out in NumPy."""
    rows = draw_rows(teacher, 3, 1, 2, 200)
    log = encode_dense(np.where(rows.integer_present, rows.integers, MISSING_INTEGER)).astype(np.float64)
    score = np.clip((log - teacher.log_mean) / teacher.log_deviation, -2.5, 2.5)
    index = teacher.first + rows.ranks
    present = rows.category_present
    vectors = np.where(present[..., None], teacher.factors[index].astype(np.float64), 0)
    gram = np.einsum("bif,bjf->bij", vectors, vectors)
    pairs = np.triu(gram, 1).sum(axis=(1, 2))
    expected = teacher.intercept + score @ teacher.slope + np.where(present, teacher.main[index], 0).sum(axis=1) + pairs
    np.testing.assert_allclose(rows.logits, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(pairs).max() > 0.1


def test_ranks_follow_zipf():
    uniform = np.random.default_rng(0).random((200_000, 1), np.float32)
    ranks = np.empty(uniform.shape, np.int32)
    category_ranks(uniform, np.array([1000]), np.array([1.2]), ranks)
    assert ranks.min() == 0
    assert ranks.max() == 999
    counts = np.bincount(ranks[:, 0], minlength=1000) / len(ranks)
    bounds = np.arange(1, 1002.0) ** -0.2
    np.testing.assert_allclose(counts[:20], ((bounds[:-1] - bounds[1:]) / (1 - bounds[-1]))[:20], rtol=0.05)


def test_bayes_scores_equal_the_definition():
    """Against scikit-learn, every row standing for its expected share of both labels."""
    rng = np.random.default_rng(0)
    steps = rng.integers(1, PROBABILITY_STEPS, 400) // 4096 * 4096 + 1  # with ties
    histogram = np.bincount(steps, minlength=PROBABILITY_STEPS)
    p = steps / PROBABILITY_STEPS
    labels, scores, weights = np.repeat([1, 0], 400), np.tile(p, 2), np.concatenate([p, 1 - p])
    found = bayes_scores(histogram)
    assert found.auc == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights), rel=1e-12)
    assert found.logloss == pytest.approx(log_loss(labels, scores, sample_weight=weights), rel=1e-12)
    base = log_loss(labels, np.full(800, p.mean()), sample_weight=weights)
    assert found.ne == pytest.approx(found.logloss / base, rel=1e-12)
    assert found.base_rate == pytest.approx(p.mean(), rel=1e-12)


def test_labels_come_from_the_probabilities(teacher):
    """Per tenth of the probabilities, the labels' mean is the probabilities' mean."""
    blocks = list(day_blocks(replace(SMALL, rows=10 << 14, days=1), teacher, 0, threads=2))
    labels = np.concatenate([parse_bytes(block.text, "day").labels for block in blocks])
    logits = np.concatenate([draw_rows(teacher, SMALL.seed, 0, i, 1 << 14).logits for i in range(len(blocks))])
    p = 1 / (1 + np.exp(-logits))
    assert labels.mean() == pytest.approx(SMALL.click_rate, abs=0.005)
    scores = bayes_scores(sum(block.histogram for block in blocks))
    assert scores.base_rate == pytest.approx(p.mean(), abs=1e-6)
    assert roc_auc_score(labels, p) == pytest.approx(scores.auc, abs=0.005)
    order = np.argsort(p)
    for part in np.array_split(order, 10):
        error = 4 * np.sqrt(p[part].mean() * (1 - p[part].mean()) / len(part))
        assert labels[part].mean() == pytest.approx(p[part].mean(), abs=error)


def test_missing_values_are_as_frequent_as_in_criteo(teacher):
    rows = draw_rows(teacher, 0, 0, 0, 20_000)
    np.testing.assert_allclose(1 - rows.integer_present.mean(axis=0), teacher.integer_missing, atol=0.015)
    np.testing.assert_allclose(1 - rows.category_present.mean(axis=0), teacher.category_missing, atol=0.015)
    assert (rows.integers < 0).any(axis=0).tolist() == [column == 1 for column in range(13)]


def test_a_dataset_from_nothing(tmp_path):
    overrides = [
        "data=synthetic",
        f"data.path={tmp_path}/out",
        "data.synthetic.rows=3000",
        "data.synthetic.days=3",
    ]
    manifest = preprocess(config(*overrides))
    assert [manifest.splits[split].rows for split in ("train", "val", "test")] == [2000, 500, 500]
    assert manifest.extra["bayes"]["rows"] == 3000
    assert 0.7 < manifest.extra["bayes"]["auc"] < 0.9
    assert preprocess(config(*overrides)) == manifest
    with pytest.raises(UserError, match="other raw files"):
        preprocess(config(*overrides, "data.synthetic.seed=1"))
    first = sums(tmp_path / "out")
    preprocess(config(*overrides, "data.synthetic.seed=1", "data.overwrite=true"))
    assert sums(tmp_path / "out") != first


def test_days_are_written_where_raw_says_and_kept(tmp_path):
    paths, bayes = generate_days(SMALL, tmp_path / "out", str(tmp_path / "days"))
    assert paths == [f"{tmp_path}/days/day_0.tsv", f"{tmp_path}/days/day_1.tsv"]
    before = (tmp_path / "days" / "day_1.tsv").stat().st_mtime_ns
    assert generate_days(SMALL, tmp_path / "out", str(tmp_path / "days")) == (paths, bayes)
    assert (tmp_path / "days" / "day_1.tsv").stat().st_mtime_ns == before
    assert json.loads((tmp_path / "days" / "synthetic.json").read_text())["config"]["seed"] == 7


def test_foreign_days_are_not_overwritten(tmp_path):
    (tmp_path / "day_0.tsv").write_text("mine\n")
    with pytest.raises(UserError, match="were not generated"):
        generate_days(SMALL, tmp_path / "out", str(tmp_path))
    assert (tmp_path / "day_0.tsv").read_text() == "mine\n"
    with pytest.raises(UserError, match="not a directory"):
        generate_days(SMALL, tmp_path / "out", str(tmp_path / "day_0.tsv"))
