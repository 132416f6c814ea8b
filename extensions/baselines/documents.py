"""The figures of baselines: `baselines` of summary.json."""

from msgspec import field

from app.metrics.documents import rest
from common.documents import Json, Number, OpenDocument


class Baseline(OpenDocument, kw_only=True):
    """A simple model's figures on the evaluated split; seconds: to fit and score it; rows: that it learned from.

    difference: the AUC of the run's model minus this one's on the rows that both scored; difference_interval: its ends
    at 95% by DeLong's test, None with fewer than two rows of a label.
    """

    auc: Number | None
    ne: Number | None
    seconds: Number | None
    rows: int | None
    difference: Number | None = None
    difference_interval: list[Number] | None = None
    rest: Json = rest()


class Baselines(OpenDocument, kw_only=True):
    """Scores of the baselines of a run; a baseline that was not computed is None.

    rows: training rows of the baselines, out of `of_rows`. eval_rows: scored rows of the split, out of
    `of_eval_rows`. compared_rows: rows of the differences; not_compared: reason if there are none. missing: reasons
    for missing baselines, by name.
    """

    split: str = ""
    rows: int
    of_rows: int
    eval_rows: int
    of_eval_rows: int
    compared_rows: int | None = None
    not_compared: str | None = None
    missing: dict[str, str] = field(default_factory=dict)
    base_rate: Baseline | None = None
    columns: Baseline | None = None
    lr: Baseline | None = None
    trees: Baseline | None = None
    rest: Json = rest()

    @property
    def is_whole(self) -> bool:
        """Whether each was computed."""
        return None not in (self.base_rate, self.columns, self.lr, self.trees)
