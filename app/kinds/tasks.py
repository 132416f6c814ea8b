"""Tasks by the kind of a dataset's labels; each is a row of `TASKS`. If events have several labels, all are clicks."""

from dataclasses import dataclass

from app.kinds.metrics import AUC, RMSE


@dataclass(frozen=True)
class Task:
    """Properties of a task.

    Attributes:
        labels: kind of label, as in a dataset's manifest.
        main: metric by which a model is judged.
        losses: values of `loss` with which it can be learned.
        has_clicks: whether a model's outputs are logits of clicks, which targets, kept scores, baselines and MLPerf's
            log require; otherwise they are the predicted numbers.
    """

    labels: str
    main: str
    losses: tuple[str, ...]
    has_clicks: bool


CLICK = Task("click", AUC, ("bce", "weighted_bce", "mse"), True)
NUMBER = Task("number", RMSE, ("mse",), False)
TASKS = {row.labels: row for row in (CLICK, NUMBER)}
