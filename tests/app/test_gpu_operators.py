"""FBGEMM's operators whose grids overflowed on ROCm before 2026.9, against NumPy: large on a GPU, small elsewhere.

Repaired by FBGEMM's pull requests 6094 (bounds check), 6071 (forward), 6101 (linearised indices, as the backward pass
sorts them), 6041 (permute), 6162 (bucketize), and 6008 and 6001 (gradient of group_index_select).
"""

from collections.abc import Callable
from typing import Any

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import numpy as np
import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen
from numpy.typing import NDArray

PRETENDED = torch.cuda.is_available() and "Pretended" in torch.cuda.get_device_name()
only_real = pytest.mark.skipif(PRETENDED, reason="no GPU, only a pretended one: FBGEMM has no gradient for it")
SMALL, LARGE = 1 << 10, 1 << 26  # values: of the large, blocks of 32 threads would exceed 2^31 threads in a grid
BAG = 4  # values of a bag
TABLES = 4
RNG = np.random.default_rng(1)

Case = Callable[[str, int], None]


def tensor(array: NDArray[Any], device: str) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def check_bounds(device: str, size: int) -> None:
    """Indices out of range become 0, but -1, the mark of a pruned row."""
    rows = np.array([10, 1000, 7, 50], np.int64)
    indices = RNG.integers(-3, 1100, size)
    offsets = np.arange(0, size + 1, BAG)
    limits = np.repeat(rows, size // TABLES)
    checked = tensor(indices.copy(), device)
    warnings = torch.zeros(1, dtype=torch.int64, device=device)
    torch.ops.fbgemm.bounds_check_indices(tensor(rows, device), checked, tensor(offsets, device), 2, warnings)
    expected = np.where((indices >= -1) & (indices < limits), indices, 0)
    np.testing.assert_array_equal(checked.cpu().numpy(), expected)


def pool(device: str, size: int) -> None:
    """Sums of bags, and the tables' gradient, which sorts linearised indices."""
    rows, dim = 64, 8
    tables = DenseTableBatchedEmbeddingBagsCodegen([(rows, dim)] * TABLES, use_cpu=device == "cpu")
    weights = RNG.integers(-4, 5, (TABLES * rows, dim)).astype(np.float32)  # sums of small whole numbers are exact
    with torch.no_grad():
        tables.weights.copy_(tensor(weights.ravel(), device))
    indices = RNG.integers(0, rows, size)
    offsets = np.arange(0, size + 1, BAG)
    pooled = tables(tensor(indices, device), tensor(offsets, device))
    of_table = np.repeat(np.arange(TABLES), size // TABLES)
    bags = weights[of_table * rows + indices].reshape(-1, BAG, dim).sum(1)  # table by table
    expected = np.concatenate(np.split(bags, TABLES), axis=1)
    np.testing.assert_array_equal(pooled.detach().cpu().numpy(), expected)
    pooled.sum().backward()
    assert tables.weights.grad is not None
    counts = np.bincount(of_table * rows + indices, minlength=TABLES * rows)
    np.testing.assert_array_equal(tables.weights.grad.cpu().numpy().reshape(-1, dim), counts[:, None] + 0 * weights)


def permute(device: str, size: int) -> None:
    """Features in another order."""
    order = np.array([2, 0, 3, 1], np.int32)
    lengths = np.full((TABLES, size // TABLES // BAG), BAG, np.int32)
    values = RNG.integers(0, 1 << 40, size)
    moved = torch.ops.fbgemm.permute_2D_sparse_data(
        tensor(order, device), tensor(lengths, device), tensor(values, device), None, size
    )[1]
    np.testing.assert_array_equal(moved.cpu().numpy(), values.reshape(TABLES, -1)[order].ravel())


def bucketize(device: str, size: int) -> None:
    """Ids by the process that holds their rows, and which row it is there."""
    processes, rows = 2, 100
    ids = RNG.integers(0, processes * rows, size)
    lengths = np.full(size // BAG, BAG, np.int32)
    sizes = torch.full((TABLES,), rows, dtype=torch.int64, device=device)
    new_lengths, local = torch.ops.fbgemm.block_bucketize_sparse_features(
        tensor(lengths, device), tensor(ids, device), False, False, sizes, processes, None
    )[:2]
    owners = ids // rows
    np.testing.assert_array_equal(local.cpu().numpy(), np.concatenate([ids[owners == 0], ids[owners == 1] - rows]))
    counts = [(owners == process).reshape(-1, BAG).sum(1) for process in range(processes)]
    np.testing.assert_array_equal(new_lengths.cpu().numpy(), np.concatenate(counts))


def select_groups(device: str, size: int) -> None:
    """The gradient of rows taken from several matrices."""
    rows = 32
    indices = [RNG.integers(0, rows, size // TABLES) for _ in range(TABLES)]
    matrices = [torch.zeros(rows, 4, device=device, requires_grad=True) for _ in range(TABLES)]
    selections = torch.ops.fbgemm.group_index_select_dim0(matrices, [tensor(each, device) for each in indices])
    sum(each.sum() for each in selections).backward()
    for matrix, each in zip(matrices, indices, strict=True):
        assert matrix.grad is not None
        expected = np.bincount(each, minlength=rows)[:, None].repeat(4, axis=1)
        np.testing.assert_array_equal(matrix.grad.cpu().numpy(), expected)


CASES: list[Case] = [check_bounds, pool, permute, bucketize, select_groups]


@pytest.mark.parametrize("case", CASES)
def test_operators_on_a_cpu(case: Case) -> None:
    case("cpu", SMALL)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("case", [*CASES[:-1], pytest.param(CASES[-1], marks=only_real)])
def test_operators_with_a_large_grid(case: Case) -> None:
    case("cuda", SMALL if PRETENDED else LARGE)
