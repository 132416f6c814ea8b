"""Layers against torch's own and plain programs: batch norm, dropout, perceptrons by oneDNN, losses."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sklearn.metrics import mean_squared_error
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from app.config.kinds import TASKS
from app.config.train import LARGE_BATCH, LossConfig, LossName, RuntimeConfig
from app.model.dlrm import DLRM, make_loss
from app.model.layers import BatchNorm, Dropout, Layer, mlp
from app.runtime import platform
from app.runtime.environment import leave
from tests import reference
from tests.app.conftest import SMALL, Command, composed
from tests.app.group import start_group
from tests.app.model.given_vectors import GivenVectors
from tests.oracles import field_models

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


MASK_ROWS, WIDTH = 2048, 200


def mask_of(
    rate: float, seed: int = 3, step: int = 7, layer: int = 1, first_row: int = 0, rows: int = MASK_ROWS
) -> torch.Tensor:
    dropout = Dropout(WIDTH, rate)
    dropout.draw(seed, step, layer, first_row)
    return dropout.mask(rows)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
def test_masks_are_those_of_the_hash(rate: float) -> None:
    expected = field_models.mask(3, 7, 1, 100, 9, WIDTH, rate)
    assert np.array_equal(mask_of(rate, first_row=100, rows=9).numpy(), expected)


def test_values_are_scaled_in_training_and_untouched_in_evaluation() -> None:
    dropout, inputs = Dropout(WIDTH, 0.25), torch.randn(8, WIDTH, requires_grad=True)
    dropout.draw(0, 0, 0, 0)
    mask = dropout.mask(8)
    outputs = dropout(inputs)
    torch.testing.assert_close(outputs, torch.where(mask, inputs / 0.75, 0.0))
    outputs.sum().backward()
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, mask / 0.75)
    assert dropout.eval()(inputs) is inputs
    assert not dropout.state_dict()


WIDTHS = [24, 16, 1]


def plain(layers: nn.Module) -> nn.Sequential:
    """The same layers with values of their own, by torch's Linear and ReLU."""
    parts: list[nn.Module] = []
    for layer in layers.children():
        assert isinstance(layer, Layer)
        linear = nn.Linear(layer.in_features, layer.out_features)
        linear.load_state_dict(copy.deepcopy(layer.state_dict()))
        parts += [linear, nn.ReLU()] if layer.relu else [linear]
    return nn.Sequential(*parts)


def is_by_onednn(outputs: Tensor) -> bool:
    return outputs.grad_fn is not None and outputs.grad_fn.name() == "_OneDNNBackward"


@pytest.mark.parametrize("final_relu", [False, True])
def test_values_and_gradients_are_torchs(final_relu: bool) -> None:
    torch.manual_seed(0)
    layers = mlp(37, WIDTHS, final_relu)
    inputs = torch.randn(LARGE_BATCH, 37, requires_grad=True)
    outputs = layers(inputs)
    torch_layers = plain(layers)
    expected = torch_layers(inputs)
    assert is_by_onednn(outputs)
    assert not is_by_onednn(expected)
    assert list(layers.state_dict()) == list(torch_layers.state_dict())
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((outputs * weights).sum(), [inputs, *layers.parameters()])
    expected_gradients = torch.autograd.grad((expected * weights).sum(), [inputs, *torch_layers.parameters()])
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))


def test_its_operations_are_counted() -> None:
    layers, inputs = mlp(37, WIDTHS, False), torch.randn(LARGE_BATCH, 37, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layers(inputs).sum().backward()
    with FlopCounterMode(display=False) as expected:
        plain(layers)(inputs).sum().backward()
    assert counter.get_total_flops() == expected.get_total_flops() > 0


def test_elsewhere_it_is_torchs_to_the_bit() -> None:
    torch.manual_seed(0)
    layers, inputs = mlp(37, WIDTHS, False), torch.randn(LARGE_BATCH, 37)
    torch_layers = plain(layers)
    few = layers(inputs[:-1])
    assert not is_by_onednn(few)
    assert torch.equal(few, torch_layers(inputs[:-1]))
    with torch.no_grad():
        assert torch.equal(layers(inputs), torch_layers(inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layers(inputs), torch_layers(inputs))


@pytest.mark.parametrize("interaction", ["dot", "dcn"])
def test_ten_steps_have_the_losses_of_torchs(interaction: str) -> None:
    overrides = ["model.embedding_dim=8", "model.dense_arch=[32,8]", "model.over_arch=[48,1]", "data.path=none"]
    config = composed(*overrides, f"model.interaction={interaction}")

    def losses(parts: int) -> Tensor:
        torch.manual_seed(0)
        model = DLRM(config.model, 5, 3, GivenVectors())
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
        step_losses = []
        for _ in range(10):
            dense, sparse, labels = torch.randn(LARGE_BATCH, 5), torch.randn(LARGE_BATCH, 3, 8), torch.rand(LARGE_BATCH)
            batches = zip(dense.chunk(parts), sparse.chunk(parts), strict=True)
            logits = torch.cat([model(*batch) for batch in batches])
            loss = nn.functional.binary_cross_entropy_with_logits(logits, (labels < 0.25).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_losses.append(loss.detach())
        return torch.stack(step_losses)

    torch.testing.assert_close(losses(1), losses(2), rtol=1e-6, atol=0)


def test_what_stands_between_layers_is_not_skipped_in_large_batches() -> None:
    layers = mlp(37, WIDTHS, False)
    with_dropout = nn.Sequential(layers[0], nn.Dropout(1.0), layers[1])
    outputs = with_dropout(torch.randn(LARGE_BATCH, 37))
    assert is_by_onednn(outputs)
    torch.testing.assert_close(outputs, nn.functional.relu(layers[1].get_parameter("bias")).expand_as(outputs))


@pytest.mark.parametrize("threshold", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "class_weights"), [(LossName.bce, None), (LossName.weighted_bce, [0.7, 3.0]), (LossName.mse, None)]
)
def test_loss_and_gradient_equal_the_oracle(
    name: LossName, class_weights: list[float] | None, threshold: float
) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(64, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(0, 2, (64,), dtype=torch.float64)
    loss = make_loss(LossConfig(name, class_weights, threshold))(logits, labels)
    weights = (1.0, 1.0) if class_weights is None else (class_weights[0], class_weights[1])
    kind = "mse" if name is LossName.mse else "bce"
    expected = reference.loss_of_predictions(logits, labels, kind, weights, threshold)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected, logits))
    beyond = torch.sigmoid(logits.detach()) - 0.5
    assert torch.equal(gradient == 0, beyond.abs() > 0.5 - threshold)
    assert not threshold or 0 < int((gradient == 0).sum()) < 64


def test_the_loss_of_numbers_is_scikit_learns_and_has_no_sigmoid() -> None:
    rng = np.random.default_rng(0)
    preds, labels = rng.normal(3, 2, (2, 50))
    loss = make_loss(LossConfig(LossName.mse), 0.5, TASKS["number"])
    value = loss(torch.from_numpy(preds), torch.from_numpy(labels))
    assert value.item() == pytest.approx(mean_squared_error(labels, preds) / 2, rel=1e-12)


@pytest.mark.parametrize("name", LossName)
def test_over_all_rows_the_loss_is_the_mean_by_weight(name: LossName) -> None:
    rng = np.random.default_rng(0)
    logits, labels, weights = rng.normal(size=60), rng.integers(0, 2, 60).astype(float), rng.random(60) * 9
    class_weights = [0.7, 3.0] if name is LossName.weighted_bce else None
    loss = make_loss(LossConfig(name, class_weights), 1.0, TASKS["click"], weights.mean())
    batches = zip(*(torch.from_numpy(each).split(20) for each in (logits, labels, weights)), strict=True)
    value = np.mean([loss(*batch).item() for batch in batches])
    preds = 1 / (1 + np.exp(-logits))
    of_class = np.where(labels > 0, 3.0, 0.7) if class_weights else 1
    each = of_class * -np.log(np.where(labels > 0, preds, 1 - preds))
    each = (preds - labels) ** 2 if name is LossName.mse else each
    assert value == pytest.approx(np.average(each, weights=weights), rel=1e-7)


def test_a_hopeless_sample_keeps_its_loss_and_its_gradient() -> None:
    logits = torch.tensor([-200.0, 120.0], requires_grad=True)
    loss = make_loss(LossConfig(LossName.bce))(logits, torch.tensor([1.0, 0.0]))
    loss.backward()
    assert logits.grad is not None
    assert (loss.item(), logits.grad.tolist()) == (160.0, [-0.5, 0.5])


@pytest.mark.medium
def test_figures_of_another_loss_are_not_called_logloss(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    keys = [*SMALL, f"data.path={dataset}", "run.name=squares", "train.max_steps=30", "loss=mse", "loss.threshold=0.01"]
    keys += ["optimizer.lr=0.05"]
    run_app("train", *keys)
    figures = json.loads((tmp_path / "runs/squares/summary.json").read_bytes())
    assert figures["train"]["logloss"] is None
    assert figures["train"]["loss"] < 0.3
    assert 0.5 < figures["eval"]["logloss"] < 1
    assert figures["eval"]["auc"] > 0.6
    refusal = run_app("train", *SMALL, f"data.path={dataset}", "run.name=squares", "train.max_steps=40", status=2)
    assert "loss.name=bce" in refusal.stderr
