"""Metrics of an evaluation by name; each is a row of `METRICS` and a function that computes it.

Rows are in the order of the log, of a run's last lines and of the report.
"""

from dataclasses import dataclass

AUC, LOGLOSS, NE, ACCURACY = "auc", "logloss", "ne", "accuracy"  # metrics that code asks for by name
CALIBRATION, BASE_RATE, STANDARD_ERROR = "calibration", "base_rate", "auc_standard_error"
ALL_ROWS, KEPT_ROWS = "calibration_of_all_rows", "calibration_of_kept_rows"
RMSE, MAE, LABEL_DEVIATION = "rmse", "mae", "label_deviation"
HR, NDCG = "hr_at_10", "ndcg_at_10"
NUMBER = "number"
# Units that a metric is averaged over: users in a log of events, groups of eval.group_by.
USERS, GROUPS = "users", "groups"
SAMPLED = "sampled rows"  # rows of a dataset with data.sampling.negative_drop_rate


@dataclass(frozen=True)
class Metric:
    """Properties of a metric.

    Attributes:
        name: its key in metrics.jsonl, summary.json and evaluate's JSON.
        label: its name for readers.
        larger_is_better: None if neither larger nor smaller values are better.
        task: the kind of label that it is for, a row of app.kinds.tasks.
        over: USERS, GROUPS or both, or SAMPLED, if only samples that have these have the metric.
        needs_scores: whether it needs all scores at once; above eval.exact_rows they are not kept.
        logged: whether the log's line of an evaluation shows it.
        in_summary: whether a run's last lines show it.
        compared: whether constant predictors, ground truth and publications have it too.
        in_report: its label in the report's table of details.
        mean_of: function "module:function" that maps logits float64 and labels [n] to values [n], whose mean it is;
            empty: app.metrics computes it with others.
    """

    name: str
    label: str
    larger_is_better: bool | None = None
    over: tuple[str, ...] = ()
    needs_scores: bool = False
    logged: bool = False
    in_summary: bool = False
    compared: bool = False
    in_report: str = ""
    mean_of: str = ""
    task: str = "click"

    @property
    def title(self) -> str:
        """Label at the head of a column."""
        return self.label[0].upper() + self.label[1:]


_ROWS = (
    Metric(AUC, "AUC", True, logged=True, in_summary=True, compared=True),
    Metric(STANDARD_ERROR, "standard error of the AUC"),
    Metric("gauc", "GAUC", True, (USERS, GROUPS), needs_scores=True, logged=True, in_summary=True, in_report="GAUC"),
    Metric(
        "auc_torchrec",
        "TorchRec's AUC",
        True,
        (USERS,),
        needs_scores=True,
        logged=True,
        in_summary=True,
        in_report="TorchRec's AUC",
    ),
    Metric(HR, "HR@10", True, (GROUPS,), needs_scores=True, logged=True, in_summary=True, in_report="HR@10"),
    Metric(NDCG, "NDCG@10", True, (GROUPS,), needs_scores=True, logged=True, in_summary=True, in_report="NDCG@10"),
    Metric(NE, "NE", False, logged=True, in_summary=True, compared=True),
    Metric(LOGLOSS, "logloss", False, logged=True, in_summary=True, compared=True),
    Metric(ACCURACY, "accuracy", True, logged=True, in_summary=True, compared=True),
    Metric("pr_auc", "PR AUC", True, needs_scores=True, in_report="PR AUC (average precision)"),
    Metric(RMSE, "RMSE", False, logged=True, in_summary=True, compared=True, in_report="RMSE", task=NUMBER),
    Metric(MAE, "MAE", False, logged=True, in_summary=True, compared=True, in_report="MAE", task=NUMBER),
    Metric(
        LABEL_DEVIATION,
        "labels' standard deviation",
        logged=True,
        in_report="Labels' standard deviation, the RMSE of their mean",
        task=NUMBER,
    ),
    Metric(
        CALIBRATION,
        "calibration",
        logged=True,
        in_summary=True,
        in_report="Calibration (Σ probabilities ÷ Σ labels)",
    ),
    Metric(
        ALL_ROWS,
        "calibration of corrected probabilities, of all rows",
        over=(SAMPLED,),
        logged=True,
        in_summary=True,
        in_report="Calibration of all rows, with corrected probabilities",
    ),
    Metric(KEPT_ROWS, "calibration of the rows that were kept", over=(SAMPLED,)),
    Metric("ece", "ECE", False, in_report="Expected calibration error"),
    Metric(BASE_RATE, "base rate", logged=True, in_report="Base rate"),
)
METRICS = {row.name: row for row in _ROWS}
OF_ROWS = tuple(row.name for row in _ROWS if not row.over and row.task != NUMBER)
PUBLISHED = (AUC, ACCURACY, LOGLOSS, RMSE, HR, NDCG)  # also keys of app.config.published, for the evaluated split
COMPARED = tuple(row.name for row in _ROWS if row.compared and row.task != NUMBER)
COMPARED_NUMBERS = tuple(row.name for row in _ROWS if row.compared and row.task == NUMBER)
MEANS = {row.name: row.mean_of for row in _ROWS if row.mean_of}
# Metrics by which one model is better than another.
RANKED = tuple(row.name for row in _ROWS if row.larger_is_better is not None)
