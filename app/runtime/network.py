"""This machine's address and network interface towards another machine of a job."""

import contextlib
import fcntl
import socket
import struct
import time
from ipaddress import ip_address
from typing import NamedTuple

from common.errors import UserError

SIOCGIFADDR = 0x8915  # <linux/sockios.h>: an interface's IPv4 address
ANYWHERE = "198.51.100.1"  # in a documentation network (RFC 5737): its route is the default route
RESOLVE_SECONDS = 60.0  # names of pods and new machines may appear late


class Way(NamedTuple):
    """Route to an endpoint: the endpoint's address, this machine's own address towards it, and that one's interface."""

    endpoint: str
    address: str
    interface: str | None

    @property
    def is_own(self) -> bool:
        """Whether the endpoint is this machine."""
        return self.endpoint == self.address or is_loopback(self.endpoint)


def way_to(host: str) -> Way:
    """Return the route to a host; if its name means loopback here, the address by which others reach this machine.

    No packet is sent: a connected UDP socket has the address of its route.
    """
    endpoint = _resolved(host)
    address = _own_address(endpoint)
    if address is None:
        raise UserError(f"{host}: no route to {endpoint} from this machine; give another address, or check its network")
    if is_loopback(address):
        candidates = [_own_address(ANYWHERE), *interfaces()]
        address = next((one for one in candidates if one is not None and not is_loopback(one)), address)
    return Way(endpoint, address, interfaces().get(address))


def interfaces() -> dict[str, str]:
    """Return the names of this machine's interfaces by their IPv4 addresses, loopback last."""
    names: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                names[socket.inet_ntoa(answer[20:24])] = name
    return dict(sorted(names.items(), key=lambda item: is_loopback(item[0])))


def is_loopback(address: str) -> bool:
    """Return whether an address is valid on this machine only."""
    return ip_address(address.partition("%")[0]).is_loopback


def _resolved(host: str) -> str:
    """Return an address of a host, IPv4 if it has one."""
    until = time.monotonic() + RESOLVE_SECONDS
    while True:
        try:
            addresses = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        except OSError as error:
            if time.monotonic() > until:
                raise UserError(
                    f"{host}: the name does not resolve on this machine ({error}); give an address, or "
                    "enter the name in /etc/hosts"
                ) from error
            time.sleep(1)
        else:
            return str(min(addresses, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _own_address(endpoint: str) -> str | None:
    """Return this machine's address on the route to an address; None if there is no route."""
    family = socket.AF_INET6 if ":" in endpoint else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((endpoint, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
