"""The verdict on a run: how it ended, and how good and fast it is in comparison."""

import math
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from app.kinds.metrics import ACCURACY, AUC, BASE_RATE, COMPARED, LABEL_DEVIATION, LOGLOSS, METRICS, NE, PUBLISHED, RMSE
from app.metrics.clicks import shortcomings
from app.report.additions import additions
from app.report.read import UNFINISHED, RunFiles
from app.report.words import NOT_MEASURED, count, figure, plural, signed
from common.documents import convert

SAME_ROWS = 0.01  # largest relative difference in training rows for data to count as those of the publication

TESTED = tuple(f"test_{metric}" for metric in (AUC, LOGLOSS))  # keys of `published` for figures of the test split


@dataclass
class ComparisonRow:
    """One row of the table of comparisons: figures of the evaluation's `compared` metrics, then global samples/s."""

    name: str
    figures: dict[str, float | None]
    samples_per_second: float | None
    remark: str


def baseline(base_rate: float | None) -> dict[str, float | None]:
    """Return the metrics of the constant predictor, which predicts the base rate (the majority class)."""
    if base_rate is None or not 0 < base_rate < 1:
        return dict.fromkeys(COMPARED)
    entropy = -base_rate * math.log(base_rate) - (1 - base_rate) * math.log(1 - base_rate)
    return {AUC: 0.5, NE: 1.0, LOGLOSS: entropy, ACCURACY: max(base_rate, 1 - base_rate)}


class _SplitBayes(Struct):
    """Scores of the true probabilities on a split's labels."""

    rows: int | None = None
    sampled_auc: float | None = None
    sampled_logloss: float | None = None


class _Bayes(Struct):
    """Scores of the true probabilities in expectation; older datasets lack them by split."""

    rows: int | None = None
    auc: float | None = None
    ne: float | None = None
    logloss: float | None = None
    accuracy: float | None = None
    splits: dict[str, _SplitBayes] | None = None


@dataclass
class Truth:
    """Metrics of a ground-truth model, and the rows that they cover."""

    figures: dict[str, float | None]
    rows: str


def truth(run: RunFiles) -> Truth | None:
    """Return the metrics of a synthetic dataset's ground-truth model; None without one.

    They are for the labels drawn for the evaluated split, if the dataset knows its splits; in expectation otherwise.
    """
    if not run.manifest.dataset.bayes:
        return None
    bayes = convert(run.manifest.dataset.bayes, _Bayes, "dataset.bayes")
    scores = (bayes.splits or {}).get(str(run.evaluation.split))
    entropy = baseline(run.evaluation.figure(BASE_RATE))[LOGLOSS]
    if scores is None or scores.sampled_auc is None or scores.sampled_logloss is None or entropy is None:
        best_possible = {AUC: bayes.auc, NE: bayes.ne, LOGLOSS: bayes.logloss, ACCURACY: bayes.accuracy}
        return Truth(best_possible, f"all {count(bayes.rows)} rows")
    logloss = scores.sampled_logloss
    best_possible = {AUC: scores.sampled_auc, NE: logloss / entropy, LOGLOSS: logloss, ACCURACY: None}
    return Truth(best_possible, f"the same {count(scores.rows)} rows")


def comparisons(run: RunFiles) -> list[ComparisonRow]:
    """Return rows for this run, the constant predictor, the ground-truth model and the recipe's source, if any."""
    evaluation = run.evaluation
    figures = {key: evaluation.figure(key) for key in evaluation.compared}
    error = run.auc_standard_error
    of = f"{evaluation.split}, {count(evaluation.figure('samples'))} samples" if run.is_evaluated else "no evaluation"
    sampled = f"; AUC ± {error:.4f} (standard error, DeLong)" if error else ""
    rows = [ComparisonRow("This run", figures, run.throughput.samples_per_second, of + sampled)]
    if RMSE in figures:
        constant = {**dict.fromkeys(figures), RMSE: evaluation.figure(LABEL_DEVIATION)}
        rows.append(ComparisonRow("Mean", constant, None, "the labels' mean predicted for each row: must be beaten"))
    else:
        constant = baseline(evaluation.figure(BASE_RATE))
        rows.append(
            ComparisonRow("Majority class", constant, None, "the base rate predicted for everybody: must be beaten")
        )
    rows += [row for addition in additions(run) for row in addition.comparisons]
    if ground_truth := truth(run):
        remark = f"the true probabilities of {ground_truth.rows}: cannot be beaten but by chance"
        rows.append(ComparisonRow("Ground-truth model", ground_truth.figures, None, remark))
    published = run.config.get("published") or {}
    if published.get("source") or any(published.get(key) is not None for key in (*figures, "samples_per_second")):
        rows.append(
            ComparisonRow(
                "Published",
                {key: published.get(key) for key in figures},
                published.get("samples_per_second"),
                _published_remark(published),
            )
        )
    return rows


def _published_remark(published: dict[str, Any]) -> str:
    sentences = [published.get("source"), published.get("data"), published.get("hardware")]
    if published.get("num_devices") and published.get("samples_per_second"):
        sentences.append(f"speed of {plural(published['num_devices'], 'device')}")
    return "; ".join(text for text in sentences if text)


def sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return the verdict; each sentence has a kind: good, bad or plain."""
    return [_status(run), *_quality(run), *_promises(run)]


def _status(run: RunFiles) -> tuple[str, str]:
    work = f"{plural(run.steps, 'step')} of {run.global_batch_size:,} samples"
    early = run.summary.early_stop if run.summary else None
    sentences = {
        "completed": ("good", f"Completed: {work}{f', stopped early: {early.reason}' if early else ''}."),
        "target_reached": ("good", f"Target reached (AUC {run.config['train'].get('target_auc')}): {work}."),
        "interrupted": ("bad", f"Interrupted after {work}; the same command resumes from there."),
        "failed": ("bad", f"Failed after {work}: {_reason(run)}"),
        UNFINISHED: ("bad", f"No summary after {work}: still running, or killed; the same command resumes from there."),
    }
    return sentences.get(run.status, ("plain", f"{run.status}: {work}."))


def _reason(run: RunFiles) -> str:
    return (run.summary.error or "no reason recorded") if run.summary else "no reason recorded"


def _quality(run: RunFiles) -> list[tuple[str, str]]:
    evaluation = run.evaluation
    if (rmse := evaluation.figure(RMSE)) is not None:
        return _quality_of_numbers(run, rmse, evaluation.figure(LABEL_DEVIATION) or 0.0)
    auc, ne = evaluation.auc, evaluation.figure(NE)
    if auc is None or ne is None:
        lacks = "of a split with both classes" if run.is_evaluated else "at all"
        return [("bad", f"What the model has learned was not measured: there was no evaluation {lacks}.")]
    constant = baseline(evaluation.figure(BASE_RATE))
    better = ne < 1
    gain = signed((evaluation.figure(ACCURACY) or 0) - (constant[ACCURACY] or 0))
    sentences = [
        (
            "good" if better else "bad",
            f"{'Better' if better else 'No better'} than the majority class: NE {ne:.4f} against 1, AUC {auc:.4f} "
            f"against 0.5, accuracy {gain}.",
        )
    ]
    keeps_best = bool((run.config.get("checkpoint") or {}).get("keep_best"))
    sentences += [sentence for addition in additions(run) for sentence in addition.sentences]
    encoding = run.manifest.dataset.encoding
    remarks = shortcomings(run.last_evaluation, run.best, len(run.evaluations), keeps_best, encoding)
    sentences += [("bad", f"{sentence}.") for sentence in remarks]
    sentences += _faults_of_data(run)
    ground_truth = truth(run)
    true_auc, true_ne = (ground_truth.figures[key] if ground_truth else None for key in (AUC, NE))
    if true_auc is not None and true_ne is not None:
        text = f"AUC {true_auc - auc:.4f} below its {true_auc:.4f}, NE {ne - true_ne:.4f} above its {true_ne:.4f}."
        sentences.append(("plain", f"Gap to the ground-truth model: {text}"))
    return sentences


def _quality_of_numbers(run: RunFiles, rmse: float, deviation: float) -> list[tuple[str, str]]:
    is_better = rmse < deviation
    beside = f"{METRICS[RMSE].label} {rmse:.4f} against {deviation:.4f}"
    words = "Better than the labels' mean" if is_better else "No better than the labels' mean"
    return [("good" if is_better else "bad", f"{words}: {beside}."), *_faults_of_data(run)]


def _faults_of_data(run: RunFiles) -> list[tuple[str, str]]:
    dataset = run.manifest.dataset
    lines = [*(line for line in (dataset.unseen, dataset.sampling) if line), *dataset.misleading]
    return [("bad", f"{line[0].upper()}{line[1:]}.") for line in lines]


def _promises(run: RunFiles) -> list[tuple[str, str]]:
    published, auc = run.config.get("published") or {}, run.evaluation.auc
    recipe = published.get("recipe") or "the recipe"
    sentences = []
    min_auc = published.get("least_auc")
    # Without published data, a recipe's promise concerns the rows that it generates.
    is_generated = bool(run.manifest.dataset.bayes) or published.get("train_rows") is not None
    if min_auc is not None and auc is not None and is_generated:
        holds = auc >= min_auc
        does = "Keeps" if holds else "Misses"
        sentences.append(("good" if holds else "bad", f"{does} what {recipe} promises: AUC of at least {min_auc:.4f}."))
    if reason := not_comparable(run, published):
        return [*sentences, ("plain", reason)]
    tolerance = published.get("tolerance")
    for key in PUBLISHED:
        reference, value = published.get(key), run.evaluation.figure(key)
        if reference is None or value is None:
            continue
        difference = f"{key} {figure(value)}, published {figure(reference)} ({signed(value - reference)})"
        if tolerance is None:
            sentences.append(("plain", f"{difference}; no tolerance is given for {recipe}."))
        elif abs(value - reference) <= tolerance:
            sentences.append(("good", f"Reproduces {recipe}: {difference}, within ± {tolerance}."))
        else:
            better = (value > reference) is METRICS[key].larger_is_better
            verdict = ("plain", "Better than") if better else ("bad", "Does not reproduce")
            sentences.append((verdict[0], f"{verdict[1]} {recipe}: {difference}, tolerance ± {tolerance}."))
    return sentences


def not_comparable(run: RunFiles, published: dict[str, Any]) -> str | None:
    """Return why published figures do not apply to this run; None if they do, or if there are none."""
    rows, files = published.get("train_rows"), published.get("md5")
    if published.get("model"):
        return f"The published figures are of another model ({published['model']}), so this run is not held to them."
    if rows is None or all(published.get(key) is None for key in (*COMPARED, *TESTED, *PUBLISHED)):
        return None
    if files and sorted(run.manifest.dataset.source_md5 or ()) != sorted(files):
        return (
            f"The published figures are for other files ({published.get('data')}, by their MD5), so this run is not "
            "held to them."
        )
    rows_of_run = run.manifest.dataset.rows.get("train")
    if rows_of_run is not None and abs(rows_of_run - rows) <= SAME_ROWS * rows:
        return None
    rows_in_words = NOT_MEASURED if rows_of_run is None else count(rows_of_run)
    return (
        f"The published figures are for other data ({published.get('data') or 'another dataset'}, {count(rows)} "
        f"training rows; here {rows_in_words}), so this run is not held to them."
    )
