"""Tasks by the kind of a dataset's labels: one is a row of `TASKS`. Of several labels of events each is a click."""

from dataclasses import dataclass

from app.kinds.metrics import AUC, RMSE


@dataclass(frozen=True)
class Task:
    """What is to know of a task.

    Attributes:
        labels: the kind of label, as a dataset's manifest has it.
        main: the metric that a model is judged by.
        losses: values of `loss` that it can be learned by.
        has_clicks: whether a model's outputs are logits of clicks, with all that counts them: targets, kept scores,
            baselines, MLPerf's log; else they are the predicted numbers.
    """

    labels: str
    main: str
    losses: tuple[str, ...]
    has_clicks: bool


CLICK = Task("click", AUC, ("bce", "weighted_bce", "mse"), True)
NUMBER = Task("number", RMSE, ("mse",), False)
TASKS = {row.labels: row for row in (CLICK, NUMBER)}
