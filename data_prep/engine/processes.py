"""Tasks over processes: results in the order of the tasks, counters shared, nobody left behind."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any, TypeVar

from common.errors import UserError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")
TASKS_AHEAD = 4  # submitted per worker, so that none waits and an error ends the job soon

_BYTES, _ROWS = range(2)
START_METHOD = "forkserver"  # imports and compiled kernels are loaded once, and no thread is ever forked
PRELOADED = ["data_prep.stages.preload"]
LOCK_SECONDS = 1.0  # a process killed while it counts keeps the lock: counts are worth no longer wait


def start_fork_server() -> None:
    """Start the process that workers are forked from, unless it runs; it loads what they need on its own time."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


class Stopped(Exception):
    """The job was told to stop; what is not finished stays undone."""


class Counters:
    """Bytes and rows done, and a flag that asks all to stop, shared by the processes of a pool."""

    def __init__(self) -> None:
        context = multiprocessing.get_context(START_METHOD)
        self._done = context.Array("q", 2)
        self._stop = context.RawValue("b", 0)  # without a lock: whoever stops must not wait for the dead

    @property
    def bytes(self) -> int:
        """Bytes done."""
        return int(self._done.get_obj()[_BYTES])

    @property
    def rows(self) -> int:
        """Rows done."""
        return int(self._done.get_obj()[_ROWS])

    def add(self, num_bytes: int, num_rows: int) -> None:
        """Count work done.

        Raises:
            Stopped: the job is to stop.
        """
        lock = self._done.get_lock()
        if lock.acquire(timeout=LOCK_SECONDS):
            try:
                done: Any = self._done.get_obj()
                done[_BYTES] += num_bytes
                done[_ROWS] += num_rows
            finally:
                lock.release()
        if self._stop.value:
            raise Stopped

    def reset(self) -> None:
        """Start at nothing."""
        self._done.get_obj()[_BYTES] = self._done.get_obj()[_ROWS] = 0

    def stop(self) -> None:
        """Ask every process to stop at its next count."""
        self._stop.value = 1


class LocalCounters:
    """What one task counts, where memory is not shared."""

    def __init__(self) -> None:
        self.bytes = self.rows = 0

    def add(self, num_bytes: int, num_rows: int) -> None:
        """Count work done."""
        self.bytes += num_bytes
        self.rows += num_rows


_current = threading.local()


def use_counters(counters: Counters | LocalCounters) -> None:
    """Let the tasks of this thread count there."""
    _current.counters = counters


def counters() -> Counters | LocalCounters:
    """Where the tasks of this thread count."""
    return _current.counters


class Pool:
    """Runs tasks in `workers` processes, or in this one if that is 1.

    `seconds` is for its user to note how long each stage took; `peak_bytes` is the sum over the processes, the one
    that workers are forked from among them, of each one's largest resident memory so far.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.counters = Counters()
        use_counters(self.counters)
        self.seconds: dict[str, float] = {}
        self._peaks: dict[int, int] = {}
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self.counters.stop()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    @property
    def peak_bytes(self) -> int:
        """Upper bound of the memory of all processes at any one time."""
        self._peaks[os.getpid()] = peak_memory()
        server = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if server is not None:
            self._peaks[server] = peak_memory(server)
        return sum(self._peaks.values())

    def map(self, function: Callable[[TaskT], ResultT], tasks: Iterable[TaskT]) -> Iterator[ResultT]:
        """function(task) of all tasks, in their order; the first failure in that order is raised.

        Raises:
            UserError: as the tasks raise it, or a worker died.
        """
        if self.workers == 1:
            yield from map(function, tasks)
            return
        if self._executor is None:
            start_fork_server()
            context = multiprocessing.get_context(START_METHOD)
            self._executor = ProcessPoolExecutor(self.workers, context, _start_worker, (self.counters,))
        waiting: list[Future[tuple[ResultT, int, int]]] = []
        try:
            for task in tasks:
                waiting.append(self._executor.submit(_run_measured, function, task))
                if len(waiting) > TASKS_AHEAD * self.workers:
                    yield self._result(waiting.pop(0))
            while waiting:
                yield self._result(waiting.pop(0))
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, killed or out of memory; run the same command again to go on, "
                "perhaps with a smaller data.workers"
            ) from error

    def _result(self, future: "Future[tuple[ResultT, int, int]]") -> ResultT:
        result, pid, peak = future.result()
        self._peaks[pid] = max(peak, self._peaks.get(pid, 0))
        return result


def peak_memory(pid: int | None = None) -> int:
    """The largest resident memory, in bytes, that a process had, by default this one; 0 if another cannot be asked."""
    try:
        with open(f"/proc/{pid or 'self'}/status") as file:  # ru_maxrss would include the parent before exec
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    if pid is not None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _run_measured(function: Callable[[TaskT], ResultT], task: TaskT) -> tuple[ResultT, int, int]:
    return function(task), os.getpid(), peak_memory()


def _start_worker(shared: Counters) -> None:
    use_counters(shared)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent killed with -9 cannot end its workers, and one left behind would write into the next job."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
