"""The containers' files against each other and against the set-up; .ci/container builds and runs them for real."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.setup_project import GROUPS, ROOT, TORCH_INIT, Project, module, write_wheel

DOCKERFILES = {"cuda": (ROOT / "Dockerfile.cuda").read_text(), "rocm": (ROOT / "Dockerfile.rocm").read_text()}
COMPOSE_FILE = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE)
# A base's digest: as given, else the base as given, else the default base's.
DIGEST = re.compile(r"(?m)^( +BASE_DIGEST: )(\$\{CLICKWORK_BASE_DIGEST:-)?\$\{(\w+):-([\w:/.]+)\}\}?$")
COMPOSE_TEXT = DIGEST.sub(r"\1${CLICKWORK_BASE_DIGEST:-}", COMPOSE_FILE)
# ${NAME:-default}, whose default may itself be a ${NAME} or ${NAME:-default}.
VARIABLE = re.compile(r"\$\{(\w+):-((?:[^{}]|\$\{[^{}]*\})*)\}")
FROM_COMPOSE = ("CLICKWORK_PROJECT", "CLICKWORK_IMAGE")  # left to docker-compose.yml, as their defaults name others
CUDA_TORCH = {"torch/version.py": "__version__ = '2.12.1+cu130'\ncuda = '13.0'\nhip = None\n"}
ROCM_TORCH = {"torch/version.py": "__version__ = '2.10.0+rocm7.1'\ncuda = None\nhip = '7.1.25424-abc'\n"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    (tmp_path / "project" / "pyproject.toml").write_text(GROUPS.replace(' "hydra-core==1.3.8",', ""))
    return project


def test_the_dockerfiles_differ_in_their_defaults_alone() -> None:
    cuda, rocm = (text.splitlines() for text in DOCKERFILES.values())
    assert len(cuda) == len(rocm)
    different = [(line, other) for line, other in zip(cuda, rocm, strict=True) if line != other]
    assert all(re.match(r"#|ARG (BASE_IMAGE|STACK|REQUIRE_CUDA)=", line) for pair in different for line in pair)
    assert len(different) == 5


def test_bases_are_the_same_everywhere_and_pinned_by_digest() -> None:
    """But ROCm's, of which only the tag could be read."""
    defaults = dict(VARIABLE.findall(COMPOSE_TEXT))
    arguments = {name: dict(re.findall(r"(?m)^ARG (\w+)=(\S+)$", text)) for name, text in DOCKERFILES.items()}
    assert arguments["cuda"]["BASE_IMAGE"] == defaults["CUDA_BASE_IMAGE"]
    assert arguments["rocm"]["BASE_IMAGE"] == defaults["ROCM_BASE_IMAGE"]
    assert arguments["cuda"]["PLAIN_IMAGE"] == defaults["CPU_BASE_IMAGE"]
    bases = {name: value for name, value in defaults.items() if "BASE_IMAGE" in name}
    unpinned = {name for name, value in bases.items() if not re.search(r"@sha256:[0-9a-f]{64}$", value)}
    assert unpinned == {"ROCM_BASE_IMAGE"}
    labels = [(name, digest) for _, _, name, digest in DIGEST.findall(COMPOSE_FILE)]
    assert sorted(name[:4] for name, _ in labels) == ["CPU_", "CPU_", "CUDA", "ROCM"]
    assert all(defaults[name].endswith(digest) for name, digest in labels)


def test_env_example_names_every_variable_with_its_default() -> None:
    listed = dict(re.findall(r"(?m)^#?(\w+)=(.*)$", (ROOT / ".env.example").read_text()))
    defaults = dict(VARIABLE.findall(COMPOSE_TEXT))
    assert listed.keys() == {*defaults, "COMPOSE_PROFILES"}
    assert listed["COMPOSE_PROFILES"] == "cpu"
    for name, default in defaults.items():
        if "BASE_IMAGE" not in name:
            assert listed[name].strip('"') == default, name
    assert all(f"\n#{name}=" in (ROOT / ".env.example").read_text() for name in FROM_COMPOSE)
    # One default wherever a variable is used.
    assert len(set(VARIABLE.findall(COMPOSE_TEXT))) == len(defaults)


@pytest.mark.parametrize("service", sorted(set(COMPOSE["services"]) - {"folders", "tensorboard"}))
def test_services_start_entry_points_that_exist(service: str) -> None:
    entry = COMPOSE["services"][service]["entrypoint"]
    assert entry[:3] == ["dumb-init", "--single-child", "--"] or service.startswith("gpu-")
    modules = [value for flag, value in itertools.pairwise(entry) if flag == "-m"]
    for name in modules:
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), name
    platform = service.partition("-")[2] or "cpu"
    if service.startswith(("train", "evaluate")):
        assert entry[-1] == f"runtime.platform={platform}"


@pytest.mark.parametrize("owner", [None, 4321])
def test_make_states_project_and_owner_where_nobody_has(tmp_path: Path, owner: int | None) -> None:
    """The files are the caller's; of a checkout that root enters they are its owner's, if root may give it away."""
    is_root = os.getuid() == 0
    if owner is not None and is_root:
        os.chown(tmp_path, owner, owner)
    expected = owner if owner is not None and is_root else os.getuid()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLICKWORK_")}
    settings = ["sh", str(ROOT / "launch/settings.sh")]
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    environment["PATH"] = f"{docker.parent}:{environment['PATH']}"
    for status in (1, 0):  # without Compose, which is checked first, and with it
        docker.write_text(f"#!/bin/sh\nexit {status}\n")
        docker.chmod(0o755)
        result = subprocess.run(settings, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (result.returncode, (tmp_path / ".env").exists()) == (2 * status, not status)
        assert result.stderr.count("\n") == status
    for _ in range(2):  # once is enough
        subprocess.run(settings, cwd=tmp_path, env=environment, check=True, capture_output=True)
    lines = dict(line.split("=") for line in (tmp_path / ".env").read_text().splitlines())
    assert re.fullmatch(r"clickwork-[a-z0-9_-]+-\d+", lines["CLICKWORK_PROJECT"])
    assert (lines["CLICKWORK_UID"], len(lines)) == (str(expected), len((tmp_path / ".env").read_text().splitlines()))
    (tmp_path / ".env").write_text("CLICKWORK_PROJECT=mine\nCLICKWORK_UID=7\n")
    environment["CLICKWORK_GID"] = "8"
    subprocess.run(settings, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / ".env").read_text().startswith("CLICKWORK_PROJECT=mine\nCLICKWORK_UID=7\n")
    assert "CLICKWORK_GID" not in (tmp_path / ".env").read_text()


def test_images_get_no_more_than_they_need() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = set(re.findall(r"(?m)^COPY (\S+?)/? ", DOCKERFILES["cuda"]))
    assert "*" in ignored
    packages = {"app", "clickwork", "common", "data_prep", "extensions"}
    assert allowed == copied == {*packages, "requirements", "pyproject.toml"}


@pytest.mark.slow("container")
def test_a_base_without_what_belongs_to_its_torch_gets_it_and_nothing_is_replaced(project: Project) -> None:
    project.add_to_base("torch", "2.12.1+cu130", TORCH_INIT | CUDA_TORCH)
    project.add_to_base("numpy", "2.2.6")
    for release in ("1.7.0", "1.8.0"):
        no_driver = "raise OSError('libnvidia-ml.so.1: cannot open shared object file: No such file or directory')"
        write_wheel(project.wheels, "fbgemm_gpu", release, {"fbgemm_gpu/__init__.py": no_driver})
        write_wheel(project.wheels, "torchrec", release, module("torchrec", release), ["torch>=99"])
    before = project.snapshot(project.python.parents[1])
    output = project.set_up(options=["--device", "cuda"])
    assert "installing the releases made for this torch: fbgemm-gpu==1.7.*, torchrec==1.7.*" in output
    # A machine that builds images has no GPU driver: said, not failed.
    assert "numpy 2.2.6, torch 2.12.1+cu130, fbgemm_gpu (not imported: no GPU driver here)" in output
    assert project.snapshot(project.python.parents[1]) == before
    packages = {path.split("/")[0] for path in project.snapshot(project.environment)}
    assert {"fbgemm_gpu-1.7.0.dist-info", "torchrec-1.7.0.dist-info"} < packages
    assert not packages & {"numpy", "torch"}


@pytest.mark.parametrize(
    ("torch", "device", "sentence"),
    [
        (None, "rocm", "no torch for rocm in this Python"),
        (CUDA_TORCH, "rocm", "no torch for rocm in this Python"),
        (ROCM_TORCH, "rocm", "pip found no fbgemm-gpu==1.5.0+rocm7.1 or no torchrec==1.5.*"),
        ({"torch/version.py": "__version__ = '2.9.1'\ncuda = '12.8'\n"}, "cuda", "torch 2.9.1 is too old"),
    ],
)
def test_a_base_that_does_not_fit_is_refused_in_a_sentence(
    project: Project, torch: dict[str, str] | None, device: str, sentence: str
) -> None:
    if torch:
        version = torch["torch/version.py"].split("'")[1]
        project.add_to_base("torch", version, TORCH_INIT | torch)
    assert sentence in project.set_up(status=2, options=["--device", device])


@pytest.mark.medium
def test_preprocessing_gets_no_torch(project: Project) -> None:
    output = project.set_up(options=["data_prep"])
    assert "ready after" in output
    packages = {path.split("/")[0] for path in project.snapshot(project.environment)}
    assert packages == {"numpy", "numpy-2.4.6.dist-info", "clickwork.pth"}
    state = json.loads((project.environment / "clickwork.json").read_text())
    assert state["groups"] == ["data_prep"]


@pytest.mark.slow("container")
@pytest.mark.parametrize(
    ("releases", "torchrec", "torch"), [("oldest", "1.4.0", "2.10.0"), ("newest", "1.9.2", "2.14.0")]
)
def test_other_releases_go_over_the_locked_ones(project: Project, releases: str, torchrec: str, torch: str) -> None:
    (project.requirements / f"{releases}.in").write_text(f"torchrec=={torchrec}  # a reason\ntorch=={torch}\n")
    write_wheel(project.wheels, "torchrec", torchrec, module("torchrec", torchrec), ["fbgemm-gpu"])
    other = TORCH_INIT | {"torch/version.py": f"__version__ = '{torch}+cu128'\n"}
    write_wheel(project.wheels, "torch", torch, other)
    project.set_up(options=["--device", releases])
    versions = project.versions()
    assert versions["torchrec"] == torchrec
    assert versions["torch"].startswith(torch)
    assert versions["fbgemm_gpu"] == "1.8.0"
