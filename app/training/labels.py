"""Checks of a run's settings against its dataset's columns and kind of labels."""

from pathlib import Path

from app.config import AppConfig, DataConfig, EvalConfig
from app.config.data import NegativesConfig
from app.data.shards import TRAIN
from app.kinds.metrics import METRICS
from app.kinds.tasks import TASKS, Task
from app.trackers.run_trackers import configured_trackers
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.format import Manifest


def require_column(key: str, column: str, config: DataConfig, root: Path, manifest: Manifest) -> None:
    """Refuse a key's value that is not the name of a column with one id per row."""
    bags, features = config.multi_hot.bags(), list(manifest.num_embeddings)
    sizes = bags.sizes if bags is not None else (1,) * len(features)
    single = [name for name, size in zip(features, sizes, strict=False) if size == 1 and name not in manifest.ragged]
    if column not in single:
        fault = "has bags of ids" if column in features else f"is not a categorical column of {root}"
        remedy = f"give one of {', '.join(single)}" if single else "give another dataset"
        raise UserError(f"{key}={column}: {fault}; {remedy}")


def task_of(manifest: Manifest) -> Task:
    """Return the task of a dataset's labels."""
    return TASKS[manifest.label_kind.value]


def refuse_one_class(config: DataConfig, root: Path, manifest: Manifest) -> None:
    """Refuse a train split whose labels are all the same, unless negatives are drawn for it."""
    train = manifest.splits.get(TRAIN)
    if train is None or config.allow_degenerate or config.negatives.per_positive is not None:
        return
    if train.label_rate in (0.0, 1.0):
        raise UserError(
            f"{root}: every label of train is {train.label_rate:.0f}, so no model can learn from it; correct the "
            "column or the rule of the labels and make it again, or give data.allow_degenerate=true"
        )


def _refuse_unweighted(negatives: NegativesConfig, evaluation: EvalConfig, root: Path, manifest: Manifest) -> None:
    """Refuse keys that would leave the sample weights out of account."""
    if not manifest.weight:
        return
    given = {f"data.negatives.{name}": value for name, value in vars(negatives).items()}
    given |= {"eval.group_by": evaluation.group_by, "eval.keep_scores": evaluation.keep_scores or None}
    given = {key: value for key, value in given.items() if value is not None}
    if given:
        remedies = (f"{key}={0 if key == 'eval.keep_scores' else 'null'}" for key in given)
        raise UserError(
            f"{', '.join(f'{key}={value}' for key, value in given.items())}: not of rows with sample weights, which "
            f"{root} has (column {manifest.weight}); give {' '.join(remedies)}"
        )


def require_task(config: AppConfig, root: Path, manifest: Manifest) -> None:
    """Refuse keys that do not apply to the dataset's kind of labels, or to its sample weights."""
    for key, column in (
        ("eval.group_by", config.eval.group_by),
        ("data.negatives.user", config.data.negatives.user),
        ("data.negatives.item", config.data.negatives.item),
    ):
        if column is not None:
            require_column(key, column, config.data, root, manifest)
    _refuse_unweighted(config.data.negatives, config.eval, root, manifest)
    task = task_of(manifest)
    monitor = config.train.monitor
    remedies = {}
    if config.loss.name.value not in task.losses:
        remedies[f"loss={config.loss.name.value}"] = f"loss={task.losses[0]}"
    if any(METRICS[name].task != task.labels for name in ([monitor] if isinstance(monitor, str) else monitor)):
        remedies[f"train.monitor={shown(monitor)}"] = f"train.monitor={task.main}"
    if not task.has_clicks:
        of_clicks = {
            "loss.threshold": (config.loss.threshold, 0.0),
            "train.target_auc": (config.train.target_auc, None),
            "train.target_accuracy": (config.train.target_accuracy, None),
            **{kind.key: (True, False) for kind in configured_trackers(config) if kind.of_clicks},
            "baselines": (config.baselines is True, False),
            **{f"data.negatives.{name}": (value, None) for name, value in vars(config.data.negatives).items()},
        }
        for key, (value, usual) in of_clicks.items():
            if value != usual:
                remedies[f"{key}={shown(value)}"] = f"{key}={shown(usual)}"
        if config.eval.keep_scores:
            remedies[f"eval.keep_scores={config.eval.keep_scores}"] = "eval.keep_scores=0"
        if config.eval.group_by is not None:
            remedies[f"eval.group_by={config.eval.group_by}"] = "eval.group_by=null"
    if remedies:
        label = manifest.schema["label"]
        kind = "clicks, 0 or 1" if task.has_clicks else "numbers"
        raise UserError(
            f"{', '.join(remedies)}: not of the labels of {root}, which are {kind} (column {label}); give "
            f"{' '.join(remedies.values())}"
        )
