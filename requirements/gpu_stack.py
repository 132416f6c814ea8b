"""A container's own torch for CUDA or ROCm, fbgemm_gpu and torchrec: found and used, never replaced."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import runpy
import site
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from errors import SetupError

STACK = ("torch", "fbgemm_gpu", "torchrec")
OLDEST_TORCH = 10  # of torch 2.x
KINDS = {"cuda": "cuda", "rocm": "hip"}  # platform to torch's name of it
CANONICAL_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[A-Za-z0-9._-]+)?")


def find_gpu_torch() -> tuple[str, str] | None:
    """Return version and device ("cuda 12.8", "hip 7.1") of this Python's torch; None if it has none for a GPU."""
    spec = importlib.util.find_spec("torch")
    version_file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version_file is None or not version_file.is_file():
        return None
    # Not `import torch`: this runs on every make, and the import takes seconds.
    version = runpy.run_path(str(version_file))
    for kind in KINDS.values():
        if version.get(kind):
            return str(version["__version__"]), f"{kind} {version[kind]}"
    return None


def missing_from_stack() -> list[str]:
    """Return the modules of the stack that this Python cannot import."""
    return [name for name in STACK if importlib.util.find_spec(name) is None]


def describe_gpu_stack(device: str) -> dict[str, Any] | None:
    """Describe this Python's GPU stack and its other packages; None if the environment gets a stack of its own.

    With device `auto` the stack must be complete. With `cuda` or `rocm` torch suffices: `added` then lists the missing
    requirements that belong to it.

    Raises:
        SetupError: `cuda` or `rocm` without torch for it, or releases that do not belong together.
    """
    if device not in ("auto", *KINDS):
        return None
    torch, missing = find_gpu_torch(), missing_from_stack()
    if device in KINDS and (torch is None or not torch[1].startswith(KINDS[device])):
        raise SetupError(f"no torch for {device} in this Python: name a base image that has it (docs/containers.md)")
    if torch is None or (device == "auto" and missing):
        return None
    distributions = _distributions()
    check_releases(torch[0], distributions)
    directories = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return {
        "torch": torch[0],
        "device": torch[1],
        "added": matching_releases(*torch, missing),
        "origins": {name: _origin(name) for name in (*STACK, "numpy")},
        "directories": [directory for directory in directories if os.path.isdir(directory)],
        "distributions": distributions,
    }


def check_releases(torch: str, distributions: dict[str, str]) -> None:
    """Refuse releases that do not match: FBGEMM 1.X is built for torch 2.(X+5) only.

    Raises:
        SetupError: torch is too old, or belongs to another FBGEMM.
    """
    minor = _minor(torch)
    if minor < OLDEST_TORCH:
        raise SetupError(f"torch {torch} is too old: 2.{OLDEST_TORCH} is the oldest that works here")
    for name, version in distributions.items():
        # Builds versioned by date, or from source, do not state the torch they were built for.
        release = re.match(r"1\.(\d+)\.", version)
        if name.startswith("fbgemm-gpu") and release and int(release[1]) + 5 != minor:
            raise SetupError(f"{name} {version} belongs to torch 2.{int(release[1]) + 5}, not {torch}")


def matching_releases(torch: str, device: str, missing: Iterable[str]) -> list[str]:
    """Return requirements for the missing modules of the stack, in the releases made for this torch.

    FBGEMM's and TorchRec's 1.X belong to torch 2.(X+5) (FBGEMM's compatibility table, TorchRec's release scripts).
    A ROCm build is requested by its local version: the plain name is the CUDA build.
    """
    release = f"1.{_minor(torch) - 5}"
    kind, _, version = device.partition(" ")
    rocm = f"+rocm{'.'.join(version.split('.')[:2])}"
    fbgemm = f"fbgemm-gpu=={release}.0{rocm}" if kind == "hip" else f"fbgemm-gpu=={release}.*"
    requirements = {"fbgemm_gpu": fbgemm, "torchrec": f"torchrec=={release}.*"}
    return [requirements[name] for name in missing]


def write_overlay(environment: Path, stack: dict[str, Any], python_version: str) -> None:
    """Make the other Python's packages visible in the environment, after its own.

    `--system-site-packages` does not work here: from a virtual environment it leads to the Python below that one.
    """
    library = f"python{'.'.join(python_version.split('.')[:2])}"
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in stack["directories"]]
    (environment / "lib" / library / "site-packages" / "gpu_stack.pth").write_text("".join(lines), encoding="utf-8")


def constraints(stack: dict[str, Any]) -> str:
    """Return a pip constraints file that pins every package of the other Python."""
    # pip fails on versions it cannot parse; some of Debian's own packages have such, and no index has those.
    readable = {n: v for n, v in stack["distributions"].items() if CANONICAL_VERSION.fullmatch(v)}
    return "".join(f"{name}=={version}\n" for name, version in readable.items())


def missing_requirements(requirements: Iterable[str], stack: dict[str, Any]) -> list[str]:
    """Return the requirements whose package the other Python does not have in any version."""
    return [requirement for requirement in requirements if not _has(stack, requirement)]


def _has(stack: dict[str, Any], requirement: str) -> bool:
    name = _normalize(re.split(r"[^A-Za-z0-9._-]", requirement)[0])
    # By module too: FBGEMM's GPU builds go by several names, and one built from source may have none.
    return name in stack["distributions"] or name in ("torch", "torchrec") or name.startswith("fbgemm-gpu")


def _minor(torch: str) -> int:
    release = re.match(r"2\.(\d+)", torch)
    return int(release[1]) if release else 0


def _origin(module: str) -> str | None:
    spec = importlib.util.find_spec(module)
    return os.path.realpath(spec.origin) if spec and spec.origin else None


def _distributions() -> dict[str, str]:
    """Return name and version of every installed distribution; the first one found counts, as for an import."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if name := distribution.metadata["Name"]:
            found.setdefault(_normalize(name), distribution.version)
    return dict(sorted(found.items()))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
