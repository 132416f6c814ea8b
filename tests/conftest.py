"""What all tests share."""

import gc
import os
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from data_prep.stages.parse import compile_kernels
from tests.forks import start_server

# Without bytecode each of the processes that run tests compiles all tests anew, which takes 7 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Several processes run tests: threads of each that wait for the others' would take half of the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test that fails must fail again when it is run again, and a slow machine is not a bug.
slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("clickwork", slow_machine, derandomize=True, database=None)
settings.register_profile("drawn", slow_machine, derandomize=False, database=None)
settings.load_profile("clickwork")
# Hypothesis also draws constants of all modules that are imported so far, which differ with the tests that ran before.
setattr(providers, "_get_local_constants", Constants)  # noqa: B010

# Skips that are right on any machine without what they name.
OPTIONAL = ("no GPU", "MLflow's client is not installed", "Triton is not interpreted", "Slurm is tried alone")


def pytest_configure(config: pytest.Config) -> None:
    """Let temporary files of all processes vanish at the end, those of processes that are killed, too."""
    if not hasattr(config, "workerinput"):
        tempfile.gettempdir()  # pytest keeps its own directories where it has found them
        directory = tempfile.TemporaryDirectory(prefix="tests", ignore_cleanup_errors=True)  # short, for sockets in it
        os.environ["TMPDIR"] = directory.name
        config.add_cleanup(directory.cleanup)
    # The other tests expect the CPU's bits; with a GPU in sight `runtime.platform=auto` would take it.
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help="fail if a test was skipped that this machine should run: as .ci/run does",
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With --fail-on-skip, count a skipped test as a failure unless it names something optional."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput") or not session.config.getoption("--fail-on-skip"):
        return
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", [])]
    unexpected = sorted({reason for reason in reasons if not reason.startswith(OPTIONAL)})
    for reason in unexpected:
        reporter.write_line(f"not to be skipped here: {reason}", red=True)
    if unexpected and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_sessionstart(session: pytest.Session) -> None:
    """On a fresh checkout, once: else each of the processes that run tests compiles the same kernels."""
    if not hasattr(session.config, "workerinput"):
        compile_kernels()


def pytest_collection_finish(session: pytest.Session) -> None:
    start_server(session.items)
    gc.collect()
    gc.freeze()  # what was imported is for good: no collection walks through all of torch again


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker begins with its share of the slow tests, so that none is still at one when the others are done.

    xdist gives every worker an equal part of the list, and who has nothing left takes from another's end. The longest
    slow tests are the last that are collected (pages of the documentation, the pretended device), so they begin.
    """
    for item in items:
        if any(not mark.args or mark.args[0] in ("examples", "tool") for mark in item.iter_markers("slow")):
            item.add_marker("release")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    is_slow = {item: any(item.iter_markers("slow")) or any(item.iter_markers("medium")) for item in items}
    slow = [item for item in reversed(items) if is_slow[item]]
    others = [item for item in items if not is_slow[item]]
    arranged: list[pytest.Item] = []
    for worker in range(workers):
        arranged += slow[worker::workers]
        room = len(items) * (worker + 1) // workers - len(arranged)
        arranged += others[:room]
        del others[:room]
    items[:] = arranged
