"""A copy of the set-up with stand-ins: tiny wheels, and a Python that has what a container's would; no network."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).parents[1]
GROUPS = """[dependency-groups]
data_prep = ["numpy"]  # and no more
train = [
    {include-group = "data_prep"}, "torchrec==1.8.0", "fbgemm_gpu-cpu==1.8.0", "hydra-core==1.3.8",
    "extra",  # not in any container
]
installer = ["uv"]
onnx = []
tune = ["searcher"]
dev = [{include-group = "train"}, {include-group = "tune"}, "checker"]
"""
CPU_TORCH = {"torch/version.py": "__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n"}
GPU_TORCH = {"torch/version.py": "__version__ = '2.10.0+rocm7.1'\ncuda = None\nhip = '7.1'\n"}
TORCH_INIT = {"torch/__init__.py": "from torch.version import __version__\n"}


def write_wheel(directory: Path, name: str, version: str, files: dict[str, str], requires: Sequence[str] = ()) -> Path:
    """A wheel that pip installs; a GPU build's dependencies and compiled code are of no account here."""
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    files = files | {
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in (files | {f"{info}/RECORD": record}).items():
            wheel.writestr(member, content)
    return path


def module(name: str, version: str) -> dict[str, str]:
    return {f"{name}/__init__.py": f"__version__ = {version!r}\n"}


class Project:
    """A copy of the set-up with its own requirements, a folder of wheels as the only index, and a Python."""

    def __init__(self, directory: Path) -> None:
        self.requirements = directory / "requirements"
        self.wheels = directory / "wheels"
        self.environment = directory / ".venv"
        self.python = directory / "base" / "bin" / "python"
        self.requirements.mkdir(parents=True)
        self.wheels.mkdir()
        for source in (ROOT / "requirements").glob("*.py"):
            (self.requirements / source.name).write_bytes(source.read_bytes())
        (directory / "pyproject.toml").write_text(GROUPS)
        (self.requirements / "installer.lock").write_text("uv==0.0.0 --hash=sha256:" + "0" * 64)
        (self.requirements / "torch.in").write_text("torch==2.13.0\n")
        self._make_base()
        fbgemm_gpu = write_wheel(self.wheels, "fbgemm_gpu_cpu", "1.8.0", module("fbgemm_gpu", "1.8.0"))
        numpy, torchrec = self.add_wheel("numpy", "2.4.6"), self.add_wheel("torchrec", "1.8.0", "fbgemm-gpu")
        searcher, helper = self.add_wheel("searcher", "1.0", "extra", "helper"), self.add_wheel("helper", "1.0")
        self.write_lock("data_prep", numpy)
        self.write_lock("train", torchrec, fbgemm_gpu, numpy, self.add_wheel("extra", "1.0", "numpy"))
        self.write_lock("dev", searcher, helper, self.add_wheel("checker", "1.0"))
        write_wheel(self.wheels, "torch", "2.13.0", TORCH_INIT | CPU_TORCH)
        # What an unguarded pip would fetch: a later numpy, and the CUDA build that torchrec names.
        self.add_wheel("numpy", "2.9.9")
        self.add_wheel("fbgemm_gpu", "1.9.0")

    def add_wheel(self, name: str, version: str, *requires: str) -> Path:
        """A wheel of one module to the folder that is the index."""
        return write_wheel(self.wheels, name, version, module(name, version), requires)

    def _make_base(self) -> None:
        # Not sys.executable: in a container that one has the real GPU stack.
        bare = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([bare, "-m", "venv", "--without-pip", self.python.parents[1]], check=True)
        pip_package = Path(pip.__file__).parent
        for source in (pip_package, *pip_package.parent.glob("pip-*.dist-info")):
            (self.packages_of(self.python.parents[1]) / source.name).symlink_to(source)

    @staticmethod
    def packages_of(environment: Path) -> Path:
        return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def write_lock(self, group: str, *wheels: Path) -> None:
        lines = []
        for wheel in wheels:
            name, version = wheel.name.split("-")[:2]
            sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} --hash=sha256:{sha256}\n")
        (self.requirements / f"{group}.lock").write_text("".join(lines))

    def add_to_base(self, name: str, version: str, files: dict[str, str] | None = None) -> None:
        """A package, of one module unless it has other files."""
        wheel = write_wheel(self.wheels.parent, name, version, module(name, version) if files is None else files)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.packages_of(self.python.parents[1]))

    def add_gpu_stack_to_base(self) -> None:
        self.add_to_base("torch", "2.10.0+rocm7.1", TORCH_INIT | GPU_TORCH)
        self.add_to_base("fbgemm_gpu_nightly_rocm", "2026.6.18", module("fbgemm_gpu", "2026.6.18"))
        self.add_to_base("torchrec", "1.4.0")
        self.add_to_base("numpy", "2.2.6")
        self.add_to_base("hydra_core", "1.3.7", module("hydra", "1.3.7"))
        self.add_to_base("python_debian", "0.1.43ubuntu1", {})

    def set_up(self, status: int = 0, options: Sequence[str] = (), uv: bool = False) -> str:
        """Run it, check its exit status and that stdout stays empty, and return what it says.

        Without `uv` there is none to be had.
        """
        settings = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PIP_CONFIG_FILE": os.devnull}
        settings |= {"UV_CACHE_DIR": str(self.wheels.parent / "uv-cache")}
        settings |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        if uv:
            found = shutil.which("uv") or shutil.which("uv", path=f"{sys.prefix}/uv/bin")
            if found is None:
                pytest.skip("uv is neither on the PATH nor in this environment")
            settings["PATH"] = f"{Path(found).parent}:{settings['PATH']}"
        # Of our own Python's settings none may leak into the stand-ins.
        prefixes = ("PIP_", "PYTHON", "VIRTUAL_ENV", "UV_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
        command: list[str | Path] = [self.python, self.requirements / "install.py", self.environment, *options]
        process = subprocess.run(command, env=inherited | settings, capture_output=True, text=True, check=False)
        assert process.returncode == status, process.stderr
        assert process.stdout == ""
        assert "Traceback" not in process.stderr
        return process.stderr

    def versions(self) -> dict[str, str]:
        """Return what the environment's Python imports."""
        names = ("torch", "fbgemm_gpu", "torchrec", "numpy", "extra")
        code = f"import json\nprint(json.dumps({{n: __import__(n).__version__ for n in {names}}}))"
        command: list[str | Path] = [self.environment / "bin" / "python", "-c", code]
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    def snapshot(self, environment: Path) -> dict[str, bytes]:
        """All files of an environment's packages but the bytecode that an import leaves there."""
        packages = self.packages_of(environment)
        files = (p for p in packages.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return {str(path.relative_to(packages)): path.read_bytes() for path in files}
