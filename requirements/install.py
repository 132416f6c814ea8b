"""Create or update the environment of every make target: `python requirements/install.py [DIRECTORY] [GROUP ...]`.

It holds the groups named (pyproject.toml), from locks that are checked by hash, and torch as pinned in torch.in. Where
this Python has torch for CUDA or ROCm with fbgemm_gpu and torchrec (a container), the environment sees those packages
and gets only what is missing; nothing is replaced.

A state file says what an environment was built from, once it is whole. One that is not, or was built from other inputs,
is built again from nothing; a group is added in place. Only the standard library can be imported here.
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
STATE = "clickwork.json"
# Prints version and file of each module; a broken stack raises on import. The GPU driver comes from the host when a
# container starts; there is none while an image is built.
PROBE = """import importlib, importlib.util, json, os, re, sys
found, failed = {}, ""
for name in sys.argv[1:]:
    try:
        version = failed or str(importlib.import_module(name).__version__)
    except OSError as error:
        if not re.search(r"lib(nvidia-ml|cuda)[.]so[.]1: cannot open", str(error)):
            raise
        version = failed = "(not imported: no GPU driver here)"
    found[name] = version, os.path.realpath(importlib.util.find_spec(name).origin)
print("\\n" + json.dumps(found))"""
# What training imports beside those.
BESIDE = "import hydra, jinja2, numba, sklearn.ensemble, sklearn.linear_model, sympy, tensorboard.summary"


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
        base = read_state(environment).get("base")
        if base and os.path.realpath(sys.prefix) == os.path.realpath(environment):  # it is activated
            os.execv(base, [base, __file__, *arguments])
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


def read_state(environment: Path) -> dict[str, Any]:
    """Read the environment's state file; empty if there is no readable one."""
    try:
        return dict(json.loads((environment / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def write_state(environment: Path, made_from: dict[str, Any] | None, groups: Sequence[str]) -> None:
    """Write the state file; made_from: None while the environment is not whole."""
    state = {"base": sys.executable, "made_from": made_from, "groups": groups}
    (environment / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def update(environment: Path, groups: Sequence[str], device: str) -> None:
    """Build the environment, or add the groups that it lacks, under a lock."""
    inputs = sorted(path for path in HERE.iterdir() if path.suffix in (".py", ".lock", ".in"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs) + repr(read_groups()).encode())
    gpu = gpu_stack.describe_gpu_stack(device) if "data_prep" not in groups else None
    made_from = {"python": platform.python_version(), "device": device, "inputs": digest.hexdigest(), "gpu_stack": gpu}

    def lacking() -> list[str] | None:
        """Return the groups that an up to date environment lacks; None if it must be built."""
        state = read_state(environment)
        if state.get("made_from") != made_from or not os.access(environment / "bin" / "python", os.X_OK):
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
    started = time.monotonic()
    state = read_state(environment)
    groups = sorted({*groups, *state.get("groups", [])})
    if missing is None:
        clear(environment, state)
        log(f"creating {environment} with {sys.executable}, Python {made_from['python']}")
        environment.mkdir(parents=True)
    else:
        refuse_others(environment, f"lacks {' and '.join(missing)}")
    write_state(environment, None, groups)
    if missing is None:
        # --without-pip: Debian's Python has no ensurepip; this Python's pip installs into the environment.
        failure = f"{sys.executable} created no virtual environment (on Debian, install python3-venv)"
        run([sys.executable, "-m", "venv", "--without-pip", environment], failure)
    gpu = made_from["gpu_stack"] or {}
    if "torch" in gpu:
        requirements = read_groups()
        gpu_stack.install_missing(environment, [line for group in groups for line in requirements[group]], gpu)
    else:
        if gpu and missing is None:
            log(f"{gpu['incomplete']}: installing the CPU stack beside it")
        install_locked(environment, missing or groups, made_from["device"])
    if missing is None:
        modules = ["numpy", *(gpu_stack.STACK if "train" in groups else [])]
        torch = gpu.get("torch") or read_pins(made_from["device"])[-1].partition("==")[2]
        log(verify(environment, modules, torch, gpu.get("origins", {})))
        write_command(environment / "bin" / "clickwork", environment / "bin" / "python")
        write_path(environment)
    write_state(environment, made_from, groups)
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


def clear(environment: Path, state: dict[str, Any]) -> None:
    """Remove an environment that was created here; refuse to touch anything else of that name."""
    if (environment / STATE).exists():
        reason = "was built from other requirements" if state.get("made_from") else "is incomplete"
        refuse_others(environment, reason)
        log(f"{environment} {reason}: building it again")
        shutil.rmtree(environment)
    elif os.path.lexists(environment) and (not environment.is_dir() or any(environment.iterdir())):
        raise SetupError(f"{environment} was not created by this set-up; move it away, or set VENV=<other path>")


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


def read_pins(device: str) -> list[str]:
    """Return the requirements that are installed without their own; torch is the last."""
    text = (HERE / f"{DEVICES[device]}.in").read_text(encoding="utf-8")
    return re.findall(r"(?m)^([\w.-]+==\S+|[\w-]+)", text)


def install_locked(environment: Path, groups: Sequence[str], device: str) -> None:
    """Install the locked packages of the groups, then torch, whose requirements are among them."""
    command, variables = find_installer(environment)
    is_uv = command[1] == "pip"
    named = [line for group in groups if group in ("tune", "onnx") for line in read_groups()[group]]
    locks = [name for name in ("data_prep", "train", "dev") if name in groups]
    if named and not is_uv and "dev" not in locks:  # pip cannot check hashes of packages by name
        locks.append("dev")
    # The locks are complete; constraints could contradict them. --no-deps: torchrec would get its fbgemm-gpu.
    locked = {name: text for name, text in variables.items() if name not in ("UV_CONSTRAINT", "PIP_CONSTRAINT")}
    for name in locks:
        log(f"installing the packages of requirements/{name}.lock")
        run([*command, "--no-deps", "--require-hashes", "-r", HERE / f"{name}.lock"], f"{name}.lock", locked)
    if named and "dev" not in locks:
        log(f"installing {' and '.join(named)}, as locked in requirements/dev.lock")
        run([*command, "-c", HERE / "train.lock", "-c", HERE / "dev.lock", *named], " and ".join(named), locked)
    if "train" not in groups:
        return None
    *others, torch = read_pins(device)
    if others:
        run([*command, "--no-deps", *others], " ".join(others), variables)
    log(f"installing {torch} (CPU build: 0.2 GB; several GB if your index has only the CUDA build)")
    chosen = ("UV_TORCH_BACKEND", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX")
    if is_uv and not any(name in variables for name in chosen):
        try:
            return run([*command, "--torch-backend", "cpu", torch], torch, variables)
        except SetupError as error:
            log(f"{error}; taking the usual index's build")
    return run([*command, torch], torch, variables)


def verify(environment: Path, modules: Sequence[str], torch: str, origins: dict[str, str]) -> str:
    """Import the modules in the environment, each from where it should come; return their versions as text."""
    # uv compiles no bytecode. These two processes write it, also where PYTHONDONTWRITEBYTECODE is set, as in many
    # containers: every later process starts in half the time.
    settings = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command: list[str | Path] = [environment / "bin" / "python", "-W", "ignore", "-c"]
    with subprocess.Popen([*command, BESIDE], env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        done = subprocess.run([*command, PROBE, *modules], env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"the installed stack does not import: {(done.stderr.strip().splitlines() or [''])[-1]}")
    seen: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    if "torch" in seen and torch not in (seen["torch"][0], seen["torch"][0].split("+")[0]):
        raise SetupError(f"torch {seen['torch'][0]} was installed, not {torch}; is a setting of pip or uv the cause?")
    for name, (_, origin) in seen.items():
        # numpy can be the one package that a container lacks: then it is the environment's.
        if not Path(origin).is_relative_to(origins.get(name, environment.resolve())):
            raise SetupError(f"{name} is imported from {origin}; is PYTHONPATH the cause?")
    return ", ".join(f"{name} {version}" for name, (version, _) in seen.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
