"""The verdict on a run, and its charts: report.js draws them; a screen reader gets text and a table."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

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
from app.metrics.documents import Curves, EvaluationEvent, TrainEvent
from app.metrics.quality import shortcomings
from app.record.documents import UNFINISHED
from app.report.read import METERS, RunFiles, count, figure, plural, signed
from common.documents import Figures, Json

SAME_ROWS = 0.01  # largest relative difference in training rows for data to count as those of the publication

TESTED = tuple(f"test_{metric}" for metric in (AUC, LOGLOSS))  # keys of `published` for figures of the test split


# A row of the table of comparisons: name, figures of the evaluation's `compared` metrics, global samples/s, and remark.
ComparisonRow: TypeAlias = tuple[str, Figures, float | None, str]


def baseline(base_rate: float | None) -> dict[str, float | None]:
    """Return AUC, NE, logloss and accuracy of the constant predictor, which predicts the base rate.

    Its class is the majority's. All are None if the base rate is unknown, or only one class occurs.
    """
    if base_rate is None or not 0 < base_rate < 1:
        return dict.fromkeys(COMPARED)
    entropy = -base_rate * math.log(base_rate) - (1 - base_rate) * math.log(1 - base_rate)
    return {AUC: 0.5, NE: 1.0, LOGLOSS: entropy, ACCURACY: max(base_rate, 1 - base_rate)}


def truth(run: RunFiles) -> tuple[dict[str, float | None], str]:
    """Return AUC, NE, logloss and accuracy of a synthetic dataset's ground-truth model, and the rows that they cover.

    Both are empty without such a model. The figures are for the labels drawn for the evaluated split, if the dataset
    knows its splits; in expectation otherwise.
    """
    bayes: dict[str, Any] = run.manifest.dataset.bayes or {}
    if not bayes:
        return {}, ""
    # Scores on the labels that were drawn share their chance with the run's; an expectation does not.
    drawn = (bayes.get("splits") or {}).get(str(run.evaluation.split)) or {}
    auc, logloss = drawn.get("sampled_auc"), drawn.get("sampled_logloss")
    entropy = baseline(run.evaluation.figure(BASE_RATE))[LOGLOSS]
    if auc is None or logloss is None or entropy is None:
        return {key: bayes.get(key) for key in (AUC, NE, LOGLOSS, ACCURACY)}, f"all {count(bayes.get('rows'))} rows"
    figures = {AUC: auc, NE: logloss / entropy, LOGLOSS: logloss, ACCURACY: None}
    return figures, f"the same {count(drawn.get('rows'))} rows"


def comparisons(run: RunFiles) -> list[ComparisonRow]:
    """Return rows for this run, the constant predictor, the ground-truth model and the recipe's source, if any."""
    evaluation = run.evaluation
    figures = {key: evaluation.figure(key) for key in evaluation.compared}
    error = run.auc_standard_error
    scope = f"{evaluation.split}, {count(evaluation.figure('samples'))} samples"
    accuracy = f"; AUC ± {error:.4f} (standard error, DeLong)" if error else ""
    remark = (scope if run.is_evaluated else "no evaluation") + accuracy
    rows: list[ComparisonRow] = [("This run", figures, run.rate, remark)]
    if RMSE in figures:
        name, remark = "Mean", "the labels' mean predicted for each row: must be beaten"
        constant = {**dict.fromkeys(figures), RMSE: evaluation.figure(LABEL_DEVIATION)}
    else:
        name, remark = "Majority class", "the base rate predicted for everybody: must be beaten"
        constant = baseline(evaluation.figure(BASE_RATE))
    rows.append((name, constant, None, remark))
    rows += [row for addition in additions(run) for row in addition.comparisons]
    best_possible, rows_of_truth = truth(run)
    if best_possible:
        remark = f"the true probabilities of {rows_of_truth}: cannot be beaten but by chance"
        rows.append(("Ground-truth model", best_possible, None, remark))
    published = run.config["published"]
    if published.get("source") or any(published.get(key) is not None for key in (*figures, "samples_per_second")):
        # Who published the figures, on which data and hardware, as far as the recipe says.
        origin = [published.get("source"), published.get("data"), published.get("hardware")]
        rate = published.get("samples_per_second")
        if published.get("num_devices") and rate:
            origin.append(f"speed of {plural(published['num_devices'], 'device')}")
        remark = "; ".join(text for text in origin if text)
        rows.append(("Published", {key: published.get(key) for key in figures}, rate, remark))
    return rows


def sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return the verdict; each sentence has a kind: good, bad or plain."""
    work = f"{plural(run.steps, 'step')} of {run.global_batch_size:,} samples"
    early = run.summary.early_stop if run.summary else None
    error = run.summary.error if run.summary else None
    endings = {
        "completed": ("good", f"Completed: {work}{f', stopped early: {early.reason}' if early else ''}."),
        "target_reached": ("good", f"Target reached (AUC {run.config['train'].get('target_auc')}): {work}."),
        "interrupted": ("bad", f"Interrupted after {work}; the same command resumes from there."),
        "failed": ("bad", f"Failed after {work}: {error or 'no reason recorded'}"),
        UNFINISHED: ("bad", f"No summary after {work}: still running, or killed; the same command resumes from there."),
    }
    ending = endings.get(run.status, ("plain", f"{run.status}: {work}."))
    return [ending, *_quality_sentences(run), *_promise_sentences(run)]


def _quality_sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return sentences on what the model has learned, against a constant, simpler models and the ground truth."""
    evaluation, dataset = run.evaluation, run.manifest.dataset
    remarks = [text for text in (dataset.unseen, dataset.sampling, *dataset.misleading) if text]
    on_data = [("bad", f"{text[0].upper()}{text[1:]}.") for text in remarks]
    if (rmse := evaluation.figure(RMSE)) is not None:
        deviation = evaluation.figure(LABEL_DEVIATION) or 0.0
        kind, verdict = ("good", "Better") if rmse < deviation else ("bad", "No better")
        text = f"{verdict} than the labels' mean: {METRICS[RMSE].label} {rmse:.4f} against {deviation:.4f}."
        return [(kind, text), *on_data]
    auc, ne = evaluation.auc, evaluation.figure(NE)
    if auc is None or ne is None:
        lacks = "of a split with both classes" if run.is_evaluated else "at all"
        return [("bad", f"What the model has learned was not measured: there was no evaluation {lacks}.")]
    kind, verdict = ("good", "Better") if ne < 1 else ("bad", "No better")
    majority = baseline(evaluation.figure(BASE_RATE))[ACCURACY] or 0
    gain = signed((evaluation.figure(ACCURACY) or 0) - majority)
    figures = f"NE {ne:.4f} against 1, AUC {auc:.4f} against 0.5, accuracy {gain}"
    sentences = [(kind, f"{verdict} than the majority class: {figures}.")]
    sentences += [sentence for addition in additions(run) for sentence in addition.sentences]
    keeps_best = bool(run.config["checkpoint"].get("keep_best"))
    faults = shortcomings(run.last_evaluation, run.best, len(run.evaluations), keeps_best, dataset.encoding)
    sentences += [*(("bad", f"{fault}.") for fault in faults), *on_data]
    best_possible, _ = truth(run)
    true_auc, true_ne = best_possible.get(AUC), best_possible.get(NE)
    if true_auc is not None and true_ne is not None:
        text = f"AUC {true_auc - auc:.4f} below its {true_auc:.4f}, NE {ne - true_ne:.4f} above its {true_ne:.4f}."
        sentences.append(("plain", f"Gap to the ground-truth model: {text}"))
    return sentences


def _promise_sentences(run: RunFiles) -> list[tuple[str, str]]:
    """Return sentences on what the recipe promises, and on the published figures."""
    published, auc = run.config["published"], run.evaluation.auc
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
    rows, files, data = published.get("train_rows"), published.get("md5"), published.get("data")
    own_rows = run.manifest.dataset.rows.get("train")
    if published.get("model"):
        others = f"of another model ({published['model']})"
    elif rows is None or all(published.get(key) is None for key in (*COMPARED, *TESTED, *PUBLISHED)):
        return None
    # Other files may have as many rows, so checksums decide where they are known.
    elif files and sorted(run.manifest.dataset.source_md5 or ()) != sorted(files):
        others = f"for other files ({data}, by their MD5)"
    elif own_rows is None or abs(own_rows - rows) > SAME_ROWS * rows:
        others = f"for other data ({data or 'another dataset'}, {count(rows)} training rows; here {count(own_rows)})"
    else:
        return None
    return f"The published figures are {others}, so this run is not held to them."


MIB = 2**20
OUTLIER = 3.0  # a value beyond this many times the others would flatten a chart


@dataclass
class Series:
    """One line; color: its number in the palette of report.css.

    kind: line, points (joined), dots (not joined), bars, area, edge (invisible, an end of `Chart.band`) or reference
    (dashed).
    """

    name: str
    x: list[float]
    y: list[float]
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
            sizes = sorted(map(abs, series.y))
            is_whole = series.kind == "reference" or len(sizes) < 4
            usual_sizes += sizes if is_whole else sizes[: len(sizes) - max(1, len(sizes) // 20)]
            all_points += [(y, x, series.name) for x, y in zip(series.x, series.y, strict=True)]
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
        """Return whether a line other than a reference has points."""
        return any(series.x for series in self.series if series.kind != "reference")

    def describe(self) -> str:
        """Describe in words where each line begins and ends, and its minimum and maximum."""
        lines = [self.title]
        for series in self.series:
            if series.x and series.kind != "reference":
                course = f"from {series.y[0]:.4g} at {series.x[0]:.6g} to {series.y[-1]:.4g} at {series.x[-1]:.6g}"
                lines.append(f"{series.name}: {course}, minimum {min(series.y):.4g}, maximum {max(series.y):.4g}")
        return " ".join(f"{line}." for line in lines)

    def plain(self) -> Json:
        """Return the fields as report.js reads them, x rounded to nine digits and y to six."""
        content = asdict(self)
        # Steps need more digits than figures: nine digits tell a billion of them apart.
        for series in content["series"]:
            series["x"] = [float(f"{value:.9g}") for value in series["x"]]
            series["y"] = [float(f"{value:.6g}") for value in series["y"]]
        return content


def quality_charts(run: RunFiles) -> list[Chart]:
    """Return charts of BCE and accuracy (train and evaluated split), of AUC and NE, and of gradient norms."""
    split = str(run.evaluation.split or "evaluations")
    if run.evaluation.main == RMSE:
        constant, constant_figures = "labels' mean", {RMSE: run.evaluation.figure(LABEL_DEVIATION)}
        titles = [(key, f"{METRICS[key].label} of {split}", METRICS[key].label) for key in (RMSE, MAE)]
    else:
        constant, constant_figures = "majority class", {**baseline(run.evaluation.figure(BASE_RATE)), AUC: None}
        titles = [
            (LOGLOSS, f"Logloss (BCE): train and {split}", "nats"),
            (ACCURACY, f"Accuracy: train and {split}", "share"),
            (AUC, f"AUC of {split}", "AUC"),
            (NE, f"Normalised entropy of {split}", "NE"),
        ]
    # Names and figures of the references, and their colors.
    sources = (
        (constant, constant_figures, 3),
        ("ground-truth model", truth(run)[0], 2),
        ("published", run.config["published"], 4),
    )
    charts = []
    if any(event.logloss is None and event.figure("loss") is not None for event in run.windows):
        title = f"Training loss ({run.config.get('loss', {}).get('name', 'as configured')})"
        note = "The training loss is not logloss, so train logloss was not measured."
        charts.append(Chart("loss", title, "step", "loss", [_series_of(run.windows, "loss", "train", 0)], note))
    for key, title, y in titles:
        chart = Chart(key, title, "step", y)
        if key in (LOGLOSS, ACCURACY):
            chart.series.append(_series_of(run.windows, key, "train", 0))
            chart.note = "Train: mean over the steps of each window of the log."
        chart.series.append(_series_of(run.evaluations, key, split, 1, kind="points"))
        for name, figures, color in sources:
            if (value := figures.get(key)) is not None and run.steps:
                chart.series.append(Series(name, [0, run.steps], [value, value], "reference", color))
        charts.append(chart)
    norms = _series_of(run.windows, "gradient_norm", "gradient norm", 0)
    note = "Of the last step of each window of the log, before clipping, without the gradients of tables."
    charts.append(Chart("gradient_norm", "Norm of the dense gradients", "step", "2-norm", [norms], note))
    charts[-1].absent = "as the run has no window of the log"
    for chart in charts:
        chart.cut_outliers()
    return charts


def course_charts(run: RunFiles) -> list[Chart]:
    """Return charts of learning rate, speed, phases, input wait, memory and power by step, and of step times."""
    windows, step = run.windows, "step"
    rates = _series_of(windows, "lr", "learning rate", 0)
    speed = _series_of(windows, "samples_per_second", "global samples/s", 0)
    wait = _series_of(windows, "input_wait_fraction", "input wait", 1, scale=100)
    host = _series_of(windows, "host_bytes", "host, resident", 0, 1 / MIB)
    device = _series_of(windows, "device_bytes", "device, tensors", 1, 1 / MIB)
    watts = _series_of(windows, "watts", "power", 1)
    timed = [(event.step, event.phase_seconds) for event in windows if event.phase_seconds]
    # Color 3 is for references, as in compare.RUN_COLORS.
    phases = [
        _line([(step, seconds.get(name)) for step, seconds in timed], name, (0, 1, 2, 4, 5, 6, 7)[number % 7], 1e3)
        for number, name in enumerate(timed[-1][1] if timed else ())
    ]
    of_speed = "Each window of the log, warm-up included; over all processes."
    of_phases = "Means over the sampled steps of each window of the log."
    of_wait = "Share of each window that rank 0 spent waiting for its batch."
    charts = [
        Chart("throughput", "Throughput", step, "samples/s (global)", [speed], of_speed),
        Chart("phases", "Phases of a step", step, "ms", phases, of_phases),
        Chart("input_wait", "Waiting for input", step, "% of the step", [wait], of_wait),
        Chart("memory", "Memory of rank 0", step, "MiB", [series for series in (host, device) if series.x]),
    ]
    if watts.x or run.compares_machines:
        absent = METERS.get(str(run.manifest.platform), "")
        charts.append(Chart("power", "Power", step, "W", [watts], absent=absent))
    for chart in charts:
        chart.from_zero = True
    # In the order of the page the learning rate is first, and step times follow the throughput.
    charts.insert(0, Chart("lr", "Learning rate", step, "learning rate", [rates]))
    for chart in charts:
        chart.cut_outliers()
    charts.insert(2, _step_time_chart(run))
    return charts


def evaluation_charts(run: RunFiles) -> list[Chart]:
    """Return calibration, scores by label, ROC and precision over recall of the last evaluation; none for numbers."""
    if run.evaluation.main == RMSE:
        return []
    curves, caption = run.curves, ""
    if curves is not None:
        caption = f"Step {curves.step:,}, split {curves.split}, {curves.samples:,} samples"
        caption += "." if curves.samples == curves.of else f" (every k-th of {curves.of:,})."
    x, y = "mean predicted probability", "share of clicks"
    note = f"{caption} 20 bins of equally many samples; band: Wilson's 95% interval."
    calibration = Chart("calibration", "Calibration (reliability)", x, y, [], note, steps=False)
    calibration.band = ("95% above", "95% below")
    x, y, note = "predicted probability", "density", f"{caption} Each label's histogram has area 1."
    scores = Chart("scores", "Predicted probabilities by label", x, y, [], note, steps=False)
    roc = Chart("roc", "ROC", "false positive rate", "true positive rate", [], caption, steps=False)
    precision = Chart("pr", "Precision over recall", "recall", "precision", [], caption, steps=False)
    if curves is not None:
        edges, series = np.array(curves.scores["edges"]), []
        for label, name, color in (("negative", "no click", 0), ("positive", "click", 1)):
            # Clicks are few, so their counts would lie flat below those of the other label.
            counts = np.array(curves.scores[label], np.float64)
            density = counts / max(counts.sum(), 1) / np.diff(edges)
            series.append(Series(name, ((edges[:-1] + edges[1:]) / 2).tolist(), density.tolist(), "area", color))
        calibration.series, scores.series = _calibration_series(curves), series
        # Both curves are absent if only one label occurs.
        if curves.roc is not None:
            roc.series.append(Series("model", curves.roc["fpr"], curves.roc["tpr"], "line", 0))
            roc.series.append(Series("chance", [0, 1], [0, 1], "reference", 3))
        if curves.pr is not None:
            precision.series.append(Series("model", curves.pr["recall"], curves.pr["precision"], "line", 0))
            if (base_rate := run.evaluation.figure(BASE_RATE)) is not None:
                precision.series.append(Series("base rate", [0, 1], [base_rate, base_rate], "reference", 3))
    return [calibration, scores, roc, precision]


def _calibration_series(curves: Curves) -> list[Series]:
    """Return the share of clicks over the predicted probability, both ends of its interval, and perfect calibration."""
    bins = curves.reliability
    if not bins:
        return []
    x, shares = [entry["preds"] for entry in bins], [entry["labels"] for entry in bins]
    low, high = zip(*(wilson(entry["labels"], entry["samples"]) for entry in bins), strict=True)
    end = max(*x, *shares)
    return [
        Series("observed", x, shares, "points", 0),
        Series("95% above", x, list(high), "edge", 0),
        Series("95% below", x, list(low), "edge", 0),
        Series("perfect", [0, end], [0, end], "reference", 3),
    ]


def _step_time_chart(run: RunFiles) -> Chart:
    """Chart the histogram of step times, with their median and 95th percentile."""
    note = "Steps that count: without warm-up, evaluation and checkpoints."
    chart = Chart("step_times", "Step times", "ms (logarithmic)", "steps", [], note, steps=False, log_x=True)
    if run.step_times is not None and run.step_times.counts:
        # The axis is logarithmic, so the middle of a bin is the geometric mean of its edges.
        edges, counts = np.array(run.step_times.edges_ms), run.step_times.counts
        chart.series.append(Series("steps", np.sqrt(edges[:-1] * edges[1:]).tolist(), list(counts), "bars", 0))
        for name, color in (("p50", 2), ("p95", 1)):
            if (value := run.throughput[f"step_ms_{name}"]) is not None:
                # In report.js a line has one value at each x, so the ends of an upright one lie side by side.
                x = [value, value * 1.000001]
                chart.series.append(Series(f"{name} {value:.2f} ms", x, [0, max(counts)], "reference", color))
    return chart


def wilson(share: float, samples: float, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's 95% interval (Wilson 1927) of a share [0, 1] of samples; z: the normal quantile."""
    # Unlike the normal interval, Wilson's stays within 0 and 1 where clicks are few.
    centre = (share + z * z / (2 * samples)) / (1 + z * z / samples)
    reach = z / (1 + z * z / samples) * np.sqrt(share * (1 - share) / samples + z * z / (4 * samples * samples))
    return float(centre - reach), float(centre + reach)


def _series_of(
    events: Sequence[TrainEvent | EvaluationEvent],
    key: str,
    name: str,
    color: int,
    scale: float = 1,
    kind: str = "line",
) -> Series:
    """Return a figure of events, times `scale`, over their steps."""
    return _line([(event.step, event.figure(key)) for event in events], name, color, scale, kind)


def _line(
    points: Sequence[tuple[int, float | None]], name: str, color: int, scale: float = 1, kind: str = "line"
) -> Series:
    """Return the points with a value, times `scale`, as a line."""
    measured = [(step, value) for step, value in points if value is not None]
    return Series(name, [step for step, _ in measured], [value * scale for _, value in measured], kind, color)
