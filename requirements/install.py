"""Create the virtual environment that every make target runs in: `python requirements/install.py [DIRECTORY]`.

It holds the packages of environment.lock, checked by hash, and torch as pinned in torch.in. Where this Python already
has torch for CUDA or ROCm with fbgemm_gpu and torchrec (a container), the environment sees those packages and gets only
what is missing; nothing is replaced. Options select other stacks (requirements/stacks.py); images are built with them.

A state file records what an environment was built from and, written last, that it is complete. An environment that is
incomplete or outdated is built again from nothing. Only the standard library can be imported here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_stack
import imports
import stacks
from errors import SetupError, log

HERE = Path(__file__).resolve().parent
STATE_NAME = "clickwork.json"
OLDEST_PIP = (22, 3)  # the first with --python
PROGRESS_SECONDS = 15  # between the lines of a long step


def main(arguments: Sequence[str]) -> int:
    """Create or update the environment; return an exit status."""
    parser = argparse.ArgumentParser(description="Create or update Clickwork's virtual environment.")
    parser.add_argument("directory", nargs="?", default=HERE.parent / ".venv")
    parser.add_argument("--device", choices=stacks.DEVICES, default="auto", help="which torch (default: %(default)s)")
    parser.add_argument(
        "--packages", choices=stacks.PACKAGES, default=stacks.PACKAGES[0], help="which packages (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    environment, stack = Path(os.path.abspath(options.directory)), stacks.Stack(options.device, options.packages)
    try:
        if sys.version_info[:2] < stacks.PYTHONS[0]:
            raise SetupError(f"Python 3.10 or newer is needed, not {sys.executable}: set PYTHON=python3.12")
        if sys.version_info[:2] > stacks.PYTHONS[1]:
            log(f"Python {platform.python_version()} is newer than those that were tried (3.10 to 3.14)")
        use_base_python(environment, arguments)
        made_from = describe(stack)
        if not is_whole(environment, made_from):
            build_alone(environment, stack, made_from)
    except SetupError as error:
        print(f"set-up: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"set-up: error: {error.filename or environment}: {error.strerror or error}; set VENV=<other path>",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as error:
        number = signal.Signals(*error.args or (signal.SIGINT,))
        print(f"set-up: {number.name}: interrupted; the next one starts from nothing", file=sys.stderr)
        return 128 + number
    return 0


def interrupt(number: int, frame: object) -> None:
    """Handle a signal as Python does SIGINT, but name it: what was begun is left as it is."""
    raise KeyboardInterrupt(number)


def use_base_python(environment: Path, arguments: Sequence[str]) -> None:
    """If started by the environment's own Python (it is activated), continue in the one that created it."""
    state = read_state(environment)
    if state is None or os.path.realpath(sys.prefix) != os.path.realpath(environment):
        return
    base = state["base"]
    if not os.access(base, os.X_OK):
        raise SetupError(f"{base}, which created {environment}, is gone; name another: PYTHON=/usr/bin/python3")
    os.execv(base, [base, __file__, *arguments])


def describe(stack: stacks.Stack) -> dict[str, Any]:
    """Return everything that decides what the environment will hold."""
    gpu = gpu_stack.describe_gpu_stack(stack.device) if stack.has_torch else None
    inputs = [*sorted(HERE.glob("*.py")), *stack.inputs()]
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "stack": [stack.device, stack.packages],
        "inputs": hashlib.sha256(b"\0".join(path.read_bytes() for path in inputs)).hexdigest(),
        "gpu_stack": gpu,
    }


def read_state(environment: Path) -> dict[str, Any] | None:
    """Read the environment's state file; None if there is no readable one."""
    try:
        state = json.loads((environment / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and {"whole", "base", "made_from"} <= state.keys() else None


def write_state(environment: Path, made_from: dict[str, Any], whole: bool) -> None:
    """Write the state file atomically."""
    state = {"whole": whole, "base": sys.executable, "made_from": made_from}
    temporary = environment / f"{STATE_NAME}.tmp"
    temporary.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    temporary.replace(environment / STATE_NAME)


def is_whole(environment: Path, made_from: dict[str, Any]) -> bool:
    """Return whether the environment is complete and up to date."""
    state = read_state(environment)
    runs = os.access(environment / "bin" / "python", os.X_OK)
    return bool(state and state["whole"] and state["made_from"] == made_from and runs)


def build_alone(environment: Path, stack: stacks.Stack, made_from: dict[str, Any]) -> None:
    """Build the environment under a lock; if another process was building it, wait and check again."""
    directory = os.open(HERE, os.O_RDONLY)
    # Inherited by the steps: a pip that outlives its killed set-up keeps the lock until it ends.
    os.set_inheritable(directory, True)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another set-up is running here; waiting for it")
            fcntl.flock(directory, fcntl.LOCK_EX)
        if not is_whole(environment, made_from):
            build(environment, stack, made_from)
    finally:
        os.close(directory)


def build(environment: Path, stack: stacks.Stack, made_from: dict[str, Any]) -> None:
    """Build the environment from nothing."""
    started = time.monotonic()
    clear(environment)
    log(f"creating {environment} with {sys.executable}, Python {made_from['python']}")
    environment.mkdir(parents=True)
    write_state(environment, made_from, whole=False)
    python = environment / "bin" / "python"
    # --without-pip: Debian's Python has no ensurepip; this Python's pip installs into the environment.
    venv = [sys.executable, "-m", "venv", "--without-pip"]
    run(
        [*venv, environment],
        f"{sys.executable} created no virtual environment (on Debian, install python3-venv)",
        environment,
    )
    # Progress bars on a terminal, only errors elsewhere.
    quiet = [] if sys.stderr.isatty() else ["-qq"]
    pip = [*pip_for(python, environment), "install", *quiet, "--disable-pip-version-check", "--no-user"]
    if made_from["gpu_stack"]:
        torch: str | None = install_missing(environment, pip, stack, made_from)
    else:
        torch = install_locked(environment, pip, stack)
    versions = imports.verify(environment, python, stack.modules, torch, made_from["gpu_stack"])
    write_command(environment / "bin" / "clickwork", python)
    write_path(environment)
    write_state(environment, made_from, whole=True)
    log(f"ready after {time.monotonic() - started:.0f} s: {versions}")


def write_command(path: Path, python: Path) -> None:
    """Write the command `clickwork`, which runs this checkout's commands in any directory.

    A shell starts it, as an interpreter's path may hold spaces.
    """
    program = f"import sys\nsys.path[0] = {str(HERE.parent)!r}\nfrom app.__main__ import main\nmain()\n"
    path.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{program}", encoding="utf-8")
    path.chmod(0o755)


def write_path(environment: Path) -> None:
    """Let the environment's Python import this checkout's packages, `clickwork` first of all, in any directory."""
    [packages] = (environment / "lib").glob("python*/site-packages")
    (packages / "clickwork.pth").write_text(f"{HERE.parent}\n", encoding="utf-8")


def clear(environment: Path) -> None:
    """Remove an environment that was created here; refuse to touch anything else of that name."""
    state = read_state(environment)
    if state:
        reason = "was built from other requirements" if state["whole"] else "is incomplete"
        if environment.is_symlink() or environment.stat().st_uid != os.geteuid():
            whose = "is a link to another" if environment.is_symlink() else "belongs to another user"
            raise SetupError(f"{environment} {reason} and {whose}; set VENV=<other path> for one of your own")
        log(f"{environment} {reason}: building it again")
        shutil.rmtree(environment)
    elif os.path.lexists(environment):
        # Empty except for this: the set-up was killed before it wrote the state file.
        if not environment.is_dir() or any(path.suffix != ".tmp" for path in environment.iterdir()):
            raise SetupError(f"{environment} was not created by this set-up; move it away, or set VENV=<other path>")
        shutil.rmtree(environment)


def pip_for(python: Path, environment: Path) -> list[str | Path]:
    """Return the command of a pip that installs into the environment."""
    if importlib.util.find_spec("pip"):
        major, minor = importlib.metadata.version("pip").split(".")[:2]
        if (int(major), int(minor)) >= OLDEST_PIP:
            return [sys.executable, "-m", "pip", "--python", python]
    run(
        [python, "-m", "ensurepip"],
        f"{sys.executable} has neither pip 22.3 or later nor ensurepip: install pip",
        environment,
    )
    return [python, "-m", "pip"]


def install_locked(environment: Path, pip: Sequence[str | Path], stack: stacks.Stack) -> str | None:
    """Install the locked packages, then torch, whose requirements the lock holds. Return torch's version."""
    if stack.device == "auto" and (torch := gpu_stack.find_gpu_torch()):
        missing = " and ".join(gpu_stack.missing_from_stack())
        log(f"torch {torch[0]} for {torch[1]} is installed, but not {missing}: installing the CPU stack beside it")
    log(f"installing the packages of requirements/{stack.lock.name}, which takes one to three minutes")
    # A container's constraints could contradict the lock, which is complete.
    os.environ.pop("PIP_CONSTRAINT", None)
    # --no-deps: torchrec would install fbgemm-gpu over the CPU build; all other requirements are in the lock.
    failure = f"pip failed on requirements/{stack.lock.name}"
    run([*pip, "--no-deps", "--require-hashes", "-r", stack.lock], failure, environment)
    if not stack.pins:
        return None
    *others, torch_pin = stack.pins
    if others:
        run([*pip, "--no-deps", *others], f"pip failed on {' '.join(others)}", environment)
    log(f"installing {torch_pin} (CPU build: 0.2 GB; several GB if your index has only the CUDA build)")
    run([*pip, "--no-warn-conflicts", torch_pin], f"pip failed on {torch_pin}", environment)
    return torch_pin.partition("==")[2]


def install_missing(
    environment: Path, pip: Sequence[str | Path], stack: stacks.Stack, made_from: dict[str, Any]
) -> str:
    """Install what this Python lacks, constrained to the versions it has. Return its torch's version."""
    gpu = made_from["gpu_stack"]
    log(f"using torch {gpu['torch']} for {gpu['device']} and the other packages of {sys.executable}")
    gpu_stack.write_overlay(environment, gpu, made_from["python"])
    if added := gpu["added"]:
        log(f"installing the releases made for this torch: {', '.join(added)}")
        # --no-deps: their requirements are installed next, under the constraints.
        run(
            [*pip, "--no-deps", *added], f"pip found no {' or no '.join(added)}: see docs/compatibility.md", environment
        )
    if missing := gpu_stack.missing_requirements(stack.wanted(), gpu):
        log(f"installing missing packages: {', '.join(missing)}")
        constraints = environment / "constraints.txt"
        constraints.write_text(gpu_stack.constraints(gpu), encoding="utf-8")
        failure = f"pip found no versions that leave the packages of {sys.executable} unchanged"
        run([*pip, "-c", constraints, *missing], failure, environment)
    return str(gpu["torch"])


def run(command: Sequence[str | Path], failure: str, environment: Path) -> None:
    """Run one step with its output on stderr; log what is installed now and then, as pip is silent for minutes."""
    started = time.monotonic()
    # close_fds=False: the step inherits the lock.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, close_fds=False)
    try:
        while (status := wait(process)) is None:
            count = len(list(environment.glob("lib/python*/site-packages/*.dist-info")))
            log(f"{count} packages are installed, this step has taken {time.monotonic() - started:.0f} s")
    except BaseException:
        process.kill()
        raise
    if status:
        raise SetupError(f"{failure} (exit status {status}; its output is above)")


def wait(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of a process; None if it has not ended after PROGRESS_SECONDS."""
    try:
        return process.wait(PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, interrupt)
    sys.exit(main(sys.argv[1:]))
