"""Batch norm against torch's BatchNorm1d: of one process, of padded batches, of several processes."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from app.config import RuntimeConfig
from app.model.batch_norm import BatchNorm
from app.runtime import platform
from app.runtime.leave import leave
from tests.app.group import start_group

CHANNELS, ROWS = 5, 24


def both() -> tuple[BatchNorm, nn.BatchNorm1d]:
    torch.manual_seed(0)
    ours, reference = BatchNorm(CHANNELS), nn.BatchNorm1d(CHANNELS)
    for norm in (ours, reference):
        norm.weight.data, norm.bias.data = torch.linspace(0.5, 2, CHANNELS), torch.linspace(-1, 1, CHANNELS)
    return ours, reference


def batches() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS, CHANNELS, generator=draw) * 3 + 50 for _ in range(3)]


def trained(norm: nn.Module, inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    inputs = inputs.clone().requires_grad_()
    outputs = norm(inputs)
    (outputs * weights).sum().backward()
    assert inputs.grad is not None
    return outputs.detach(), inputs.grad


def test_of_one_process_it_is_torchs_to_the_bit() -> None:
    ours, reference = both()
    for inputs in batches():
        weights = torch.randn_like(inputs)
        for value, other in zip(trained(ours, inputs, weights), trained(reference, inputs, weights), strict=True):
            assert torch.equal(value, other)
    assert torch.equal(ours.running_mean, reference.get_buffer("running_mean"))
    assert torch.equal(ours.running_var, reference.get_buffer("running_var"))
    assert torch.equal(ours.eval()(inputs), reference.eval()(inputs))


def test_padded_samples_do_not_count() -> None:
    ours, reference = both()
    for inputs in batches():
        padded, weights = torch.cat([inputs, torch.full((7, CHANNELS), 1e3)]), torch.randn(ROWS + 7, CHANNELS)
        ours.begin_step(ROWS)
        outputs, gradient = trained(ours, padded, weights)
        expected, of_inputs = trained(reference, inputs, weights[:ROWS])
        torch.testing.assert_close(outputs[:ROWS], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient[:ROWS], of_inputs, rtol=1e-4, atol=1e-5)
        assert not gradient[ROWS:].any()
    torch.testing.assert_close(ours.running_mean, reference.running_mean)
    torch.testing.assert_close(ours.running_var, reference.running_var)
    torch.testing.assert_close(ours.weight.grad, reference.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.bias.grad, reference.bias.grad, rtol=1e-4, atol=1e-4)


def _of_this_process(out: str) -> None:
    """Uneven parts of each batch, padded to equal size; one process has none of the valid samples of the last."""
    rank, ours = platform.start(RuntimeConfig(num_threads=1), seed=0, deterministic=True).rank, both()[0]
    results = []
    for number, inputs in enumerate(batches()):
        parts = inputs.split([10, 14] if number < 2 else [24, 0])
        num_valid = len(parts[rank])
        ours.begin_step(num_valid)
        padded = torch.cat([parts[rank], torch.zeros(24 - len(parts[rank]), CHANNELS)])
        outputs, gradient = trained(ours, padded, torch.ones(24, CHANNELS) * (rank + 1))
        results.append([outputs[:num_valid].tolist(), gradient[:num_valid].tolist()])
    state = [ours.running_mean.tolist(), ours.running_var.tolist(), ours.weight.grad.tolist()]  # type: ignore[union-attr]
    Path(f"{out}.{rank}").write_text(json.dumps([results, state]))
    dist.barrier()
    leave(0)


def test_several_processes_have_the_statistics_of_all_samples(tmp_path: Path) -> None:
    out = tmp_path / "rank"
    log = tmp_path / "log"
    assert start_group(_of_this_process, (str(out),), 2, 2, log) == [0, 0], log.read_text()
    ranks = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)]
    _, reference = both()
    for number, inputs in enumerate(batches()):
        size = 10 if number < 2 else 24
        weights = torch.ones(ROWS, CHANNELS)
        weights[size:] = 2
        expected = trained(reference, inputs, weights)
        for part, whole in enumerate(expected):
            own = torch.cat([torch.tensor(rank[0][number][part]).view(-1, CHANNELS) for rank in ranks])
            torch.testing.assert_close(own, whole, rtol=1e-4, atol=2e-5)
    for rank in ranks:
        torch.testing.assert_close(torch.tensor(rank[1][0]), reference.running_mean)
        torch.testing.assert_close(torch.tensor(rank[1][1]), reference.running_var)
    summed = torch.tensor([rank[1][2] for rank in ranks]).sum(0)  # DistributedDataParallel averages
    torch.testing.assert_close(summed, reference.weight.grad, rtol=1e-4, atol=1e-4)


def test_a_step_can_be_undone() -> None:
    ours, _ = both()
    ours(batches()[0])
    before = ours.running_mean.clone(), ours.running_var.clone()
    ours.begin_step()
    ours(torch.full((4, CHANNELS), float("nan")))
    assert ours.running_mean.isnan().all()
    ours.undo_step()
    assert torch.equal(ours.running_mean, before[0])
    assert torch.equal(ours.running_var, before[1])


@pytest.mark.parametrize("rows", [2, 3])
def test_it_is_of_float32_under_autocast(rows: int) -> None:
    ours, _ = both()
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(torch.randn(rows, CHANNELS).bfloat16()).dtype is torch.float32
