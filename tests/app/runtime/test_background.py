"""Threads beside training must not have OpenMP threads of their own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from app.runtime.platform import background_thread
from tests.app.conftest import REPOSITORY, Command

STARTERS = ("Thread", "Timer", "ThreadPool", "ThreadPoolExecutor", "start_new_thread")
MAY_START_THREADS = {
    "app/runtime/platform.py": "the place for threads that compute",
    "app/launch.py": "the launcher's process, which computes nothing",
}

ALONE = """
import os, torch
from app.runtime.platform import background_thread
torch.set_num_threads(2)
values, threads = torch.empty(10_000_000), [len(os.listdir("/proc/self/task"))]
with background_thread("test") as pool:
    for work in (values.sum, values.isfinite, values.clone):
        pool.submit(work).result()
        threads.append(len(os.listdir("/proc/self/task")))
print(*(after - threads[0] for after in threads), torch.get_num_threads())
"""


@pytest.mark.slow("processes")
def test_a_thread_computes_alone_and_leaves_others_their_number() -> None:
    """In a process that has not computed: the number of a new thread is then that of the last call."""
    *thread_counts, number = map(int, subprocess.check_output([sys.executable, "-c", ALONE], text=True).split())
    assert (thread_counts, number) == ([0, 1, 1, 1], 2)


def test_errors_reach_the_caller() -> None:
    with background_thread("test") as pool, pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result()


@pytest.mark.medium
def test_threads_are_started_in_one_place() -> None:
    """But for those with a reason: OpenMP threads of a second thread slow training down for good."""
    starting = set()
    for path in (REPOSITORY / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in STARTERS:
                starting.add(str(path.relative_to(REPOSITORY)))
    assert starting == MAY_START_THREADS.keys()


@pytest.mark.slow("processes")
@pytest.mark.parametrize("every", ["10", "null"])
def test_no_thread_is_added(run_app: Command, small: list[str], tmp_path: Path, every: str) -> None:
    """By checkpoints, evaluations or a resumption.

    Layers are large enough for the copy of a checkpoint to be computed by several threads.
    """
    common = [*small, "model.over_arch=[512,256,1]", "runtime.num_threads=2"]
    common += ["checkpoint.every_steps=8", f"train.eval_every_steps={every}"]
    for limit in ("train.max_steps=24", "train.max_steps=31"):
        run_app("train", *common, limit, fault="threads counted:0")
    steps = [tuple(map(int, line.split())) for line in (tmp_path / ".threads").read_text().splitlines()]
    launches = [steps[:24], steps[24:]]
    assert [len(launch) for launch in launches] == [24, 31 - 24]
    for launch in launches:
        baseline = launch[3][1]  # the reader's thread and training's OpenMP threads have been started
        assert {number for _, number in launch[3:]} == {baseline}, launch
    assert (tmp_path / "runs/quickstart/checkpoints/best").exists()
