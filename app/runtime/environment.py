"""Around a process: its variables, its end, the network towards other machines, files that they share."""

import atexit
import contextlib
import datetime
import fcntl
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import NoReturn

from app.config.train import EnvironmentConfig
from common.cli import EXIT_BAD_INPUT
from common.errors import UserError
from common.signals import is_launched, say

REFUSAL_SECONDS = 30.0  # time within which the other machines of a job must hear of a refusal
HAS_MET = threading.Event()  # set once this process has met the others of its job
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def leave(status: int) -> NoReturn:
    """End the process with this exit status, without tearing the interpreter down.

    A signal during the tear-down would change the status. Under torchrun, a thread of gloo's that outlives its owner
    would also abort a process that has done its work ("terminate called without an active exception", in one of some
    ten runs).
    """
    if status == EXIT_BAD_INPUT and not HAS_MET.is_set():
        announce_refusal()
    if not is_launched():
        atexit._run_exitfuncs()
    # The call of os._exit flushes nothing, so log and standard output are flushed here.
    logging.shutdown()
    try:
        if sys.stdout is not None:  # the reader may have ended
            sys.stdout.flush()
    except OSError as error:
        say(f"error: standard output: {error.strerror}")
        status = status or EXIT_BAD_INPUT
    os._exit(status)


def announce_refusal() -> None:
    """Let the other machines of the job, which wait for this process, end with exit status 2 as well.

    Otherwise they would wait until the timeout, since one machine's torchrun does not know of another's failure.
    """
    if not all(os.environ.get(name) for name in LAUNCHER_VARIABLES):
        return
    world_size, local_world_size = (int(os.environ.get(name) or 1) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    # On a single machine the launcher itself ends the other processes.
    if world_size <= local_world_size:
        return
    # Imported lazily, since it takes seconds: only a job of several machines needs it.
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    with contextlib.suppress(RuntimeError, ValueError):  # the others are unreachable, or have ended
        store, rank, _ = next(rendezvous("env://", timeout=datetime.timedelta(seconds=REFUSAL_SECONDS)))
        meeting, until = dist.PrefixStore("meeting", store), time.monotonic() + REFUSAL_SECONDS
        meeting.compare_set("refused", "", socket.gethostname())  # the first one gives the reason
        meeting.set(f"refusal heard/{rank}", "")
        answers = [f"refusal heard/{first_rank}" for first_rank in range(0, world_size, local_world_size)]
        # The store may end with this process, so it stays until every machine has heard.
        while not meeting.check(answers) and time.monotonic() < until:
            time.sleep(0.02)


INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SET_BY_LAUNCHER = "CLICKWORK_SET_BY_LAUNCHER"  # names of variables that app.launch has set; a profile may replace them


def apply(config: EnvironmentConfig, with_networks: bool = True) -> list[str]:
    """Set the profile's variables that the user has not set; return a line about each, to be logged later.

    Call it before the first use of a GPU: ROCm reads some of them only once. with_networks: whether to set networks'
    variables too, which fit the machines that a run was trained on.
    """
    lines, replaced = [], os.environ.get(SET_BY_LAUNCHER, "").split()
    for name, value in config.variables.items():
        if not with_networks and name.startswith(("NCCL_", "RCCL_", "GLOO_")):  # a single process has no use for them
            continue
        if (user_value := os.environ.get(name)) is None or name in replaced:
            os.environ[name] = value
            lines.append(f"environment: {config.name} sets {name}={value}")
        elif user_value != value:
            lines.append(f"environment: {config.name} would set {name}={value}; {user_value} of the environment stays")
    return lines


SIOCGIFADDR = 0x8915  # <linux/sockios.h>: an interface's IPv4 address
ANYWHERE = "198.51.100.1"  # in a documentation network (RFC 5737): its route is the default route
RESOLVE_SECONDS = 60.0  # names of pods and new machines may appear late


def route_to(host: str) -> tuple[str, str | None, bool]:
    """Return this machine's address towards a host, that address's interface, and whether the host is this machine.

    If the host's name means loopback here, the address is the one by which others reach this machine. No packet is
    sent: a connected UDP socket has the address of its route.
    """
    until = time.monotonic() + RESOLVE_SECONDS
    while True:
        try:
            addresses = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise UserError(
                    f"{host}: the name does not resolve on this machine ({error}); give an address, or "
                    "enter the name in /etc/hosts"
                ) from error
            time.sleep(1)
    # IPv4 if it has one. An entry begins with the family and ends with the pair of address and port.
    endpoint = str(min(addresses, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
    address = _own_address(endpoint)
    if address is None:
        raise UserError(f"{host}: no route to {endpoint} from this machine; give another address, or check its network")
    if is_loopback(address):
        candidates = [_own_address(ANYWHERE), *interfaces()]
        reachable = (candidate for candidate in candidates if candidate is not None and not is_loopback(candidate))
        address = next(reachable, address)
    return address, interfaces().get(address), endpoint == address or is_loopback(endpoint)


def interfaces() -> dict[str, str]:
    """Return the names of this machine's interfaces by their IPv4 addresses, loopback last."""
    names: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                # The kernel's names of interfaces have at most 15 bytes.
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                # In the answer, a name of 16 bytes, a family of 2 and a port of 2 stand before the address.
                names[socket.inet_ntoa(answer[20:24])] = name
    return dict(sorted(names.items(), key=lambda item: is_loopback(item[0])))


def is_loopback(address: str) -> bool:
    """Return whether an address is valid on this machine only."""
    return ip_address(address.partition("%")[0]).is_loopback


def _own_address(endpoint: str) -> str | None:
    """Return this machine's address on the route to an address; None if there is no route."""
    family = socket.AF_INET6 if ":" in endpoint else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # A UDP socket's connect looks up the route and sends nothing, so any port would do.
            probe.connect((endpoint, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


SHARED_SECONDS = 60.0  # NFS may cache names for this long


def wait_until(condition: Callable[[], bool], seconds: float | None = None) -> bool:
    """Return whether a condition came true within some seconds (None: SHARED_SECONDS); it is tried once at least."""
    until = time.monotonic() + (SHARED_SECONDS if seconds is None else seconds)
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(0.2)
    return is_true
