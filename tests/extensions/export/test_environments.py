"""Exported directories in an environment of their own: what score.py needs."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from tests.app.in_process import command_here
from tests.app.scoring.test_same_row import Model
from tests.extensions.export.serving import score_files
from tests.extensions.export.test_directories import criteo as criteo
from tests.extensions.export.test_directories import generated as generated
from tests.once import made_once

REQUIREMENTS = Path(__file__).parents[3] / "requirements"


def python_of(factory: pytest.TempPathFactory, name: str) -> Path:
    """The Python of an environment that holds the packages of requirements/NAME.in alone."""

    def make(directory: Path) -> None:
        venv.create(directory, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", "-r", str(REQUIREMENTS / f"{name}.in")], check=True)

    return made_once(factory, f"environment-{name}", make) / "bin/python"


@pytest.mark.slow("tool")
def test_score_py_needs_three_packages(criteo: Model, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python, root = python_of(tmp_path_factory, "score"), criteo.directory
    listing = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in listing.stderr
    command_here(criteo.runtime, "export", f"run={root}/run", f"out={tmp_path}/served")
    shutil.move(tmp_path / "served", tmp_path / "moved")
    [result] = score_files(tmp_path / "moved", root / "new.tsv", python=(str(python), "-I"))
    expected = criteo.recommend("new.tsv")
    np.testing.assert_allclose(result["logits"], expected, rtol=0, atol=1e-5)
    command: list[str | Path] = [python, tmp_path / "moved/score.py", root / "new.tsv", "--verify"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    name, *lines = process.stdout.splitlines()
    assert (name, len(lines)) == ("probability", len(expected))
    np.testing.assert_allclose([float(line) for line in lines], 1 / (1 + np.exp(-expected)), rtol=0, atol=1e-6)
