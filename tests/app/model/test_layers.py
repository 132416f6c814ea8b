"""Layers and whole models against torch's own, TorchRec's and plain programs, forward and backward."""

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models import dlrm

from app.config.model import Interaction, ModelConfig
from app.config.train import LARGE_BATCH, LossConfig, LossName
from app.model.dlrm import DLRM, make_loss
from app.model.embeddings import make_sparse_arch
from app.model.layers import BatchNorm, Layer, mlp
from tests import reference

FEATURES = {"cat_0": 11, "cat_1": 5, "cat_2": 40}
DIM, NUM_DENSE, BATCH = 8, 6, 9


DCN = {"dcn_num_layers": 2, "dcn_low_rank_dim": 6}
BRANCHES = ([9, 3 * DIM], [2 * DIM])
TORCHREC: dict[Interaction, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "dot": (dlrm.DLRM, {}, {}),
    "dcn": (dlrm.DLRM_DCN, DCN, DCN),
    "projection": (
        dlrm.DLRM_Projection,
        {"projection_branch1": BRANCHES[0], "projection_branch2": BRANCHES[1]},
        {"interaction_branch1_layer_sizes": BRANCHES[0], "interaction_branch2_layer_sizes": BRANCHES[1]},
    ),
}


@pytest.mark.parametrize("interaction", TORCHREC)
def test_equals_torchrec_to_the_bit_forward_and_backward(interaction: Interaction) -> None:
    make, our_settings, their_settings = TORCHREC[interaction]
    model = _model(interaction, itself=False, **our_settings)
    configs = [EmbeddingBagConfig(n, DIM, name=f"t_{k}", feature_names=[k]) for k, n in FEATURES.items()]
    tables = EmbeddingBagCollection(tables=configs)
    torchrec_model = make(
        tables, NUM_DENSE, dense_arch_layer_sizes=[12, DIM], over_arch_layer_sizes=[10, 1], **their_settings
    )
    torchrec_model.load_state_dict(dict(zip(torchrec_model.state_dict(), model.state_dict().values(), strict=True)))
    dense, ids, weights = torch.randn(BATCH, NUM_DENSE), _ids(), torch.randn(BATCH)
    logits, expected = model(dense, ids), torchrec_model(dense, ids).squeeze(1)
    assert torch.equal(logits, expected)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs = list(zip(model.named_parameters(), torchrec_model.parameters(), strict=True))
    assert len(pairs) > 10
    for (name, parameter), other in pairs:
        assert parameter.grad is not None
        assert torch.count_nonzero(parameter.grad), name
        assert torch.equal(parameter.grad, other.grad), name


def test_linear_layers_begin_as_facebookresearch_draws_them() -> None:
    torch.manual_seed(0)
    widths: dict[str, Any] = {"dense_arch": [400, DIM], "over_arch": [300, 1], "projection_branch1": [500, DIM]}
    config = ModelConfig("projection", embedding_dim=DIM, dense_init="facebookresearch", **widths)
    model = DLRM(config, 200, 3, make_sparse_arch(config, FEATURES))
    stacks = cast(list[nn.Sequential], [model.dense_arch, model.over_arch, model.interaction.branch1])
    for layer in (cast(nn.Linear, stack[0]) for stack in stacks):
        outputs, inputs = layer.weight.shape
        assert layer.weight.std().item() == pytest.approx((2 / (inputs + outputs)) ** 0.5, rel=0.05)
        assert layer.bias.std().item() == pytest.approx(outputs**-0.5, rel=0.15)
        assert layer.weight.abs().max() > 3 * layer.weight.std()  # normal, not uniform


def test_a_linear_part_adds_the_first_elements_and_the_bias_begins_as_given() -> None:
    model, plain = (_model("cat", itself=False, **keys) for keys in ({"linear": 3.0}, {}))
    dense, ids = torch.randn(BATCH, NUM_DENSE), _ids()
    tables = [weight.detach() for weight in cast(nn.Module, plain.sparse_arch.bags).parameters()]
    rows = ids.values().view(3, BATCH)
    linear = sum(table[row, 0] for table, row in zip(tables, rows, strict=True))
    torch.testing.assert_close(model(dense, ids), plain(dense, ids) + 3.0 * linear)
    in_order, order = model.sparse_arch(ids)()[0], torch.tensor([2, 0, 1])
    by_rank = model.logits_of_vectors(dense, in_order[:, order.argsort()], (order, order.argsort()))
    assert torch.equal(by_rank, model.logits_of_vectors(dense, in_order, None))
    over_arch = cast(nn.Sequential, _model("cat", itself=False, initial_logit=-2.5).over_arch)
    assert cast(nn.Linear, over_arch[-1]).bias.tolist() == [-2.5]


def _model(interaction: Interaction, itself: bool, **settings: Any) -> DLRM:
    torch.manual_seed(1)
    config = ModelConfig(interaction, itself, embedding_dim=DIM, dense_arch=[12, DIM], over_arch=[10, 1], **settings)
    model = DLRM(config, NUM_DENSE, len(FEATURES), make_sparse_arch(config, FEATURES))
    tables = cast(nn.Module, model.sparse_arch.bags).to_empty(device="cpu")
    for table in tables.parameters():
        torch.nn.init.normal_(table)
    return model


def _ids() -> KeyedJaggedTensor:
    torch.manual_seed(2)
    values = torch.cat([torch.randint(0, n, (BATCH,)) for n in FEATURES.values()])
    return KeyedJaggedTensor(list(FEATURES), values, lengths=torch.ones(3 * BATCH, dtype=torch.int32))


@pytest.mark.parametrize("mixes", [False, True])
def test_the_blogs_predictions_depend_on_the_batch_and_the_fixed_ones_do_not(mixes: bool) -> None:
    model = _model("scalar_pairs", itself=False, mixes_samples=mixes)
    dense, ids = torch.randn(BATCH, NUM_DENSE), _ids()
    before = model(dense, ids)
    values = ids.values().clone()
    values[BATCH] = (values[BATCH] + 1) % FEATURES["cat_1"]  # the second feature of the first sample: vector 9 of 27
    difference = model(dense, KeyedJaggedTensor(list(FEATURES), values, lengths=ids.lengths())) != before
    assert difference.nonzero().flatten().tolist() == ([BATCH // 3] if mixes else [0])
    alone = model(dense[:1], KeyedJaggedTensor(list(FEATURES), ids.values()[::BATCH], lengths=torch.ones(3).int()))
    assert torch.allclose(alone, before[:1], rtol=1e-5, atol=1e-6) != mixes


def test_a_step_can_be_undone() -> None:
    batch_norm = BatchNorm(5)
    batch_norm(torch.randn(24, 5) * 3 + 50)
    before = batch_norm.running_mean.clone(), batch_norm.running_var.clone()
    batch_norm.begin_step()
    batch_norm(torch.full((4, 5), float("nan")))
    assert batch_norm.running_mean.isnan().all()
    batch_norm.undo_step()
    assert torch.equal(batch_norm.running_mean, before[0])
    assert torch.equal(batch_norm.running_var, before[1])


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


@pytest.mark.parametrize("threshold", [0.0, 0.1])
@pytest.mark.parametrize(("name", "class_weights"), [("bce", None), ("weighted_bce", [0.7, 3.0]), ("mse", None)])
def test_loss_and_gradient_equal_the_oracle(
    name: LossName, class_weights: list[float] | None, threshold: float
) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(64, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(0, 2, (64,), dtype=torch.float64)
    loss = make_loss(LossConfig(name, class_weights, threshold))(logits, labels)
    weights = (1.0, 1.0) if class_weights is None else (class_weights[0], class_weights[1])
    kind = "mse" if name == "mse" else "bce"
    expected = reference.loss_of_predictions(logits, labels, kind, weights, threshold)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected, logits))
    beyond = torch.sigmoid(logits.detach()) - 0.5
    assert torch.equal(gradient == 0, beyond.abs() > 0.5 - threshold)
    assert not threshold or 0 < int((gradient == 0).sum()) < 64


def test_a_hopeless_sample_keeps_its_loss_and_its_gradient() -> None:
    logits = torch.tensor([-200.0, 120.0], requires_grad=True)
    loss = make_loss(LossConfig("bce"))(logits, torch.tensor([1.0, 0.0]))
    loss.backward()
    assert logits.grad is not None
    assert (loss.item(), logits.grad.tolist()) == (160.0, [-0.5, 0.5])
