"""Batch norm against torch's BatchNorm1d: of one process, of padded batches, of several processes."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from app.config.train import RuntimeConfig
from app.model.layers import BatchNorm
from app.runtime import platform
from app.runtime.environment import leave
from tests.app.group import start_group

CHANNELS, ROWS = 5, 24


def both() -> tuple[BatchNorm, nn.BatchNorm1d]:
    torch.manual_seed(0)
    batch_norm, reference = BatchNorm(CHANNELS), nn.BatchNorm1d(CHANNELS)
    for norm in (batch_norm, reference):
        norm.weight.data, norm.bias.data = torch.linspace(0.5, 2, CHANNELS), torch.linspace(-1, 1, CHANNELS)
    return batch_norm, reference


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
    batch_norm, reference = both()
    for inputs in batches():
        weights = torch.randn_like(inputs)
        for value, other in zip(trained(batch_norm, inputs, weights), trained(reference, inputs, weights), strict=True):
            assert torch.equal(value, other)
    assert torch.equal(batch_norm.running_mean, reference.get_buffer("running_mean"))
    assert torch.equal(batch_norm.running_var, reference.get_buffer("running_var"))
    assert torch.equal(batch_norm.eval()(inputs), reference.eval()(inputs))


def test_padded_samples_do_not_count() -> None:
    batch_norm, reference = both()
    for inputs in batches():
        padded, weights = torch.cat([inputs, torch.full((7, CHANNELS), 1e3)]), torch.randn(ROWS + 7, CHANNELS)
        batch_norm.begin_step(ROWS)
        outputs, gradient = trained(batch_norm, padded, weights)
        expected, of_inputs = trained(reference, inputs, weights[:ROWS])
        torch.testing.assert_close(outputs[:ROWS], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient[:ROWS], of_inputs, rtol=1e-4, atol=1e-5)
        assert not gradient[ROWS:].any()
    torch.testing.assert_close(batch_norm.running_mean, reference.running_mean)
    torch.testing.assert_close(batch_norm.running_var, reference.running_var)
    torch.testing.assert_close(batch_norm.weight.grad, reference.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch_norm.bias.grad, reference.bias.grad, rtol=1e-4, atol=1e-4)


def _of_this_process(out: str) -> None:
    """Uneven parts of each batch, padded to equal size; one process has none of the valid samples of the last."""
    rank, batch_norm = platform.start(RuntimeConfig(num_threads=1), seed=0, deterministic=True).rank, both()[0]
    results = []
    for number, inputs in enumerate(batches()):
        parts = inputs.split([10, 14] if number < 2 else [24, 0])
        num_valid = len(parts[rank])
        batch_norm.begin_step(num_valid)
        padded = torch.cat([parts[rank], torch.zeros(24 - len(parts[rank]), CHANNELS)])
        outputs, gradient = trained(batch_norm, padded, torch.ones(24, CHANNELS) * (rank + 1))
        results.append([outputs[:num_valid].tolist(), gradient[:num_valid].tolist()])
    state = [batch_norm.running_mean.tolist(), batch_norm.running_var.tolist(), batch_norm.weight.grad.tolist()]  # type: ignore[union-attr]
    Path(f"{out}.{rank}").write_text(json.dumps([results, state]), encoding="utf-8")
    dist.barrier()
    leave(0)


def test_several_processes_have_the_statistics_of_all_samples(tmp_path: Path) -> None:
    out = tmp_path / "rank"
    log = tmp_path / "log"
    assert start_group(_of_this_process, (str(out),), 2, 2, log) == [0, 0], log.read_text()
    ranks = [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in (0, 1)]
    _, reference = both()
    for number, inputs in enumerate(batches()):
        size = 10 if number < 2 else 24
        weights = torch.ones(ROWS, CHANNELS)
        weights[size:] = 2
        expected = trained(reference, inputs, weights)
        for part, whole in enumerate(expected):
            actual = torch.cat([torch.tensor(rank[0][number][part]).view(-1, CHANNELS) for rank in ranks])
            torch.testing.assert_close(actual, whole, rtol=1e-4, atol=2e-5)
    for rank in ranks:
        torch.testing.assert_close(torch.tensor(rank[1][0]), reference.running_mean)
        torch.testing.assert_close(torch.tensor(rank[1][1]), reference.running_var)
    summed = torch.tensor([rank[1][2] for rank in ranks]).sum(0)  # DistributedDataParallel averages
    torch.testing.assert_close(summed, reference.weight.grad, rtol=1e-4, atol=1e-4)


def test_a_step_can_be_undone() -> None:
    batch_norm, _ = both()
    batch_norm(batches()[0])
    before = batch_norm.running_mean.clone(), batch_norm.running_var.clone()
    batch_norm.begin_step()
    batch_norm(torch.full((4, CHANNELS), float("nan")))
    assert batch_norm.running_mean.isnan().all()
    batch_norm.undo_step()
    assert torch.equal(batch_norm.running_mean, before[0])
    assert torch.equal(batch_norm.running_var, before[1])


@pytest.mark.parametrize("rows", [2, 3])
def test_it_is_of_float32_under_autocast(rows: int) -> None:
    batch_norm, _ = both()
    with torch.autocast("cpu", torch.bfloat16):
        assert batch_norm(torch.randn(rows, CHANNELS).bfloat16()).dtype is torch.float32
