"""The verdict on a run: how it ended, how good and fast it is, and compared with what."""

import math
from dataclasses import dataclass
from typing import Any

from app.metrics.clicks import shortcomings
from app.metrics.slowdown import find_slowdown, slowdown_sentence
from app.report.read import UNFINISHED, RunFiles
from app.report.words import NOT_MEASURED, count, figure, plural, signed

SAME_ROWS = 0.01  # relative difference in training rows up to which the data count as those of the publication
FIGURES = ("auc", "ne", "logloss", "accuracy")


@dataclass
class ComparisonRow:
    """One line of the table of comparisons; figures in the order of FIGURES, then global samples/s."""

    name: str
    figures: dict[str, float | None]
    samples_per_second: float | None
    remark: str


def baseline(base_rate: float | None) -> dict[str, float | None]:
    """Metrics of the constant predictor: the base rate, the majority class."""
    if base_rate is None or not 0 < base_rate < 1:
        return dict.fromkeys(FIGURES)
    entropy = -base_rate * math.log(base_rate) - (1 - base_rate) * math.log(1 - base_rate)
    return {"auc": 0.5, "ne": 1.0, "logloss": entropy, "accuracy": max(base_rate, 1 - base_rate)}


def truth(run: RunFiles) -> dict[str, Any]:
    """Metrics of a synthetic dataset's ground-truth model, and `of` which rows; empty without one.

    On the labels that were drawn for the evaluated split, if the dataset knows its splits; in expectation otherwise.
    """
    bayes = run.manifest["dataset"].get("bayes")
    if not bayes:
        return {}
    split = run.evaluation.get("split")
    scores = (bayes.get("splits") or {}).get(split) or {}
    entropy = baseline(run.evaluation.get("base_rate"))["logloss"]
    if scores.get("sampled_auc") is None or entropy is None:
        return {**{key: bayes.get(key) for key in FIGURES}, "of": f"all {count(bayes.get('rows'))} rows"}
    logloss = scores["sampled_logloss"]
    return {"auc": scores["sampled_auc"], "ne": logloss / entropy, "logloss": logloss, "accuracy": None,
            "of": f"the same {count(scores['rows'])} rows"}  # fmt: skip


def comparisons(run: RunFiles) -> list[ComparisonRow]:
    """This run, the constant predictor, the ground-truth model and the recipe's source, as far as there are any."""
    evaluation = run.evaluation
    mine = {key: evaluation.get(key) for key in FIGURES}
    error = run.auc_standard_error
    of = f"{evaluation.get('split')}, {count(evaluation.get('samples'))} samples" if evaluation else "no evaluation"
    sampled = f"; AUC ± {error:.4f} (standard error, DeLong)" if error else ""
    rows = [ComparisonRow("This run", mine, run.throughput().get("samples_per_second"), of + sampled)]
    constant = baseline(evaluation.get("base_rate"))
    rows.append(
        ComparisonRow("Majority class", constant, None, "the base rate predicted for everybody: must be beaten")
    )
    if known := truth(run):
        remark = f"the true probabilities of {known.pop('of')}: cannot be beaten but by chance"
        rows.append(ComparisonRow("Ground-truth model", known, None, remark))
    published = run.config.get("published") or {}
    if published.get("source") or any(published.get(key) is not None for key in (*FIGURES, "samples_per_second")):
        rows.append(ComparisonRow("Published", {key: published.get(key) for key in FIGURES},
                        published.get("samples_per_second"), _published_remark(published)))  # fmt: skip
    return rows


def _published_remark(published: dict[str, Any]) -> str:
    sentences = [published.get("source"), published.get("data"), published.get("hardware")]
    if published.get("num_devices") and published.get("samples_per_second"):
        sentences.append(f"speed of {plural(published['num_devices'], 'device')}")
    return "; ".join(text for text in sentences if text)


def sentences(run: RunFiles) -> list[tuple[str, str]]:
    """The verdict, each sentence with its kind: good, bad or plain."""
    return [_status(run), *_quality(run), *_speed(run), *_promises(run)]


def _status(run: RunFiles) -> tuple[str, str]:
    done = f"{plural(run.steps, 'step')} of {run.global_batch_size:,} samples"
    sentences = {
        "completed": ("good", f"Completed: {done}."),
        "target_reached": ("good", f"Target reached (AUC {run.config['train'].get('target_auc')}): {done}."),
        "interrupted": ("bad", f"Interrupted after {done}; the same command resumes from there."),
        "failed": ("bad", f"Failed after {done}: {(run.summary or {}).get('error', 'no reason recorded')}"),
        UNFINISHED: ("bad", f"No summary after {done}: still running, or killed; the same command resumes from there."),
    }
    return sentences.get(run.status, ("plain", f"{run.status}: {done}."))


def _quality(run: RunFiles) -> list[tuple[str, str]]:
    evaluation = run.evaluation
    auc, ne = evaluation.get("auc"), evaluation.get("ne")
    if auc is None or ne is None:
        return [("bad", "AUC was not measured: there was no evaluation of a split with both classes.")]
    constant = baseline(evaluation["base_rate"])
    better = ne < 1
    gain = signed(evaluation["accuracy"] - (constant["accuracy"] or 0))
    sentences = [
        ("good" if better else "bad",
         f"{'Better' if better else 'No better'} than the majority class: NE {ne:.4f} against 1, AUC {auc:.4f} "
         f"against 0.5, accuracy {gain}.")
    ]  # fmt: skip
    best = (run.summary or {}).get("best")
    keeps_best = bool((run.config.get("checkpoint") or {}).get("keep_best"))
    sentences += [("bad", f"{sentence}.") for sentence in shortcomings(evaluation, best, keeps_best)]
    if unseen := run.manifest["dataset"].get("unseen"):
        sentences.append(("bad", f"{unseen[0].upper()}{unseen[1:]}."))
    if known := truth(run):
        gap, ne_gap = known["auc"] - auc, ne - known["ne"]
        sentences.append(("plain", f"Gap to the ground-truth model: AUC {gap:.4f} below its {known['auc']:.4f}, "
                              f"NE {ne_gap:.4f} above its {known['ne']:.4f}."))  # fmt: skip
    return sentences


def _speed(run: RunFiles) -> list[tuple[str, str]]:
    slowdown = find_slowdown(run.events)
    return [("bad", f"{slowdown_sentence(slowdown)}.")] if slowdown else []


def _promises(run: RunFiles) -> list[tuple[str, str]]:
    published, auc = run.config.get("published") or {}, run.evaluation.get("auc")
    recipe = published.get("recipe") or "the recipe"
    sentences = []
    min_auc = published.get("least_auc")
    if min_auc is not None and auc is not None:
        kept = auc >= min_auc
        does = "Keeps" if kept else "Misses"
        sentences.append(("good" if kept else "bad", f"{does} what {recipe} promises: AUC of at least {min_auc:.4f}."))
    if reason := _not_comparable(run, published):
        return [*sentences, ("plain", reason)]
    tolerance = published.get("tolerance")
    for key in ("auc", "accuracy", "logloss"):
        theirs, ours = published.get(key), run.evaluation.get(key)
        if theirs is None or ours is None:
            continue
        difference = f"{key} {figure(ours)}, published {figure(theirs)} ({signed(ours - theirs)})"
        if tolerance is None:
            sentences.append(("plain", f"{difference}; no tolerance is given for {recipe}."))
        elif abs(ours - theirs) <= tolerance:
            sentences.append(("good", f"Reproduces {recipe}: {difference}, within ± {tolerance}."))
        else:
            better = (ours < theirs) if key == "logloss" else (ours > theirs)
            verdict = ("plain", "Better than") if better else ("bad", "Does not reproduce")
            sentences.append((verdict[0], f"{verdict[1]} {recipe}: {difference}, tolerance ± {tolerance}."))
    return sentences


def _not_comparable(run: RunFiles, published: dict[str, Any]) -> str | None:
    """Why published figures, if there are any, do not apply to this run."""
    rows = published.get("train_rows")
    if rows is None or all(published.get(key) is None for key in FIGURES):
        return None
    mine = run.manifest["dataset"].get("rows", {}).get("train")
    if mine is not None and abs(mine - rows) <= SAME_ROWS * rows:
        return None
    here = NOT_MEASURED if mine is None else count(mine)
    return (
        f"The published figures are for other data ({published.get('data') or 'another dataset'}, {count(rows)} "
        f"training rows; here {here}), so this run is not held to them."
    )
