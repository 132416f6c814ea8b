"""Kinds by name, a row each: metrics, tasks, models, optimizers, schedules, trackers, and parts that extensions add.

Rows are in the order of the log, of a run's last lines and of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import row_constructor, rows_of_extensions
from data_prep.dataset.kinds import ROWS, DatasetKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from app.config.app_config import AppConfig
    from app.data.split import Split, Splits
    from app.model.embeddings import Embedding, Features, SparseArch, TableArch
    from app.report.charts import ComparisonRow
    from app.report.page import ReportTable
    from app.report.read import RunFiles
    from app.runtime.platform import Runtime
    from app.scoring import Scored
    from app.trackers import Setting, Tracker
    from app.training.checkpointer import TrainedRun
    from app.training.predictor import Evaluation, Predictor
    from data_prep.dataset.format import Manifest

AUC, LOGLOSS, NE, ACCURACY = "auc", "logloss", "ne", "accuracy"  # metrics that code asks for by name
CALIBRATION, BASE_RATE, STANDARD_ERROR = "calibration", "base_rate", "auc_standard_error"
ALL_ROWS, KEPT_ROWS = "calibration_of_all_rows", "calibration_of_kept_rows"
RMSE, MAE, LABEL_DEVIATION = "rmse", "mae", "label_deviation"
HR, NDCG = "hr_at_10", "ndcg_at_10"
NUMBERS = "number"  # Metric.task of labels that are numbers
# Units that a metric is averaged over: users in a log of events, groups of eval.group_by.
USERS, GROUPS = "users", "groups"
SAMPLED = "sampled rows"  # rows of a dataset with data.sampling.negative_drop_rate


@dataclass(frozen=True)
class Metric:
    """Properties of a metric."""

    name: str  # its key in metrics.jsonl, summary.json and evaluate's JSON
    label: str  # its name for readers
    larger_is_better: bool | None = None  # None if neither larger nor smaller values are better
    over: tuple[str, ...] = ()  # USERS, GROUPS or both, or SAMPLED, if evaluations without these lack the metric
    needs_scores: bool = False  # whether it needs all scores at once; above eval.exact_rows they are not kept
    logged: bool = False  # whether the log's line of an evaluation shows it
    in_summary: bool = False  # whether a run's last lines show it
    compared: bool = False  # whether constant predictors, ground truth and publications have it too
    in_report: str = ""  # its label in the report's table of details
    # Function "module:function" that maps logits float64 and labels [n] to values [n], whose mean it is; empty:
    # app.metrics computes it with others.
    mean_of: str = ""
    task: str = "click"  # the kind of label that it is for, a row of app.config.kinds

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
    Metric(RMSE, "RMSE", False, logged=True, in_summary=True, compared=True, in_report="RMSE", task=NUMBERS),
    Metric(MAE, "MAE", False, logged=True, in_summary=True, compared=True, in_report="MAE", task=NUMBERS),
    Metric(
        LABEL_DEVIATION,
        "labels' standard deviation",
        logged=True,
        in_report="Labels' standard deviation, the RMSE of their mean",
        task=NUMBERS,
    ),
    Metric(
        CALIBRATION, "calibration", logged=True, in_summary=True, in_report="Calibration (Σ probabilities ÷ Σ labels)"
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
OF_ROWS = tuple(row.name for row in _ROWS if not row.over and row.task != NUMBERS)
PUBLISHED = (AUC, ACCURACY, LOGLOSS, RMSE, HR, NDCG)  # also keys of app.config.model, for the evaluated split
COMPARED = tuple(row.name for row in _ROWS if row.compared and row.task != NUMBERS)
COMPARED_NUMBERS = tuple(row.name for row in _ROWS if row.compared and row.task == NUMBERS)
MEANS = {row.name: row.mean_of for row in _ROWS if row.mean_of}
# Metrics by which one model is better than another.
RANKED = tuple(row.name for row in _ROWS if row.larger_is_better is not None)


@dataclass(frozen=True)
class Task:
    """Properties of a task."""

    labels: str  # kind of label, as in a dataset's manifest
    main: str  # metric by which a model is judged
    losses: tuple[str, ...]  # values of `loss` with which it can be learned
    # Whether a model's outputs are logits of clicks, which targets, kept scores, baselines and MLPerf's log require;
    # otherwise they are the predicted numbers.
    has_clicks: bool


CLICK = Task("click", AUC, ("bce", "weighted_bce", "mse"), True)
NUMBER = Task("number", RMSE, ("mse",), False)
TASKS = {row.labels: row for row in (CLICK, NUMBER)}


class TableForms(NamedTuple):
    """Forms of tables that an extension adds to the plain one, chosen by keys that it adds to `model.tables`."""

    # Yields messages of settings that cannot work: takes those given and those in force by path, and D.
    faults: Callable[[Mapping[str, Any], Mapping[str, Any], int], Iterator[str]]
    # Returns the embedding of a form; takes what `app.model.embeddings.plain_embedding` does.
    embedding: Callable[..., Embedding]
    # Returns the lookup of embeddings of which some are not plain; takes what SparseArch does, and `initial`.
    arch: Callable[[Sequence[Embedding], Sequence[str], int, bool], SparseArch]
    # Returns a feature's vectors [B, 1, D] in an exported model: takes that, the lookup, the embedding, ids and mask.
    served_vectors: Callable[..., Any]


class ModelParts(NamedTuple):
    """Functions by which an extension replaces the core's code for DLRM."""

    tables: Callable[[AppConfig, Features], TableArch]  # builds the embedding tables on the meta device
    model: Callable[[AppConfig, Any, Features], nn.Module]  # builds the model around its tables
    open_splits: Callable[[Path, Manifest, AppConfig], Splits]  # opens a dataset's splits for a run
    # Returns the mean number of ids per bag, by key of the model's ids.
    bag_sizes: Callable[[AppConfig, Features], dict[str, float]]
    # Returns the names of the labels that the model learns besides the dataset's label.
    tasks: Callable[[AppConfig], list[str]]
    loss_factor: Callable[[AppConfig], float]  # returns the factor of the mean loss over samples and tasks
    # Raises UserError if the model does not run on this type of device.
    require_device: Callable[[AppConfig, str], None]
    # Raises UserError if the labels of a training split carry no information.
    require_labels: Callable[[AppConfig, Path, Split], None]
    # Computes metrics per group from logits [n], labels [n] and group ids [n].
    group_metrics: Callable[
        [NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]], Mapping[str, float | int | None]
    ]
    # Scores candidates for app.recommend; takes its configuration, the run's, the run and the process.
    rank: Callable[[Any, AppConfig, TrainedRun, Runtime], Scored]


@dataclass(frozen=True)
class ModelKind:
    """Properties of a kind of model that need no torch."""

    name: str  # the value of model.name
    label: str  # its name in messages
    learns_from: DatasetKind  # the kind of dataset that it learns from
    parts: Callable[[], ModelParts] | None  # imports the extension's modules and returns their functions; None for DLRM
    instead_of_source: str = ""  # remedy for a source of another kind; empty: the model that learns from that source
    group_feature: str = ""  # the feature whose ids group the evaluation's samples; empty: eval.group_by names it
    over: str = ""  # the unit of the mean of group metrics, if eval.group_by is not given
    eval_split: str = "test"  # default split of app.evaluate
    commands: str = ""  # the commands that support this model; empty: all commands, with all their keys


DLRM = ModelKind("dlrm", "DLRM", ROWS, parts=None)


def model_kinds() -> dict[str, ModelKind]:
    """Return DLRM and the kinds of the extensions, by the value of model.name."""
    return {kind.name: kind for kind in (DLRM, *rows_of_extensions(ModelKind))}


def require_dataset(model: ModelKind, root: Path, manifest: Manifest) -> None:
    """Raise UserError if the model does not learn from this kind of dataset."""
    # DLRM is the default, so the dataset is what the user chose; of another model the kind's own remedy is given.
    fitting_model = model_for(manifest.kind)
    remedy = f"give {fitting_model}" if fitting_model and model is DLRM else ""
    manifest.require_kind(root, model.learns_from, remedy)


def model_for(data: DatasetKind) -> str:
    """Return the setting of the model that learns from such a dataset, or an empty string if no model does."""
    return next((f"model={kind.name}" for kind in model_kinds().values() if kind.learns_from is data), "")


EPS = {"eps": "1e-8"}  # keys of `optimizer` that an algorithm needs, with usual values
EPS_AND_BETAS = {**EPS, "beta1": "0.9", "beta2": "0.999"}
# FBGEMM calls the first state of every optimizer momentum1.
FIRST, SECOND = {"exp_avg": "momentum1"}, {"exp_avg_sq": "exp_avg_sq"}
SUM = {"sum": "momentum1"}


@dataclass(frozen=True)
class Algorithm:
    """Properties of an optimizer."""

    # Its class, "module:class", for tables that FBGEMM does not update and, unless `layers` is given, for layers.
    torch: str
    fbgemm: str | None = None  # its name in FBGEMM's EmbOptimType; None: FBGEMM lacks it, so torch updates all tables
    fused_on_cpu: bool = False  # whether FBGEMM has it on CPUs too
    settings: Mapping[str, str] = field(default_factory=dict)  # keys of `optimizer` that it needs, with usual values
    arguments: Mapping[str, bool] = field(default_factory=dict)  # further arguments of `torch`
    layers: str | None = None  # class for dense parameters, if `torch` is for tables only
    plain: str | None = None  # the optimizer for dense parameters, if this one is row-wise
    # Torch's names of state with a value per element, and FBGEMM's names.
    state: Mapping[str, str] = field(default_factory=dict)
    row_state: Mapping[str, str] = field(default_factory=dict)  # the same for state with a value per row of a table
    needs_whole_rows: bool = False  # whether a shard with only some columns of a row would change the algorithm
    has_weight_decay: bool = True  # whether torch's class adds L2 to gradients by `weight_decay`
    # Whether torch's class updates all rows at every step; FBGEMM updates only those in the batch.
    moves_all_rows: bool = False

    def state_elements(self, dim: int) -> int:
        """Return the number of elements of state beside a row of `dim` elements."""
        return dim * len(self.state) + len(self.row_state)


def _by_rows(fbgemm: str, rowwise: bool, trust: bool, plain: str | None = None, layers: str | None = None) -> Algorithm:
    """Return an algorithm of `app.optimizer.RowAdam`; rowwise, trust: as there."""
    return Algorithm(
        "app.optimizer:RowAdam",
        fbgemm,
        settings=EPS_AND_BETAS,
        arguments={"rowwise": rowwise, "trust": trust},
        layers=layers,
        plain=plain,
        state=FIRST if rowwise else {**FIRST, **SECOND},
        row_state=SECOND if rowwise else {},
        needs_whole_rows=True,
        has_weight_decay=False,
    )


class OptimizerName(Enum):
    """The algorithm for tables (fused into FBGEMM's backward if FBGEMM has it) and for dense parameters.

    rowwise_*: one second moment per row of a table, the mean over the row; dense parameters use the plain algorithm.
    adam: Kingma and Ba 2015; lamb: You et al. 2020, with a trust ratio per row of a table and per dense tensor.
    """

    sgd = "sgd", Algorithm("torch.optim:SGD", "EXACT_SGD", True)
    adagrad = ("adagrad", Algorithm("torch.optim:Adagrad", "EXACT_ADAGRAD", True, EPS, state=SUM))
    rowwise_adagrad = (
        "rowwise_adagrad",
        Algorithm(
            "torchrec.optim.rowwise_adagrad:RowWiseAdagrad",
            "EXACT_ROWWISE_ADAGRAD",
            True,
            EPS,
            plain="adagrad",
            row_state=SUM,
            needs_whole_rows=True,
        ),
    )
    adam = (
        "adam",
        Algorithm(
            "torch.optim:Adam",
            "ADAM",
            settings=EPS_AND_BETAS,
            arguments={"fused": True},
            state={**FIRST, **SECOND},
            moves_all_rows=True,
        ),
    )
    rowwise_adam = "rowwise_adam", _by_rows("PARTIAL_ROWWISE_ADAM", True, False, plain="adam")
    lamb = "lamb", _by_rows("LAMB", False, True, layers="app.optimizer:Lamb")
    rowwise_lamb = "rowwise_lamb", _by_rows("PARTIAL_ROWWISE_LAMB", True, True, plain="lamb")

    _value_: str
    algorithm: Algorithm
    __new__ = row_constructor("algorithm")

    @property
    def plain(self) -> OptimizerName:
        """Optimizer for dense parameters that goes with this one for tables."""
        return OptimizerName[self.algorithm.plain] if self.algorithm.plain else self


# Keys of the schedules that warm up and decay; the first is that of the warm-up, which schedule=warmup has alone.
DECAY = ("warmup_steps", "decay_start_step", "decay_steps")


@dataclass(frozen=True)
class Schedule:
    """Properties of a schedule."""

    rate: str  # function "module:function" of base rate, ScheduleConfig, step (the first is 0) and number of cuts
    keys: tuple[str, ...] = ()  # keys of `schedule` that have an effect
    # Those of them that must not be 0, each with the message if it is.
    needs: Mapping[str, str] = field(default_factory=dict)
    by_metric: bool = False  # whether evaluations, by train.monitor, decide when the rate is cut


class ScheduleName(Enum):
    """Course of the learning rate.

    constant; warmup_poly: linear warm-up, hold and polynomial decay of power 2; cosine: linear warm-up, hold and half a
    cosine (Loshchilov and Hutter 2017); warmup: linear from 0 at the first step, then hold (MLPerf's DLRMv4); plateau:
    cut when train.monitor stops improving, as torch's ReduceLROnPlateau.
    """

    constant = "constant", Schedule("app.optimizer:constant")
    warmup = (
        "warmup",
        Schedule("app.optimizer:warmup", DECAY[:1], {"warmup_steps": "must be at least 1 with schedule=warmup"}),
    )
    warmup_poly = "warmup_poly", Schedule("app.optimizer:warmup_poly", DECAY)
    cosine = (
        "cosine",
        Schedule(
            "app.optimizer:cosine",
            (*DECAY, "end_factor"),
            {"decay_steps": "schedule=cosine needs the steps that its decay takes"},
        ),
    )
    plateau = (
        "plateau",
        Schedule("app.optimizer:plateau", ("factor", "patience", "threshold", "min_lr"), by_metric=True),
    )

    _value_: str
    schedule: Schedule
    __new__ = row_constructor("schedule")


def with_key(key: str) -> tuple[ScheduleName, ...]:
    """Return the schedules with which a key of `schedule` has an effect."""
    return tuple(name for name in ScheduleName if key in name.schedule.keys)


class PublishedTables(NamedTuple):
    """Table sizes of one publication."""

    name: str  # the value that selects them
    rows: Mapping[str, int]  # number of rows of each feature's table
    num_dense: int  # number of dense features
    kind: DatasetKind = ROWS  # the kind of the dataset
    # Returns the dataset's `raw_schema` as a manifest holds it; None for rows.
    schema: Callable[[], dict[str, Any]] | None = None


TENSORBOARD = "tensorboard"  # directory of its events, and of traces


class TrackerKind(NamedTuple):
    """Properties of a tracker."""

    name: str  # name of the tracker in the log
    key: str  # the key that enables it, by any value except null and false
    # Opens the tracker. It may return None, and raises UserError if the tracker cannot start.
    start: Callable[[Setting], Tracker | None]
    package: str = ""  # the package that it requires; empty: none
    file: str = ""  # its file in the run's directory, which a run from the start removes; empty: none
    # Returns whether a configuration enables it, if a null key depends on other keys; None: `key` decides.
    is_wanted: Callable[[AppConfig], bool] | None = None
    of_clicks: bool = False  # True if it supports only labels of 0 and 1


class AfterTraining(NamedTuple):
    """Functions that an extension adds to the end of training. They import their modules when called."""

    require: Callable[[AppConfig], None]  # raises UserError before training if the step cannot run
    # Is called with each evaluation on every rank. Returns a function of the run's directory and the step that writes
    # what the step needs later, called if the run keeps the evaluated model; or None.
    keep: Callable[[Predictor, Evaluation], Callable[[Path, int], None] | None]
    finish: Callable[[AppConfig], None]  # processes the run's directory on rank 0 after the process group is closed


class Additions(NamedTuple):
    """Additions of an extension to the report of one run."""

    comparisons: Sequence[ComparisonRow]  # rows for the table of comparisons
    sentences: list[tuple[str, str]]  # (kind, sentence) pairs for the verdict on a click model's quality
    # Folded tables below the table of comparisons: the line that a click opens, a caption, and the table in two halves.
    tables: list[tuple[str, str, list[ReportTable]]]


class ReportAddition(NamedTuple):
    """The function of an extension that adds to a report. It imports its modules when called."""

    of_run: Callable[[RunFiles], Additions]


def additions(run: RunFiles) -> list[Additions]:
    """Return the additions of all extensions to the report of a run."""
    return [row.of_run(run) for row in rows_of_extensions(ReportAddition)]
