"""The registry of commands: what it says is so, everything reads it, and nothing heavy is imported before its turn."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest

from app.commands import COMMANDS
from app.config.kinds import METRICS, TASKS, model_kinds
from app.config.train import LossName
from common.extensions import REMEDIES, load
from data_prep.dataset.kinds import dataset_kinds
from data_prep.dataset.options import DataSource, LabelKind
from tests.app.conftest import REPOSITORY
from tests.error_lines import error_line

HEAVY = {"torch", "torchrec", "fbgemm_gpu", "tensordict"}
SLOW = pytest.mark.slow("processes")
WITH_KEYS = [name for name, command in COMMANDS.items() if command.schema is not None]


def test_what_rows_of_kinds_name_is_there() -> None:
    """Other places than these tables need no row: tests/test_adding.py."""
    assert set(TASKS) == {kind.value for kind in LabelKind} == {metric.task for metric in METRICS.values()}
    for task in TASKS.values():
        assert METRICS[task.main].task == task.labels
        assert set(task.losses) <= {*get_args(LossName)}
    for source in DataSource:
        functions = [source.kind.find, source.kind.directory, source.kind.generator, source.kind.figures]
        assert all(callable(load(function)) for function in functions if function)
    assert {kind.learns_from for kind in model_kinds().values()} == set(dataset_kinds())


def test_each_module_runs_its_own_row() -> None:
    runs_row = re.compile(r'^ +run(_of_extension)?\((?:COMMANDS\[)?"(?:\w+\.)?([a-z-]+)"\]?\)$', re.MULTILINE)
    paths, stubs = {}, set()
    for path in chain.from_iterable(REPOSITORY.glob(f"{name}/**/*.py") for name in ("app", "data_prep", "extensions")):
        for of_extension, name in runs_row.findall(path.read_text()):
            paths[name] = path
            stubs |= {name} if of_extension else set()
    deleted = stubs - COMMANDS.keys()  # their extensions are not there, but `python -m` still names them
    expected = {}
    for name, command in COMMANDS.items():
        spec: Any = importlib.util.find_spec(command.module)
        file = Path(spec.origin)
        expected[name] = file.with_name("__main__.py") if spec.submodule_search_locations else file
    assert {name: paths[name] for name in paths if name not in deleted} == expected


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a new interpreter with these arguments, with these variables alone if there are any."""
    command, env = [sys.executable, *arguments], environment or None
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.medium
def test_without_its_extension_a_command_names_it(tmp_path: Path) -> None:
    for package in ("app", "common", "data_prep"):
        (tmp_path / package).symlink_to(REPOSITORY / package)
    for path in [path for package in ("app", "data_prep") for path in (REPOSITORY / package).glob("*.py")]:
        if "run_of_extension(" in path.read_text():
            process = python("-m", f"{path.parent.name}.{path.stem}", "--help", cwd=tmp_path)
            assert process.returncode == 2
            assert f"no folder extensions/{path.stem}" in error_line(process.stderr)


def modules_of(arguments: Sequence[str], cwd: Path) -> tuple[int, set[str]]:
    """The exit status of `python -m ...` and the modules that it imported."""
    process = python("-X", "importtime", "-m", *arguments, cwd=cwd, PYTHONPATH=str(REPOSITORY))
    lines = [line for line in process.stderr.splitlines() if line.startswith("import time:")]
    return process.returncode, {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["app.train", "--help"], 0),
        (["app.train", "train.epochs=0"], 2),
        pytest.param(["app", "train", "trian.epochs=1"], 2, marks=SLOW),
        *(pytest.param([COMMANDS[name].module, "--help"], 0, marks=SLOW) for name in WITH_KEYS if name != "train"),
    ],
)
def test_help_and_errors_come_before_torch_is_imported(arguments: list[str], status: int, tmp_path: Path) -> None:
    returned, modules = modules_of(arguments, tmp_path)
    assert returned == status
    assert "omegaconf" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize("module", ["app.train", "data_prep"])
def test_without_packages_a_line_has_the_command_that_works(module: str) -> None:
    process = python("-S", "-m", module, "x.token=y", PYTHONPATH=str(REPOSITORY))
    assert (process.returncode, process.stdout) == (2, "")
    remedy = f"run `make environment`, then `.venv/bin/python -m {module} 'x.token=***'`"
    assert error_line(process.stderr) == f"error: yaml is not installed for {sys.executable}; {remedy}"


def test_a_list_of_commands_needs_nothing(tmp_path: Path) -> None:
    status, modules = modules_of(["app", "--help"], tmp_path)
    assert status == 0
    assert not modules & {"omegaconf", "hydra", "numpy", *HEAVY}


@pytest.mark.medium
def test_a_missing_part_of_the_stack_is_one_line_with_its_remedy(tmp_path: Path) -> None:
    part = "torch"
    (tmp_path / f"{part}.py").write_text(f"raise ModuleNotFoundError(name={part!r})\n")  # in place of the package
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    process = python("-m", "app", "train", cwd=tmp_path, **environment)
    assert process.returncode == 2, process.stderr
    assert error_line(process.stderr) == f"error: {part} is not installed beside clickwork; {REMEDIES[part]}"
