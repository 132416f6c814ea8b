"""A machine's address and interface towards another, in a network namespace with two interfaces."""

import json
import subprocess
import sys
from typing import Any

import pytest

from app.runtime import network
from common.errors import UserError
from tests.app.conftest import REPOSITORY
from tests.app.machines import ADDRESSES, ip, two_machines

WAYS = """
import json, sys
from app.runtime import network
from common.errors import UserError
for host in sys.argv[1:]:
    try:
        way = network.way_to(host)
        print(json.dumps([way.address, way.interface, way.is_own]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def ways(host: str, *endpoints: str) -> list[Any]:
    command = ["ip", "netns", "exec", host, sys.executable, "-c", WAYS, *endpoints]
    lines = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_the_route_decides_among_interfaces() -> None:
    with two_machines() as (host, other):
        ip("link", "add", "storage0", "netns", host, "type", "veth", "peer", "name", "storage0", "netns", other)
        ip("-n", host, "addr", "add", "10.214.0.1/24", "dev", "storage0")
        for name in (host, other):
            ip("-n", name, "link", "set", "storage0", "up")
        assert ways(host, ADDRESSES[1], "10.214.0.2", ADDRESSES[0], "127.0.1.1", "203.0.113.9") == [
            [ADDRESSES[0], host, False],
            ["10.214.0.1", "storage0", False],
            [ADDRESSES[0], host, True],
            [ADDRESSES[0], host, True],  # what others reach, not loopback
            "203.0.113.9: no route to 203.0.113.9 from this machine; give another address, or check its network",
        ]


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "RESOLVE_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"nowhere.invalid: the name does not resolve on this machine \(.*/etc/hosts"):
        network.way_to("nowhere.invalid")
