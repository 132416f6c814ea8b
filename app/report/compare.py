"""Comparisons of several runs: configurations, speed, AUC over seeds and row by row."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from app.kinds.metrics import METRICS, Metric
from app.record.documents import DONE
from app.record.scores import Scores, kept_splits, read_scores
from app.report.read import RunFiles
from app.report.statistics import MeanDifference, Ratio, batch_means, delong, paired, speed_ratio, welch
from app.report.words import count
from common.documents import plain_object
from common.extensions import KeyGroup, rows_of_extensions

# Keys of the configuration that affect neither learning nor speed.
BESIDE = (
    "run.",
    "train.seed",
    "checkpoint.",
    "record.",
    "published.",
    *(f"data.{key}" for key in ("source", "raw", "train", "val", "test", "schema", "checksums", "days", "remote.")),
    *(f"data.{key}" for key in ("path", "default_path", "overwrite", "scheduler", "workers", "memory_budget")),
    "data.generator_settings",
    "eval.keep_scores",
    "environment.SLURM_JOB_ID",
)
MEASURED = ("checkpoint.keep_best",)  # keys of BESIDE that decide which model is evaluated
# Keys of the manifest that describe how the run was made.
MADE_BY = ("code", "image", "versions", "hardware", "environment")
SIGNIFICANT = 0.05
SHORTEST_DIGEST = 12  # characters of a digest in a sentence


@dataclass
class RunGroup:
    """Runs that differ only in their seed."""

    label: str
    runs: list[RunFiles]

    @property
    def finished(self) -> list[RunFiles]:
        """The runs with final figures, which alone count in tests of quality."""
        return [run for run in self.runs if run.status in DONE]

    @property
    def name(self) -> str:
        names = [run.name for run in self.runs]
        return f"{self.label} ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})"


def facts(run: RunFiles) -> dict[str, str]:
    """Return everything that may differ between two runs, flat, as text."""
    manifest = run.manifest
    flat = dict(flat_facts("", run.config))
    dataset = manifest.dataset
    digest = dataset.digest or dataset.published_tables or "none"  # the run was built without data
    flat |= {
        "dataset digest": digest[:12],
        "world size": str(run.world_size),
        "platform": str(manifest.platform),
        "threads": str(manifest.num_threads),
        "started from": _start(run),
    }
    plain_manifest = plain_object(manifest)
    for part in MADE_BY:
        flat |= dict(flat_facts(f"{part}.", plain_manifest.get(part)))
    return flat


def _start(run: RunFiles) -> str:
    """Return where the first launch started: initial values, or a step of another run's checkpoint."""
    step = run.manifest.launches[0].from_step
    if not step:
        return "initial values"
    resume = str((run.config.get("checkpoint") or {}).get("resume"))
    return f"step {step} of {'another run' if resume in ('auto', 'never') else resume}"


def differences(runs: list[RunFiles]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return keys whose values differ between runs, with every run's value; and the other keys with their value."""
    every = [facts(run) for run in runs]
    keys = sorted(key for key in set().union(*every) if not key.startswith("run."))
    values = {key: [entry.get(key, "–") for entry in every] for key in keys}
    differing = {key: row for key, row in values.items() if len(set(row)) > 1}
    return differing, {key: row[0] for key, row in values.items() if key not in differing}


def identity(run: RunFiles) -> str:
    """Return the facts in which runs of one configuration agree, as text."""
    agreed = {key: value for key, value in facts(run).items() if key in MEASURED or not key.startswith(BESIDE)}
    return json.dumps(agreed, sort_keys=True)


def group(runs: list[RunFiles]) -> list[RunGroup]:
    """Group the runs by configuration, the first run's first. Members are sorted by seed and directory.

    So figures of a group do not depend on the order in which its runs were named.
    """
    by_identity: dict[str, list[RunFiles]] = {}
    for run in runs:
        by_identity.setdefault(identity(run), []).append(run)
    for members in by_identity.values():
        members.sort(key=lambda run: (run.seed, str(run.directory)))
    return [RunGroup(_label(number), members) for number, members in enumerate(by_identity.values())]


def _label(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"G{number + 1}"


def flat_facts(prefix: str, content: object) -> list[tuple[str, str]]:
    """Return the leaves of nested values by dotted key, as text; strings stay as they are, others become JSON."""
    if isinstance(content, dict):
        return [pair for key, value in content.items() for pair in flat_facts(f"{prefix}{key}.", value)]
    return [(prefix.rstrip("."), content if isinstance(content, str) else json.dumps(content))]


@dataclass
class SpeedComparison:
    """Two groups' speed; `over`: what the interval is computed over."""

    first: RunGroup
    second: RunGroup
    ratio: Ratio
    over: str


@dataclass
class AucComparison:
    """Two groups' AUC over seeds, or their RMSE if labels are numbers."""

    first: RunGroup
    second: RunGroup
    difference: MeanDifference | None  # None: see `reason`
    seeds: tuple[int, int]
    test: str  # the test of the difference
    reason: str = ""  # why there is no difference

    @property
    def metric(self) -> Metric:
        """The compared metric: that of the first run with an evaluation."""
        evaluations = [run.evaluation for group in (self.first, self.second) for run in group.runs]
        return METRICS[next((each.main for each in evaluations if each.main_value is not None), evaluations[0].main)]


@dataclass
class ScoreComparison:
    """Two runs' AUC on the same rows of a split, from the scores that both kept."""

    first: RunFiles
    second: RunFiles
    split: str
    rows: int
    difference: MeanDifference | None  # None: other rows, or models that the runs do not serve
    reason: str = ""  # why there is no difference
    at_fault: Sequence[RunFiles] = ()  # runs whose scores must be kept again, or for the first time


def window_times(run: RunFiles) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return seconds and samples [2, windows] of the log's windows, except windows with warm-up steps of a launch."""
    excluded = int(run.config["train"].get("warmup_steps_excluded") or 0)
    starts = [part.from_step or 0 for part in run.manifest.launches]
    windows, samples_at = [], {0: 0, **{event.step: event.samples for event in run.windows}}
    for event in run.windows:
        rate, steps, last = event.samples_per_second, event.steps, event.step
        if rate and steps and not any(last - steps < start + excluded and start < last for start in starts):
            before, after = samples_at.get(last - steps), event.samples
            is_known = before is not None and after is not None
            samples = after - before if is_known else steps * run.global_batch_size  # type: ignore[operator]
            windows.append((samples / rate, samples))
    return np.array(windows, np.float64).reshape(-1, 2).T


def compare_speed(first: RunGroup, second: RunGroup) -> SpeedComparison | None:
    """Return the speed ratio over runs if both groups have two, else over stretches of one each; None without."""
    rates = [[run.throughput.samples_per_second for run in group.runs] for group in (first, second)]
    valid_rates = [[rate for rate in group if rate] for group in rates]
    if min(map(len, valid_rates)) >= 2:
        measured = speed_ratio([1 / rate for rate in valid_rates[0]], [1 / rate for rate in valid_rates[1]])
        return SpeedComparison(first, second, measured, f"{len(valid_rates[0])} and {len(valid_rates[1])} runs")
    if not all(valid_rates):
        return None
    timed = [next(run for run in group.runs if run.throughput.samples_per_second) for group in (first, second)]
    a, b = (batch_means(*window_times(run)) for run in timed)
    if min(len(a), len(b)) < 2:
        return SpeedComparison(
            first, second, Ratio(valid_rates[1][0] / valid_rates[0][0], None, None), "too few windows for an interval"
        )
    interval = speed_ratio(a, b)
    ratio = valid_rates[1][0] / valid_rates[0][0]  # the runs' own figures; windows give only the interval's width
    width = ratio / interval.ratio
    low, high = (None if end is None else end * width for end in (interval.low, interval.high))
    return SpeedComparison(
        first,
        second,
        Ratio(ratio, low, high),
        f"{len(a)} and {len(b)} stretches within one run each; from run to run it may vary more",
    )


def compare_auc(first: RunGroup, second: RunGroup) -> AucComparison | None:
    """Test the AUC over two groups' seeds, paired if they share several; None if a group has no AUC.

    There is no difference if the groups were evaluated on different rows, or if runs of a seed contradict each other.
    """
    # One AUC or RMSE per seed, since an identical run of the same seed is no new evidence.
    groups = (first.finished, second.finished)
    values = [{run.seed: auc for run in runs if (auc := run.evaluation.main_value) is not None} for runs in groups]
    if not all(values):
        return None
    seeds = len(values[0]), len(values[1])
    if not same_rows(groups[0][0], groups[1][0]):
        return AucComparison(first, second, None, seeds, "", reason=_other_rows(groups[0][0], groups[1][0]))
    if reasons := [*contradictions(first), *contradictions(second)]:
        return AucComparison(first, second, None, seeds, "", reason="; ".join(reasons))
    shared = sorted(values[0].keys() & values[1].keys())
    if len(shared) > 1:
        one, other = (np.array([entry[seed] for seed in shared]) for entry in values)
        return AucComparison(first, second, paired(one, other), (len(shared), len(shared)), "paired t-test")
    difference = welch(*(np.array(list(entry.values())) for entry in values))
    return AucComparison(first, second, difference, seeds, "Welch's test")


def compare_scores(first: RunGroup, second: RunGroup) -> ScoreComparison | None:
    """Test two runs by DeLong on rows whose scores both kept, of the same seed if possible; None without scores."""
    if not (first.finished and second.finished):
        return None
    seeds = [{run.seed: run for run in reversed(group.finished)} for group in (first, second)]
    shared = sorted(seeds[0].keys() & seeds[1].keys())
    pairs = [(seeds[0][seed], seeds[1][seed]) for seed in shared] or [(first.finished[0], second.finished[0])]
    one, other = next((pair for pair in pairs if _have_scores_of_one_split(pair)), pairs[0])
    splits = [kept_splits(run.directory) for run in (one, other)]
    if not any(splits):
        return None
    split = next((name for name in splits[0] if name in splits[1]), "")
    if not split:
        first_split = (splits[0] or splits[1])[0]
        lacking = other if splits[0] else one
        reason = f"{lacking.name} has no scores of {first_split}"
        return ScoreComparison(one, other, first_split, 0, None, reason, [lacking])
    scores = [read_scores(run.directory, split) for run in (one, other)]
    reason, at_fault = _why_not_paired((one, other), scores)
    labels = scores[0].labels
    difference = None if reason else delong(labels, scores[0].logits, scores[1].logits)
    return ScoreComparison(one, other, split, len(labels), difference, reason, at_fault)


def _have_scores_of_one_split(pair: tuple[RunFiles, RunFiles]) -> bool:
    one, other = (set(kept_splits(run.directory)) for run in pair)
    return bool(one & other)


def _why_not_paired(runs: tuple[RunFiles, RunFiles], scores: Sequence[Scores]) -> tuple[str, Sequence[RunFiles]]:
    """Return why two runs' scores are not of the same rows and served models (empty: they are).

    Also return the runs whose scores may be kept again.
    """
    for run, of_run in zip(runs, scores, strict=True):
        served = run.evaluation.step
        if served and served != of_run.about.step:
            return f"the scores of {run.name} are of step {of_run.about.step}, and step {served} is served", [run]
    one, other = scores
    if one.about.dataset != other.about.dataset and not same_rows(*runs):
        digests = f"{one.about.dataset[:12]} and {other.about.dataset[:12]}"
        of_others = [
            run for run, kept in zip(runs, scores, strict=True) if kept.about.dataset != run.manifest.dataset.digest
        ]
        return f"the datasets are not the same (digests {digests})", of_others
    if not np.array_equal(one.labels, other.labels):
        rows = f"{len(one.labels):,} and {len(other.labels):,} rows"
        return f"the labels are not the same ({rows}, or another order)", runs
    return ("all rows have one label" if one.labels.all() or not one.labels.any() else ""), ()


def same_rows(first: RunFiles, second: RunFiles) -> bool:
    """Return whether two runs were evaluated on the same rows, however encoded."""
    one, other = first.manifest.dataset, second.manifest.dataset
    splits = [run.evaluation.split for run in (first, second)]
    labels = [dataset.labels.get(str(split)) for dataset, split in zip((one, other), splits, strict=True)]
    selections: list[list[Any]] = [
        [run.config.get(group.name, {}).get(key) for group in rows_of_extensions(KeyGroup) for key in group.sample_keys]
        for run in (first, second)
    ]
    if splits[0] == "train":  # which has drawn negatives, too
        selections = [
            [*keys, run.config["data"]["negatives"]] for keys, run in zip(selections, (first, second), strict=True)
        ]
    same = splits[0] == splits[1] and selections[0] == selections[1]
    return same and (one.digest == other.digest or labels[0] == labels[1] is not None)


def _other_rows(first: RunFiles, second: RunFiles) -> str:
    """Return how the rows differ on which two runs were evaluated."""
    runs = first, second
    rows = [f"{count(run.evaluation.figure('samples'))} rows of {run.evaluation.split}" for run in runs]
    paths = [str(run.manifest.dataset.path) for run in runs]
    digests = [str(run.manifest.dataset.digest)[:SHORTEST_DIGEST] for run in runs]
    differ = f" (digests {digests[0]} and {digests[1]})" if digests[0] != digests[1] else ""
    return f"they were evaluated on different data{differ}, {rows[0]} of {paths[0]} and {rows[1]} of {paths[1]}"


def contradictions(group: RunGroup) -> list[str]:
    """Describe seeds with several figures, with their runs; nothing says which figure is the configuration's."""
    reasons = []
    for seed, members in groupby(group.finished, key=lambda run: run.seed):
        figures = [(value, run.name) for run in members if (value := run.evaluation.main_value) is not None]
        if len({value for value, _ in figures}) > 1:
            label = METRICS[group.runs[0].evaluation.main].label
            values = " and ".join(f"{value:.7g} ({name})" for value, name in figures)
            reasons.append(
                f"runs of one configuration and seed {seed} have different figures, {label} {values}; name one of them"
            )
    return reasons
