"""What a run asks for, against the kind of its dataset's labels."""

from pathlib import Path

from app.config import AppConfig
from app.kinds.metrics import METRICS
from app.kinds.tasks import TASKS, Task
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.format import Manifest


def task_of(manifest: Manifest) -> Task:
    """The task of a dataset's labels."""
    return TASKS[manifest.label_kind.value]


def require_task(config: AppConfig, root: Path, manifest: Manifest) -> None:
    """Refuse keys that labels of the dataset's kind do not have.

    Raises:
        UserError: names all of them, with what to give.
    """
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
            "mlperf.enabled": (config.mlperf.enabled, False),
            "baselines": (config.baselines is True, False),
        }
        for key, (value, usual) in of_clicks.items():
            if value != usual:
                remedies[f"{key}={shown(value)}"] = f"{key}={shown(usual)}"
        if config.eval.keep_scores:
            remedies[f"eval.keep_scores={config.eval.keep_scores}"] = "eval.keep_scores=0"
    if remedies:
        label = manifest.schema["label"]
        kind = "clicks, 0 or 1" if task.has_clicks else "numbers"
        raise UserError(
            f"{', '.join(remedies)}: not of the labels of {root}, which are {kind} (column {label}); give "
            f"{' '.join(remedies.values())}"
        )
