"""`import clickwork`: what it costs, what it offers, and packages of the user's that stand in its way."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clickwork

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "pyarrow", "hydra", "msgspec", "numba", "jinja2")


def python(code: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_import_takes_no_library(tmp_path: Path) -> None:
    code = f"import sys, clickwork; print([name for name in {HEAVY} if name in sys.modules])"
    process = python(code, tmp_path)
    assert (process.stdout, process.stderr) == ("[]\n", "")


@pytest.mark.parametrize(("name", "file"), [("app", "app/__init__.py"), ("common", "common.py")])
def test_a_package_of_the_user_that_hides_ours_is_named(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    process = python("import clickwork", tmp_path)
    place = tmp_path / name if file.endswith("__init__.py") else tmp_path / file
    assert process.stderr.splitlines()[-1] == (
        f"ImportError: clickwork: {place} stands before {ROOT / name}; rename it, or start Python in another directory"
    )


def test_a_folder_without_modules_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "data_prep").mkdir()
    assert python("import clickwork", tmp_path).stderr == ""


def parameters_of(function: Callable[..., Any]) -> str:
    """The parameters without their types."""
    signature, empty = inspect.signature(function), inspect.Parameter.empty
    parameters = [each.replace(annotation=empty) for name, each in signature.parameters.items() if name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=empty))


def interface() -> dict[str, str]:
    """Every public name with its parameters."""
    shown = {}
    for name in clickwork.__all__:
        member = getattr(clickwork, name)
        shown[name] = parameters_of(member)
        for attribute, value in vars(member).items() if inspect.isclass(member) else ():
            if not attribute.startswith("_") or attribute == "_repr_html_":
                shown[f"{name}.{attribute}"] = parameters_of(value) if callable(value) else ""
    return shown


def test_names_and_parameters_are_as_recorded() -> None:
    assert interface() == {
        "Comparison": "(comparison, directory)",
        "Comparison.table": "",
        "Comparison._repr_html_": "()",
        "Dataset": "(path)",
        "Dataset.ids": "(column, values)",
        "Dataset.values": "(column, ids=None)",
        "Dataset.batches": "(split, batch_size=65536)",
        "Dataset.torch": "(split='train', batch_size=None, *, run=None, seed=None, shuffle=None, drop_last=None, "
        "rank=0, world_size=1)",
        "Error": "(message, status=2)",
        "Predictor": "(scorer, trained, runtime, correction)",
        "Predictor.columns": "",
        "Predictor.predict": "(table, logits=False)",
        "Predictor.rank": "(user, candidates, top_k=10, id_column='id')",
        "Run": "(path)",
        "Run.config": "",
        "Run.summary": "",
        "Run.metrics": "",
        "Run.curves": "",
        "Run.evaluate": "(table, checkpoint=None, *, split='test', data=None, platform='auto', correct_sampling=False)",
        "Run._repr_html_": "()",
        "compare": "(runs)",
        "load": "(run, checkpoint=None, *, data=None, platform='auto', correct_sampling=False)",
        "prepare": "(overrides=(), **data)",
        "train": "(overrides=())",
    }


def test_the_page_names_them_all() -> None:
    page = (ROOT / "docs/python.md").read_text().replace('"', "'")
    for name, parameters in interface().items():
        kind, _, attribute = name.partition(".")
        if attribute != "_repr_html_" and name not in ("Comparison", "Predictor"):
            shown = f"{kind.lower()}.{attribute}" if attribute else kind
            assert f"`{shown}{parameters}`" in page, name
