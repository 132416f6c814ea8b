"""importance.json in a run's directory."""

from app.metrics.documents import rest
from common.documents import Json, Number, OpenDocument

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
    """Importances of a run's features, the largest first, and metrics by value of columns.

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
