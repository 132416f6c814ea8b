"""Names of kinds stand in their tables alone: a literal elsewhere would be a second place to change."""

import ast
from pathlib import Path

import pytest

from app.config import LossName
from app.kinds.metrics import METRICS
from app.kinds.optimizers import OptimizerName
from app.kinds.schedules import ScheduleName
from app.kinds.tasks import TASKS
from app.kinds.trackers import TRACKERS
from data_prep.dataset.options import LabelKind

ROOT = Path(__file__).parents[3]
PACKAGES = ("app", "common", "data_prep")
TABLES = "app/kinds/"
# Files that may have a kind's name, and why.
OPTIMIZER_EXCEPTIONS: dict[str, str] = {}
SCHEDULE_EXCEPTIONS: dict[str, str] = {}
TRACKER_EXCEPTIONS = {
    "app/checks/stack.py": "an installed package",
    "app/trackers/mlperf.py": "its own name in the log",
    "app/trackers/prometheus.py": "its own name in the log",
    "app/trackers/remote.py": "its own name in the log, and the clients' packages",
    "app/trackers/tensorboard.py": "its own name in the log",
}
METRIC_EXCEPTIONS = {
    "app/baselines/fit.py": "the baseline that has the metric's name",
    "app/metrics/clicks.py": "computes them",
    "app/metrics/users.py": "computes them",
    "app/training/predictor.py": "the AUC of a task has the task's name in its key",
    "app/report/charts.py": "key of the chart of calibration",
    "app/report/side_by_side.py": "key of that chart",
}


def literals(path: Path) -> set[str]:
    """Texts of a module that are expressions: docstrings, and texts that stand alone, are not."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
    return {node.value for node in constants if isinstance(node.value, str)}


def files_with(names: set[str]) -> dict[str, set[str]]:
    """Product files beside the tables that have one of these names as a literal, and which."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    by_file = {str(path.relative_to(ROOT)): literals(path) & names for path in paths}
    return {path: present for path, present in by_file.items() if present and not path.startswith(TABLES)}


@pytest.mark.parametrize(
    ("names", "exceptions"),
    [
        ({row.value for row in OptimizerName}, OPTIMIZER_EXCEPTIONS),
        ({row.value for row in ScheduleName}, SCHEDULE_EXCEPTIONS),
        ({row.name for row in TRACKERS}, TRACKER_EXCEPTIONS),
        (set(METRICS), METRIC_EXCEPTIONS),
    ],
    ids=["optimizers", "schedules", "trackers", "metrics"],
)
def test_names_stand_in_the_tables_alone(names: set[str], exceptions: dict[str, str]) -> None:
    elsewhere = {path: present for path, present in files_with(names).items() if path not in exceptions}
    assert not elsewhere


def test_a_task_is_of_a_kind_of_label_with_metrics_and_losses_that_are() -> None:
    assert set(TASKS) == {kind.value for kind in LabelKind}
    for task in TASKS.values():
        assert METRICS[task.main].task == task.labels
        assert set(task.losses) <= {loss.value for loss in LossName}
    assert {metric.task for metric in METRICS.values()} == set(TASKS)
