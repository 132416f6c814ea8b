"""The containers' files against each other and against the set-up; .ci/container builds and runs them for real."""

import re
from pathlib import Path

import pytest

from tests.setup_project import GROUPS, ROOT, TORCH_INIT, Project, module, write_wheel

DOCKERFILES = {"cuda": (ROOT / "Dockerfile.cuda").read_text(), "rocm": (ROOT / "Dockerfile.rocm").read_text()}
COMPOSE_FILE = (ROOT / "docker-compose.yml").read_text()
# A base's digest: as given, else the base as given, else the default base's.
DIGEST = re.compile(r"(?m)^( +BASE_DIGEST: )(\$\{CLICKWORK_BASE_DIGEST:-)?\$\{(\w+):-([\w:/.]+)\}\}?$")
COMPOSE_TEXT = DIGEST.sub(r"\1${CLICKWORK_BASE_DIGEST:-}", COMPOSE_FILE)
# ${NAME:-default}, whose default may itself be a ${NAME} or ${NAME:-default}.
VARIABLE = re.compile(r"\$\{(\w+):-((?:[^{}]|\$\{[^{}]*\})*)\}")
FROM_COMPOSE = ("CLICKWORK_PROJECT", "CLICKWORK_IMAGE")  # left to docker-compose.yml, as their defaults name others
CUDA_TORCH = {"torch/version.py": "__version__ = '2.12.1+cu130'\ncuda = '13.0'\nhip = None\n"}


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
