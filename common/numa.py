"""Memory of the machine's NUMA nodes, and the node of a GPU, as Linux reports them below /sys."""

import re
from pathlib import Path
from typing import NamedTuple

NODES = Path("/sys/devices/system/node")
PCI_DEVICES = Path("/sys/bus/pci/devices")


class Node(NamedTuple):
    """A node with memory; free_bytes count what the page cache can give back at once (unused files)."""

    number: int
    total_bytes: int
    free_bytes: int


def memory_nodes(directory: Path = NODES) -> list[Node]:
    """Return the nodes that have memory, by number; none where the system does not report them."""
    nodes = []
    for path in directory.glob("node[0-9]*"):
        try:
            text = (path / "meminfo").read_text(encoding="utf-8")
        except OSError:
            continue
        sizes = {name: int(kib) << 10 for name, kib in re.findall(r"Node \d+ ([\w()]+):\s+(\d+) kB", text)}
        if sizes.get("MemTotal"):
            free = sizes.get("MemFree", 0) + sizes.get("Inactive(file)", 0)
            nodes.append(Node(int(path.name.removeprefix("node")), sizes["MemTotal"], free))
    return sorted(nodes)


def node_of_gpu(address: str, directory: Path = PCI_DEVICES) -> int | None:
    """Return the node that a PCI device such as 0000:c1:00.0 is attached to; None if the system does not say."""
    try:
        number = int((directory / address.lower() / "numa_node").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None
