"""Baselines in the report of a run."""

import json
import re
from pathlib import Path

import pytest

from app.record.documents import Summary
from app.report.charts import comparisons, sentences
from app.report.page import write_report
from app.report.read import RunFiles, read_run
from common.documents import plain_object
from extensions.baselines.command import baselines_sentence
from extensions.baselines.fit import Baseline, Baselines
from tests.app.report.runs import write_run
from tests.app.report.test_page import Page


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
    """A run, its summary and the AUC of its model."""
    run = read_run(write_run(directory))
    assert run.summary is not None
    assert run.evaluation.auc is not None
    return run, run.summary, run.evaluation.auc


def said_of(run: RunFiles) -> tuple[str, str]:
    """The sentence on baselines, with its kind."""
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
    assert set(aucs.values()) - {0.5} <= {row.figures["auc"] for row in rows}
    assert any("on the same 4,000 rows" in row.remark for row in rows) == (interval is not None)
    summary.baselines["split"] = "test"  # of other rows than the evaluation's
    assert baselines_sentence(run) is None


def test_a_baseline_with_too_few_rows_of_a_label_is_not_tested(tmp_path: Path) -> None:
    run, summary, _ = run_and_auc(tmp_path / "run")
    figures = figures_of(0.7, NARROW, lr=0.6)
    assert figures.lr is not None
    figures.lr.difference_interval = None
    summary.baselines = plain_object(figures)
    assert "by 0.1000 AUC; too few rows of a label for a test" in said_of(run)[1]


def test_the_auc_of_each_column_is_shown_the_best_first(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    assert "of each column alone" not in write_report(directory).read_text()
    summary = json.loads((directory / "summary.json").read_bytes())
    columns = {"column": "site", "auc_of_each": {"hour": 0.5123, "site": 0.6321, "age": 0.4987}}
    of_columns = {"auc": 0.6321, "ne": 0.99, "seconds": 1.0, "rows": 9, **columns}
    rows = {"rows": 9, "of_rows": 9, "eval_rows": 9, "of_eval_rows": 9}
    baselines = {"split": "val", **rows, "base_rate": None, "columns": of_columns, "lr": None, "trees": None}
    (directory / "summary.json").write_text(json.dumps({**summary, "baselines": baselines}))
    text = re.sub(r"\s+", " ", Page(write_report(directory).read_text()).text)
    assert "AUC of each column alone" in text
    places = [text.replace(" ", "").index(cells) for cells in ("site0.6321", "hour0.5123", "age0.4987")]
    assert places == sorted(places)


@pytest.mark.parametrize(("ne", "is_said"), [(0.1, True), (2.0, False)])
def test_worse_probabilities_than_a_baseline_s_are_said(ne: float, is_said: bool, tmp_path: Path) -> None:
    run, summary, auc = run_and_auc(tmp_path / "run")
    figures = figures_of(auc, NARROW, columns=0.5, lr=0.6)
    assert figures.lr is not None
    figures.lr.ne = ne
    assert figures.columns is not None
    figures.columns.ne = 2.0
    summary.baselines = plain_object(figures)
    kind, text = said_of(run)
    assert kind == "good"
    assert ("against 0.1000 of logistic regression: train.monitor=ne keeps" in text) == is_said
