"""The model beside its baselines on the same rows, against DeLong's test by loops and a bootstrap; in the report."""

import base64
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from app.record.documents import Summary, write_scores
from app.report.charts import comparisons, sentences
from app.report.read import RunFiles, read_run
from common.documents import plain_object
from data_prep.dataset.format import Manifest, load_manifest, sampled_row_numbers
from extensions.baselines import command
from extensions.baselines.command import baselines_sentence
from extensions.baselines.fit import FOLDER, Baseline, Baselines
from tests.app.datasets import write_dataset
from tests.app.report.runs import write_run
from tests.once import made_once
from tests.oracles.statistics import delong_of_two

Floats = NDArray[np.float64]
STEP, ROWS, SHARD_ROWS = 7, 3_000, 700


@pytest.fixture(scope="session")
def several_shards(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    rows = {"train": 20, "val": ROWS, "test": 20}
    return load_manifest(
        made_once(tmp_path_factory, "paired", lambda root: write_dataset(root, rows, shard_rows=SHARD_ROWS) and None)
    )


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
    monkeypatch.setattr(command, "SAMPLE_ROWS", kept_rows)
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
    mean, error = delong_of_two(labels[both], preds[both], logits[both].astype(np.float64))
    assert scored.figures.compared_rows == len(both)
    assert scored.figures.not_compared is None
    assert scored.figures.lr is not None
    assert scored.figures.lr.difference == pytest.approx(mean, abs=1e-12)
    ends = [mean - 1.959964 * error, mean + 1.959964 * error]
    assert scored.figures.lr.difference_interval == pytest.approx(ends, abs=1e-7)


def figures_of(auc: float, interval: tuple[float, float] | None = None, **aucs: float) -> Baselines:
    """Baselines with these AUCs, of a run whose model has `auc`; interval: of the difference from each."""
    figures = Baselines(split="val", rows=200_000, of_rows=900_000, eval_rows=4_000, of_eval_rows=4_000)
    for name, value in aucs.items():
        baseline = Baseline(auc=value, ne=0.9, seconds=1.0, rows=200_000)
        if interval is not None:
            baseline.difference = auc - value
            baseline.difference_interval = [auc - value + end for end in interval]
        setattr(figures, name, baseline)
    if figures.columns is not None:
        figures.columns.rest = {"column": "item"}
    if interval is None:
        figures.not_compared = "the run kept no scores"
    else:
        figures.compared_rows = 4_000
    return figures


NARROW, WIDE = (-0.001, 0.001), (-0.5, 0.5)


VERDICTS: list[tuple[dict[str, float], tuple[float, float] | None, str, str]] = [
    ({"columns": 0.7, "lr": 0.72, "trees": 0.9}, NARROW, "bad", "not earn its keep yet: behind the best baseline, b"),
    ({"columns": 0.5, "lr": 0.6, "trees": 0.55}, NARROW, "good", "ahead of the best baseline, logistic regression, "),
    ({"base_rate": 0.5, "columns": 0.9}, WIDE, "plain", "Behind the best baseline, the label rates of item alone, by"),
    ({"lr": 0.6}, WIDE, "plain", "± 0.5000 AUC on 4,000 rows of val (95%), which cannot show whether it is real"),
    ({"lr": 0.9}, None, "plain", "AUC behind logistic regression, not compared row by row: the run kept no scores"),
]


def run_and_auc(directory: Path) -> tuple[RunFiles, Summary, float]:
    run = read_run(write_run(directory))
    assert run.summary is not None
    assert run.evaluation.auc is not None
    return run, run.summary, run.evaluation.auc


def said_of(run: RunFiles) -> tuple[str, str]:
    against = baselines_sentence(run)
    assert against is not None
    return against


@pytest.mark.parametrize(("aucs", "interval", "kind", "words"), VERDICTS)
def test_the_verdict_says_whether_the_model_earns_its_keep(
    aucs: dict[str, float], interval: tuple[float, float] | None, kind: str, words: str, tmp_path: Path
) -> None:
    run, summary, auc = run_and_auc(tmp_path / "run")
    assert baselines_sentence(run) is None
    figures = figures_of(auc, interval, **aucs)
    figures.missing = {"trees": "not fitted within 30 s"}
    summary.baselines = plain_object(figures)
    against = said_of(run)
    assert against[0] == kind
    assert words in against[1]
    assert "trained on 200,000 of 900,000 rows; boosted trees: not fitted within 30 s" in against[1]
    assert against in sentences(run)
    rows = comparisons(run)
    assert set(aucs.values()) - {0.5} <= {row[1]["auc"] for row in rows}
    assert any("on the same 4,000 rows" in row[3] for row in rows) == (interval is not None)
    summary.baselines["split"] = "test"  # of other rows than the evaluation's
    assert baselines_sentence(run) is None
