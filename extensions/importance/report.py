"""Keys of `python -m app.importance`, importance.json of a run, and its part of the report."""

from dataclasses import dataclass, field

from app.config.commands import CHECKPOINT, DatasetConfig
from app.config.kinds import METRICS, Additions
from app.config.train import RuntimeConfig
from app.metrics.documents import EvaluationFigures
from app.report.page import ReportTable
from app.report.read import RunFiles, count, figure, percent, signed
from common.documents import Json, Number, OpenDocument, convert, read_document
from common.keys import MISSING, key


@dataclass(frozen=True)
class ImportanceConfig:
    """Configuration of `clickwork importance`."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    split: str | None = key(None, "split whose rows are scored; null: the run's eval.split", example="test")
    rows: int = key(20_000, "maximum rows, in blocks chosen by a hash of their number", at_least=1)
    repeats: int = key(5, "permutations of each feature", at_least=2)
    seed: int = key(1, "seed of the permutations", at_least=0)
    seconds: float | None = key(300.0, "time after which no further feature is begun; null: no limit", above=0)
    slices: list[str] = key([], "categorical columns; metrics by value of each", example="[user]")
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    data: DatasetConfig = field(default_factory=DatasetConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: the run's unless given


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


ABSENT = "–"


def additions(run: RunFiles) -> Additions:
    """Return the tables for a run's importance.json; none without it."""
    remedy = f"remove it, or write it again by python -m extensions.importance run={run.directory}"
    try:
        measured = read_document(run.directory / IMPORTANCE, Importance, remedy)
    except FileNotFoundError:
        return Additions([], [], [])
    scope = f"{measured.rows:,} of {measured.of_rows:,} rows of {measured.split}, the model of step {measured.step:,}"
    slices = (_slice_table(column, values, scope) for column, values in measured.slices.items())
    label, rows = METRICS[measured.metric].label, []
    for feature in measured.features:
        half = None if feature.low is None or feature.high is None else (feature.high - feature.low) / 2
        unknown = ABSENT if feature.unknown is None else percent(feature.unknown)
        norm = ABSENT if feature.norm is None else f"{feature.norm:.3g}"
        rows.append([feature.name, signed(feature.loss), ABSENT if half is None else f"{half:.4f}", unknown, norm])
    rows += [[name, "no time left", ABSENT, ABSENT, ABSENT] for name in measured.missing]
    note = (
        f"The change of {label} ({figure(measured.value)}) for the worse when a feature's values are permuted among "
        f"rows: the mean of {measured.repeats} permutations, and half of its 95% interval, which is of the "
        "permutations, not of the choice of rows. Features that tell the same share their importance. Unknown: the "
        "split's values without an id of their own. Norm: the mean 2-norm of the rows of the feature's table."
    )
    table = ReportTable(["Feature", f"{label} lost", "±", "Unknown", "Norm"], rows, {1, 2, 3, 4}, note)
    summary = f"What mattered: {label} lost without each feature ({scope})"
    return Additions([], [], [(summary, "What mattered", [table]), *slices])


def _slice_table(column: str, values: list[Json], scope: str) -> tuple[str, str, list[ReportTable]]:
    """Return the table of a column's slices, as in Additions; values: metrics of the rows of each value."""
    evaluated = [
        convert({key: entry for key, entry in value.items() if key != "value"}, EvaluationFigures) for value in values
    ]
    # Labels decide which metrics there are, so columns without any value are left out.
    metrics = [
        metric
        for metric in METRICS.values()
        if metric.logged and not metric.over and any(one.figure(metric.name) is not None for one in evaluated)
    ]
    rows = []
    for value, one in zip(values, evaluated, strict=True):
        figures = (one.figure(metric.name) for metric in metrics)
        cells = (ABSENT if number is None else figure(number) for number in figures)
        rows.append([str(value["value"]), count(one.samples), *cells])
    columns = [column, "Rows", *(metric.title for metric in metrics)]
    table = ReportTable(columns, rows, {*range(1, len(columns))})
    return f"Metrics by value of {column} ({scope})", f"Metrics by {column}", [table]
