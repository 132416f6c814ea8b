"""The model beside its baselines on the same rows: against DeLong's test by loops, and a bootstrap of the rows."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from app.record.documents import write_scores
from data_prep.dataset.format import Manifest, load_manifest, sampled_row_numbers
from extensions.baselines import command
from extensions.baselines.fit import FOLDER, Baseline, Baselines
from tests.app.datasets import write_dataset
from tests.once import made_once

Floats = NDArray[np.float64]
STEP, ROWS, SHARD_ROWS = 7, 3_000, 700


@pytest.fixture(scope="session")
def several_shards(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    rows = {"train": 20, "val": ROWS, "test": 20}
    return load_manifest(
        made_once(tmp_path_factory, "paired", lambda root: write_dataset(root, rows, shard_rows=SHARD_ROWS) and None)
    )


def delong_by_loops(labels: NDArray[np.bool_], scores: list[Floats]) -> tuple[float, float]:
    """Second minus first AUC, and its variance: the covariances of the placements of all pairs (DeLong 1988)."""
    positives, negatives = ([values[mask] for values in scores] for mask in (labels, ~labels))
    wins = [
        (x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :]) for x, y in zip(positives, negatives, strict=True)
    ]
    covariances = [np.cov([each.mean(axis=axis) for each in wins]) / wins[0].shape[1 - axis] for axis in (1, 0)]
    contrast = np.array([-1.0, 1.0])
    return float(wins[1].mean() - wins[0].mean()), float(sum(contrast @ each @ contrast for each in covariances))


def as_ranks(preds: Floats) -> str:
    """Ranks from 0 with ties, by sorted(set(...))."""
    places = {value: place for place, value in enumerate(sorted(set(preds.tolist())))}
    return base64.b64encode(np.array([places[one] for one in preds.tolist()], "<i4").tobytes()).decode()


def scored_of(preds: Floats, split: str = "val") -> command.ScoredBaselines:
    figures = Baselines(split=split, rows=1, of_rows=1, eval_rows=1, of_eval_rows=1)
    figures.lr = Baseline(auc=None, ne=None, seconds=None, rows=None)
    return command.ScoredBaselines(figures, {"lr": as_ranks(preds)})


def drawn(seed: int) -> tuple[NDArray[np.bool_], NDArray[np.float32], Floats]:
    """Labels, a model's logits and a baseline's predictions with ties, which resemble each other, of all rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=ROWS)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(1 - truth))
    return labels, (truth + rng.normal(size=ROWS)).astype(np.float32), np.round(truth + rng.normal(size=ROWS), 1)


@pytest.mark.parametrize("kept_rows", [1_000, ROWS])
@pytest.mark.parametrize("scored_rows", [None, 1_500])
@pytest.mark.parametrize("by_training", [True, False])
def test_the_difference_is_that_of_the_rows_that_both_scored(
    several_shards: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept_rows: int,
    scored_rows: int | None,
    by_training: bool,
) -> None:
    """The model's scores are of a sample that training kept, or of the whole split, which evaluate keeps."""
    for module in (command, command):
        monkeypatch.setattr(module, "SAMPLE_ROWS", kept_rows)
    labels, logits, preds = drawn(kept_rows)
    shard_rows = [shard.rows for shard in several_shards.splits["val"].shards]
    assert len(shard_rows) > 1
    kept, seen = (sampled_row_numbers(shard_rows, rows) for rows in (kept_rows, scored_rows))
    both = np.array(sorted(set(kept.tolist()) & set(seen.tolist())))
    scores = (logits[kept], labels[kept]) if by_training else (logits, labels)
    place = tmp_path / FOLDER if by_training else tmp_path
    write_scores(place, "val", STEP, several_shards.digest, scores[0], scores[1].astype(np.float32))
    scored = scored_of(preds[both])
    command.compare(scored, several_shards, tmp_path, STEP, scored_rows)
    mean, variance = delong_by_loops(labels[both], [preds[both], logits[both].astype(np.float64)])
    assert scored.figures.compared_rows == len(both)
    assert scored.figures.not_compared is None
    assert scored.figures.lr is not None
    assert scored.figures.lr.difference == pytest.approx(mean, abs=1e-12)
    ends = [mean - 1.959964 * variance**0.5, mean + 1.959964 * variance**0.5]
    assert scored.figures.lr.difference_interval == pytest.approx(ends, abs=1e-7)


@pytest.mark.medium
def test_the_interval_is_about_that_of_a_bootstrap_of_the_rows(several_shards: Manifest, tmp_path: Path) -> None:
    labels, logits, preds = drawn(1)
    write_scores(tmp_path, "val", STEP, several_shards.digest, logits, labels.astype(np.float32))
    scored = scored_of(preds)
    command.compare(scored, several_shards, tmp_path, STEP, None)
    assert scored.figures.lr is not None
    assert scored.figures.lr.difference_interval
    low, high = scored.figures.lr.difference_interval
    rng, differences = np.random.default_rng(0), []
    for _ in range(200):
        rows = rng.integers(ROWS, size=ROWS)
        aucs = [roc_auc_score(labels[rows], scores[rows]) for scores in (preds, logits)]
        differences.append(aucs[1] - aucs[0])
    assert (high - low) / 2 / 1.959964 == pytest.approx(np.std(differences), rel=0.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"step": STEP + 1}, "the run kept no scores of val by its model of step 7; python -m app.evaluate run="),
        ({"dataset": "d" * 64}, "keep_scores=3000 keeps them"),
        ({"damaged": True}, "keeps them"),
        ({"labels": 0}, "the 3,000 rows that both scored have one label"),
    ],
)
def test_what_cannot_be_compared_says_why(
    several_shards: Manifest, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    labels, logits, preds = drawn(2)
    settings = {"step": STEP, "dataset": several_shards.digest, **changes}
    label_values = labels.astype(np.float32) * settings.get("labels", 1)
    place = tmp_path / FOLDER
    path = write_scores(place, "val", settings["step"], settings["dataset"], logits, label_values)
    if settings.get("damaged"):
        path.write_text("{")
    scored = scored_of(preds)
    command.compare(scored, several_shards, tmp_path, STEP, None)
    assert scored.figures.lr is not None
    assert (scored.figures.lr.difference is None) == bool(words)
    assert words in (scored.figures.not_compared or "")
