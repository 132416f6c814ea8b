"""The verdict on a run, and its charts: report.js draws them; a screen reader gets text and a table."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from msgspec import Struct

from app.config.kinds import (
    ACCURACY,
    AUC,
    BASE_RATE,
    COMPARED,
    LABEL_DEVIATION,
    LOGLOSS,
    MAE,
    METRICS,
    NE,
    PUBLISHED,
    RMSE,
    additions,
)
from app.metrics.documents import Curves, EvaluationEvent, StepTimeHistogram, TrainEvent
from app.metrics.quality import shortcomings
from app.report.read import METERS, NOT_MEASURED, UNFINISHED, RunFiles, count, figure, plural, signed
from common.documents import Json, convert

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
    # Scores on the labels that were drawn share their chance with the run's; an expectation does not.
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
    scope = f"{evaluation.split}, {count(evaluation.figure('samples'))} samples"
    accuracy = f"; AUC ± {error:.4f} (standard error, DeLong)" if error else ""
    remark = (scope if run.is_evaluated else "no evaluation") + accuracy
    rows = [ComparisonRow("This run", figures, run.throughput.samples_per_second, remark)]
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
        # Who published the figures, on which data and hardware, as far as the recipe says.
        sentences = [published.get("source"), published.get("data"), published.get("hardware")]
        if published.get("num_devices") and published.get("samples_per_second"):
            sentences.append(f"speed of {plural(published['num_devices'], 'device')}")
        rows.append(
            ComparisonRow(
                "Published",
                {key: published.get(key) for key in figures},
                published.get("samples_per_second"),
                "; ".join(text for text in sentences if text),
            )
        )
    return rows


def sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return the verdict; each sentence has a kind: good, bad or plain."""
    return [_status_sentence(run), *_quality_sentences(run), *_promise_sentences(run)]


def _status_sentence(run: RunFiles) -> tuple[str, str]:
    """Return a sentence on how the run ended, with its kind."""
    work = f"{plural(run.steps, 'step')} of {run.global_batch_size:,} samples"
    early = run.summary.early_stop if run.summary else None
    sentences = {
        "completed": ("good", f"Completed: {work}{f', stopped early: {early.reason}' if early else ''}."),
        "target_reached": ("good", f"Target reached (AUC {run.config['train'].get('target_auc')}): {work}."),
        "interrupted": ("bad", f"Interrupted after {work}; the same command resumes from there."),
        "failed": ("bad", f"Failed after {work}: {_failure_reason(run)}"),
        UNFINISHED: ("bad", f"No summary after {work}: still running, or killed; the same command resumes from there."),
    }
    return sentences.get(run.status, ("plain", f"{run.status}: {work}."))


def _failure_reason(run: RunFiles) -> str:
    return (run.summary.error or "no reason recorded") if run.summary else "no reason recorded"


def _quality_sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return sentences on what the model has learned, against a constant, simpler models and the ground truth."""
    evaluation = run.evaluation
    if (rmse := evaluation.figure(RMSE)) is not None:
        return _sentences_on_numbers(run, rmse, evaluation.figure(LABEL_DEVIATION) or 0.0)
    auc, ne = evaluation.auc, evaluation.figure(NE)
    if auc is None or ne is None:
        lacks = "of a split with both classes" if run.is_evaluated else "at all"
        return [("bad", f"What the model has learned was not measured: there was no evaluation {lacks}.")]
    constant = baseline(evaluation.figure(BASE_RATE))
    is_better = ne < 1
    gain = signed((evaluation.figure(ACCURACY) or 0) - (constant[ACCURACY] or 0))
    sentences = [
        (
            "good" if is_better else "bad",
            f"{'Better' if is_better else 'No better'} than the majority class: NE {ne:.4f} against 1, AUC {auc:.4f} "
            f"against 0.5, accuracy {gain}.",
        )
    ]
    keeps_best = bool((run.config.get("checkpoint") or {}).get("keep_best"))
    sentences += [sentence for addition in additions(run) for sentence in addition.sentences]
    encoding = run.manifest.dataset.encoding
    remarks = shortcomings(run.last_evaluation, run.best, len(run.evaluations), keeps_best, encoding)
    sentences += [("bad", f"{sentence}.") for sentence in remarks]
    sentences += _data_sentences(run)
    ground_truth = truth(run)
    true_auc, true_ne = (ground_truth.figures[key] if ground_truth else None for key in (AUC, NE))
    if true_auc is not None and true_ne is not None:
        text = f"AUC {true_auc - auc:.4f} below its {true_auc:.4f}, NE {ne - true_ne:.4f} above its {true_ne:.4f}."
        sentences.append(("plain", f"Gap to the ground-truth model: {text}"))
    return sentences


def _sentences_on_numbers(run: RunFiles, rmse: float, deviation: float) -> list[tuple[str, str]]:
    """Return sentences on a model of numbers; deviation: the labels' standard deviation."""
    is_better = rmse < deviation
    figures = f"{METRICS[RMSE].label} {rmse:.4f} against {deviation:.4f}"
    words = "Better than the labels' mean" if is_better else "No better than the labels' mean"
    return [("good" if is_better else "bad", f"{words}: {figures}."), *_data_sentences(run)]


def _data_sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return the manifest's remarks on the dataset as sentences."""
    dataset = run.manifest.dataset
    lines = [*(line for line in (dataset.unseen, dataset.sampling) if line), *dataset.misleading]
    return [("bad", f"{line[0].upper()}{line[1:]}.") for line in lines]


def _promise_sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return sentences on what the recipe promises, and on the published figures."""
    published, auc = run.config.get("published") or {}, run.evaluation.auc
    recipe = published.get("recipe") or "the recipe"
    sentences = []
    min_auc = published.get("least_auc")
    # Without published data, a recipe's promise concerns the rows that it generates.
    is_generated = bool(run.manifest.dataset.bayes) or published.get("train_rows") is not None
    if min_auc is not None and auc is not None and is_generated:
        kind, verb = ("good", "Keeps") if auc >= min_auc else ("bad", "Misses")
        sentences.append((kind, f"{verb} what {recipe} promises: AUC of at least {min_auc:.4f}."))
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
            # A better figure is no failure, but no reproduction either.
            is_better = (value > reference) is METRICS[key].larger_is_better
            kind, verdict = ("plain", "Better than") if is_better else ("bad", "Does not reproduce")
            sentences.append((kind, f"{verdict} {recipe}: {difference}, tolerance ± {tolerance}."))
    return sentences


def not_comparable(run: RunFiles, published: dict[str, Any]) -> str | None:
    """Return why published figures do not apply to this run; None if they do, or if there are none."""
    rows, files = published.get("train_rows"), published.get("md5")
    if published.get("model"):
        return f"The published figures are of another model ({published['model']}), so this run is not held to them."
    if rows is None or all(published.get(key) is None for key in (*COMPARED, *TESTED, *PUBLISHED)):
        return None
    # Other files may have as many rows, so checksums decide where they are known.
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


MAX_POINTS = 2000
MIB = 2**20
OUTLIER = 3.0  # a value beyond this many times the others would flatten a chart


def thin_line(
    x: Sequence[float], y: Sequence[float | None], max_points: int = MAX_POINTS
) -> tuple[list[float], list[float | None]]:
    """Return at most `max_points` points of a line: the minimum and maximum of each stretch of equally many points.

    Peaks stay, unlike with every k-th point or with means, and points keep their x. The first and the last point stay.
    A thinned line leaves out None (not measured).
    """
    if len(x) <= max_points:
        return list(x), list(y)
    xs = np.asarray(x, np.float64)
    ys = np.array([np.nan if value is None else value for value in y], np.float64)
    finite_points = np.flatnonzero(np.isfinite(ys))
    if len(finite_points) <= max_points:
        return xs[finite_points].tolist(), ys[finite_points].tolist()
    keep = {int(finite_points[0]), int(finite_points[-1])}
    # Each stretch gives two points, and the ends of the line are two more.
    for stretch in np.array_split(finite_points, max_points // 2 - 1):
        keep |= {int(stretch[ys[stretch].argmin()]), int(stretch[ys[stretch].argmax()])}
    indices = sorted(keep)
    return xs[indices].tolist(), ys[indices].tolist()


@dataclass
class Series:
    """One line; color: its number in the palette of report.css.

    kind: line, points, dots (not joined), bars or reference (dashed).
    """

    name: str
    x: list[float]
    y: list[float | None]
    kind: str = "line"
    color: int = 0


@dataclass
class Chart:
    """One picture. `steps`: x is the step, and the cursor moves in all charts of steps together.

    `band`: names of the two series between which the chart is filled. `note`: an explanation for the reader.
    `from_zero`: the vertical axis begins at 0, so that lengths compare. `limits`: the lowest and highest value on the
    vertical axis, set if a few values beyond them would flatten the others. `absent`: why nothing was measured.
    """

    key: str
    title: str
    x: str
    y: str
    series: list[Series] = field(default_factory=list)
    note: str = ""
    steps: bool = True
    band: tuple[str, str] | None = None
    log_x: bool = False
    from_zero: bool = False
    limits: tuple[float, float] | None = None
    absent: str = ""

    def cut_outliers(self) -> None:
        """End the vertical axis before values that are several times the usual ones, and say so in the note.

        The usual ones are all but the largest twentieth of each line; all values of references and of lines of up to
        three.
        """
        usual_sizes, all_points = [], []
        for series in self.series:
            points = sorted((y, x) for x, y in zip(series.x, series.y, strict=True) if y is not None)
            is_whole = series.kind == "reference" or len(points) < 4
            sizes = sorted(abs(y) for y, _ in points)
            usual_sizes += sizes if is_whole else sizes[: len(points) - max(1, len(points) // 20)]
            all_points += [(y, x, series.name) for y, x in points]
        reach = OUTLIER * max(usual_sizes, default=0.0)
        beyond = [point for point in all_points if abs(point[0]) > reach]
        if not beyond or not reach:
            return
        drawn = [y for y, _, _ in all_points if abs(y) <= reach]
        self.limits = min(drawn), max(drawn)
        largest, x, name = max(beyond, key=lambda point: abs(point[0]))
        subject = "One value is" if len(beyond) == 1 else f"{len(beyond):,} values are"
        line = f" ({name})" if len(self.series) > 1 else ""
        place = f"the largest {largest:.4g} at {self.x} {x:,.0f}{line}"
        self.note = f"{self.note} {subject} beyond the axis, {place}.".strip()

    def measured(self) -> bool:
        """Return whether there is anything but references to draw."""
        return any(series.x for series in self.series if series.kind != "reference")

    def describe(self) -> str:
        """Describe the chart in words."""
        return f"{self.title}. " + " ".join(
            f"{series.name}: {_line_text(series)}." for series in self.series if series.x and series.kind != "reference"
        )

    def plain(self) -> Json:
        """Return the form that report.js reads, rounded to six digits."""
        content = asdict(self)
        # Steps need more digits than figures: nine digits tell a billion of them apart.
        for series in content["series"]:
            series["x"] = [float(f"{value:.9g}") for value in series["x"]]
            series["y"] = [None if value is None else float(f"{value:.6g}") for value in series["y"]]
        return content


def run_charts(run: RunFiles) -> list[Chart]:
    """Return every chart of a run; a chart without data shows that nothing was measured."""
    return [*quality_charts(run), *course_charts(run), *evaluation_charts(run)]


_CLICK_TITLES: tuple[tuple[str, str, str, str | None], ...] = (
    (LOGLOSS, "Logloss (BCE): train and {split}", "nats", LOGLOSS),
    (ACCURACY, "Accuracy: train and {split}", "share", ACCURACY),
    (AUC, "AUC of {split}", "AUC", None),
    (NE, "Normalised entropy of {split}", "NE", None),
)
_NUMBER_TITLES: tuple[tuple[str, str, str, str | None], ...] = tuple(
    (key, f"{METRICS[key].label} of {{split}}", METRICS[key].label, None) for key in (RMSE, MAE)
)


def quality_charts(run: RunFiles) -> list[Chart]:
    """Return charts of BCE and accuracy (train and evaluated split), of AUC and NE, and of gradient norms."""
    split = str(run.evaluation.split or "evaluations")
    predicts_numbers = run.evaluation.main == RMSE
    constant = baseline(run.evaluation.figure(BASE_RATE))
    if predicts_numbers:
        constant = {RMSE: run.evaluation.figure(LABEL_DEVIATION), MAE: None}
    titles = _NUMBER_TITLES if predicts_numbers else _CLICK_TITLES
    ground_truth = truth(run)
    published = run.config.get("published") or {}
    charts = []
    for key, title, y, train in titles:
        chart = Chart(key, title.format(split=split), "step", y)
        if train:
            chart.series.append(_series_of(run.windows, train, "train", 0))
            chart.note = "Train: mean over the steps of each window of the log."
        chart.series.append(_series_of(run.evaluations, key, split, 1, kind="points"))
        best = ground_truth.figures[key] if ground_truth else None
        references = (
            ("labels' mean" if predicts_numbers else "majority class", constant[key], 3),
            ("ground-truth model", best, 2),
        )
        for name, value, color in (*references, ("published", published.get(key), 4)):
            if value is not None and run.steps and not (key == AUC and name == "majority class"):
                chart.series.append(Series(name, [0, run.steps], [value, value], "reference", color))
        charts.append(chart)
    if any(event.logloss is None and event.figure("loss") is not None for event in run.windows):
        kind = run.config.get("loss", {}).get("name", "as configured")
        trained = Chart(
            "loss",
            f"Training loss ({kind})",
            "step",
            "loss",
            [_series_of(run.windows, "loss", "train", 0)],
            note="The training loss is not logloss, so train logloss was not measured.",
        )
        charts.insert(0, trained)
    charts.append(_gradient_norm_chart(run))
    for chart in charts:
        chart.cut_outliers()
    return charts


def _gradient_norm_chart(run: RunFiles) -> Chart:
    """Chart the norm of the dense gradients over the steps."""
    return Chart(
        "gradient_norm",
        "Norm of the dense gradients",
        "step",
        "2-norm",
        [_series_of(run.windows, "gradient_norm", "gradient norm", 0)],
        note="Of the last step of each window of the log, before clipping, without the gradients of tables.",
        absent="as the run has no window of the log",
    )


def course_charts(run: RunFiles) -> list[Chart]:
    """Return charts of speed and resources over the run."""
    rate = Chart("lr", "Learning rate", "step", "learning rate", [_series_of(run.windows, "lr", "learning rate", 0)])
    speed = Chart(
        "throughput",
        "Throughput",
        "step",
        "samples/s (global)",
        [_series_of(run.windows, "samples_per_second", "global samples/s", 0)],
        note="Each window of the log, warm-up included; over all processes.",
        from_zero=True,
    )
    wait = Chart(
        "input_wait",
        "Waiting for input",
        "step",
        "% of the step",
        [_series_of(run.windows, "input_wait_fraction", "input wait", 1, scale=100)],
        note="Share of each window that rank 0 spent waiting for its batch.",
        from_zero=True,
    )
    memory = Chart(
        "memory",
        "Memory of rank 0",
        "step",
        "MiB",
        [
            _series_of(run.windows, "host_bytes", "host, resident", 0, 1 / MIB),
            _series_of(run.windows, "device_bytes", "device, tensors", 1, 1 / MIB),
        ],
        from_zero=True,
    )
    memory.series = [series for series in memory.series if series.x]
    power = Chart("power", "Power", "step", "W", [_series_of(run.windows, "watts", "power", 1)], from_zero=True)
    power.absent = METERS.get(str(run.manifest.platform), "")
    over_steps = [
        rate,
        speed,
        _phase_chart(run),
        wait,
        memory,
        *([power] if power.series[0].x or run.is_of_hardware else []),
    ]
    for chart in over_steps:
        chart.cut_outliers()
    return [*over_steps[:2], _step_time_chart(run), *over_steps[2:]]


def evaluation_charts(run: RunFiles) -> list[Chart]:
    """Return calibration, scores by label, ROC and precision over recall of the last evaluation; none for numbers."""
    if run.evaluation.main == RMSE:
        return []
    curves, caption = run.curves, ""
    if curves is not None:
        caption = f"Step {curves.step:,}, split {curves.split}, {curves.samples:,} samples"
        caption += "." if curves.samples == curves.of else f" (every k-th of {curves.of:,})."
    # Chart the true positive rate over the false positive rate; empty if only one label occurs.
    chart = Chart("roc", "ROC", "false positive rate", "true positive rate", steps=False, note=caption)
    if curves is not None and curves.roc is not None:
        chart.series = [
            Series("model", [*curves.roc.fpr], [*curves.roc.tpr], "line", 0),
            Series("chance", [0, 1], [0, 1], "reference", 3),
        ]
    return [
        _reliability_chart(curves, caption),
        _score_chart(curves, caption),
        chart,
        _precision_recall_chart(run, curves, caption),
    ]


def _series_of(
    events: Sequence[TrainEvent | EvaluationEvent],
    key: str,
    name: str,
    color: int,
    scale: float = 1,
    kind: str = "line",
) -> Series:
    """Return a figure over the steps, thinned if it is long."""
    values = [(event.step, event.figure(key)) for event in events]
    points = [(step, value * scale) for step, value in values if value is not None]
    x, y = thin_line([step for step, _ in points], [value for _, value in points])
    return Series(name, x, y, kind, color)


def thinned(run: RunFiles) -> str:
    """Return a sentence about thinned lines; empty if none was thinned."""
    longest = max(len(run.windows), len(run.evaluations))
    if longest <= MAX_POINTS:
        return ""
    return (
        f"Lines of more than {MAX_POINTS:,} points (here up to {longest:,}) are drawn as the minimum and maximum "
        "of equally long stretches: no peak is lost."
    )


def _step_time_chart(run: RunFiles) -> Chart:
    """Chart the histogram of step times, with their median and 95th percentile."""
    content = run.step_times or StepTimeHistogram([], [])
    edges = np.array(content.edges_ms)
    chart = Chart(
        "step_times",
        "Step times",
        "ms (logarithmic)",
        "steps",
        steps=False,
        log_x=True,
        note="Steps that count: without warm-up, evaluation and checkpoints.",
    )
    if content.counts:
        # The axis is logarithmic, so the middle of a bin is the geometric mean of its edges.
        centres = np.sqrt(edges[:-1] * edges[1:]).tolist()
        chart.series = [Series("steps", centres, list(content.counts), "bars", 0)]
        top = max(content.counts)
        for name, key, color in (("p50", "step_ms_p50", 2), ("p95", "step_ms_p95", 1)):
            value = run.throughput.figure(key)
            if value is not None:
                chart.series.append(
                    Series(f"{name} {value:.2f} ms", [value, value * 1.000001], [0, top], "reference", color)
                )
    return chart


def _phase_chart(run: RunFiles) -> Chart:
    """Chart forward, backward, optimizer and the other phases that the run measured."""
    chart = Chart(
        "phases",
        "Phases of a step",
        "step",
        "ms",
        from_zero=True,
        note="Means over the sampled steps of each window of the log.",
    )
    phases = [(event.step, event.phase_seconds) for event in run.windows if event.phase_seconds]
    for color, name in enumerate(phases[-1][1] if phases else ()):
        points = [(step, seconds.get(name)) for step, seconds in phases]
        measurements = [(step, seconds * 1e3) for step, seconds in points if seconds is not None]
        x, y = thin_line([step for step, _ in measurements], [value for _, value in measurements])
        chart.series.append(Series(name, x, y, "line", (0, 1, 2, 4, 5, 6, 7)[color % 7]))
    return chart


def _reliability_chart(curves: Curves | None, caption: str) -> Chart:
    """Chart the share of clicks over the predicted probability."""
    chart = Chart(
        "calibration",
        "Calibration (reliability)",
        "mean predicted probability",
        "share of clicks",
        steps=False,
        band=("95% above", "95% below"),
        note=f"{caption} 20 bins of equally many samples; band: Wilson's 95% interval.",
    )
    bins = curves.reliability if curves is not None else []
    if bins:
        x = [entry.preds for entry in bins]
        low, high = zip(*(wilson(entry.labels, entry.samples) for entry in bins), strict=True)
        end = max(*x, *(entry.labels for entry in bins))
        chart.series = [
            Series("observed", x, [entry.labels for entry in bins], "points", 0),
            Series("95% above", x, list(high), "edge", 0),
            Series("95% below", x, list(low), "edge", 0),
            Series("perfect", [0, end], [0, end], "reference", 3),
        ]
    return chart


def _score_chart(curves: Curves | None, caption: str) -> Chart:
    """Chart the densities of predicted probabilities of either label."""
    chart = Chart(
        "scores",
        "Predicted probabilities by label",
        "predicted probability",
        "density",
        steps=False,
        note=f"{caption} Each label's histogram has area 1.",
    )
    if curves is not None:
        content = curves.scores
        edges = np.array(content.edges)
        centres = ((edges[:-1] + edges[1:]) / 2).tolist()
        for samples, name, color in ((content.negative, "no click", 0), (content.positive, "click", 1)):
            # Clicks are few, so their counts would lie flat below those of the other label.
            counts = np.array(samples, np.float64)
            density = counts / max(counts.sum(), 1) / np.diff(edges)
            chart.series.append(Series(name, centres, density.tolist(), "area", color))
    return chart


def _precision_recall_chart(run: RunFiles, curves: Curves | None, caption: str) -> Chart:
    """Chart precision over recall, beside the base rate; empty if only one label occurs."""
    chart = Chart("pr", "Precision over recall", "recall", "precision", steps=False, note=caption)
    if curves is not None and curves.pr is not None:
        chart.series = [Series("model", [*curves.pr.recall], [*curves.pr.precision], "line", 0)]
        base_rate = run.evaluation.figure(BASE_RATE)
        if base_rate is not None:
            chart.series.append(Series("base rate", [0, 1], [base_rate, base_rate], "reference", 3))
    return chart


def wilson(share: float, samples: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share (Wilson 1927)."""
    # Unlike the normal interval, Wilson's stays within 0 and 1 where clicks are few.
    centre = (share + z * z / (2 * samples)) / (1 + z * z / samples)
    reach = z / (1 + z * z / samples) * np.sqrt(share * (1 - share) / samples + z * z / (4 * samples * samples))
    return float(centre - reach), float(centre + reach)


def _line_text(series: Series) -> str:
    """Describe where a line begins and ends, and its minimum and maximum."""
    pairs: Sequence[tuple[float, float]] = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    if not pairs:
        return "no values"
    low, high = min(y for _, y in pairs), max(y for _, y in pairs)
    (first, start), (last, end) = pairs[0], pairs[-1]
    return f"from {start:.4g} at {first:.6g} to {end:.4g} at {last:.6g}, minimum {low:.4g}, maximum {high:.4g}"
