"""torch for CUDA or ROCm, fbgemm_gpu and torchrec, as a container brings them: found, used, not replaced."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import runpy
import site
from pathlib import Path
from typing import Any

STACK = ("torch", "fbgemm_gpu", "torchrec")
CANONICAL_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[A-Za-z0-9._-]+)?")


def find_gpu_torch() -> tuple[str, str] | None:
    """Version and device ("cuda 12.8", "hip 7.1") of this Python's torch; None without one for a GPU."""
    spec = importlib.util.find_spec("torch")
    version_file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version_file is None or not version_file.is_file():
        return None
    # Not `import torch`: this runs on every make, and the import takes seconds.
    version = runpy.run_path(str(version_file))
    for kind in ("cuda", "hip"):
        if version.get(kind):
            return str(version["__version__"]), f"{kind} {version[kind]}"
    return None


def missing_from_stack() -> list[str]:
    """The modules of the stack that this Python cannot import."""
    return [name for name in STACK if importlib.util.find_spec(name) is None]


def describe_gpu_stack() -> dict[str, Any] | None:
    """This Python's stack for a GPU, and all it has besides; None unless it is complete."""
    torch = find_gpu_torch()
    if torch is None or missing_from_stack():
        return None
    directories = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return {
        "torch": torch[0],
        "device": torch[1],
        "origins": {name: _origin(name) for name in (*STACK, "numpy")},
        "directories": [directory for directory in directories if os.path.isdir(directory)],
        "distributions": _distributions(),
    }


def write_overlay(environment: Path, stack: dict[str, Any], python_version: str) -> None:
    """Let the environment see the other Python's packages, behind its own.

    `--system-site-packages` would not do: from a virtual environment it leads to the Python below that one.
    """
    library = f"python{'.'.join(python_version.split('.')[:2])}"
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in stack["directories"]]
    (environment / "lib" / library / "site-packages" / "gpu_stack.pth").write_text("".join(lines))


def constraints(stack: dict[str, Any]) -> str:
    """A pip constraints file that holds every package of the other Python where it is."""
    # pip stops at a version it cannot read; Debian's own packages have some, and no index has those.
    readable = {n: v for n, v in stack["distributions"].items() if CANONICAL_VERSION.fullmatch(v)}
    return "".join(f"{name}=={version}\n" for name, version in readable.items())


def missing_requirements(requirements: str, stack: dict[str, Any]) -> list[str]:
    """The lines of a requirements file whose package the other Python does not have in any version."""
    lines = [line.split("#")[0].strip() for line in requirements.splitlines()]
    return [line for line in lines if line and not _has(stack, line)]


def _has(stack: dict[str, Any], requirement: str) -> bool:
    name = _normalize(re.split(r"[^A-Za-z0-9._-]", requirement)[0])
    # By module too: FBGEMM's GPU builds go by several names, and one built from source may have none.
    return name in stack["distributions"] or name in ("torch", "torchrec") or name.startswith("fbgemm-gpu")


def _origin(module: str) -> str | None:
    spec = importlib.util.find_spec(module)
    return os.path.realpath(spec.origin) if spec and spec.origin else None


def _distributions() -> dict[str, str]:
    """Name and version of every installed distribution; the first one found counts, as for an import."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if name := distribution.metadata["Name"]:
            found.setdefault(_normalize(name), distribution.version)
    return dict(sorted(found.items()))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
