"""python -m app.launch --nproc-per-node N [torchrun's options] -m app.train key=value ...

torchrun with these differences: it ends with the processes' own exit status (2 bad input, 75 stopped and resumable),
reports in one line how they ended, forwards the first signal that asks for a stop, gives them time to write a
checkpoint, ends them at the second, and on one machine needs no resolvable host name. On several machines it takes its
address and network interface from the route to the endpoint, reports in one line who did not come, and with
--max-restarts resumes after a machine was lost and has come back, the first one too. Bad input is not tried again.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["launch"])


import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError
from torch.distributed.elastic.rendezvous import utils as rendezvous_utils
from torch.distributed.launcher import api as torch_launcher

from app.runtime import environment
from app.runtime.environment import INTERFACES, SET_BY_LAUNCHER
from common import signals
from common.cli import EXIT_BAD_INPUT, EXIT_LOST, EXIT_STOPPED
from common.errors import UserError

SHUTDOWN_SECONDS = 300  # torchrun allows 30, which may be too few for a checkpoint
STUCK_SECONDS = 30  # for which torchrun may leave the end of a process unnoticed
BLOCKED_SECONDS = 1.0  # within which a signal's handler runs, unless torchrun blocks it
RESUMES = "the same command resumes from the newest checkpoint, if there is one"
LOOPBACK = "127.0.0.1"
DEFAULT_ENDPOINT_PORT = 29400  # if --rdzv-endpoint has none
DEFAULT_PORTS = (None, 29500)  # defaults of --master-port; up to torch 2.10, two jobs would both take the second
# Statuses of a process that ended because another had ended, or because it was asked to.
CONSEQUENCES = (EXIT_STOPPED, EXIT_LOST, -signal.SIGTERM, 128 + signal.SIGTERM)

_signal_numbers: list[int] = []  # signals whose handler has run
_forwarded: list[int] = []  # signals that a thread passed on while no handler could run


@dataclass
class Job:
    """A launcher's knowledge of its job: where machines meet, how processes ended, which machines came."""

    endpoint: str
    num_machines: str
    is_first: bool = False  # whether the others meet at this machine, in a static rendezvous
    ended: dict[int, int] = field(default_factory=dict)  # exit status of each rank that was stopped
    statuses: set[int] = field(default_factory=set)  # exit statuses of this machine's ended processes
    addresses: list[str] = field(default_factory=list)  # addresses of all machines at the last meeting


class Agent(LocalElasticAgent):
    """torchrun's agent, with more time to stop, and a record of how processes ended that were stopped."""

    def __init__(self, job: Job, *arguments: Any, **keywords: Any) -> None:
        """job: receives how processes ended and which machines came."""
        super().__init__(*arguments, **keywords)
        self._job = job

    def _rendezvous(self, worker_group: Any) -> None:
        """Meet the other machines, and note their addresses meanwhile."""
        self._job.addresses.clear()
        met, handler = threading.Event(), worker_group.spec.rdzv_handler

        def note_addresses() -> None:
            # The longest list is kept, since at a timeout machines leave one by one.
            while not met.wait(0.2):
                state = getattr(getattr(handler, "_state_holder", None), "state", None)
                names = [node.addr for node in list(state.participants)] if state is not None else []
                if len(names) > len(self._job.addresses):
                    self._job.addresses[:] = names

        threading.Thread(target=note_addresses, daemon=True).start()
        try:
            super()._rendezvous(worker_group)
        finally:
            met.set()

    def _monitor_workers(self, worker_group: Any) -> Any:
        """Return torchrun's look at its processes, and note the statuses of those that failed."""
        result = super()._monitor_workers(worker_group)
        statuses = {failure.exitcode for failure in result.failures.values()}
        self._job.statuses |= statuses
        if EXIT_BAD_INPUT in statuses:
            self._remaining_restarts = 0  # the input would be refused again
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *arguments: Any, **keywords: Any) -> None:
        """Let the processes end within SHUTDOWN_SECONDS, and note each one's exit status by rank."""
        if isinstance(self._pcontext, SubprocessContext):
            handlers, until = self._pcontext.subprocess_handlers, time.monotonic() + SHUTDOWN_SECONDS
            # After a signal that was passed on, a second one would make the processes end without saving.
            while _forwarded and time.monotonic() < until and any(h.proc.poll() is None for h in handlers.values()):
                time.sleep(0.05)
            self._pcontext.close(death_sig, SHUTDOWN_SECONDS)
            workers = self.get_worker_group().workers
            for local_rank, handler in handlers.items():
                self._job.ended[workers[local_rank].global_rank] = handler.proc.returncode
                self._job.statuses.add(handler.proc.returncode)
        super()._shutdown(death_sig, *arguments, **keywords)


def main(arguments: list[str]) -> int:
    """Run torchrun with `arguments`; return the exit status of the first process that failed, 0 if none did."""
    options = torchrun.parse_args(arguments)
    options.signals_to_handle = ""  # this module handles them
    is_one_machine = str(options.nnodes) in ("1", "1:1")
    if is_one_machine and not options.rdzv_endpoint and options.master_port in DEFAULT_PORTS:
        # One machine needs no host name, and port 0 is any free one.
        options.rdzv_backend, options.rdzv_endpoint = "c10d", f"{LOOPBACK}:0"
        options.local_addr = options.local_addr or LOOPBACK
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun does the same, but with a banner
    # This process has read the setting, which is for it alone.
    if os.environ.get("TORCH_CPP_LOG_LEVEL") == "FATAL":
        os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    logging.disable()  # silences torchrun; failures are reported once, below
    try:
        # The configuration comes first; in it, words such as `gpu` have become numbers.
        if torchrun.config_from_args(options)[0].nproc_per_node < 1:
            raise ValueError("at least one process is needed")
    except (ValueError, AssertionError) as error:
        counts = f"--nproc-per-node {options.nproc_per_node} --nnodes {options.nnodes}"
        print(f"error: {counts}: {error}; give numbers of at least 1", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        if not is_one_machine and "store_type=file" not in options.rdzv_conf:
            _choose_addresses(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_LOST

    def raise_signal(number: int) -> None:
        _signal_numbers.append(number)
        raise SignalException("", signal.Signals(number))  # it ends torchrun, whose agent forwards the signal

    signals.handle_signals(raise_signal, _end_children)
    threading.Thread(target=_leave_if_stuck, daemon=True).start()
    threading.Thread(target=_forward_if_blocked, args=(signals.watch_signals(),), daemon=True).start()
    job = Job(_endpoint_text(options), str(options.nnodes), options.rdzv_backend == "static" and options.node_rank == 0)
    # The launcher has no option for its agent, so the class is replaced in its module.
    torch_launcher.LocalElasticAgent = functools.partial(Agent, job)  # type: ignore[misc,assignment]
    meetings = 1 + (0 if is_one_machine else options.max_restarts)
    while True:
        meetings -= 1
        began = time.monotonic()
        try:
            torchrun.run(options)
        except ChildFailedError as error:
            failures = {rank: (failure.timestamp, failure.exitcode) for rank, failure in error.failures.items()}
            return _report_failure(*first_failure(failures))
        except SignalException as error:
            return _status_after_signal(error.sigval, job)
        except (RendezvousError, DistError) as error:
            reason = _absence_text(job, error, time.monotonic() - began)
            # Give up if nothing ran here, or after too many meetings.
            if not meetings or not job.statuses & set(CONSEQUENCES):
                print(f"error: {reason}; {RESUMES}", file=sys.stderr)
                return EXIT_STOPPED if EXIT_STOPPED in job.statuses else EXIT_LOST
            print(f"launch: {reason}; meeting again", file=sys.stderr)
        else:
            return 0


def _absence_text(job: Job, error: Exception, seconds: float) -> str:
    """Return why machines did not meet: the endpoint, who came, after how long, and what to check."""
    if isinstance(error, RendezvousTimeoutError):
        came = f"{len(job.addresses)} of {job.num_machines} machines came ({', '.join(job.addresses) or 'none'})"
        advice = "start the others with the same --rdzv-endpoint, --rdzv-id and --nnodes"
    elif job.is_first and not job.statuses:
        came = f"only this one of {job.num_machines} machines came"
        advice = "start the others with the same --master-addr, --master-port and --nnodes"
    elif isinstance(error, RendezvousError | DistError) and job.addresses:
        came, advice = "the other machines are unreachable", "check the first machine and the network"
    else:
        came = "no answer"
        advice = "check that the first machine has been started, its address and port, and that no firewall is between"
    return f"{job.endpoint}: {came} after {seconds:.0f} s; {advice}"


def _meeting_point(options: Any) -> tuple[str, int]:
    """Return the host and port where the machines meet, from --rdzv-endpoint or --master-addr and --master-port."""
    if options.rdzv_backend == "static" and not options.rdzv_endpoint:
        return str(options.master_addr), int(options.master_port or DEFAULT_PORTS[1])
    host, port = rendezvous_utils.parse_rendezvous_endpoint(str(options.rdzv_endpoint), DEFAULT_ENDPOINT_PORT)
    return str(host), int(port)


def _endpoint_text(options: Any) -> str:
    """Return the place where the machines meet, for a message: HOST:PORT, or a file."""
    if "store_type=file" in options.rdzv_conf:
        return str(options.rdzv_endpoint)
    host, port = _meeting_point(options)
    return f"{host}:{port}"


def _choose_addresses(options: Any) -> None:
    """Set this machine's address and network interface for a job of several, by the route to the meeting point.

    The user's own --local-addr, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME stay.

    Raises UserError: the host does not resolve, or there is no route to it.
    """
    if options.max_restarts:
        # A surviving first machine would keep the port of the round before, and all would wait for each other
        # (pytorch/pytorch#135712).
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    host = _meeting_point(options)[0]
    address, interface, is_own = environment.route_to(host)
    options.local_addr = options.local_addr or address
    is_host: bool | None = is_own
    # Where the names are equal, torch finds this by itself, and lets a second launcher of this machine in.
    with contextlib.suppress(OSError):  # this machine's own name does not resolve
        has_that_name = rendezvous_utils._matches_machine_hostname(host)
        is_host = True if is_own and not has_that_name else None
    if is_host is not None and options.rdzv_backend == "c10d" and "is_host" not in options.rdzv_conf:
        options.rdzv_conf = ",".join(filter(None, [options.rdzv_conf, f"is_host={int(is_host)}"]))
    if interface is not None:
        # These values are only guessed here, so their names are kept for a profile, which may replace them.
        names = [name for name in INTERFACES if name not in os.environ]
        os.environ.update({**dict.fromkeys(names, interface), SET_BY_LAUNCHER: " ".join(names)})
    used = os.environ.get("GLOO_SOCKET_IFNAME", "any interface")
    print(f"launch: {options.local_addr} on {used}, meeting at {_endpoint_text(options)}", file=sys.stderr)


def _status_after_signal(number: signal.Signals, job: Job) -> int:
    """Return the exit status after a signal, given each process's; 0 if all had done their work."""
    failed = {rank: (0, status) for rank, status in job.ended.items() if status}
    if job.ended and not failed:
        return 0
    if not job.ended and EXIT_STOPPED in job.statuses:  # the processes had ended when the signal came
        return EXIT_STOPPED
    rank, status = first_failure(failed) if failed else (0, -number)
    # It was stopped before it could say so, or did not obey and was killed.
    if status in (-number, -signal.SIGKILL):
        words = "stopped before it began" if status == -number else f"process {rank} was killed; {RESUMES}"
        signals.say(f"{number.name}: {words}")
        return 128 + number
    return _report_failure(rank, status)


def _end_children(number: int) -> None:
    """Forward a second signal, which ends processes at once, and kill those that stay; torchrun notes the statuses."""
    until = time.monotonic() + signals.LAST_WORDS_SECONDS
    for pid in (children := _children()):
        os.kill(pid, number)
    while time.monotonic() < until and any(state != "Z" for state, _ in _children().values()):
        time.sleep(0.05)
    # Each process of torchrun's leads a session of its own, so its children end with its group.
    for pid in _children():
        os.killpg(pid, signal.SIGKILL)
    if not children:
        signals.say(f"{signal.Signals(number).name}: stopped immediately")
        os._exit(128 + number)


def _forward_if_blocked(arrivals: Iterator[int]) -> None:
    """Answer signals, as they come, in torchrun's place while it waits for other machines and lets no handler run."""
    for number in arrivals:
        time.sleep(BLOCKED_SECONDS)
        if _signal_numbers:
            return  # the handler runs, and decides from now on
        _forwarded.append(number)
        for pid in (children := _children()):
            os.kill(pid, number)
        if not children:
            signals.say(f"{signal.Signals(number).name}: stopped before it began")
            os._exit(128 + number)


def _leave_if_stuck() -> None:
    """End in torchrun's place if it no longer watches its processes.

    torchrun asks the first machine's store on every round, and that call does not return if the network fails. A
    process of torchrun's that has ended, and that torchrun does not notice for so long, shows this (on Linux).
    """
    ended_at: dict[int, float] = {}
    while True:
        time.sleep(1)
        children = _children()
        for pid, (state, code) in children.items():
            if state == "Z" and time.monotonic() - ended_at.setdefault(pid, time.monotonic()) > STUCK_SECONDS:
                # As wait() tells it: an exit status in the upper byte, or the number of the signal that killed it.
                status = code >> 8 or 128 + (code & 127)
                print(
                    f"error: torchrun hangs, as when other machines are unreachable, and a process here has ended "
                    f"with {status}; {RESUMES}",
                    file=sys.stderr,
                )
                for child in children:
                    os.kill(child, signal.SIGTERM)
                os._exit(status)


def _children() -> dict[int, tuple[str, int]]:
    """Return the state (R, S, Z …) and exit code (as from wait()) of each of this process's children (on Linux)."""
    children = {}
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text(encoding="utf-8").split():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            # After the name, the first field is the state, and the last one the exit code.
            children[int(pid)] = fields[0], int(fields[-1])
    return children


def first_failure(failures: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Return rank and status of the process that failed first, given each one's time (whole seconds) and status.

    Of those that torchrun found at the same time, prefer one that neither lost its peers nor was asked to end.
    """
    first = min(timestamp for timestamp, _ in failures.values())
    # Times are whole seconds, so failures of one cause may be a second apart.
    at_once = {rank: status for rank, (timestamp, status) in failures.items() if timestamp <= first + 1}
    return min(at_once.items(), key=lambda item: item[1] in CONSEQUENCES)


def _report_failure(rank: int, status: int) -> int:
    """Report what ended a process, unless the process itself did so; return the exit status to end with."""
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    print(f"error: process {rank} was ended by {name}{hint}; {RESUMES}", file=sys.stderr)
    return 128 - status
