"""Create or update the environment of every make target: `python requirements/install.py [DIRECTORY] [GROUP ...]`.

It holds the groups named (pyproject.toml), from locks that are checked by hash, and torch as pinned in torch.in. Where
this Python has torch for CUDA or ROCm with fbgemm_gpu and torchrec (a container), the environment sees those packages
and gets only what is missing; nothing is replaced.

A state file says what an environment was built from and, last, that it is whole. One that is not, or was built from
other inputs, is built again from nothing; a group is added in place. Only the standard library can be imported here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_stack
from installer import HERE, SetupError, find_installer, log, run

# auto: a container's own GPU stack if it is complete, else cpu. oldest, newest: of the supported releases.
DEVICES = {"auto": "torch", "cpu": "torch", "oldest": "oldest", "newest": "newest", "cuda": "", "rocm": ""}
# Prints version and file of each module; a broken stack raises on import.
PROBE = """import importlib, json, os, sys
modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
print("\\n" + json.dumps({n: [str(m.__version__), os.path.realpath(m.__file__)] for n, m in modules.items()}))"""
# The GPU driver comes from the host when a container starts; there is none while an image is built.
DRIVER = re.compile(r"lib(nvidia-ml|cuda)\.so\.1: cannot open shared object file")


def main(arguments: Sequence[str]) -> int:
    """Create or update the environment; return an exit status."""
    parser = argparse.ArgumentParser(description="Create or update Clickwork's virtual environment.")
    parser.add_argument("directory", nargs="?", default=HERE.parent / ".venv")
    parser.add_argument("groups", nargs="*", help="of pyproject.toml: train (default), data_prep, dev, tune, onnx")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="which torch (default: %(default)s)")
    options = parser.parse_args(arguments)
    environment = Path(os.path.abspath(options.directory))
    try:
        if sys.version_info[:2] < (3, 10):  # noqa: UP036
            raise SetupError(f"Python 3.10 or newer is needed, not {sys.executable}: set PYTHON=python3.12")
        state = read_state(environment)
        if state and os.path.realpath(sys.prefix) == os.path.realpath(environment):  # it is activated
            if not os.access(state["base"], os.X_OK):
                raise SetupError(f"{state['base']}, which created {environment}, is gone: set PYTHON=/usr/bin/python3")
            os.execv(state["base"], [state["base"], __file__, *arguments])
        update(environment, options.groups or ["train"], options.device)
    except SetupError as error:
        log(f"error: {error}")
        return 2
    except OSError as error:
        log(f"error: {error.filename or environment}: {error.strerror or error}; set VENV=<other path>")
        return 2
    except KeyboardInterrupt:
        log("interrupted; the next one starts from nothing")
        return 130
    return 0


def read_state(environment: Path) -> dict[str, Any] | None:
    """Read the environment's state file; None if there is no readable one."""
    try:
        state = json.loads((environment / "clickwork.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and {"whole", "base", "made_from", "groups"} <= state.keys() else None


def write_state(environment: Path, made_from: dict[str, Any], groups: Sequence[str], whole: bool) -> None:
    """Write the state file atomically."""
    state = {"whole": whole, "base": sys.executable, "made_from": made_from, "groups": [*groups]}
    temporary = environment / "clickwork.json.tmp"
    temporary.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    temporary.replace(environment / "clickwork.json")


def update(environment: Path, groups: Sequence[str], device: str) -> None:
    """Build the environment, or add the groups that it lacks, under a lock."""
    inputs = [*sorted(HERE.glob("*.py")), *sorted(HERE.glob("*.lock")), *sorted(HERE.glob("*.in"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs) + repr(read_groups()).encode())
    gpu = gpu_stack.describe_gpu_stack(device) if "data_prep" not in groups else None
    made_from = {"python": platform.python_version(), "device": device, "inputs": digest.hexdigest(), "gpu_stack": gpu}

    def lacking() -> list[str] | None:
        """Return the groups that an up to date environment lacks; None if it must be built."""
        state = read_state(environment)
        if not state or not state["whole"] or state["made_from"] != made_from:
            return None
        if not os.access(environment / "bin" / "python", os.X_OK):
            return None
        return [] if "dev" in state["groups"] else sorted({*groups} - {*state["groups"]})  # dev has tune and onnx

    if lacking() == []:
        return
    lock = os.open(HERE, os.O_RDONLY)
    os.set_inheritable(lock, True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log("another set-up is running here; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    if (missing := lacking()) != []:
        build(environment, groups, missing, made_from)


def build(environment: Path, groups: Sequence[str], missing: list[str] | None, made_from: dict[str, Any]) -> None:
    """Build the environment from nothing, or add the missing groups to it."""
    started, python = time.monotonic(), environment / "bin" / "python"
    state = read_state(environment)
    groups = sorted({*groups, *(state["groups"] if state else [])})
    if missing is not None:
        refuse_others(environment, f"lacks {' and '.join(missing)}")
    else:
        clear(environment, state)
        log(f"creating {environment} with {sys.executable}, Python {made_from['python']}")
        environment.mkdir(parents=True)
    write_state(environment, made_from, groups, whole=False)
    if missing is None:
        # --without-pip: Debian's Python has no ensurepip; this Python's pip installs into the environment.
        failure = f"{sys.executable} created no virtual environment (on Debian, install python3-venv)"
        run([sys.executable, "-m", "venv", "--without-pip", environment], failure)
    gpu, torch = made_from["gpu_stack"], None
    if gpu and "torch" in gpu:
        torch = gpu["torch"]
        requirements = read_groups()
        gpu_stack.install_missing(environment, [line for group in groups for line in requirements[group]], gpu)
    else:
        if gpu and missing is None:
            log(f"{gpu['incomplete']}: installing the CPU stack beside it")
        torch = install_locked(environment, missing or groups, made_from["device"])
    if missing is None:
        origins = gpu.get("origins", {}) if gpu else {}
        log(verify(environment, ["numpy", *(gpu_stack.STACK if torch else [])], torch, origins))
        write_command(environment / "bin" / "clickwork", python)
        write_path(environment)
    write_state(environment, made_from, groups, whole=True)
    log(f"ready after {time.monotonic() - started:.0f} s: {', '.join(groups)}")


def write_command(path: Path, python: Path) -> None:
    """Write the command `clickwork`, which runs this checkout's commands in any directory."""
    program = f"import sys\nsys.path[0] = {str(HERE.parent)!r}\nfrom app.__main__ import main\nmain()\n"
    # A shell starts it, as an interpreter's path may hold spaces.
    path.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{program}", encoding="utf-8")
    path.chmod(0o755)


def write_path(environment: Path) -> None:
    """Let the environment's Python import this checkout's packages, `clickwork` first of all, in any directory."""
    [packages] = (environment / "lib").glob("python*/site-packages")
    (packages / "clickwork.pth").write_text(f"{HERE.parent}\n", encoding="utf-8")


def clear(environment: Path, state: dict[str, Any] | None) -> None:
    """Remove an environment that was created here; refuse to touch anything else of that name."""
    if state:
        reason = "was built from other requirements" if state["whole"] else "is incomplete"
        refuse_others(environment, reason)
        log(f"{environment} {reason}: building it again")
    elif not os.path.lexists(environment):
        return
    # Empty except for this: the set-up was killed before it wrote the state file.
    elif not environment.is_dir() or any(path.suffix != ".tmp" for path in environment.iterdir()):
        raise SetupError(f"{environment} was not created by this set-up; move it away, or set VENV=<other path>")
    shutil.rmtree(environment)


def refuse_others(environment: Path, reason: str) -> None:
    """Raise SetupError if the environment is a link or another user's."""
    if environment.is_symlink() or environment.stat().st_uid != os.geteuid():
        whose = "is a link to another" if environment.is_symlink() else "belongs to another user"
        raise SetupError(f"{environment} {reason} and {whose}; set VENV=<other path> for one of your own")


def read_groups() -> dict[str, list[str]]:
    """Return the requirements of each group of pyproject.toml but those of groups it includes."""
    text = (HERE.parent / "pyproject.toml").read_text(encoding="utf-8")  # Python 3.10 has no tomllib
    [table] = re.findall(r"(?ms)^\[dependency-groups\]\n(.*?)(?=^\[|\Z)", text)
    groups: dict[str, list[str]] = {}
    for name, body in re.findall(r"(?ms)^(\w+) = \[(.*?)\](?: *#[^\n]*)?$", table):
        parts = re.findall(r'(include-group = )?"([^"]+)"', re.sub(r"#.*", "", body))
        groups[name] = [line for include, part in parts for line in (groups[part] if include else [part])]
    return groups


def install_locked(environment: Path, groups: Sequence[str], device: str) -> str | None:
    """Install the locked packages of the groups, then torch, whose requirements are among them; return its version."""
    command, variables = find_installer(environment)
    is_uv = command[1] == "pip"
    names = [line for group in groups if group in ("tune", "onnx") for line in read_groups()[group]]
    # The locks are complete; constraints could contradict them. --no-deps: torchrec would get its fbgemm-gpu.
    locked = {name: text for name, text in variables.items() if name not in ("UV_CONSTRAINT", "PIP_CONSTRAINT")}
    locks = [
        name for name in ("data_prep", "train", "dev") if name in groups or (name == "dev" and names and not is_uv)
    ]
    for name in locks:
        log(f"installing the packages of requirements/{name}.lock")
        run([*command, "--no-deps", "--require-hashes", "-r", HERE / f"{name}.lock"], f"{name}.lock", locked)
    if names and "dev" not in locks:
        log(f"installing {' and '.join(names)}, as locked in requirements/dev.lock")
        run([*command, "-c", HERE / "train.lock", "-c", HERE / "dev.lock", *names], " and ".join(names), locked)
    if "train" not in groups:
        return None
    lines = (HERE / f"{DEVICES[device]}.in").read_text(encoding="utf-8").splitlines()
    *others, torch = [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
    if others:
        run([*command, "--no-deps", *others], " ".join(others), variables)
    log(f"installing {torch} (CPU build: 0.2 GB; several GB if your index has only the CUDA build)")
    chosen = ("UV_TORCH_BACKEND", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX")
    if is_uv and not any(name in variables for name in chosen):
        try:
            run([*command, "--torch-backend", "cpu", torch], torch, variables)
            return torch.partition("==")[2]
        except SetupError as error:
            log(f"{error}; taking the usual index's build")
    run([*command, torch], torch, variables)
    return torch.partition("==")[2]


def verify(environment: Path, modules: Sequence[str], torch: str | None, origins: dict[str, str]) -> str:
    """Import the modules in the environment, each from where it should come; return their versions as text."""
    python, driver = environment / "bin" / "python", ""
    command: list[str | Path] = [python, "-W", "ignore", "-c", PROBE]
    done = subprocess.run([*command, *modules], capture_output=True, text=True, check=False)
    if done.returncode and (found := DRIVER.search(done.stderr)):
        driver = f"; fbgemm_gpu and torchrec were not imported: no GPU driver here ({found[0]})"
        modules = [name for name in modules if name not in ("fbgemm_gpu", "torchrec")]
        done = subprocess.run([*command, *modules], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"the installed stack does not import: {(done.stderr.strip().splitlines() or [''])[-1]}")
    seen: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    if torch and torch not in (seen["torch"][0], seen["torch"][0].split("+")[0]):
        raise SetupError(f"torch {seen['torch'][0]} was installed, not {torch}; is a setting of pip or uv the cause?")
    for name, (_, origin) in seen.items():
        # numpy can be the one package that a container lacks: then it is the environment's.
        if not Path(origin).is_relative_to(origins.get(name, environment.resolve())):
            raise SetupError(f"{name} is imported from {origin}; is PYTHONPATH the cause?")
    return ", ".join(f"{name} {seen[name][0]}" for name in modules) + driver


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
