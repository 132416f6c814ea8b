"""The page that shows several runs side by side, its tests, and its verdict in sentences."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.config.kinds import AUC, LOGLOSS, MAE, METRICS, NE, RMSE
from app.record.documents import DONE, Scores, ancestors, kept_splits, read_scores
from app.report.charts import Chart, Series, course_charts, evaluation_charts, quality_charts
from app.report.page import ASSETS, ReportTable, render
from app.report.read import RunFiles, count, figure, signed
from app.report.statistics import MeanDifference, batch_means, delong, paired, speed_ratio, welch
from common.documents import plain_object
from common.extensions import KeyGroup, rows_of_extensions
from common.keys import flatten

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
MAX_NAME = 80  # characters in a page's name
RUN_COLORS = (0, 1, 2, 4, 5, 6, 7)  # 3 is for references


@dataclass
class RunGroup:
    """Runs that differ only in their seed."""

    label: str
    runs: list[RunFiles]

    @property
    def finished(self) -> list[RunFiles]:
        """Return the runs with final figures, which alone count in tests of quality."""
        return [run for run in self.runs if run.status in DONE]

    @property
    def name(self) -> str:
        """Return the label with the names of the first four runs."""
        names = [run.name for run in self.runs]
        return f"{self.label} ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})"


def facts(run: RunFiles) -> dict[str, str]:
    """Return everything that may differ between two runs, flat, as text."""
    manifest, dataset = run.manifest, run.manifest.dataset
    step = manifest.launches[0].from_step
    resume = str(run.config["checkpoint"].get("resume"))
    # A run starts from the chain of runs that it began with, a step of a run, or initial values.
    start = ", from ".join(f"step {parent.step} of {parent.run}" for parent in ancestors(manifest.parent))
    if not start and step:
        start = f"step {step} of {'another run' if resume in ('auto', 'never') else resume}"
    flat = flat_facts(run.config) | {
        "dataset digest": (dataset.digest or dataset.published_tables or "none")[:12],
        "world size": str(run.world_size),
        "platform": str(manifest.platform),
        "threads": str(manifest.num_threads),
        "started from": start or "initial values",
    }
    plain_manifest = plain_object(manifest)
    for part in MADE_BY:
        flat |= flat_facts(plain_manifest.get(part), part)
    return flat


def differences(runs: list[RunFiles]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return keys whose values differ between runs, with every run's value; and the other keys with their value."""
    facts_by_run = [facts(run) for run in runs]
    keys = sorted(key for key in set().union(*facts_by_run) if not key.startswith("run."))
    values = {key: [entry.get(key, "–") for entry in facts_by_run] for key in keys}
    differing = {key: row for key, row in values.items() if len(set(row)) > 1}
    return differing, {key: row[0] for key, row in values.items() if key not in differing}


def group_runs(runs: list[RunFiles]) -> list[RunGroup]:
    """Group the runs by configuration, the first run's first. Members are sorted by seed and directory.

    So figures of a group do not depend on the order in which its runs were named.
    """
    groups: dict[str, list[RunFiles]] = {}
    for run in runs:
        shared = {key: value for key, value in facts(run).items() if key in MEASURED or not key.startswith(BESIDE)}
        groups.setdefault(json.dumps(shared, sort_keys=True), []).append(run)
    return [
        RunGroup(
            chr(ord("A") + number) if number < 26 else f"G{number + 1}",
            sorted(members, key=lambda run: (run.seed, str(run.directory))),
        )
        for number, members in enumerate(groups.values())
    ]


def flat_facts(content: object, name: str = "") -> dict[str, str]:
    """Return the leaves of nested values by dotted key, as text; strings stay as they are, others become JSON."""
    leaves = flatten(content, name)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in leaves if value != {}}


class Compared(NamedTuple):
    """A sentence about two groups or runs, its kind (bad or plain), and the figures that it tells, if there are any."""

    kind: str
    text: str
    figures: Any = None  # a MeanDifference, or as from `speed_ratio`


def _significance(difference: MeanDifference, test: str) -> str:
    """Return whether a difference is significant, with its p-value, test and interval."""
    verdict = "significant" if difference.p is not None and difference.p < SIGNIFICANT else "not significant"
    interval = f"{figure(difference.low, 5)} to {figure(difference.high, 5)}"
    return f"{verdict} (p = {difference.p:.3g}, {test}, 95% interval {interval})"


def window_times(run: RunFiles) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return seconds and samples [2, windows] of the log's windows, except windows with warm-up steps of a launch."""
    excluded = int(run.config["train"].get("warmup_steps_excluded") or 0)
    starts = [launch.from_step or 0 for launch in run.manifest.launches]
    windows, samples_at = [], {0: 0, **{event.step: event.samples for event in run.windows}}
    for event in run.windows:
        rate, steps, last = event.samples_per_second, event.steps, event.step
        if rate and steps and not any(last - steps < start + excluded and start < last for start in starts):
            # The last batch of an epoch may be smaller than the others, so events tell the samples where they can.
            before, after = samples_at.get(last - steps), event.samples
            is_known = before is not None and after is not None
            samples = after - before if is_known else steps * run.global_batch_size  # type: ignore[operator]
            windows.append((samples / rate, samples))
    return np.array(windows, np.float64).reshape(-1, 2).T


def compare_speed(first: RunGroup, second: RunGroup) -> Compared | None:
    """Compare two groups' speed; None if a group has no run with a measured rate.

    The interval is over runs if both groups have two, else over stretches of steps within one run of each.
    """
    rates = [[rate for run in group.runs if (rate := run.rate)] for group in (first, second)]
    if not all(rates):
        return None
    if min(map(len, rates)) >= 2:
        # Means are of seconds per sample, since times add up and rates do not.
        ratio, low, high = speed_ratio(*([1 / rate for rate in of_group] for of_group in rates))
        over = f"{len(rates[0])} and {len(rates[1])} runs"
    else:
        ratio = rates[1][0] / rates[0][0]  # the runs' own figures; windows give only the interval's width
        low = high = None
        over = "too few windows for an interval"
        timed_runs = [next(run for run in group.runs if run.rate) for group in (first, second)]
        stretches = [batch_means(*window_times(run)) for run in timed_runs]
        if min(map(len, stretches)) >= 2:
            of_windows, *ends = speed_ratio(*stretches)
            low, high = (None if end is None else end * (ratio / of_windows) for end in ends)
            over = f"{len(stretches[0])} and {len(stretches[1])} stretches within one run each; from run to run it may "
            over += "vary more"
    interval = "no interval" if low is None else f"95% interval {figure(low, 3)} to {figure(high, 3)}"
    ranges = [" to ".join(dict.fromkeys(map(count, (min(of_group), max(of_group))))) for of_group in reversed(rates)]
    text = (
        f"Speed: {second.name} runs at {ratio:.3f} × {first.name} ({interval}), with {' and '.join(ranges)} global "
        f"samples/s, over {over}."
    )
    return Compared("plain", text, (ratio, low, high))


def compare_auc(first: RunGroup, second: RunGroup) -> Compared | None:
    """Test the AUC, or the RMSE where labels are numbers, over two groups' seeds, paired if they share several.

    None if a group has no such figure. There is no difference if the groups were evaluated on different rows, or if
    runs of a seed contradict each other.
    """
    # One figure per seed, since an identical run of the same seed is no new evidence.
    groups = (first.finished, second.finished)
    values = [{run.seed: auc for run in runs if (auc := run.evaluation.main_value) is not None} for runs in groups]
    if not all(values):
        return None
    # The metric is that of the first run with an evaluation.
    mains = (run.evaluation.main for group in (first, second) for run in group.runs if run.evaluation.is_measured)
    metric, reasons = METRICS[next(mains)], [*contradictions(first), *contradictions(second)]
    runs = groups[0][0], groups[1][0]
    if not same_rows(*runs):
        digests = [str(run.manifest.dataset.digest)[:12] for run in runs]
        differ = f" (digests {digests[0]} and {digests[1]})" if digests[0] != digests[1] else ""
        rows = [
            f"{count(run.evaluation.figure('samples'))} rows of {run.evaluation.split} of {run.manifest.dataset.path}"
            for run in runs
        ]
        reasons = [f"they were evaluated on different data{differ}, {rows[0]} and {rows[1]}"]
    lead = f"{metric.label}: {second.name} is"
    if reasons:
        return Compared("bad", f"{lead} not comparable with {first.name}: {'; '.join(reasons)}.")
    # Two runs of one seed share initial values and the order of rows, so their difference varies less.
    shared_seeds = sorted(values[0].keys() & values[1].keys())
    if len(shared_seeds) > 1:
        difference = paired(*(np.array([entry[seed] for seed in shared_seeds]) for entry in values))
        test = f"paired t-test over the {len(shared_seeds)} seeds of both"
    else:
        difference = welch(*(np.array(list(entry.values())) for entry in values))
        test = f"Welch's test over {len(values[0])} and {len(values[1])} seeds"
    text = f"{lead} {signed(difference.mean, 5)} against {first.name}"
    if difference.p is not None:
        return Compared("plain", f"{text}, {_significance(difference, test)}.", difference)
    text += f"; {len(values[0])} and {len(values[1])} seed(s), and a test over seeds takes two of either."
    if metric.name == AUC:
        errors = [group.runs[0].auc_standard_error for group in (first, second)]
        sampling = " and ".join("?" if error is None else f"{error:.4f}" for error in errors)
        text += f" Standard errors of the AUCs as estimates from their rows: {sampling}."
    return Compared("plain", text, difference)


def compare_scores(first: RunGroup, second: RunGroup) -> Compared | None:
    """Test two runs by DeLong on rows whose scores both kept, of the same seed if possible; None without scores."""
    if not (first.finished and second.finished):
        return None
    # Reversed, so that of several runs with one seed the first is taken.
    seeds = [{run.seed: run for run in reversed(group.finished)} for group in (first, second)]
    shared_seeds = sorted(seeds[0].keys() & seeds[1].keys())
    pairs = [(seeds[0][seed], seeds[1][seed]) for seed in shared_seeds] or [(first.finished[0], second.finished[0])]
    kept = [tuple(kept_splits(run.directory) for run in pair) for pair in pairs]
    # The first pair with a split that both kept; if there is none, the first pair shows what is missing.
    number = next((number for number, (of_first, of_second) in enumerate(kept) if {*of_first} & {*of_second}), 0)
    runs, splits = pairs[number], kept[number]
    if not any(splits):
        return None
    split = next((name for name in splits[0] if name in splits[1]), (splits[0] or splits[1])[0])
    lacking = [run for run, of_run in zip(runs, splits, strict=True) if split not in of_run]
    scores = [] if lacking else [read_scores(run.directory, split) for run in runs]
    reason, at_fault = f"{lacking[0].name} has no scores of {split}" if lacking else "", lacking
    if scores:
        reason, at_fault = _why_not_paired(runs, scores)
    lead = f"Row by row: {runs[1].name} against {runs[0].name}"
    if reason:
        commands = []
        for run in at_fault:
            rows = run.manifest.dataset.rows.get(split) or (len(scores[0].labels) if scores else 0)
            commands.append(f"python -m app.evaluate run={run.directory} split={split} keep_scores={rows}")
        remedy = f"; keep the scores by {' and '.join(commands)}" if commands else ""
        return Compared("bad", f"{lead} is not compared, as {reason}{remedy}.")
    labels = scores[0].labels
    difference = delong(labels, scores[0].logits, scores[1].logits)
    text = f"{lead} on the same {len(labels):,} rows of {split}: {signed(difference.mean, 5)} in AUC"
    if difference.p is None:
        return Compared("plain", f"{text}; too few rows of a label for a test.", difference)
    verdict = _significance(difference, "DeLong's paired test")
    return Compared("plain", f"{text}, {verdict}; of these two models, not of other seeds.", difference)


def _why_not_paired(runs: tuple[RunFiles, RunFiles], scores: Sequence[Scores]) -> tuple[str, list[RunFiles]]:
    """Return why two runs' scores are not of the same rows and served models (empty: they are).

    Also return the runs whose scores may be kept again.
    """
    for run, kept in zip(runs, scores, strict=True):
        served = run.evaluation.step
        if served and served != kept.about.step:
            return f"the scores of {run.name} are of step {kept.about.step}, and step {served} is served", [run]
    first, second = scores
    # Another encoding of the same rows has another digest.
    if first.about.dataset != second.about.dataset and not same_rows(*runs):
        digests = f"{first.about.dataset[:12]} and {second.about.dataset[:12]}"
        pairs = zip(runs, scores, strict=True)
        with_other_dataset = [run for run, kept in pairs if kept.about.dataset != run.manifest.dataset.digest]
        return f"the datasets are not the same (digests {digests})", with_other_dataset
    if not np.array_equal(first.labels, second.labels):
        rows = f"{len(first.labels):,} and {len(second.labels):,} rows"
        return f"the labels are not the same ({rows}, or another order)", [*runs]
    return ("all rows have one label" if first.labels.all() or not first.labels.any() else ""), []


def same_rows(first: RunFiles, second: RunFiles) -> bool:
    """Return whether two runs were evaluated on the same rows, however encoded."""

    def selection(run: RunFiles) -> list[Any]:
        """Return what chooses the rows: the split, train's drawn negatives, and keys by which extensions choose."""
        groups = [(run.config.get(group.name, {}), group.sample_keys) for group in rows_of_extensions(KeyGroup)]
        drawn = run.config["data"]["negatives"] if run.evaluation.split == "train" else None
        return [run.evaluation.split, drawn, *(values.get(key) for values, keys in groups for key in keys)]

    datasets = first.manifest.dataset, second.manifest.dataset
    # Another encoding changes a dataset's digest, but not `labels`, the digests of each split's rows.
    labels = [dataset.labels.get(str(first.evaluation.split)) for dataset in datasets]
    is_same_data = datasets[0].digest == datasets[1].digest or labels[0] == labels[1] is not None
    return selection(first) == selection(second) and is_same_data


def contradictions(group: RunGroup) -> list[str]:
    """Describe seeds with several figures, with their runs; nothing says which figure is the configuration's."""
    reasons = []
    # The runs of a group are sorted by seed, as groupby needs them.
    for seed, members in groupby(group.finished, key=lambda run: run.seed):
        figures = [(value, run.name) for run in members if (value := run.evaluation.main_value) is not None]
        if len({value for value, _ in figures}) > 1:
            label = METRICS[group.runs[0].evaluation.main].label
            values = " and ".join(f"{value:.7g} ({name})" for value, name in figures)
            reasons.append(
                f"runs of one configuration and seed {seed} have different figures, {label} {values}; name one of them"
            )
    return reasons


def page_name(directories: Sequence[Path]) -> str:
    """Return the file name of a comparison: the runs' names, with a digest if they are not unambiguous."""
    names = [path.resolve().name for path in directories]
    joined = "-".join(["compare", *(re.sub(r"[^\w.-]", "_", name) for name in names)])
    # Names with a hyphen in them could make one page's name out of different runs.
    is_plain = all(re.fullmatch(r"[\w.]+", name) for name in names)
    if is_plain and len(joined) <= MAX_NAME and len({path.resolve().parent for path in directories}) == 1:
        return f"{joined}.html"
    digest = hashlib.sha256("\n".join(str(path.resolve()) for path in directories).encode()).hexdigest()[:8]
    return f"{joined[: MAX_NAME - len(digest) - 1]}-{digest}.html"


class Comparison:
    """A comparison of several runs, as sentences and as a page."""

    def __init__(self, runs: list[RunFiles]) -> None:
        self.runs, self.groups = runs, group_runs(runs)
        labels = {id(run): group.label for group in self.groups for run in group.runs}
        self.names = [f"{labels[id(run)]}: {run.name}" for run in runs]
        compared = [
            compare(self.groups[0], group)
            for compare in (compare_speed, compare_auc, compare_scores)
            for group in self.groups[1:]
        ]
        self.compared = [comparison for comparison in compared if comparison is not None]

    def sentences(self) -> list[tuple[str, str]]:
        """Return the verdict; each sentence has a kind: good, bad or plain."""
        sentences = [
            ("bad", f"{run.name} is {run.status}: its figures are not final, and no test counts them.")
            for run in self.runs
            if run.status not in DONE
        ]
        if len(self.groups) == 1:
            base = self.groups[0]
            text = f"{len(self.runs)} runs of one configuration"
            values = [value for run in base.finished if (value := run.evaluation.main_value) is not None]
            if values:
                label = METRICS[base.runs[0].evaluation.main].label
                text += f", {label} from {min(values):.4f} to {max(values):.4f}"
            rates = [rate for run in base.runs if (rate := run.rate)]
            if len(rates) > 1:
                low, high = min(rates), max(rates)
                text += f", global samples/s from {count(low)} to {count(high)} ({high / low:.2f} ×)"
            sentences.append(("plain", f"{text}."))
            sentences += [("bad", f"Not reproduced: {reason}.") for reason in contradictions(base)]
        return [*sentences, *((comparison.kind, comparison.text) for comparison in self.compared)]

    def overview(self) -> ReportTable:
        """Return the status, seed, metrics and rate of each run."""
        metrics = tuple(dict.fromkeys(key for run in self.runs for key in run.evaluation.compared))
        rows = [
            [name, run.status, str(run.seed), *(figure(run.evaluation.figure(key)) for key in metrics), count(run.rate)]
            for run, name in zip(self.runs, self.names, strict=True)
        ]
        columns = ["Run", "Status", "Seed", *(METRICS[key].title for key in metrics), "Samples/s, global"]
        note = "One letter: one configuration, whose runs differ in nothing but their seed."
        return ReportTable(columns, rows, set(range(2, len(columns))), note)

    def charts(self) -> list[Chart]:
        """Return charts with a line per run, of the figures that at least one run has."""
        charts_by_run = [
            {chart.key: chart for chart in (*quality_charts(run), *course_charts(run), *evaluation_charts(run))}
            for run in self.runs
        ]
        charts = []
        for key in (LOGLOSS, AUC, NE, RMSE, MAE, "throughput", "input_wait", "memory", "calibration", "roc", "pr"):
            first = next((own_charts[key] for own_charts in charts_by_run if key in own_charts), None)
            if first is None:
                continue
            chart = replace(first, series=[], band=None, note="", limits=None)
            chart.title = "Train logloss (BCE)" if key == LOGLOSS else chart.title
            for number, (run, own_charts) in enumerate(zip(self.runs, charts_by_run, strict=True)):
                lines = own_charts[key].series if key in own_charts else []
                lines = [line for line in lines if line.kind != "reference" and line.name != "device, tensors"]
                color = RUN_COLORS[number % len(RUN_COLORS)]
                # A run has one line: of a logloss the first one, that of train.
                chart.series += [replace(line, name=run.name, color=color) for line in lines[:1]]
            if key == "roc":
                chart.series.append(Series("chance", [0, 1], [0, 1], "reference", 3))
            if chart.steps:
                chart.cut_outliers()
            charts.append(chart)
        return charts

    def page(self, directory: Path) -> str:
        """Return the page as HTML."""
        differing, same = differences(self.runs)
        charts = self.charts()
        rows = [[key, *map(short, row)] for key, row in differing.items()]
        return render(
            ASSETS / "compare.html.j2",
            directory,
            charts,
            title=f"{len(self.runs)} runs side by side",
            sentences=self.sentences(),
            overview=self.overview(),
            runs=self.runs,
            names=self.names,
            base=self.groups[0].name,
            compared=self.compared,
            differing=ReportTable(["Key", *self.names], rows, set()),
            same=ReportTable(["Key", "All runs"], [[key, value] for key, value in same.items()], set()),
            side=charts,
        )


def short(text: str) -> str:
    """Cut a hexadecimal digest of 40 letters or more (SHA-1, SHA-256) short; leave other text whole."""
    is_sum = len(text) >= 40 and all(letter in "0123456789abcdef" for letter in text)
    return f"{text[:18]}…" if is_sum else text
