"""importance.json of a run, and its part of the report."""

from app.config.kinds import METRICS, Additions, FoldedTable
from app.metrics.documents import EvaluationFigures, rest
from app.report.page import ReportTable
from app.report.read import RunFiles, count, figure, percent, signed
from common.documents import Json, Number, OpenDocument, convert, read_document

IMPORTANCE = "importance.json"


class Feature(OpenDocument, kw_only=True):
    """The cost of permuting a feature among the rows.

    Attributes:
        loss: by how much the metric worsens, the mean over permutations; low, high: its 95% interval by Student's t, of
            the permutations alone, not of the choice of rows.
        unknown: share of the split's values without an id of their own; None for dense features, or if not counted.
        norm: mean 2-norm of the rows of the feature's own table after training; None without one.
    """

    name: str
    loss: Number
    low: Number | None
    high: Number | None
    unknown: Number | None
    norm: Number | None
    rest: Json = rest()


class Importance(OpenDocument, kw_only=True):
    """importance.json: importances of a run's features, the largest first, and metrics by value of columns.

    Attributes:
        checkpoint, step: the model. split, rows, of_rows: the rows that it scored, out of those of the split.
        metric, value: the metric by which the model is judged, and its value on these rows.
        missing: features that were not permuted for lack of time.
        slices: by column, the metrics of each value's rows, the most frequent value first.
    """

    checkpoint: str
    step: int
    split: str
    rows: int
    of_rows: int
    repeats: int
    seed: int
    metric: str
    value: Number
    features: list[Feature]
    missing: list[str]
    slices: dict[str, list[Json]]
    rest: Json = rest()


ABSENT = "–"


def additions(run: RunFiles) -> Additions:
    """Return the tables for a run's importance.json; none without it."""
    remedy = f"remove it, or write it again by python -m extensions.importance run={run.directory}"
    try:
        measured = read_document(run.directory / IMPORTANCE, Importance, remedy)
    except FileNotFoundError:
        return Additions([], [], [])
    slices = (_slice_table(measured, column, values) for column, values in measured.slices.items())
    return Additions([], [], [_feature_table(measured), *slices])


def _scope_text(measured: Importance) -> str:
    """Return which rows and model the figures are of."""
    return f"{measured.rows:,} of {measured.of_rows:,} rows of {measured.split}, the model of step {measured.step:,}"


def _feature_table(measured: Importance) -> FoldedTable:
    """Return the table of all features, those without figures last."""
    label = METRICS[measured.metric].label
    note = (
        f"The change of {label} ({figure(measured.value)}) for the worse when a feature's values are permuted among "
        f"rows: the mean of {measured.repeats} permutations, and half of its 95% interval, which is of the "
        "permutations, not of the choice of rows. Features that tell the same share their importance. Unknown: the "
        "split's values without an id of their own. Norm: the mean 2-norm of the rows of the feature's table."
    )
    rows = [_feature_cells(feature) for feature in measured.features]
    rows += [[name, "no time left", ABSENT, ABSENT, ABSENT] for name in measured.missing]
    table = ReportTable(["Feature", f"{label} lost", "±", "Unknown", "Norm"], rows, {1, 2, 3, 4}, note)
    return FoldedTable(
        f"What mattered: {label} lost without each feature ({_scope_text(measured)})", "What mattered", [table]
    )


def _feature_cells(feature: Feature) -> list[str]:
    """Return a feature's row of the table: its name, the loss and half of its interval, unknown values, norm."""
    has_interval = feature.low is not None and feature.high is not None
    return [
        feature.name,
        signed(feature.loss, 4),
        f"{(feature.high - feature.low) / 2:.4f}" if has_interval else ABSENT,  # type: ignore[operator]
        ABSENT if feature.unknown is None else percent(feature.unknown),
        ABSENT if feature.norm is None else f"{feature.norm:.3g}",
    ]


def _slice_table(measured: Importance, column: str, values: list[Json]) -> FoldedTable:
    """Return the table of a column's slices; values: metrics of the rows of each value."""
    names = [metric.name for metric in METRICS.values() if metric.logged and not metric.over]
    rows = []
    for value in values:
        entries = {key: entry for key, entry in value.items() if key != "value"}
        evaluated = convert(entries, EvaluationFigures)
        metrics = (evaluated.figure(name) for name in names)
        texts = (ABSENT if metric is None else figure(metric) for metric in metrics)
        rows.append([str(value["value"]), count(evaluated.samples), *texts])
    # Labels decide which metrics there are, so columns without any value are left out.
    kept = [place for place in range(len(names) + 2) if place < 2 or any(row[place] != ABSENT for row in rows)]
    columns = [column, "Rows", *(METRICS[name].title for name in names)]
    table = ReportTable(
        [columns[place] for place in kept], [[row[place] for place in kept] for row in rows], {*range(1, len(kept))}
    )
    return FoldedTable(f"Metrics by value of {column} ({_scope_text(measured)})", f"Metrics by {column}", [table])
