"""The wheel, installed into an environment that sees this one's dependencies and no checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from common.extensions import absence
from tests.once import made_once

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "clickwork", "common", "data_prep", "extensions")
TINY = ["data.synthetic.rows=2000", "train.global_batch_size=64", "train.max_steps=5", "runtime.num_threads=1"]
TINY += ["record.tensorboard=false"]


def run(command: list[str | Path], cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def install(directory: Path) -> None:
    """Build the wheel from a copy of the sources, and install it in directory/environment."""
    for arguments in (["init"], ["-c", "user.name=x", "-c", "user.email=x", "commit", "--allow-empty", "-m", "x"]):
        assert run(["git", *arguments], directory).returncode == 0  # a user's own repository around it all
    source = directory / "source"  # setuptools writes beside what it builds
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    built = run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", directory, source], directory
    )
    assert built.returncode == 0, built.stderr
    environment = directory / "environment"
    assert run([sys.executable, "-m", "venv", "--without-pip", environment], directory).returncode == 0
    packages = next((environment / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wheel = next(directory.glob("*.whl"))
    python = environment / "bin/python"
    installed = run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel], directory)
    assert installed.returncode == 0, installed.stderr
    for package in PACKAGES:  # what Numba has compiled, which it finds by the times of the sources
        for path in (ROOT / package).rglob("__pycache__/*.nb[ci]"):
            to = packages / path.relative_to(ROOT)
            to.parent.mkdir(exist_ok=True)
            shutil.copy2(path, to)
        for path in (ROOT / package).rglob("*.py"):
            if (to := packages / path.relative_to(ROOT)).exists():
                shutil.copystat(path, to)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed `clickwork`."""
    return made_once(tmp_path_factory, "wheel", install) / "environment/bin/clickwork"


@pytest.mark.slow("tool")
def test_the_installed_command_trains_and_evaluates_anywhere(command: Path, tmp_path: Path) -> None:
    trained = run([command, "train", *TINY], tmp_path)
    assert trained.returncode == 0, trained.stderr
    summary = json.loads((tmp_path / "runs/quickstart/summary.json").read_text())
    assert summary["status"] == "completed"
    assert (summary["baselines"] is not None) == (absence("baselines") is None)  # by a process of their own
    assert (tmp_path / "runs/quickstart/report.html").stat().st_size > 50_000
    manifest = json.loads((tmp_path / "runs/quickstart/manifest.json").read_text())
    assert manifest["code"]["git_sha"] is None  # not that of a repository which happens to hold the environment
    evaluated = run([command, "evaluate", "run=runs/quickstart"], tmp_path)
    assert json.loads(evaluated.stdout)["split"] == "test", evaluated.stderr
    code = "import clickwork; predict = clickwork.load('runs/quickstart').predict; print(predict({'cat_0': 'x'}))"
    scored = run([command.with_name("python"), "-c", code], tmp_path)
    assert "clickwork.Error: table: no column int_0; the model reads int_0, " in scored.stderr
    assert not (tmp_path / "app").exists()


@pytest.mark.slow("tool")
def test_it_has_every_file_of_the_packages(command: Path) -> None:
    installed = next((command.parents[1] / "lib").glob("python*/site-packages"))
    files = [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and {"__pycache__", "benchmarks"}.isdisjoint(path.relative_to(ROOT).parts[1:-1])
    ]
    assert Path("extensions/sequences/conf_data/sources/synthetic_events.yaml") in files
    assert not [str(path) for path in files if not (installed / path).is_file()]
