"""Perceptrons by oneDNN against torch's own layers."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from app.config.train import LARGE_BATCH
from app.model.dlrm import DLRM
from app.model.layers import Layer, mlp
from tests.app.conftest import composed
from tests.app.model.given_vectors import GivenVectors

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
    """Within 1e-6, relative: the same model in a large batch, and in two that are not."""
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
    """A dropout of all values, put between two layers, leaves the second one's bias."""
    layers = mlp(37, WIDTHS, False)
    with_dropout = nn.Sequential(layers[0], nn.Dropout(1.0), layers[1])
    outputs = with_dropout(torch.randn(LARGE_BATCH, 37))
    assert is_by_onednn(outputs)
    torch.testing.assert_close(outputs, nn.functional.relu(layers[1].get_parameter("bias")).expand_as(outputs))
