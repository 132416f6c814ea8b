"""Commands as forks of a process that has imported what they need: a second less each than in fresh interpreters."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# The page cache outlives any kill, so that waits for the disk, an eighth of a preparation, matter to no test.
vars(os)["fsync"] = lambda descriptor: None


def start_server(items: list[pytest.Item]) -> None:
    """Start the process to fork from, before a test starts one that has imported less: a process has but one."""
    folders = {item.path.relative_to(TESTS).parts[0] for item in items}
    if folders & {"app", "data_prep", "extensions", "oracles", "test_bytes.py"}:
        preload_commands(with_training=bool(folders & {"app", "extensions", "test_bytes.py"}))


def preload_commands(with_training: bool) -> None:
    """Start the process to fork from, with the commands of data_prep imported, and maybe those of app."""
    preload = ["tests.data_prep.preload", *(["tests.app.preload"] if with_training else [])]
    multiprocessing.set_forkserver_preload(preload)
    forkserver.ensure_running()


def run_module(
    module: str, *arguments: str, cwd: Path, prepare: Callable[[], None] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Do what `python -m module arguments` does, to its end, after `prepare` (a function of a module)."""
    with tempfile.TemporaryDirectory() as directory:
        process = start_module(module, *arguments, cwd=cwd, out=Path(directory), prepare=prepare)
        process.join()
        assert process.exitcode is not None
        out, err = ((Path(directory) / stream).read_text() for stream in ("stdout", "stderr"))
        return subprocess.CompletedProcess([module, *arguments], process.exitcode, out, err)


def start_module(
    module: str,
    *arguments: str,
    cwd: Path,
    out: Path,
    environment: Mapping[str, str] = os.environ,
    prepare: Callable[[], None] | None = None,
) -> ForkServerProcess:
    """The same, under way; it writes `stdout` and `stderr` in the directory `out`."""
    context = multiprocessing.get_context("forkserver")
    target_arguments = (module, arguments, str(cwd), dict(environment), str(out), prepare)
    process = context.Process(target=_as_main, args=target_arguments)
    process.start()
    return process


def _as_main(
    module: str,
    arguments: tuple[str, ...],
    cwd: str,
    environment: Mapping[str, str],
    directory: str,
    prepare: Callable[[], None] | None,
) -> None:
    for descriptor, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{directory}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    keep_environment()
    os.environ.update(environment)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    sys.argv = [module, *arguments]
    if "." in module:
        sys.modules.pop(module, None)  # as in a fresh interpreter; a package is imported before it is run there, too
    sys.modules.pop(f"{module}.__main__", None)
    if prepare is not None:
        prepare()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def keep_environment(*names: str) -> None:
    """Remove all other variables but those of oneDNN and MKL, since a fork does not import `app` again."""
    for name in {*os.environ} - {*names, "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"}:
        del os.environ[name]
