"""Attention on a GPU: `pytest -m gpu` on a machine with one."""

import pytest
import torch

from extensions.sequences.event_log import SequenceLayout
from extensions.sequences.hstu import attend
from extensions.sequences.keys import Attention
from tests.app.test_gpu import PRETENDED

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.skipif(PRETENDED, reason="no GPU, only a pretended one: Triton does not compile for it")
@pytest.mark.parametrize("candidates_only", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 8e-3)])
def test_attention_by_triton_equals_the_padded_one(dtype: torch.dtype, tolerance: float, candidates_only: bool) -> None:
    """Values and gradients, with heads of MLPerf's widths."""
    torch.set_float32_matmul_precision("highest")
    layout = SequenceLayout([0, 1, 33, 64, 65, 700], [0, 1, 3, 1, 40, 5], 700.0)
    rows = sum(layout.num_candidates) if candidates_only else sum(layout.lengths)
    torch.manual_seed(0)
    sizes = (rows, sum(layout.lengths), sum(layout.lengths), rows)
    *tensors, grad = (torch.randn(size, 4, 128, device="cuda", dtype=dtype) for size in sizes)
    results: list[list[torch.Tensor]] = []
    for kind, compute_dtype in ((Attention.triton, dtype), (Attention.padded, torch.float32)):
        q, k, v = (tensor.to(compute_dtype, copy=True).requires_grad_() for tensor in tensors)
        out = attend(kind, q, k, v, layout, candidates_only)
        results.append([out, *torch.autograd.grad(out, (q, k, v), grad.to(compute_dtype))])
    for output, reference in zip(*results, strict=True):
        assert (output.float() - reference).norm() < tolerance * reference.norm()
