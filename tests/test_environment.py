"""The set-up with stand-ins: tiny wheels, and a Python that has what a container's would; no network."""

import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.setup_project import ROOT, Project, module, write_wheel

CPU_VERSIONS = {"torch": "2.13.0+cpu", "fbgemm_gpu": "1.8.0", "torchrec": "1.8.0", "numpy": "2.4.6", "extra": "1.0"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.mark.medium
@pytest.mark.parametrize("uv", [True, False])
def test_first_use_installs_training_and_the_second_does_nothing(project: Project, uv: bool) -> None:
    output = project.set_up(uv=uv)
    assert "requirements/train.lock" in output
    assert ("pip installs without uv" in output) is not uv
    assert "ready after" in output
    assert (project.packages_of(project.environment) / "torch" / "__pycache__").exists()
    assert project.versions() == CPU_VERSIONS
    assert project.set_up(uv=uv) == ""


@pytest.mark.medium
@pytest.mark.parametrize("uv", [True, False])
def test_a_group_is_added_in_place_and_stays(project: Project, uv: bool) -> None:
    project.set_up(uv=uv)
    kept = project.environment / "kept"
    kept.touch()
    assert "ready after" in project.set_up(options=["train", "tune"], uv=uv)
    packages = project.packages_of(project.environment)
    # By name with what it requires, from dev.lock; pip cannot check hashes so, and installs the whole lock.
    assert [(packages / name).exists() for name in ("searcher", "helper", "checker")] == [True, True, not uv]
    assert "ready after" in project.set_up(options=["train", "dev"], uv=uv)
    assert (packages / "checker").exists()
    assert project.set_up(uv=uv) == project.set_up(options=["train", "tune"], uv=uv) == ""
    assert kept.exists()
    (project.requirements / "torch.in").write_text("torch==2.13.0  # changed\n")
    assert ": dev, train, tune" in project.set_up(uv=uv)
    assert not kept.exists()
    assert project.versions() == CPU_VERSIONS


@pytest.mark.slow("tool")
def test_a_file_that_is_not_the_locked_one_is_refused_until_it_is(project: Project) -> None:
    good = (project.wheels / "extra-1.0-py3-none-any.whl").read_bytes()
    write_wheel(project.wheels, "extra", "1.0", module("extra", "tampered with"))
    assert "set-up: error: train.lock: " in project.set_up(status=2)
    (project.wheels / "extra-1.0-py3-none-any.whl").write_bytes(good)
    project.set_up()
    assert project.versions() == CPU_VERSIONS


def test_directory_of_somebody_else_is_left_alone(project: Project) -> None:
    project.environment.mkdir()
    (project.environment / "precious").write_text("mine")
    assert "move it away" in project.set_up(status=2)
    assert (project.environment / "precious").read_text() == "mine"


@pytest.mark.slow("tool")
def test_gpu_stack_of_a_container_is_used_and_not_replaced(project: Project) -> None:
    project.add_gpu_stack_to_base()
    before = project.snapshot(project.python.parents[1])
    output = project.set_up()
    assert "using torch 2.10.0+rocm7.1 for hip 7.1" in output
    assert "installing missing packages: extra" in output
    gpu_versions = {"torch": "2.10.0+rocm7.1", "fbgemm_gpu": "2026.6.18", "torchrec": "1.4.0", "numpy": "2.2.6"}
    assert project.versions() == gpu_versions | {"extra": "1.0"}
    assert project.snapshot(project.python.parents[1]) == before
    packages = {path.split("/")[0] for path in project.snapshot(project.environment)}
    assert packages == {"extra", "extra-1.0.dist-info", "clickwork.pth", "gpu_stack.pth"}
    assert project.set_up() == ""
    base = project.packages_of(project.python.parents[1])
    (base / "torchrec-1.4.0.dist-info").rename(base.parent / "replaced")
    # Of another length: bytecode of the same second and size would pass for current.
    project.add_to_base("torchrec", "1.10.0")
    assert "built from other requirements" in project.set_up()
    assert project.versions()["torchrec"] == "1.10.0"


@pytest.mark.medium
def test_package_that_would_replace_the_containers_is_refused(project: Project) -> None:
    project.add_gpu_stack_to_base()
    write_wheel(project.wheels, "extra", "1.0", module("extra", "1.0"), ["numpy>=2.4"])
    before = project.snapshot(project.python.parents[1])
    assert "pip found no versions that leave" in project.set_up(status=2)
    assert project.snapshot(project.python.parents[1]) == before
    assert set(project.snapshot(project.environment)) == {"gpu_stack.pth"}


def test_locks_are_parts_of_each_other_and_leave_out_what_would_replace_the_stack() -> None:
    pins = {
        name: set(re.findall(r"(?m)^([\w.-]+==[\w.]+)", (ROOT / f"requirements/{name}.lock").read_text()))
        for name in ("data_prep", "train", "dev")
    }
    names = {lock: {pin.split("==")[0] for pin in of_lock} for lock, of_lock in pins.items()}
    assert pins["data_prep"] < pins["train"]
    assert not names["train"] & names["dev"]
    assert not {name for name in names["train"] if name.startswith(("pytest", "ruff")) or name == "mypy"}
    assert not {name for name in names["data_prep"] if name.startswith(("torchrec", "fbgemm", "tensordict"))}
    all_names = names["train"] | names["dev"]
    assert {"torchrec", "fbgemm-gpu-cpu", "hydra-core", "numpy", "optuna"} <= all_names
    assert not {name for name in all_names if name in ("torch", "fbgemm-gpu", "triton") or name.startswith("nvidia")}


def make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    # Not the settings of the make that runs these tests.
    settings = ("MAKE", "MFLAGS", "PYTHON", "VENV", "ARGS", "NPROC", "RUN")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_python_interface_is_importable_in_any_directory(tmp_path: Path) -> None:
    environment = tmp_path / "a b"
    venv.create(environment, with_pip=False)
    code = "import sys, pathlib, install; install.write_path(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, environment], cwd=ROOT / "requirements", check=True)
    command = [str(environment / "bin/python"), "-c", "import clickwork; print(clickwork.__file__)"]
    process = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (process.stdout, process.stderr) == (f"{ROOT / 'clickwork/__init__.py'}\n", "")


def test_keys_outside_args_are_refused_with_the_line_that_takes_them() -> None:
    """make takes them for variables of its own, so that a run of other keys than those typed would begin."""
    process = make("-n", "train", "ARGS=run.name=a", "train.epochs=3")
    assert process.returncode == 2
    (remedy,) = re.findall(r"train\.epochs=3: keys go into ARGS; write (make .*?)\.  Stop", process.stderr)
    assert remedy == 'make train ARGS="run.name=a train.epochs=3"'
    assert make("-n", *shlex.split(remedy)[1:]).stdout.splitlines()[-1] == (
        ".venv/bin/python -m app.train run.name=a train.epochs=3"
    )
