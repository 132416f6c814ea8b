"""The page that shows several runs side by side, its tests, and its verdict in sentences."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from app.config.kinds import AUC, LOGLOSS, MAE, METRICS, NE, RMSE, Metric
from app.record.documents import DONE, Scores, ancestors, kept_splits, read_scores
from app.report import charts
from app.report.charts import Chart, Series
from app.report.page import ASSETS, COLORS, ReportTable, energy, render, step_parts
from app.report.read import NOT_MEASURED, RunFiles, count, devices, figure, precision, signed, size
from app.report.statistics import MeanDifference, Ratio, batch_means, delong, paired, speed_ratio, welch
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
        """Return the runs with final figures, which alone count in tests of quality."""
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
        "started from": _start_text(run),
    }
    plain_manifest = plain_object(manifest)
    for part in MADE_BY:
        flat |= dict(flat_facts(f"{part}.", plain_manifest.get(part)))
    return flat


def _start_text(run: RunFiles) -> str:
    """Return where a run started: initial values, a step of its own, or the chain of runs that it began with."""
    if chain := [f"step {parent.step} of {parent.run}" for parent in ancestors(run.manifest.parent)]:
        return ", from ".join(chain)
    step = run.manifest.launches[0].from_step
    if not step:
        return "initial values"
    resume = str((run.config.get("checkpoint") or {}).get("resume"))
    return f"step {step} of {'another run' if resume in ('auto', 'never') else resume}"


def differences(runs: list[RunFiles]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return keys whose values differ between runs, with every run's value; and the other keys with their value."""
    facts_by_run = [facts(run) for run in runs]
    keys = sorted(key for key in set().union(*facts_by_run) if not key.startswith("run."))
    values = {key: [entry.get(key, "–") for entry in facts_by_run] for key in keys}
    differing = {key: row for key, row in values.items() if len(set(row)) > 1}
    return differing, {key: row[0] for key, row in values.items() if key not in differing}


def identity(run: RunFiles) -> str:
    """Return the facts in which runs of one configuration agree, as text."""
    shared = {key: value for key, value in facts(run).items() if key in MEASURED or not key.startswith(BESIDE)}
    return json.dumps(shared, sort_keys=True)


def group_runs(runs: list[RunFiles]) -> list[RunGroup]:
    """Group the runs by configuration, the first run's first. Members are sorted by seed and directory.

    So figures of a group do not depend on the order in which its runs were named.
    """
    by_identity: dict[str, list[RunFiles]] = {}
    for run in runs:
        by_identity.setdefault(identity(run), []).append(run)
    for members in by_identity.values():
        members.sort(key=lambda run: (run.seed, str(run.directory)))
    return [
        RunGroup(chr(ord("A") + number) if number < 26 else f"G{number + 1}", members)
        for number, members in enumerate(by_identity.values())
    ]


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
        """Return the compared metric: that of the first run with an evaluation."""
        evaluations = [run.evaluation for group in (self.first, self.second) for run in group.runs]
        measured = (evaluation.main for evaluation in evaluations if evaluation.main_value is not None)
        return METRICS[next(measured, evaluations[0].main)]


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


def compare_speed(first: RunGroup, second: RunGroup) -> SpeedComparison | None:
    """Return the speed ratio over runs if both groups have two, else over stretches of one each; None without."""
    rates = [[run.throughput.samples_per_second for run in group.runs] for group in (first, second)]
    valid_rates = [[rate for rate in group if rate] for group in rates]
    if min(map(len, valid_rates)) >= 2:
        # Means are of seconds per sample, since times add up and rates do not.
        measured = speed_ratio([1 / rate for rate in valid_rates[0]], [1 / rate for rate in valid_rates[1]])
        return SpeedComparison(first, second, measured, f"{len(valid_rates[0])} and {len(valid_rates[1])} runs")
    if not all(valid_rates):
        return None
    timed_runs = [next(run for run in group.runs if run.throughput.samples_per_second) for group in (first, second)]
    stretches = [batch_means(*window_times(run)) for run in timed_runs]
    if min(map(len, stretches)) < 2:
        return SpeedComparison(
            first, second, Ratio(valid_rates[1][0] / valid_rates[0][0], None, None), "too few windows for an interval"
        )
    interval = speed_ratio(*stretches)
    ratio = valid_rates[1][0] / valid_rates[0][0]  # the runs' own figures; windows give only the interval's width
    width = ratio / interval.ratio
    low, high = (None if end is None else end * width for end in (interval.low, interval.high))
    return SpeedComparison(
        first,
        second,
        Ratio(ratio, low, high),
        f"{len(stretches[0])} and {len(stretches[1])} stretches within one run each; from run to run it may vary more",
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
        return AucComparison(first, second, None, seeds, "", reason=_row_differences(groups[0][0], groups[1][0]))
    if reasons := [*contradictions(first), *contradictions(second)]:
        return AucComparison(first, second, None, seeds, "", reason="; ".join(reasons))
    # Two runs of one seed share initial values and the order of rows, so their difference varies less.
    shared_seeds = sorted(values[0].keys() & values[1].keys())
    if len(shared_seeds) > 1:
        pairs = (np.array([entry[seed] for seed in shared_seeds]) for entry in values)
        number = len(shared_seeds)
        return AucComparison(first, second, paired(*pairs), (number, number), "paired t-test")
    difference = welch(*(np.array(list(entry.values())) for entry in values))
    return AucComparison(first, second, difference, seeds, "Welch's test")


def compare_scores(first: RunGroup, second: RunGroup) -> ScoreComparison | None:
    """Test two runs by DeLong on rows whose scores both kept, of the same seed if possible; None without scores."""
    if not (first.finished and second.finished):
        return None
    seeds = [{run.seed: run for run in reversed(group.finished)} for group in (first, second)]
    shared_seeds = sorted(seeds[0].keys() & seeds[1].keys())
    pairs = [(seeds[0][seed], seeds[1][seed]) for seed in shared_seeds] or [(first.finished[0], second.finished[0])]
    runs = next((pair for pair in pairs if _share_a_split(pair)), pairs[0])
    splits = [kept_splits(run.directory) for run in runs]
    if not any(splits):
        return None
    split = next((name for name in splits[0] if name in splits[1]), "")
    if not split:
        first_split = (splits[0] or splits[1])[0]
        lacking = runs[1] if splits[0] else runs[0]
        reason = f"{lacking.name} has no scores of {first_split}"
        return ScoreComparison(*runs, first_split, 0, None, reason, [lacking])
    scores = [read_scores(run.directory, split) for run in runs]
    reason, at_fault = _why_not_paired(runs, scores)
    labels = scores[0].labels
    difference = None if reason else delong(labels, scores[0].logits, scores[1].logits)
    return ScoreComparison(*runs, split, len(labels), difference, reason, at_fault)


def _share_a_split(pair: tuple[RunFiles, RunFiles]) -> bool:
    """Return whether both runs have kept the scores of the same split."""
    splits = [set(kept_splits(run.directory)) for run in pair]
    return bool(splits[0] & splits[1])


def _why_not_paired(runs: tuple[RunFiles, RunFiles], scores: Sequence[Scores]) -> tuple[str, Sequence[RunFiles]]:
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
        with_other_dataset = [
            run for run, kept in zip(runs, scores, strict=True) if kept.about.dataset != run.manifest.dataset.digest
        ]
        return f"the datasets are not the same (digests {digests})", with_other_dataset
    if not np.array_equal(first.labels, second.labels):
        rows = f"{len(first.labels):,} and {len(second.labels):,} rows"
        return f"the labels are not the same ({rows}, or another order)", runs
    return ("all rows have one label" if first.labels.all() or not first.labels.any() else ""), ()


def same_rows(first: RunFiles, second: RunFiles) -> bool:
    """Return whether two runs were evaluated on the same rows, however encoded."""
    datasets = first.manifest.dataset, second.manifest.dataset
    splits = [run.evaluation.split for run in (first, second)]
    labels = [dataset.labels.get(str(split)) for dataset, split in zip(datasets, splits, strict=True)]
    selections: list[list[Any]] = [
        [run.config.get(group.name, {}).get(key) for group in rows_of_extensions(KeyGroup) for key in group.sample_keys]
        for run in (first, second)
    ]
    if splits[0] == "train":  # which has drawn negatives, too
        selections = [
            [*keys, run.config["data"]["negatives"]] for keys, run in zip(selections, (first, second), strict=True)
        ]
    is_same_selection = splits[0] == splits[1] and selections[0] == selections[1]
    has_same_labels = labels[0] == labels[1] is not None
    return is_same_selection and (datasets[0].digest == datasets[1].digest or has_same_labels)


def _row_differences(first: RunFiles, second: RunFiles) -> str:
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


NONE = "–"
MAX_NAME = 80  # characters in a page's name
RUN_COLORS = (0, 1, 2, 4, 5, 6, 7)  # 3 is for references
SHORTEST = 18  # characters of a hash or value shown in a cell


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
        base = self.base = self.groups[0]
        self.speeds = [speed for group in self.groups[1:] if (speed := compare_speed(base, group))]
        self.aucs = [auc for group in self.groups[1:] if (auc := compare_auc(base, group))]
        self.scores = [scores for group in self.groups[1:] if (scores := compare_scores(base, group))]

    def sentences(self) -> list[tuple[str, str]]:
        """Return the verdict; each sentence has a kind: good, bad or plain."""
        sentences = [
            ("bad", f"{run.name} is {run.status}: its figures are not final, and no test counts them.")
            for run in self.runs
            if run.status not in DONE
        ]
        if len(self.groups) == 1:
            sentences.append(("plain", f"{len(self.runs)} runs of one configuration" + _spread_text(self.base) + "."))
            sentences += [("bad", f"Not reproduced: {reason}.") for reason in contradictions(self.base)]
        sentences += [("plain", _describe_speed(speed)) for speed in self.speeds]
        sentences += [("bad" if auc.difference is None else "plain", _describe_auc(auc)) for auc in self.aucs]
        return [*sentences, *(_describe_scores(scores) for scores in self.scores)]

    @property
    def _names(self) -> list[str]:
        """Return each run's name, with the letter of its configuration."""
        labels = {id(run): group.label for group in self.groups for run in group.runs}
        return [f"{labels[id(run)]}: {run.name}" for run in self.runs]

    def overview(self) -> ReportTable:
        """Return the status, seed, metrics and rate of each run."""
        metrics = tuple(dict.fromkeys(key for run in self.runs for key in run.evaluation.compared))
        rows = [
            [
                name,
                run.status,
                str(run.config["train"]["seed"]),
                *(figure(run.evaluation.figure(key)) for key in metrics),
                count(run.throughput.samples_per_second),
            ]
            for run, name in zip(self.runs, self._names, strict=True)
        ]
        columns = ["Run", "Status", "Seed", *(METRICS[key].title for key in metrics), "Samples/s, global"]
        note = "One letter: one configuration, whose runs differ in nothing but their seed."
        return ReportTable(columns, rows, set(range(2, len(columns))), note)

    def page(self, directory: Path) -> str:
        """Return the page as HTML."""
        differing, same = differences(self.runs)
        charts_ = _make_charts(self.runs)
        names = self._names
        return render(
            ASSETS / "compare.html.j2",
            directory,
            charts_,
            title=f"{len(self.runs)} runs side by side",
            sentences=self.sentences(),
            overview=self.overview(),
            speeds=_speed_table(self.runs, names),
            base=self.base.name,
            tests=_test_table(self.speeds, self.aucs),
            row_by_row=_score_table(self.scores),
            differing=ReportTable(["Key", *names], [[key, *map(short, row)] for key, row in differing.items()], set()),
            same=ReportTable(["Key", "All runs"], [[key, value] for key, value in same.items()], set()),
            side=charts_,
            thinned=next(filter(None, map(charts.thinned, self.runs)), ""),
        )


def _spread_text(group: RunGroup) -> str:
    """Return the lowest and highest main metric and rate of one configuration's runs."""
    values = [value for run in group.finished if (value := run.evaluation.main_value) is not None]
    rates = [run.throughput.samples_per_second for run in group.runs if run.throughput.samples_per_second]
    label = METRICS[group.runs[0].evaluation.main].label
    text = f", {label} from {min(values):.4f} to {max(values):.4f}" if values else ""
    if len(rates) < 2:
        return text
    ratio = max(rates) / min(rates)
    return f"{text}, global samples/s from {count(min(rates))} to {count(max(rates))} ({ratio:.2f} ×)"


def _interval_text(value: Ratio | MeanDifference, digits: int) -> str:
    """Return the ends of an interval; empty without one."""
    if value.low is None or value.high is None:
        return ""
    return f"{figure(value.low, digits)} to {figure(value.high, digits)}"


def _describe_speed(speed: SpeedComparison) -> str:
    """Return a sentence on two groups' speed."""
    interval = _interval_text(speed.ratio, 3)
    text = f" (95% interval {interval})" if interval else " (no interval)"
    rates = " and ".join(_rates_text(group) for group in (speed.second, speed.first))
    return (
        f"Speed: {speed.second.name} runs at {speed.ratio.ratio:.3f} × {speed.first.name}{text}, with {rates} global "
        f"samples/s, over {speed.over}."
    )


def _rates_text(group: RunGroup) -> str:
    """Return the lowest and highest rate of a configuration's runs, or the only one."""
    rates = [rate for run in group.runs if (rate := run.throughput.samples_per_second)]
    return " to ".join(dict.fromkeys(map(count, (min(rates), max(rates)))))


def _describe_auc(auc: AucComparison) -> str:
    """Return a sentence on two groups' AUC or RMSE, and on its test over seeds."""
    difference, (first, second) = auc.difference, auc.seeds
    if difference is None:
        return f"{auc.metric.label}: {auc.second.name} is not comparable with {auc.first.name}: {auc.reason}."
    text = f"{auc.metric.label}: {auc.second.name} is {signed(difference.mean, 5)} against {auc.first.name}"
    if difference.p is None and auc.metric.name != AUC:
        return f"{text}; {first} and {second} seed(s), and a test over seeds takes two of either."
    if difference.p is None:
        errors = [run.auc_standard_error for run in (auc.first.runs[0], auc.second.runs[0])]
        sampling = " and ".join("?" if error is None else f"{error:.4f}" for error in errors)
        return (
            f"{text}; {first} and {second} seed(s), and a test over seeds takes two of either. Standard errors of "
            f"the AUCs as estimates from their rows: {sampling}."
        )
    verdict_ = "significant" if difference.p < SIGNIFICANT else "not significant"
    return (
        f"{text}, {verdict_} (p = {difference.p:.3g}, {auc.test} over {_seeds_text(auc)}, 95% interval "
        f"{_interval_text(difference, 5)})."
    )


def _describe_scores(scores: ScoreComparison) -> tuple[str, str]:
    """Return a sentence on DeLong's test of two runs, and its kind: bad or plain."""
    pair = f"{scores.second.name} against {scores.first.name}"
    difference = scores.difference
    if difference is None:
        words = f"python -m app.evaluate run={{}} split={scores.split} keep_scores={{}}"
        rows = [run.manifest.dataset.rows.get(scores.split) or scores.rows for run in scores.at_fault]
        commands = " and ".join(
            words.format(run.directory, count) for run, count in zip(scores.at_fault, rows, strict=True)
        )
        remedy = f"; keep the scores by {commands}" if commands else ""
        return "bad", f"Row by row: {pair} is not compared, as {scores.reason}{remedy}."
    text = f"Row by row: {pair} on the same {scores.rows:,} rows of {scores.split}: {signed(difference.mean, 5)} in AUC"
    if difference.p is None:
        return "plain", f"{text}; too few rows of a label for a test."
    verdict_ = "significant" if difference.p < SIGNIFICANT else "not significant"
    return "plain", (
        f"{text}, {verdict_} (p = {difference.p:.3g}, DeLong's paired test, 95% interval "
        f"{_interval_text(difference, 5)}); of these two models, not of other seeds."
    )


def _seeds_text(auc: AucComparison) -> str:
    """Return the numbers of seeds that a test is over."""
    first, second = auc.seeds
    return f"the {first} seeds of both" if auc.test.startswith("paired") else f"{first} and {second} seeds"


def _speed_cells(run: RunFiles) -> dict[str, str]:
    """Return what a run was trained on and how fast, by the names of the rows."""
    rates, memory = run.throughput, run.memory
    milliseconds = {part.name: f"{part.milliseconds:,.2f} ms" for part in step_parts(run)}
    return {
        "Device": devices(run.manifest),
        "Precision": precision(run.config),
        "Global batch": count(run.global_batch_size),
        "Samples/s, global": count(rates.samples_per_second),
        "Samples/s per device": count(rates.samples_per_second_per_device),
        "Step, p50": NOT_MEASURED if rates.step_ms_p50 is None else f"{figure(rates.step_ms_p50, 2)} ms",
        "Step, p95": NOT_MEASURED if rates.step_ms_p95 is None else f"{figure(rates.step_ms_p95, 2)} ms",
        **{f"Mean step, {name}": milliseconds.get(name, NONE) for name in COLORS},
        "Peak memory, host": size(memory.host_peak_bytes),
        "Peak memory, device": NONE if memory.device_peak_bytes is None else size(memory.device_peak_bytes),
        "Samples a second and watt": energy(run).partition(",")[0],
    }


def _speed_table(runs: list[RunFiles], names: list[str]) -> ReportTable:
    """Return a column per run of what it was trained on and how fast; rows that no run has are left out."""
    columns = [_speed_cells(run) for run in runs]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return ReportTable(["", *names], [row for row in rows if set(row[1:]) != {NONE}], set(range(1, len(names) + 1)))


def _test_table(speeds: list[SpeedComparison], aucs: list[AucComparison]) -> ReportTable:
    """Return a row per configuration that is compared with the first: ratio of speed, difference of AUC, tests."""
    rows = []
    compared = {id(speed.second): speed.second for speed in speeds} | {id(auc.second): auc.second for auc in aucs}
    for key, group in compared.items():
        speed = next((entry for entry in speeds if id(entry.second) == key), None)
        auc = next((entry for entry in aucs if id(entry.second) == key), None)
        difference = auc.difference if auc else None
        p = difference.p if difference else None
        rows.append(
            [
                group.name,
                NOT_MEASURED if speed is None else f"{speed.ratio.ratio:.3f}",
                (_interval_text(speed.ratio, 3) if speed else "") or "–",
                NOT_MEASURED if auc is None else signed(difference.mean, 5) if difference else "not comparable",
                (_interval_text(difference, 5) if difference else "") or "–",
                "–" if p is None else f"{p:.3g}",
                "–" if p is None or auc is None else auc.test,
                "–" if auc is None else " and ".join(map(str, auc.seeds)),
            ]
        )
    label = aucs[0].metric.label if aucs else METRICS[AUC].label
    difference_of = f"{label} difference"
    columns = ["Configuration", "Speed ratio", "95% interval", difference_of, "95% interval", "p", "Test", "Seeds"]
    note = (
        "Speed: ratio of global samples/s; its interval by the delta method over runs, or over stretches of one run "
        f"each where there are not two. {label}: a t-test over the seeds that both have, paired; else Welch's; "
        "two-sided, not corrected for several tests."
    )
    if any(auc.difference is None for auc in aucs):
        note += " Not comparable: evaluated on different rows, or with several figures for one seed."
    return ReportTable(columns, rows, {1, 2, 3, 4, 5, 7}, note)


def _score_table(scores: list[ScoreComparison]) -> ReportTable:
    """Return a row per pair of runs that are compared by their kept scores."""
    rows = []
    for pair in scores:
        difference = pair.difference
        p = difference.p if difference else None
        rows.append(
            [
                pair.second.name,
                pair.first.name,
                pair.split,
                count(pair.rows) if difference else "–",
                signed(difference.mean, 5) if difference else "not compared",
                (_interval_text(difference, 5) if difference else "") or "–",
                "–" if p is None else f"{p:.3g}",
                pair.reason or "–",
            ]
        )
    columns = ["Run", "Against", "Split", "Rows", "AUC difference", "95% interval", "p", "Why not"]
    note = "DeLong's paired test of two trained models by the scores that both kept (eval.keep_scores); two-sided."
    return ReportTable(columns, rows, {3, 4, 5, 6}, note)


def _make_charts(runs: list[RunFiles]) -> list[Chart]:
    """Return charts with a line per run, of the figures that at least one run has."""
    charts_by_run = [{chart.key: chart for chart in charts.run_charts(run)} for run in runs]
    # By key of a chart: the series to take of each run (None: the first), and a title in place of the chart's own.
    lines = {
        LOGLOSS: ("train", "Train logloss (BCE)"),
        **dict.fromkeys((AUC, NE, RMSE, MAE), (None, None)),
        "throughput": (None, None),
        "input_wait": (None, None),
        "memory": ("host, resident", None),
        "calibration": ("observed", None),
        "roc": ("model", None),
        "pr": ("model", None),
    }
    comparison_charts = []
    for key, (name, title) in lines.items():
        first = next((run_charts[key] for run_charts in charts_by_run if key in run_charts), None)
        if first is None:
            continue
        chart = replace(first, series=[], band=None, note="", limits=None)
        chart.title = title or chart.title
        for number, (run, run_charts) in enumerate(zip(runs, charts_by_run, strict=True)):
            all_series = run_charts[key].series if key in run_charts else []
            candidates = [series for series in all_series if series.kind != "reference" and name in (None, series.name)]
            color = RUN_COLORS[number % len(RUN_COLORS)]
            chart.series += [replace(series, name=run.name, color=color) for series in candidates[:1]]
        if key == "roc":
            chart.series.append(Series("chance", [0, 1], [0, 1], "reference", 3))
        if chart.steps:
            chart.cut_outliers()
        comparison_charts.append(chart)
    return comparison_charts


def short(text: str) -> str:
    """Cut a long hexadecimal digest short; leave other text whole."""
    is_sum = len(text) >= 40 and all(letter in "0123456789abcdef" for letter in text)
    return text[:SHORTEST] + "…" if is_sum else text
