"""Names of kinds stand in their tables alone: a literal elsewhere would be a second place to change."""

import ast
import functools
from pathlib import Path

import pytest

from app.config import kinds
from app.config.kinds import METRICS, TASKS, OptimizerName, ScheduleName, model_kinds
from app.config.train import LossName
from common.command import load
from data_prep.dataset import kinds as dataset
from data_prep.dataset.kinds import dataset_kinds
from data_prep.dataset.options import DataSource, LabelKind, SplitMethod

ROOT = Path(__file__).parents[3]
PACKAGES = ("app", "common", "data_prep")
TABLES = ("app/config/kinds.py", "data_prep/dataset/options.py")
KINDS = (kinds.ModelKind, dataset.DatasetKind)
SPLITS = {row.value for row in SplitMethod} - {"auto", "random", "time", "group"}  # which are other things' names, too
# Files that may have a kind's name, and why.
METRIC_EXCEPTIONS = {
    "app/metrics/quality.py": "computes them",
    "app/training/predictor.py": "the AUC of a task has the task's name in its key",
    "app/report/charts.py": "key of the chart of calibration",
    "app/report/compare.py": "key of that chart",
}
SOURCE_EXCEPTIONS = {
    "app/metrics/quality.py": "the encoding's name of labels that are drawn by chance",
    "app/bench.py": "published table sizes of that name, and the encoding's name of random ids",
    "app/config/model.py": "published table sizes of that name",
    "data_prep/synthetic.py": "its own name in the manifest",
    "extensions/locality/trace.py": "its own name in the manifest",
}
# Files that may have a source or a method of splits itself, and why.
MEMBER_EXCEPTIONS = {"app/config/data.py": "the default", "data_prep/config.py": "what encodings have"}
# Files of the core that may ask for a kind of model or dataset itself, and why.
ROW_EXCEPTIONS = {
    "data_prep/dataset/format.py": "the formats of manifests",
    "data_prep/job.py": "Criteo's rows have no schema",
}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def literals(path: Path) -> set[str]:
    """Texts of a module that are expressions: docstrings, and texts that stand alone, are not."""
    tree = parsed(path)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
    return {node.value for node in constants if isinstance(node.value, str)}


def rows_imported(path: Path) -> set[str]:
    """Rows of the tables of models and datasets that a module imports by name."""
    imports = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom)]
    of_tables = [node for node in imports if node.module in ("app.config.kinds", "data_prep.dataset.kinds")]
    names = {alias.name for node in of_tables for alias in node.names}
    return {name for name in names if isinstance(getattr(kinds, name, getattr(dataset, name, None)), KINDS)}


def members(path: Path) -> set[str]:
    """Sources and methods of splits that a module reads by name, such as DataSource.local."""
    tree, enums = parsed(path), {DataSource.__name__, SplitMethod.__name__}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return {ast.unparse(node) for node in nodes if isinstance(node.value, ast.Name) and node.value.id in enums}


def product_files() -> dict[str, Path]:
    """Modules beside the tables, by their path from the root."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    by_name = {str(path.relative_to(ROOT)): path for path in paths}
    return {name: path for name, path in by_name.items() if not name.startswith(TABLES)}


@pytest.mark.parametrize(
    ("names", "exceptions"),
    [
        ({row.value for row in OptimizerName}, {}),
        ({row.value for row in ScheduleName}, {}),
        (set(METRICS), METRIC_EXCEPTIONS),
        ({row.value for row in DataSource}, SOURCE_EXCEPTIONS),
        (SPLITS, {}),
    ],
    ids=["optimizers", "schedules", "metrics", "sources", "splits"],
)
def test_names_stand_in_the_tables_alone(names: set[str], exceptions: dict[str, str]) -> None:
    by_file = {name: literals(path) & names for name, path in product_files().items() if name not in exceptions}
    assert not {name: present for name, present in by_file.items() if present}


def test_no_other_file_asks_for_a_source_or_a_method_of_splits() -> None:
    by_file = {name: members(path) for name, path in product_files().items()}
    assert {name for name, enum_members in by_file.items() if enum_members} == set(MEMBER_EXCEPTIONS)


def test_a_task_is_of_a_kind_of_label_with_metrics_and_losses_that_are() -> None:
    assert set(TASKS) == {kind.value for kind in LabelKind}
    for task in TASKS.values():
        assert METRICS[task.main].task == task.labels
        assert set(task.losses) <= {loss.value for loss in LossName}
    assert {metric.task for metric in METRICS.values()} == set(TASKS)


def test_no_other_file_asks_which_kind_a_model_or_a_dataset_is_of() -> None:
    """And the exceptions are needed."""
    assert {name for name, path in product_files().items() if rows_imported(path)} == set(ROW_EXCEPTIONS)


@pytest.mark.parametrize("source", DataSource, ids=lambda source: source.name)
def test_a_source_names_functions_that_are(source: DataSource) -> None:
    functions = [source.kind.find, source.kind.directory, source.kind.generator, source.kind.figures]
    assert all(callable(load(function)) for function in functions if function)


def test_each_kind_of_dataset_has_a_model_that_learns_from_it() -> None:
    assert {kind.learns_from for kind in model_kinds().values()} == set(dataset_kinds())
