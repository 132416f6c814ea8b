"""What a report says first, against scikit-learn's own constant predictor."""

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from app.metrics.documents import EvaluationFigures
from app.report.charts import baseline, comparisons, not_comparable, sentences
from app.report.page import write_report
from app.report.read import RunFiles, read_run
from tests.app.conftest import composed
from tests.app.report.runs import write_run
from tests.error_lines import refused

PUBLISHED = ["published.source=A table", "published.auc=0.76", "published.tolerance=0.02", "published.train_rows=10000"]


def said(run: RunFiles, *words: str) -> tuple[str, str]:
    """The one sentence that has these words, with its kind."""
    (sentence,) = [(kind, text) for kind, text in sentences(run) if all(word in text for word in words)]
    return sentence


def test_the_majority_class_is_scikit_learns_dummy() -> None:
    labels = (np.random.default_rng(0).random(1000) < 0.2).astype(int)
    nothing = np.zeros((1000, 1))
    dummy = DummyClassifier(strategy="prior").fit(nothing, labels)
    preds = dummy.predict_proba(nothing)[:, 1]
    figures = baseline(float(labels.mean()))
    assert figures["accuracy"] == pytest.approx(accuracy_score(labels, dummy.predict(nothing)))
    assert figures["logloss"] == pytest.approx(log_loss(labels, preds))
    assert figures["auc"] == roc_auc_score(labels, preds)
    assert figures["ne"] == 1


def test_a_run_better_than_the_majority_and_one_that_is_not(tmp_path: Path) -> None:
    good = read_run(write_run(tmp_path / "good", gain=1.2))
    assert said(good, "than the majority class")[0] == "good"
    none = read_run(write_run(tmp_path / "none", gain=0.0))
    assert said(none, "No better than the majority class")[0] == "bad"


def test_a_promise_is_of_the_rows_that_its_recipe_generates(tmp_path: Path) -> None:
    bayes = {"auc": 0.85, "logloss": 0.42, "ne": 0.75, "rows": 14_000}
    for gain, verb, kind in ((0.0, "Misses", "bad"), (1.2, "Keeps", "good")):
        generated = read_run(write_run(tmp_path / f"generated {gain}", gain=gain, bayes=bayes))
        assert said(generated, f"{verb} what quickstart promises")[0] == kind
        own = read_run(write_run(tmp_path / f"own {gain}", gain=gain))
        assert not [text for _, text in sentences(own) if "promises" in text]


@pytest.mark.parametrize(
    ("overrides", "gain", "kind", "words"),
    [
        ([], 1.0, "good", ["Reproduces quickstart", "within ± 0.02"]),
        ([], 0.2, "bad", ["Does not reproduce quickstart"]),
        ([], 2.0, "plain", ["Better than quickstart"]),
        (["published.train_rows=39000000"], 1.0, "plain", ["not held to them", "39,000,000", "10,000"]),
        (["published.tolerance=null"], 1.0, "plain", ["no tolerance is given"]),
    ],
)
def test_against_published_figures(
    overrides: list[str], gain: float, kind: str, words: list[str], tmp_path: Path
) -> None:
    run = read_run(write_run(tmp_path / "run", *PUBLISHED, *overrides, gain=gain))
    assert said(run, *words)[0] == kind
    (published,) = [row for row in comparisons(run) if row.name == "Published"]
    assert published.figures["auc"] == 0.76
    assert "A table" in published.remark


def test_the_gap_to_the_ground_truth_model_is_on_the_labels_of_the_split(tmp_path: Path) -> None:
    val = {"auc": 0.9, "logloss": 0.4, "ne": 0.7, "rows": 4000, "sampled_auc": 0.8, "sampled_logloss": 0.41}
    bayes = {"auc": 0.85, "logloss": 0.42, "ne": 0.75, "rows": 14_000, "splits": {"val": val}}
    run = read_run(write_run(tmp_path / "run", bayes=bayes))
    auc = run.evaluation.auc or 0
    assert said(run, "ground-truth model")[1].startswith(
        f"Gap to the ground-truth model: AUC {0.8 - auc:.4f} below its 0.8000"
    )
    (row,) = [row for row in comparisons(run) if row.name == "Ground-truth model"]
    assert row.figures["logloss"] == 0.41
    assert row.figures["ne"] == pytest.approx(0.41 / (baseline(run.evaluation.figure("base_rate"))["logloss"] or 0))
    del bayes["splits"]
    run = read_run(write_run(tmp_path / "older", bayes=bayes))
    assert "below its 0.8500" in said(run, "ground-truth model")[1]


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_did_not_end_well_says_so_first(status: str, tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", status=status))
    kind, text = sentences(run)[0]
    assert kind == "bad"
    assert text.lower().startswith(status)


def test_a_killed_run_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    (directory / "summary.json").unlink()
    text = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(text[:5]) + text[5][:20])
    run = read_run(directory)
    assert (run.status, run.steps, run.evaluation) == ("unfinished", 50, EvaluationFigures(auc=None))
    assert said(run, "No summary")[0] == "bad"
    (directory / "metrics.jsonl").write_text("".join(text[:2]) + "nonsense\n" + "".join(text[3:]))
    refused(r"metrics.jsonl: line 3 is not an event", read_run, directory)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    refused("not a run's directory", read_run, tmp_path)
    directory = write_run(tmp_path / "run")
    (directory / "manifest.json").write_text(json.dumps({"format": "clickwork-run"}))
    refused("another version", read_run, directory)


REMEDIES = ("train.early_stop_patience", "model.dropout", "optimizer.weight_decay", "optimizer.sparse_weight_decay")


def over_run(directory: Path, best_auc: float, evaluations: int = 4, *overrides: str) -> RunFiles:
    """A run of that many evaluations whose best was at step 60."""
    run = read_run(write_run(directory, *overrides, best={"step": 60, "auc": best_auc}))
    others = [event for event in run.events if event not in run.evaluations]
    return replace(run, events=[*others, *run.evaluations[-1:] * evaluations])


def test_overfitting_is_told(tmp_path: Path) -> None:
    auc = read_run(write_run(tmp_path / "last")).evaluation.auc or 0
    assert not any("Overfitted" in text for _, text in sentences(over_run(tmp_path / "few", auc + 0.066, 3)))
    over = over_run(tmp_path / "over", auc + 0.066)
    kind, text = said(over, "Overfitted")
    assert kind == "bad"
    assert f"{auc + 0.066:.5f} at step 60" in text
    assert "checkpoint=best" in text
    for key in REMEDIES:
        assert key in text
        attrgetter(key)(composed("run.name=x"))  # it is one
    run = over_run(tmp_path / "kept", auc + 0.066, 4, "checkpoint.keep_best=false")
    assert "checkpoint.keep_best=true" in said(run, "Overfitted")[1]
    level = over_run(tmp_path / "level", auc + 0.001)
    over.last_evaluation.rest["auc_standard_error"] = 0.04  # few rows: 0.066 is less than two of it
    assert not any("Overfitted" in text for _, text in sentences(over))
    assert not any("Overfitted" in text for _, text in sentences(level))


@pytest.mark.parametrize("key", ["test_auc", "test_logloss"])
def test_figures_of_the_test_split_alone_are_for_the_rows_they_were_measured_on(tmp_path: Path, key: str) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert "here 10,000" in str(not_comparable(run, {key: 0.7, "train_rows": 33_003_326}))
    assert not_comparable(run, {key: 0.7, "train_rows": 10_000}) is None
    assert "other files" in str(not_comparable(run, {key: 0.7, "train_rows": 10_000, "md5": ["0" * 32]}))


def test_no_better_than_chance_is_told(tmp_path: Path) -> None:
    assert said(read_run(write_run(tmp_path / "worse", gain=-0.2)), "Learned nothing")[0] == "bad"


@pytest.mark.parametrize("key", ["lr", "name", None])
def test_a_run_of_another_version_is_one_line(key: str | None, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["optimizer"] = None if key is None else {k: v for k, v in config["optimizer"].items() if k != key}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    refused(f"runs={run}: its files are damaged or of another version", write_report, run)


def test_held_out_values_that_train_does_not_have_are_named(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert not [text for _, text in sentences(run) if "not in train" in text]
    run.manifest.dataset.unseen = "of the values of val and test these shares are not in train: user (97%); x"
    assert said(run, "user (97%)") == ("bad", f"Of{run.manifest.dataset.unseen[2:]}.")
    run.manifest.dataset.misleading = ["one column alone predicts the label", "the label rate jumps"]
    assert said(run, "One column alone predicts the label.")[0] == "bad"
    assert said(run, "The label rate jumps.")[0] == "bad"
