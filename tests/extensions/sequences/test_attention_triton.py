"""Triton's kernels of attention: against the bucketed one where blocks end, and compiled for GPUs that are not here."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from extensions.sequences.event_log import SequenceLayout
from extensions.sequences.hstu import attend
from extensions.sequences.keys import Attention
from tests.app.conftest import REPOSITORY
from tests.extensions.sequences.test_hstu import INTERPRETED

pytestmark = INTERPRETED
LENGTHS = [1, 2, 16, 31, 32, 33, 65]
LOCAL_MEMORY = {"sm_90": 227, "gfx942": 64}  # KiB of a program


def inputs(layout: SequenceLayout, candidates_only: bool, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradient of the result; widths that are no power of two."""
    torch.manual_seed(0)
    total = sum(layout.lengths)
    queries = len(layout.lengths) if candidates_only else total
    shapes = (queries, 12), (total, 12), (total, 20), (queries, 20)
    return [torch.randn(rows, 2, width, dtype=dtype) for rows, width in shapes]


def computed(strategy: Attention, tensors: list[Tensor], layout: SequenceLayout, candidates_only: bool) -> list[Tensor]:
    """The result and the gradients of q, k and v."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in tensors[:3])
    out = attend(strategy, q, k, v, layout, candidates_only)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), tensors[3])]


@pytest.mark.parametrize("candidates_only", [False, True])
@pytest.mark.parametrize("divisor", [65.0, 4096.0])
def test_it_equals_bucketed_where_blocks_end(divisor: float, candidates_only: bool) -> None:
    layout = SequenceLayout(LENGTHS, divisor)
    tensors = inputs(layout, candidates_only, torch.float32)
    actual, expected = (computed(kind, tensors, layout, candidates_only) for kind in ("triton", "bucketed"))
    for output, reference in zip(actual, expected, strict=True):
        assert reference.abs().max() > 1e-4
        torch.testing.assert_close(output, reference, atol=2e-6 * float(reference.abs().max()), rtol=1e-5)
    if candidates_only:  # the quicker case
        repeat = computed("triton", tensors, layout, candidates_only)
        assert all(torch.equal(output, same) for output, same in zip(actual, repeat, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_rounds_no_more_than_its_inputs(dtype: torch.dtype) -> None:
    """Sums are float32: what differs is the rounding of weights and results."""
    layout = SequenceLayout([65, 70, 1], 70.0)
    tensors = inputs(layout, False, dtype)
    actual = computed("triton", tensors, layout, False)
    expected = computed("bucketed", [tensor.float() for tensor in tensors], layout, False)
    for output, reference in zip(actual, expected, strict=True):
        assert output.dtype is dtype
        error = (output.float() - reference).norm() / reference.norm()
        assert error < torch.finfo(dtype).eps


def test_it_compiles_for_gpus_within_their_local_memory() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.extensions.sequences.compiled_kernels"]
    process = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    kernels = json.loads(process.stdout)
    assert len(kernels) == len(LOCAL_MEMORY) * 3
    for architecture, dtype, kernel, shared in kernels:
        assert 0 < shared <= LOCAL_MEMORY[architecture] * 1024, (architecture, dtype, kernel)
