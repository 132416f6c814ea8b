"""Memory of NUMA nodes, of files as Linux has them below /sys, of two to eight nodes."""

from pathlib import Path

import pytest

from common.machine import Node, memory_nodes, node_of_gpu

MEMINFO = """Node {number} MemTotal:       {total} kB
Node {number} MemFree:        {free} kB
Node {number} MemUsed:          999 kB
Node {number} Active(file):      77 kB
Node {number} Inactive(file):   {cache} kB
Node {number} HugePages_Total:     0
"""


def write_nodes(directory: Path, sizes: dict[int, tuple[int, int, int]]) -> Path:
    """Nodes of these KiB: total, free, unused files."""
    for number, (total, free, cache) in sizes.items():
        (directory / f"node{number}").mkdir(parents=True)
        text = MEMINFO.format(number=number, total=total, free=free, cache=cache)
        (directory / f"node{number}/meminfo").write_text(text)
    (directory / "possible").write_text("0-7")
    return directory


def write_gpu(directory: Path, address: str, node: int) -> Path:
    (directory / address).mkdir(parents=True)
    (directory / address / "numa_node").write_text(f"{node}\n")
    return directory


@pytest.mark.parametrize("count", [2, 4, 8])
def test_nodes_in_the_order_of_their_numbers(tmp_path: Path, count: int) -> None:
    numbers = [number * 3 for number in range(count)]  # 10 and more: the order of names is another
    write_nodes(tmp_path, {number: (1000 + number, 200 + number, 30) for number in reversed(numbers)})
    expected = [Node(number, (1000 + number) << 10, (230 + number) << 10) for number in numbers]
    assert memory_nodes(tmp_path) == expected


def test_nodes_without_memory_are_left_out(tmp_path: Path) -> None:
    write_nodes(tmp_path, {0: (1000, 200, 0), 1: (0, 0, 0)})
    (tmp_path / "node2").mkdir()
    assert [node.number for node in memory_nodes(tmp_path)] == [0]
    assert memory_nodes(tmp_path / "none") == []


def test_the_nodes_of_this_machine() -> None:
    assert all(0 < node.free_bytes <= node.total_bytes for node in memory_nodes())


@pytest.mark.parametrize(("node", "expected"), [(3, 3), (-1, None)])
def test_the_node_of_a_gpu(tmp_path: Path, node: int, expected: int | None) -> None:
    write_gpu(tmp_path, "0000:c1:00.0", node)
    assert node_of_gpu("0000:C1:00.0", tmp_path) == expected
    assert node_of_gpu("0000:c2:00.0", tmp_path) is None
