"""Check that an environment works: import its packages in it, each from the directory it should come from."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from errors import SetupError, log

# Prints version and file of each module; a broken stack raises on import.
PROBE = """
import importlib, json, os, sys
modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
found = {n: [str(getattr(m, "__version__", "")), os.path.realpath(m.__file__)] for n, m in modules.items()}
print("\\n" + json.dumps(found))
"""
# The GPU driver comes from the host when a container starts; there is none while an image is built.
DRIVER = re.compile(r"lib(nvidia-ml|cuda)\.so\.1: cannot open shared object file")


def verify(
    environment: Path, python: Path, modules: Sequence[str], torch: str | None, stack: dict[str, Any] | None
) -> str:
    """Import the modules in the environment, check their origins, return their versions as text.

    Raises:
        SetupError: an import fails, torch has another version, or a module comes from elsewhere.
    """
    log(f"importing {', '.join(modules)}")
    found, driver = probe(python, modules), True
    if isinstance(found, str) and DRIVER.search(found):
        modules, driver = [name for name in modules if name not in ("fbgemm_gpu", "torchrec")], False
        log(f"fbgemm_gpu and torchrec were not imported: no GPU driver here ({found})")
        found = probe(python, modules)
    if isinstance(found, str):
        raise SetupError(f"the installed stack does not import: {found}")
    if torch is not None:
        version = found["torch"][0]
        if torch not in (version, version.split("+")[0]):
            raise SetupError(f"torch {version} was installed, not {torch}; is a PIP_* setting the cause?")
    meant = stack["origins"] if stack else {}
    for name, (_, origin) in found.items():
        # numpy can be the one package that a container lacks: then it is ours.
        expected = Path(meant.get(name) or environment.resolve())
        if not Path(origin).is_relative_to(expected):
            raise SetupError(f"{name} is imported from {origin}, not {expected}; is PYTHONPATH the cause?")
    listed = [f"{name} {found[name][0]}" for name in modules if name != "numpy" or len(modules) == 1]
    return ", ".join(listed) + ("" if driver else "; the others when there is a GPU")


def probe(python: Path, modules: Sequence[str]) -> dict[str, list[str]] | str:
    """Return version and file of each imported module, or the last line of the error."""
    command: list[str | Path] = [python, "-W", "ignore", "-c", PROBE, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return lines[-1]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found
