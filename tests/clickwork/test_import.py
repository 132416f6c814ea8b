"""`import clickwork`: what it costs, what it offers, and packages of the user's that stand in its way."""

import inspect
import subprocess
import sys
from pathlib import Path

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


def signatures() -> dict[str, str]:
    """Every public name, and its parameters without their types."""
    shown = {}
    for name in clickwork.__all__:
        member = getattr(clickwork, name)
        shown[name] = ", ".join(
            str(parameter.replace(annotation=inspect.Parameter.empty))
            for parameter in inspect.signature(member).parameters.values()
        )
        for attribute, value in vars(member).items() if inspect.isclass(member) else ():
            if attribute.startswith("_") and attribute != "_repr_html_":
                continue
            parameters = inspect.signature(value).parameters.values() if callable(value) else ()
            shown[f"{name}.{attribute}"] = ", ".join(
                str(parameter.replace(annotation=inspect.Parameter.empty))
                for parameter in parameters
                if parameter.name != "self"
            )
    return shown


def test_names_and_parameters_are_those_of_the_documentation() -> None:
    assert signatures() == {
        "Error": "message, status=2",
        "Predictor": "scorer, trained, runtime, correction",
        "Predictor.columns": "",
        "Predictor.predict": "table, logits=False",
        "Predictor.rank": "user, candidates, top_k=10, id_column='id'",
        "load": "run, checkpoint=None, *, data=None, platform='auto', correct_sampling=False",
    }
