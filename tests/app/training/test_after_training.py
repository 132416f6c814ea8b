"""A run without extensions: the key `baselines` has none to compute them, and no data are checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.conftest import REPOSITORY, SMALL, app_environment
from tests.error_lines import error_line


def train_without_extensions(directory: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    """`python -m app.train` of a checkout from which the folder extensions has been deleted."""
    for name in ("app", "common", "data_prep", "pyproject.toml"):
        (directory / name).symlink_to(REPOSITORY / name)
    command = [sys.executable, "-m", "app.train", *SMALL, "run.name=x", *overrides]
    environment = {**app_environment(), "PYTHONPATH": str(directory)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow("examples")
def test_a_run_is_whole_and_says_why_it_has_no_baselines(tmp_path: Path) -> None:
    process = train_without_extensions(tmp_path, "data.synthetic.rows=2000", "train.max_steps=3")
    assert process.returncode == 0, process.stderr
    summary = json.loads((tmp_path / "runs/x/summary.json").read_text())
    assert (summary["baselines"], summary["no_baselines"]) == (None, "there is no folder extensions/baselines")
    assert "misleading" not in json.loads((tmp_path / "data/synthetic/manifest.json").read_text())["extra"]
    assert json.loads((tmp_path / "runs/x/manifest.json").read_text())["dataset"]["misleading"] == []
    assert "baselines" not in (tmp_path / "runs/x/report.html").read_text().partition("What made it")[0]


@pytest.mark.medium
def test_baselines_are_refused(tmp_path: Path) -> None:
    process = train_without_extensions(tmp_path, "baselines=true")
    assert process.returncode == 2
    assert error_line(process.stderr) == (
        "error: baselines=true: there is no folder extensions/baselines; restore it (`git checkout extensions`), or "
        "leave baselines out"
    )
