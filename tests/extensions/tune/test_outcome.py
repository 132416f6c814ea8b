"""The verdict of a search against SciPy's paired test."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from app.metrics.documents import EvaluationFigures
from extensions.tune.command import Finalist, Outcome, TriedTrial, TuneRun


def finalist(trial: int, scores: list[float]) -> Finalist:
    settings = [f"optimizer.lr={trial / 100}"] if trial else []
    runs = [TuneRun(trial, seed, settings, Path(f"trial_{trial}")) for seed in range(1, len(scores) + 1)]
    return Finalist(trial, settings, runs, scores)


def outcome(*scores: list[float], monitor: str = "auc") -> Outcome:
    finalists = [finalist(number, each) for number, each in enumerate(scores)]
    return Outcome([TriedTrial(each.runs[0], "completed", each.scores[0]) for each in finalists], finalists, monitor)


def test_the_finalist_is_taken_that_scipy_s_paired_test_finds_better() -> None:
    draw = np.random.default_rng(0)
    for gain in np.linspace(0, 0.004, 40):
        base = draw.normal(0.75, 0.003, 4)
        first, second = base + draw.normal(gain, 0.001, 4), base + draw.normal(gain / 2, 0.001, 4)
        is_better = [
            stats.ttest_rel(other, base).pvalue < 0.05 / 2 and other.mean() > base.mean() for other in (first, second)
        ]
        means = [other.mean() if better else -1 for other, better in zip((first, second), is_better, strict=True)]
        expected = 1 + int(np.argmax(means)) if any(is_better) else 0
        assert outcome([*base], [*first], [*second]).place_to_take == expected


def test_the_verdict_names_the_difference_or_the_seeds_that_it_needs() -> None:
    sentences = outcome([0.75, 0.752, 0.751], [0.76, 0.7622, 0.7611]).sentences()
    assert sentences[0].startswith(
        "Take trial 1, optimizer.lr=0.01: AUC of val 0.76110 instead of 0.75100 (95% interval"
    )
    (sentence,) = outcome([0.75, 0.752, 0.751], [0.751, 0.750, 0.7525]).sentences()
    assert sentence.startswith("No difference: trial 1, optimizer.lr=0.01: AUC of val 0.75117 instead of 0.75100")
    assert "on 3 fresh seeds); 31 seeds would detect a difference of 0.001." in sentence


def test_a_metric_that_is_better_if_smaller_is_shown_as_it_is() -> None:
    found = outcome([-0.50, -0.51, -0.505], [-0.40, -0.411, -0.404], monitor="logloss")
    assert found.place_to_take == 1
    assert "logloss of val 0.40500 instead of 0.50500" in found.sentences()[0]
    assert found.document()["trials"][1]["value"] == 0.40
    assert found.document()["finalists"][1]["values"]["1"] == 0.40


def test_test_is_named_where_both_were_scored() -> None:
    found = outcome([0.75, 0.752, 0.751], [0.76, 0.7622, 0.7611])
    found.finalists[0].tested = [EvaluationFigures(auc=0.74)] * 3
    assert len(found.sentences()) == 1
    found.finalists[1].tested = [EvaluationFigures(auc=0.75)] * 3
    assert found.sentences()[1] == "AUC of test, scored once: 0.75000 instead of 0.74000."
    found.finalists[1].tested = [None] * 3
    assert len(found.sentences()) == 1


@pytest.mark.parametrize("trials", [1, 3])
def test_a_search_without_finalists_says_how_far_it_is(trials: int) -> None:
    found = outcome(*[[0.75]] * trials)
    found.finalists.clear()
    assert found.sentences() == [f"{trials} {'trial' if trials == 1 else 'trials'} so far."]
    assert found.document()["take"] is None
