"""Execution of tasks on local processes or a Dask cluster, with results in order, shared counters, and no orphans.

The workers of a cluster share a file system with this machine. Their tasks and the resulting bytes are the same.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any, NamedTuple, TypeAlias, TypeVar

from common import signals
from common.errors import UserError
from common.machine import give_back_freed_memory
from data_prep.io import Progress, Tally

ResultT = TypeVar("ResultT")
TASKS_AHEAD = 4  # per worker: enough that no worker waits, few enough that an error ends the job soon
START_METHOD = "forkserver"  # Imports and kernels are loaded once, and no thread is ever forked.
PRELOADED = "data_prep.stages.preload"  # The fork server imports it, since it takes most of a worker's start.
READERS = "data_prep.parsing.readers"  # the same, with pyarrow
LOCK_SECONDS = 1.0  # A process killed while it counts keeps the lock; a count is not worth a longer wait.
CONNECT_SECONDS = 15


class Stopped(Exception):
    """Raised if the job was stopped; unfinished work stays undone."""


class SharedCounters:
    """Bytes and rows done, and a flag that asks all processes to stop; shared by the processes."""

    def __init__(self) -> None:
        context = multiprocessing.get_context(START_METHOD)
        self._totals = context.Array("q", 2)
        self._stop = context.RawValue("b", 0)  # needs no lock, which a killed process may hold

    @property
    def bytes(self) -> int:
        """Return the bytes that all processes have done since `reset`."""
        return int(self._totals.get_obj()[0])

    @property
    def rows(self) -> int:
        """Return the rows that all processes have done since `reset`."""
        return int(self._totals.get_obj()[1])

    def add(self, num_bytes: int, num_rows: int = 0) -> None:
        """Count work done. Raise Stopped if the job was asked to stop."""
        # Each count is a chance to stop, so tasks need no other check.
        lock = self._totals.get_lock()
        if lock.acquire(timeout=LOCK_SECONDS):
            try:
                totals: Any = self._totals.get_obj()
                totals[0] += num_bytes
                totals[1] += num_rows
            finally:
                lock.release()
        if self._stop.value:
            raise Stopped

    def reset(self) -> None:
        """Set the counts to 0, as a stage begins."""
        self._totals.get_obj()[0] = self._totals.get_obj()[1] = 0

    def stop(self) -> None:
        """Ask every process to stop at its next count."""
        self._stop.value = 1


Counters: TypeAlias = SharedCounters | Tally
# A piece of work, which counts its bytes and rows as it does them. The task and its result can be pickled.
Task: TypeAlias = Callable[[Counters], ResultT]


def start_fork_server(has_schema: bool = False) -> None:
    """Start the fork server unless it runs. It imports what workers need in the background.

    has_schema: whether workers read files of a user's own, which takes pyarrow.
    """
    multiprocessing.set_forkserver_preload([PRELOADED, *([READERS] if has_schema else [])])
    # A terminal signals its whole group, but only this process decides when the server ends.
    with signals.block_in_children():
        forkserver.ensure_running()


def peak_memory(pid: int | None = None) -> int:
    """Return the peak resident memory of a process in bytes, by default this one; 0 if it cannot be read."""
    # ru_maxrss would include the parent before exec.
    with contextlib.suppress(OSError), open(f"/proc/{pid or 'self'}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if pid is None else 0


_counters: list[SharedCounters] = []  # of this process if it is a worker


def _start_worker(shared: SharedCounters) -> None:
    """Make this process a worker, which counts in `shared` and ends with its parent."""

    def end_with_parent() -> None:
        # A parent killed with -9 cannot end its workers, and an orphan would write into the next job.
        parent = multiprocessing.parent_process()
        assert parent is not None
        wait([parent.sentinel])
        os._exit(1)  # in a thread, sys.exit would end the thread alone

    _counters.append(shared)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    threading.Thread(target=end_with_parent, daemon=True).start()


class TaskResult(NamedTuple):
    """Result of a task, and the peak memory of its `process`: the process's id, on a cluster as HOST:ID.

    num_bytes, num_rows: work done on a cluster, which the parent adds; local workers count in shared memory instead.
    """

    value: Any
    process: str
    peak_bytes: int
    num_bytes: int = 0
    num_rows: int = 0


def _run_in_worker(task: Task[Any]) -> TaskResult:
    """Run a task in a process of this machine, which counts in shared memory."""
    return TaskResult(task(_counters[0]), str(os.getpid()), peak_memory())


def _run_on_cluster(task: Task[Any]) -> TaskResult:
    """Run a task in a worker of a cluster, whose host its errors name."""
    # A cluster's workers share no memory with the job, so each result brings its own counts.
    counters, host = Tally(), socket.gethostname()
    try:
        value = task(counters)
    except UserError as error:
        raise UserError(f"on {host}: {error}") from error
    return TaskResult(value, f"{host}:{os.getpid()}", peak_memory(), counters.bytes, counters.rows)


class Executor(AbstractContextManager["Executor"]):
    """Runs tasks in `workers` processes, or in this process if `workers` is 1. Leaving the context ends them."""

    _run_task = staticmethod(_run_in_worker)

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.counters = SharedCounters()
        self.seconds: dict[str, float] = {}  # duration by stage
        self._is_remote = False
        self._peaks: dict[str, int] = {}  # peak memory by process, while it runs
        self._peak = 0  # largest sum of peaks until the last release, whose processes are gone
        self._executor: FuturesExecutor | None = None
        # Errors by which processes are lost, and what to say of them.
        self._losses: tuple[type[BaseException], ...] = (BrokenProcessPool,)
        self._loss = "a worker process died, killed or out of memory; run the same command again to resume, perhaps "
        self._loss += "with a smaller data.workers"

    def __exit__(self, kind: object, *exception: object) -> None:
        """End the workers; after an exception, ask them first to stop at their next count."""
        if kind is not None:
            self.counters.stop()
        self._shut_down()

    @contextlib.contextmanager
    def stage(self, name: str, total_bytes: int) -> Iterator[None]:
        """Show the progress of a stage's tasks, and record its duration."""
        begin = time.monotonic()
        with Progress(name, total_bytes, self.counters):
            yield
        self.seconds[name] = round(time.monotonic() - begin, 3)

    def map(self, tasks: Iterable[Task[ResultT]]) -> Iterator[ResultT]:
        """Yield the results of all tasks in order. The first failure in this order is raised."""
        # A single worker needs no process of its own, whose start and memory this saves.
        if self.workers == 1 and not self._is_remote:
            for task in tasks:
                yield task(self.counters)
            return
        if self._executor is None:  # at the first task, as a stage without any needs no process
            start_fork_server()
            context = multiprocessing.get_context(START_METHOD)
            self._executor = ProcessPoolExecutor(self.workers, context, _start_worker, (self.counters,))
        waiting: deque[Future[Any]] = deque()
        try:
            for task in tasks:
                waiting.append(self._executor.submit(self._run_task, task))
                if len(waiting) > TASKS_AHEAD * self.workers:
                    yield self._collect(waiting.popleft())
            while waiting:
                yield self._collect(waiting.popleft())
        except self._losses as error:
            raise UserError(self._loss) from error
        finally:
            for future in waiting:
                future.cancel()

    def release(self, workers: int | None = None) -> None:
        """Return the memory of tasks to the system; `workers` sets the number of processes for the next tasks."""
        # The peaks are added up first, since an ended process can no longer be measured.
        self._peak = self.peak_bytes
        self._shut_down()
        self._peaks.clear()
        # Memory that this process has freed would count beside that of the next stage.
        give_back_freed_memory()
        self.workers = workers or self.workers

    @property
    def peak_bytes(self) -> int:
        """Return an upper bound of the memory of all processes at any time: the sum of their peaks."""
        self._peaks[str(os.getpid())] = peak_memory()
        # The fork server's memory counts too, and multiprocessing has no public name for its process.
        server = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if server is not None:
            self._peaks[str(server)] = peak_memory(server)
        return max(self._peak, sum(self._peaks.values()))

    def _collect(self, future: "Future[TaskResult]") -> Any:
        """Wait for a task's result, and note the peak memory of its process."""
        result = future.result()
        self._peaks[result.process] = max(result.peak_bytes, self._peaks.get(result.process, 0))
        if self._is_remote:
            self.counters.add(result.num_bytes, result.num_rows)
        return result.value

    def _shut_down(self) -> None:
        """End the processes, if there are any; the next task starts others."""
        if self._executor is not None:
            # A cluster cannot stop a task that has begun, so nothing waits for it.
            options = {"wait": False} if self._is_remote else {"wait": True, "cancel_futures": True}
            self._executor.shutdown(**options)
            self._executor = None


class ClusterExecutor(Executor):
    """Executor whose processes are the workers of a Dask scheduler."""

    _run_task = staticmethod(_run_on_cluster)

    def __init__(self, address: str) -> None:
        try:
            from distributed import CancelledError as TaskCancelledError
            from distributed import Client, KilledWorker
            from distributed.comm.core import CommClosedError
        except ImportError as error:
            raise UserError("data.scheduler: needs Dask; install it with `pip install distributed`") from error
        try:
            self._client: Any = Client(address, timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise UserError(f"data.scheduler={address}: no Dask scheduler answers there ({error})") from error
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            self._client.close()
            raise UserError(f"data.scheduler={address}: it has no workers; start some with `dask worker {address}`")
        # An import on the scheduler and each worker shows a missing package at once, not in the middle of a job.
        try:
            for run in (self._client.run_on_scheduler, self._client.run):
                run(exec, f"import {PRELOADED}")
        except ImportError as error:
            self._client.close()
            raise UserError(
                f"data.scheduler={address}: it or one of its workers cannot load this program ({error}); start each of "
                "them with the same environment as here and PYTHONPATH=<this checkout>"
            ) from error
        super().__init__(sum(worker["nthreads"] for worker in workers.values()))
        self._is_remote = True
        # Tasks leave files, so equal calls must not share one remembered result. A task of a lost worker is retried.
        self._executor = self._client.get_executor(pure=False, retries=3)
        self._losses = (KilledWorker, CancelledError, TaskCancelledError, CommClosedError)
        self._loss = f"data.scheduler={address}: workers, perhaps for want of memory, or the connection to it were "
        self._loss += "lost; run the same command again to resume"

    def __exit__(self, kind: object, *exception: object) -> None:
        super().__exit__(kind, *exception)
        self._client.close()

    def release(self, workers: int | None = None) -> None:
        """Do nothing: the cluster keeps its workers, and decides their number."""

    @property
    def peak_bytes(self) -> int:
        """Return the largest memory of any process, since on a cluster each worker has the whole budget."""
        return max([peak_memory(), *self._peaks.values()])


def open_executor(scheduler: str | None, workers: int) -> Executor:
    """Return an executor on this machine, or on the cluster whose scheduler has that address."""
    return Executor(workers) if scheduler is None else ClusterExecutor(scheduler)
