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

from installer import SetupError, find_pip, log, run

STACK = ("torch", "fbgemm_gpu", "torchrec")
OLDEST_TORCH = 10  # of torch 2.x
KINDS = {"cuda": "cuda", "rocm": "hip"}  # platform to torch's name of it
CANONICAL_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[A-Za-z0-9._-]+)?")


def describe_gpu_stack(device: str) -> dict[str, Any] | None:
    """Describe this Python's GPU stack and its other packages; None if the environment gets a stack of its own.

    With device `auto` the stack must be complete. With `cuda` or `rocm` torch suffices: `added` then lists the missing
    requirements that belong to it.
    """
    torch = find_gpu_torch() if device in ("auto", *KINDS) else None
    if device in KINDS and (torch is None or not torch[1].startswith(KINDS[device])):
        raise SetupError(f"no torch for {device} in this Python: name a base image that has it (docs/containers.md)")
    if torch is None:
        return None
    specs = {name: importlib.util.find_spec(name) for name in (*STACK, "numpy")}
    missing = [name for name in STACK if specs[name] is None]
    if device == "auto" and missing:
        return {"incomplete": f"torch {torch[0]} for {torch[1]} is installed, but not {' and '.join(missing)}"}
    # The first one found counts, as for an import.
    named = [(d.metadata["Name"], d.version) for d in importlib.metadata.distributions() if d.metadata["Name"]]
    directories = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return {
        "torch": torch[0],
        "device": torch[1],
        "added": matching_releases(*torch, missing),
        "origins": {name: os.path.realpath(spec.origin) for name, spec in specs.items() if spec and spec.origin},
        "directories": [directory for directory in directories if os.path.isdir(directory)],
        "distributions": {normalize(name): version for name, version in reversed(named)},
    }


def find_gpu_torch() -> tuple[str, str] | None:
    """Return version and device ("cuda 12.8", "hip 7.1") of this Python's torch; None if it has none for a GPU."""
    spec = importlib.util.find_spec("torch")
    version_file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    # Not `import torch`: this runs on every make, and the import takes seconds.
    version = runpy.run_path(str(version_file)) if version_file and version_file.is_file() else {}
    found = [(str(version["__version__"]), f"{kind} {version[kind]}") for kind in KINDS.values() if version.get(kind)]
    return found[0] if found else None


def matching_releases(torch: str, device: str, missing: Iterable[str]) -> list[str]:
    """Return requirements for the missing modules of the stack, in the releases made for this torch.

    FBGEMM's and TorchRec's 1.X belong to torch 2.(X+5) (FBGEMM's compatibility table, TorchRec's release scripts).
    A ROCm build is requested by its local version: the plain name is the CUDA build.
    """
    minor = int((re.match(r"2\.(\d+)", torch) or [0, 0])[1])
    if minor < OLDEST_TORCH:
        raise SetupError(f"torch {torch} is too old: 2.{OLDEST_TORCH} is the oldest that works here")
    kind, _, version = device.partition(" ")
    rocm = f".0+rocm{'.'.join(version.split('.')[:2])}"
    fbgemm = f"fbgemm-gpu==1.{minor - 5}{rocm if kind == 'hip' else '.*'}"
    return [fbgemm if name == "fbgemm_gpu" else f"{name}==1.{minor - 5}.*" for name in missing]


def install_missing(environment: Path, wanted: Iterable[str], gpu: dict[str, Any]) -> None:
    """Install what this Python lacks, held to the versions it has; by pip, as uv sees no other Python's."""
    log(f"using torch {gpu['torch']} for {gpu['device']} and the other packages of this Python")
    # Not --system-site-packages, which leads from a virtual environment to the Python below it.
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in gpu["directories"]]
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "gpu_stack.pth").write_text("".join(lines), encoding="utf-8")
    pip, added = find_pip(environment), gpu["added"]
    if added:
        log(f"installing the releases made for this torch: {', '.join(added)}")
        # --no-deps: their requirements are installed next, under the constraints.
        failure = f"pip found no {' or no '.join(added)} (docs/compatibility.md)"
        run([*pip, "--no-deps", *added], failure)
    # By module too: FBGEMM's GPU builds go by several names, and one built from source may have none.
    has = (*gpu["distributions"], "torch", "torchrec")
    names = {requirement: normalize(re.split(r"[^\w.-]", requirement)[0]) for requirement in wanted}
    missing = [text for text, name in names.items() if name not in has and not name.startswith("fbgemm-gpu")]
    if missing:
        log(f"installing missing packages: {', '.join(missing)}")
        constraints = environment / "constraints.txt"
        # pip fails on versions it cannot parse; some of Debian's own packages have such, and no index has those.
        readable = {n: v for n, v in gpu["distributions"].items() if CANONICAL_VERSION.fullmatch(v)}
        constraints.write_text("".join(f"{n}=={v}\n" for n, v in readable.items()), encoding="utf-8")
        failure = "pip found no versions that leave the packages of this Python unchanged"
        run([*pip, "-c", constraints, *missing], failure)


def normalize(name: str) -> str:
    """Return a distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()
