"""Drawn generated days as docs/synthetic.md describes them, against plain lines: click rates, labels, best scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from data_prep.pipeline import preprocess
from tests.data_prep.conftest import SPLITS, config, seeds
from tests.oracles.test_preparation import loaded

Floats = NDArray[np.float64]


def expected_scores(truth: Floats) -> dict[str, float]:
    """Scores of the true probabilities in expectation: each row counts as a click and as none, by their probability."""
    labels, scores = np.repeat([1, 0], len(truth)), np.tile(truth, 2)
    weights, rate = np.concatenate((truth, 1 - truth)), truth.mean()
    logloss = log_loss(labels, scores, sample_weight=weights)
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    auc = roc_auc_score(labels, scores, sample_weight=weights)
    return {"auc": auc, "logloss": logloss, "ne": logloss / entropy, "base_rate": rate, "rows": len(truth)}


def sampled_scores(truth: Floats, labels: list[int]) -> dict[str, float]:
    """Scores against the drawn labels; none where they are of one kind."""
    if len(set(labels)) < 2:
        return {}
    return {"sampled_auc": roc_auc_score(labels, truth), "sampled_logloss": log_loss(labels, truth)}


def after_dropping(truth: Floats, negative_drop_rate: float) -> Floats:
    """A row's click probability once a share of the negatives was left out (Bayes' rule)."""
    keep_rate = 1 - negative_drop_rate
    return np.asarray(truth / (truth + (1 - truth) * keep_rate))


def check_labels(truth: Floats, labels: list[int]) -> None:
    """Labels were drawn from their probabilities: in all, and in each quarter of the rows by probability."""
    order = np.argsort(truth, kind="stable")
    for part in [order, *np.array_split(order, 4)]:
        p = truth[part]
        assert abs(np.sum(np.array(labels)[part] - p)) <= 5 * np.sqrt(np.sum(p * (1 - p))) + 1


def row_of(line: str, ids: int) -> tuple[Any, ...]:
    """Label, numbers and hashed ids of a raw row in Criteo's format."""
    label, *fields = line.rstrip("\n").split("\t")
    numbers = [int(field or 0) for field in fields[:13]]
    return int(label), numbers, [int(field or "0", 16) % ids for field in fields[13:]]


IDS = 1_000_003  # rows of every table of hashed ids


CHOICES: dict[str, list[Any]]
CHOICES = {"click_rate": [0.05, 0.25, 0.5], "max_cardinality": [3, 20, 500, 50_000], "difficulty": [0.5, 1, 2]}
CHOICES |= {"interaction": [0.0, 1.0], "drift": [0, 0.1, 1]}


def drawn_days(rng: np.random.Generator) -> dict[str, Any]:
    keys = {"rows": int(rng.integers(300, 1200)), "days": int(rng.integers(1, 4)), "seed": int(rng.integers(1000))}
    return keys | {name: rng.choice(values).item() for name, values in CHOICES.items()}


def truths(root: Path, days: int) -> list[NDArray[np.float64]]:
    return [np.load(root / f"raw/truth_{day}.npy")[:, 0].astype(np.float64) for day in range(days)]


def generate(root: Path, keys: dict[str, Any], *further: str) -> dict[str, Any]:
    overrides = [f"data.synthetic.{key}={value}" for key, value in keys.items()]
    print(" ".join([*overrides, *further]))
    hashed = ["data.encoding=hash", f"data.max_ind_range={IDS}", "data.dense_transform=integers"]
    data = config("data.source=synthetic", f"data.path={root}", *hashed, *overrides, *further)
    bayes: dict[str, Any] = preprocess(data).extra["bayes"]
    return bayes


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(2, 10))
def test_drawn_days(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng([seed, 41])
    keys, rate = drawn_days(rng), float(rng.choice([0, 0.5]))
    print(f"seed {seed}:", end=" ")
    bayes = generate(tmp_path, keys, f"data.sampling.negative_drop_rate={rate}")
    lines = [(tmp_path / f"raw/day_{day}.tsv").read_text().splitlines() for day in range(keys["days"])]
    days = truths(tmp_path, keys["days"])
    assert [len(day) for day in lines] == [len(day) for day in days]
    for truth, day in zip(days, lines, strict=True):
        assert ((truth * 2**20) % 1 == 0).all()
        check_labels(truth, [int(line[0]) for line in day])
        assert abs(truth.mean() - keys["click_rate"]) <= 5 * truth.std() / np.sqrt(len(truth)) + 0.01
    raw = [row_of(line, IDS) for day in lines for line in day]
    for column in range(26):
        assert len({row[2][column] for row in raw} - {0}) <= keys["max_cardinality"]
    probability, place = after_dropping(np.concatenate(days), rate), 0
    row_numbers: dict[str, list[int]] = {split: [] for split in SPLITS}
    for split in SPLITS:  # the rows of a split are in the order of the raw rows, and so are the splits
        labels, dense, ids = loaded(tmp_path, split)
        for label, numbers, row in zip(labels, dense.tolist(), zip(*ids.values(), strict=True), strict=True):
            expected = (label, numbers, [value for bag in row for value in bag])
            while raw[place] != expected:
                assert raw[place][0] == 0  # only negatives are left out
                assert rate
                place += 1
            row_numbers[split].append(place)
            place += 1
    parts = [(row_numbers[split], bayes["splits"][split]) for split in SPLITS]
    for rows, scores in [([row for split in SPLITS for row in row_numbers[split]], bayes), *parts]:
        truth, labels = probability[rows], [raw[row][0] for row in rows]
        assert scores["sampled_auc"] is None or len(set(labels)) == 2
        for name, value in (expected_scores(truth) | sampled_scores(truth, labels)).items():
            assert scores[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.slow("examples")
def test_effects_scale_as_the_keys_say(tmp_path: Path) -> None:
    """Logits of the same rows, up to an intercept: `difficulty` divides them, `interaction` enters linearly."""
    rng = np.random.default_rng([0, 42])
    keys = drawn_days(rng) | {"rows": 1500, "days": 1, "click_rate": 0.5, "interaction": 1.0, "difficulty": 1.0}
    keys |= {"max_cardinality": 500}
    changes: list[dict[str, float]] = [{}, {"difficulty": 2}, {"interaction": 0}, {"interaction": 0.5}]
    logits = []
    for number, change in enumerate(changes):
        generate(tmp_path / str(number), keys | change)
        (truth,) = truths(tmp_path / str(number), 1)
        logit = np.log(truth / (1 - truth))
        logits.append(logit - logit.mean())
    plain, difficult, single, half = logits
    np.testing.assert_allclose(difficult, plain / 2, atol=1e-3)
    np.testing.assert_allclose(half, (plain + single) / 2, atol=1e-3)
    assert single.std() == pytest.approx(0.8, rel=0.15)
    assert 0.45 < (plain - single).std() < 1.55  # of 1.0 and 0.5, which may go together or against each other
