"""Page-locked batches and the free memory of NUMA nodes, on machines of files below a directory."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torchrec import KeyedJaggedTensor

from app.data.batch import Batch, with_room_checked
from common.errors import UserError
from tests.common.test_machine import write_gpu, write_nodes

ROWS = 1000
DENSE, IDS = 13, 2000
BYTES = ROWS * DENSE * 4 + ROWS * 4 + IDS * 4 + 2 * ROWS * 4  # numbers, labels, ids, lengths
PINNED_KIB = 8 * BYTES / 1024  # four batches, each in blocks of up to twice its size


def batch() -> Batch:
    lengths = torch.full((2 * ROWS,), 1, dtype=torch.int32)
    features = KeyedJaggedTensor(["a", "b"], torch.zeros(IDS, dtype=torch.int32), lengths=lengths)
    return Batch(torch.zeros(ROWS, DENSE), features, torch.zeros(ROWS), ROWS)


def machine(tmp_path: Path, free_kib: list[int], gpu_node: int) -> tuple[Path, Path]:
    nodes = write_nodes(tmp_path / "nodes", {number: (1 << 20, kib, 0) for number, kib in enumerate(free_kib)})
    return nodes, write_gpu(tmp_path / "pci", "0000:c1:00.0", gpu_node)


def test_a_batch_knows_its_bytes() -> None:
    assert batch().num_bytes == BYTES


@pytest.mark.parametrize("count", [2, 4, 8])
def test_processes_are_counted_on_their_own_node(tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Eight processes: with fewer nodes more of them pin memory of the GPU's."""
    caplog.set_level(logging.INFO, "clickwork")
    enough = int(PINNED_KIB * 8 / count) + 1
    nodes, pci = machine(tmp_path, [1] * (count - 1) + [enough], count - 1)
    batches = [batch(), batch()]
    assert list(with_room_checked(iter(batches), "0000:c1:00.0", 8, 3 << 30, nodes, pci)) == batches
    assert f"are pinned for {8 // count} process(es) on NUMA node {count - 1}, which has" in caplog.text
    assert "3.00 GiB of shards are read through the page cache" in caplog.text


def test_too_little_on_the_gpus_node_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    nodes, pci = machine(tmp_path, [1 << 20, int(PINNED_KIB) - 1], 1)
    with pytest.raises(UserError, match=r"on NUMA node 1, which has .* free: give a smaller train.global_batch_size"):
        with_room_checked(iter([batch()]), "0000:c1:00.0", 1, 0, nodes, pci)
    # Another GPU, whose node is not known: the freest.
    assert len(list(with_room_checked(iter([batch()]), "0000:01:00.0", 1, 0, nodes, pci))) == 1


def test_without_nodes_or_batches_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "clickwork")
    nodes, pci = machine(tmp_path, [1], 0)
    none: Iterator[Batch] = iter(())
    assert list(with_room_checked(none, "0000:c1:00.0", 1, 0, nodes, pci)) == []
    assert len(list(with_room_checked(iter([batch()]), "0000:c1:00.0", 1, 0, tmp_path / "none", pci))) == 1
    assert not caplog.records
