"""Tasks over the machines of a Dask cluster, which share a file system: the same units, the same bytes."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from common.errors import UserError
from data_prep.engine.processes import TASKS_AHEAD, LocalCounters, Pool, Stopped, peak_memory, use_counters

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")
RETRIES = 3  # of a task whose worker was lost
CONNECT_SECONDS = 15


class ClusterPool(Pool):
    """A `Pool` whose processes are the workers of a Dask scheduler."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise UserError("data.scheduler: needs Dask; install it with `pip install distributed`") from error
        try:
            self._client: Any = Client(address, timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise UserError(f"data.scheduler={address}: no Dask scheduler answers there ({error})") from error
        self._address = address
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            self._client.close()
            raise UserError(f"data.scheduler={address}: it has no workers; start some with `dask worker {address}`")
        try:
            for run in (self._client.run_on_scheduler, self._client.run):
                run(exec, "import data_prep.stages.run")
        except ImportError as error:
            self._client.close()
            raise UserError(
                f"data.scheduler={address}: it or one of its workers cannot load this program ({error}); start each of "
                "them with the same environment as here and PYTHONPATH=<this checkout>"
            ) from error
        super().__init__(sum(worker["nthreads"] for worker in workers.values()))
        self._cluster_peaks: dict[str, int] = {}

    def __exit__(self, kind: object, *exception: object) -> None:
        super().__exit__(kind, *exception)
        self._client.close()

    @property
    def peak_bytes(self) -> int:
        """The largest memory of any one process; a cluster's budget is each worker's."""
        return max([peak_memory(), *self._cluster_peaks.values()])

    def map(self, function: Callable[[TaskT], ResultT], tasks: Iterable[TaskT]) -> Iterator[ResultT]:
        """As `Pool.map`; a task whose worker is lost is given to another."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        waiting: list[Any] = []
        try:
            for task in tasks:
                future = self._client.submit(_run, function, task, pure=False, retries=RETRIES)
                waiting.append(future)
                if len(waiting) > TASKS_AHEAD * self.workers:
                    yield self._collect(waiting.pop(0))
            while waiting:
                yield self._collect(waiting.pop(0))
        except KilledWorker as error:
            raise UserError(
                "a task killed several workers, perhaps for want of memory; run the same command again to go on, "
                "with a smaller data.chunk_bytes or more memory per worker"
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise UserError(
                f"data.scheduler={self._address}: the connection to it was lost; run the same command again to go on"
            ) from error
        finally:
            with contextlib.suppress(CommClosedError, OSError):
                self._client.cancel(waiting)

    def _collect(self, future: Any) -> Any:
        result, num_bytes, num_rows, process, peak = future.result()
        self._cluster_peaks[process] = max(peak, self._cluster_peaks.get(process, 0))
        self.counters.add(num_bytes, num_rows)
        return result


def _run(function: Callable[[TaskT], ResultT], task: TaskT) -> tuple[ResultT, int, int, str, int]:
    """On a worker: the result, what was counted, which process it was, and its peak memory."""
    counters = LocalCounters()
    use_counters(counters)
    try:
        result = function(task)
    except Stopped as error:  # nobody stops a task of a cluster; it is cancelled as a whole
        raise AssertionError from error
    return result, counters.bytes, counters.rows, f"{socket.gethostname()}:{os.getpid()}", peak_memory()


def open_pool(scheduler: str | None, workers: int) -> Pool:
    """Processes of this machine, or of the cluster behind `scheduler`.

    Raises:
        UserError: no such cluster, or Dask is not installed.
    """
    return Pool(workers) if scheduler is None else ClusterPool(scheduler)
