"""The page that shows several runs side by side, and its verdict in sentences."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app.kinds.metrics import AUC, LOGLOSS, MAE, METRICS, NE, RMSE
from app.record.documents import DONE
from app.report import charts, compare
from app.report.charts import Chart, Series
from app.report.compare import (
    SIGNIFICANT,
    AucComparison,
    RunGroup,
    ScoreComparison,
    SpeedComparison,
)
from app.report.page import ASSETS, render
from app.report.read import RunFiles
from app.report.speed import COLORS, energy, step_parts
from app.report.statistics import MeanDifference, Ratio
from app.report.tables import ReportTable
from app.report.words import NOT_MEASURED, count, devices, figure, precision, signed, size

NONE = "–"
MAX_NAME = 80  # characters in a page's name
RUN_COLORS = (0, 1, 2, 4, 5, 6, 7)  # 3 is for references
SHORTEST = 18  # characters of a hash or value shown in a cell


def page_name(directories: Sequence[Path]) -> str:
    """Return the file name of a comparison: the runs' names, with a digest if they are not unambiguous."""
    names = [path.resolve().name for path in directories]
    whole = "-".join(["compare", *(re.sub(r"[^\w.-]", "_", name) for name in names)])
    is_plain = all(re.fullmatch(r"[\w.]+", name) for name in names)
    if is_plain and len(whole) <= MAX_NAME and len({path.resolve().parent for path in directories}) == 1:
        return f"{whole}.html"
    digest = hashlib.sha256("\n".join(str(path.resolve()) for path in directories).encode()).hexdigest()[:8]
    return f"{whole[: MAX_NAME - len(digest) - 1]}-{digest}.html"


class Comparison:
    """A comparison of several runs, as sentences and as a page."""

    def __init__(self, runs: list[RunFiles]) -> None:
        self.runs, self.groups = runs, compare.group(runs)
        base, others = self.groups[0], self.groups[1:]
        self.base = base
        self.speeds = [speed for other in others if (speed := compare.compare_speed(base, other))]
        self.aucs = [auc for other in others if (auc := compare.compare_auc(base, other))]
        self.scores = [scores for other in others if (scores := compare.compare_scores(base, other))]

    def sentences(self) -> list[tuple[str, str]]:
        """Return the verdict; each sentence has a kind: good, bad or plain."""
        sentences = [
            ("bad", f"{run.name} is {run.status}: its figures are not final, and no test counts them.")
            for run in self.runs
            if run.status not in DONE
        ]
        if len(self.groups) == 1:
            sentences.append(("plain", f"{len(self.runs)} runs of one configuration" + _spread(self.base) + "."))
            sentences += [("bad", f"Not reproduced: {reason}.") for reason in compare.contradictions(self.base)]
        sentences += [("plain", _describe_speed(speed)) for speed in self.speeds]
        sentences += [("bad" if auc.difference is None else "plain", _describe_auc(auc)) for auc in self.aucs]
        return [*sentences, *(_describe_scores(scores) for scores in self.scores)]

    @property
    def _names(self) -> list[str]:
        """Each run's name, with the letter of its configuration."""
        labels = {id(run): group.label for group in self.groups for run in group.runs}
        return [f"{labels[id(run)]}: {run.name}" for run in self.runs]

    def overview(self) -> ReportTable:
        """Return the status, seed, metrics and rate of each run."""
        return _overview(self.runs, self._names)

    def page(self, directory: Path) -> str:
        """Return the page as HTML."""
        differing, same = compare.differences(self.runs)
        charts_ = _charts(self.runs)
        names = self._names
        return render(
            ASSETS / "compare.html.j2",
            directory,
            charts_,
            title=f"{len(self.runs)} runs side by side",
            sentences=self.sentences(),
            overview=self.overview(),
            speeds=_speeds(self.runs, names),
            base=self.base.name,
            tests=_tests(self.speeds, self.aucs),
            row_by_row=_row_by_row(self.scores),
            differing=ReportTable(["Key", *names], [[key, *map(short, row)] for key, row in differing.items()], set()),
            same=ReportTable(["Key", "All runs"], [[key, value] for key, value in same.items()], set()),
            side=charts_,
            thinned=next(filter(None, map(charts.thinned, self.runs)), ""),
        )


def _spread(group: RunGroup) -> str:
    """Return the lowest and highest main metric and rate of one configuration's runs."""
    values = [value for run in group.finished if (value := run.evaluation.main_value) is not None]
    rates = [run.throughput.samples_per_second for run in group.runs if run.throughput.samples_per_second]
    label = METRICS[group.runs[0].evaluation.main].label
    text = f", {label} from {min(values):.4f} to {max(values):.4f}" if values else ""
    if len(rates) < 2:
        return text
    ratio = max(rates) / min(rates)
    return f"{text}, global samples/s from {count(min(rates))} to {count(max(rates))} ({ratio:.2f} ×)"


def _interval(value: Ratio | MeanDifference, digits: int) -> str:
    if value.low is None or value.high is None:
        return ""
    return f"{figure(value.low, digits)} to {figure(value.high, digits)}"


def _describe_speed(speed: SpeedComparison) -> str:
    interval = _interval(speed.ratio, 3)
    text = f" (95% interval {interval})" if interval else " (no interval)"
    rates = " and ".join(_rates(group) for group in (speed.second, speed.first))
    return (
        f"Speed: {speed.second.name} runs at {speed.ratio.ratio:.3f} × {speed.first.name}{text}, with {rates} global "
        f"samples/s, over {speed.over}."
    )


def _rates(group: RunGroup) -> str:
    """Return the lowest and highest rate of a configuration's runs, or the only one."""
    rates = [rate for run in group.runs if (rate := run.throughput.samples_per_second)]
    return " to ".join(dict.fromkeys(map(count, (min(rates), max(rates)))))


def _describe_auc(auc: AucComparison) -> str:
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
        f"{text}, {verdict_} (p = {difference.p:.3g}, {auc.test} over {_seeds(auc)}, 95% interval "
        f"{_interval(difference, 5)})."
    )


def _describe_scores(scores: ScoreComparison) -> tuple[str, str]:
    """Describe DeLong's test of two runs."""
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
        f"{text}, {verdict_} (p = {difference.p:.3g}, DeLong's paired test, 95% interval {_interval(difference, 5)}); "
        "of these two models, not of other seeds."
    )


def _seeds(auc: AucComparison) -> str:
    first, second = auc.seeds
    return f"the {first} seeds of both" if auc.test.startswith("paired") else f"{first} and {second} seeds"


def _overview(runs: list[RunFiles], names: list[str]) -> ReportTable:
    metrics = tuple(dict.fromkeys(key for run in runs for key in run.evaluation.compared))
    rows = [
        [
            name,
            run.status,
            str(run.config["train"]["seed"]),
            *(figure(run.evaluation.figure(key)) for key in metrics),
            count(run.throughput.samples_per_second),
        ]
        for run, name in zip(runs, names, strict=True)
    ]
    columns = ["Run", "Status", "Seed", *(METRICS[key].title for key in metrics), "Samples/s, global"]
    note = "One letter: one configuration, whose runs differ in nothing but their seed."
    return ReportTable(columns, rows, set(range(2, len(columns))), note)


def _speed_of(run: RunFiles) -> dict[str, str]:
    """Return what a run was trained on and how fast, by the names of the rows."""
    rates, memory = run.throughput, run.memory
    parts = {part.name: f"{part.milliseconds:,.2f} ms" for part in step_parts(run)}
    return {
        "Device": devices(run.manifest),
        "Precision": precision(run.config),
        "Global batch": count(run.global_batch_size),
        "Samples/s, global": count(rates.samples_per_second),
        "Samples/s per device": count(rates.samples_per_second_per_device),
        "Step, p50": NOT_MEASURED if rates.step_ms_p50 is None else f"{figure(rates.step_ms_p50, 2)} ms",
        "Step, p95": NOT_MEASURED if rates.step_ms_p95 is None else f"{figure(rates.step_ms_p95, 2)} ms",
        **{f"Mean step, {name}": parts.get(name, NONE) for name in COLORS},
        "Peak memory, host": size(memory.host_peak_bytes),
        "Peak memory, device": NONE if memory.device_peak_bytes is None else size(memory.device_peak_bytes),
        "Samples a second and watt": energy(run).partition(",")[0],
    }


def _speeds(runs: list[RunFiles], names: list[str]) -> ReportTable:
    every = [_speed_of(run) for run in runs]
    rows = [[row, *(of_run[row] for of_run in every)] for row in every[0]]
    return ReportTable(["", *names], [row for row in rows if set(row[1:]) != {NONE}], set(range(1, len(names) + 1)))


def _tests(speeds: list[SpeedComparison], aucs: list[AucComparison]) -> ReportTable:
    rows = []
    others = {id(e.second): e.second for e in speeds} | {id(e.second): e.second for e in aucs}
    for key, other in others.items():
        speed = next((entry for entry in speeds if id(entry.second) == key), None)
        auc = next((entry for entry in aucs if id(entry.second) == key), None)
        difference = auc.difference if auc else None
        p = difference.p if difference else None
        rows.append(
            [
                other.name,
                NOT_MEASURED if speed is None else f"{speed.ratio.ratio:.3f}",
                (_interval(speed.ratio, 3) if speed else "") or "–",
                NOT_MEASURED if auc is None else signed(difference.mean, 5) if difference else "not comparable",
                (_interval(difference, 5) if difference else "") or "–",
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


def _row_by_row(scores: list[ScoreComparison]) -> ReportTable:
    rows = []
    for each in scores:
        difference = each.difference
        p = difference.p if difference else None
        rows.append(
            [
                each.second.name,
                each.first.name,
                each.split,
                count(each.rows) if difference else "–",
                signed(difference.mean, 5) if difference else "not compared",
                (_interval(difference, 5) if difference else "") or "–",
                "–" if p is None else f"{p:.3g}",
                each.reason or "–",
            ]
        )
    columns = ["Run", "Against", "Split", "Rows", "AUC difference", "95% interval", "p", "Why not"]
    note = "DeLong's paired test of two trained models by the scores that both kept (eval.keep_scores); two-sided."
    return ReportTable(columns, rows, {3, 4, 5, 6}, note)


def _charts(runs: list[RunFiles]) -> list[Chart]:
    every = [{chart.key: chart for chart in charts.run_charts(run)} for run in runs]
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
        first = next((of_run[key] for of_run in every if key in of_run), None)
        if first is None:
            continue
        chart = replace(first, series=[], band=None, note="", limits=None)
        chart.title = title or chart.title
        for number, (run, of_run) in enumerate(zip(runs, every, strict=True)):
            lines_of_run = of_run[key].series if key in of_run else []
            series_of_run = [s for s in lines_of_run if s.kind != "reference" and name in (None, s.name)]
            chart.series += [
                replace(series, name=run.name, color=RUN_COLORS[number % len(RUN_COLORS)])
                for series in series_of_run[:1]
            ]
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
