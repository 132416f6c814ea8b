"""Architecture against the oracle and TorchRec's own DLRM, forward and backward."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models import dlrm

from app.config.model import DenseInit, Interaction, ModelConfig
from app.model.dlrm import DLRM
from app.model.embeddings import Vectors, make_sparse_arch
from app.model.layers import DotInteraction, join

FEATURES = {"cat_0": 11, "cat_1": 5, "cat_2": 40}
DIM, NUM_DENSE, BATCH = 8, 6, 9


@pytest.mark.parametrize("itself", [False, True])
def test_dot_interaction_under_autocast_is_near_that_without(itself: bool) -> None:
    """bf16 has 8 bits: 0.4 % of a value. All vectors are in bf16, as they are on a GPU."""
    torch.manual_seed(0)
    dense, sparse = torch.randn(BATCH, DIM).bfloat16().float(), torch.randn(BATCH, 3, DIM)
    weights = torch.randn(BATCH, DotInteraction(3, DIM, itself).num_outputs)
    results = []
    for enabled in (False, True):
        inputs = [dense.clone().requires_grad_(), sparse.clone().requires_grad_()]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            vectors = [vector.bfloat16() for vector in inputs] if enabled else inputs
            outputs = DotInteraction(3, DIM, itself)(*vectors)
        assert outputs.dtype is (torch.bfloat16 if enabled else torch.float32)
        results.append([outputs.float(), *torch.autograd.grad((outputs.float() * weights).sum(), inputs)])
    for approximation, exact in zip(results[1], results[0], strict=True):
        assert approximation.dtype is torch.float32
        assert (approximation - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_in_the_ranks_order_are_joined_as_those_in_the_features(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dense = torch.randn(BATCH, DIM, dtype=dtype, requires_grad=True)
    sparse = torch.randn(BATCH, 3, DIM, requires_grad=True)
    order = torch.tensor([2, 0, 1])
    vectors, expected = join(dense, sparse, (order, order.argsort())), join(dense, sparse[:, order], None)
    assert vectors.dtype is expected.dtype
    assert torch.equal(vectors, expected)
    weights = torch.randn_like(vectors)
    for gradient, expected_gradient in zip(
        torch.autograd.grad(vectors, [dense, sparse], weights),
        torch.autograd.grad(expected, [dense, sparse], weights),
        strict=True,
    ):
        assert torch.equal(gradient, expected_gradient)


def test_dense_arch_does_not_wait_for_vectors_of_other_processes() -> None:
    model, computed = _model(Interaction.dot, itself=False), []
    model.dense_arch.register_forward_hook(lambda *_: computed.append(True))
    lookup = model.sparse_arch.forward

    def slow(features: KeyedJaggedTensor) -> Callable[[], Vectors]:
        awaitable = lookup(features)

        def wait() -> Vectors:
            assert computed
            return awaitable()

        assert not computed
        return wait

    model.sparse_arch.forward = slow
    assert model(torch.randn(BATCH, NUM_DENSE), _ids()).shape == (BATCH,)


DCN = {"dcn_num_layers": 2, "dcn_low_rank_dim": 6}
BRANCHES = ([9, 3 * DIM], [2 * DIM])
TORCHREC: dict[Interaction, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    Interaction.dot: (dlrm.DLRM, {}, {}),
    Interaction.dcn: (dlrm.DLRM_DCN, DCN, DCN),
    Interaction.projection: (
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


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("interaction", Interaction)
def test_what_a_graph_records_is_a_plain_step_without_the_parameters_themselves(
    interaction: Interaction, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dense, ids = _model(interaction, itself=False), torch.randn(BATCH, NUM_DENSE), _ids()
    cast_to_bf16 = partial(torch.autocast, "cpu", torch.bfloat16, bf16)

    def gradients() -> list[Tensor]:
        with cast_to_bf16():
            logits = model(dense, ids)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    def record(functions: Any, examples: Any) -> Any:
        for function, example in zip(functions, examples, strict=True):
            leaves = {id(leaf) for leaf in _leaves(function(*example).grad_fn)}
            assert leaves == {id(tensor) for tensor in example if tensor.requires_grad} - parameters
        assert {id(parameter) for parameter in model.parameters()} == parameters
        return functions

    plain, parameters = gradients(), {id(parameter) for parameter in model.parameters()}
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    model.capture_dense_layers(dense, ids, cast_to_bf16)
    for output, expected in zip(gradients(), plain, strict=True):
        assert torch.equal(output, expected)


def _leaves(node: Any) -> Iterator[Tensor]:
    """The leaves of an autograd graph."""
    if hasattr(node, "variable"):
        yield node.variable
    for before, _ in () if node is None else node.next_functions:
        yield from _leaves(before)


def test_linear_layers_begin_as_facebookresearch_draws_them() -> None:
    torch.manual_seed(0)
    widths: dict[str, Any] = {"dense_arch": [400, DIM], "over_arch": [300, 1], "projection_branch1": [500, DIM]}
    drawn = DenseInit.facebookresearch
    config = ModelConfig(Interaction.projection, embedding_dim=DIM, dense_init=drawn, **widths)
    model = DLRM(config, 200, 3, make_sparse_arch(config, FEATURES))
    stacks = cast(list[nn.Sequential], [model.dense_arch, model.over_arch, model.interaction.branch1])
    for layer in (cast(nn.Linear, stack[0]) for stack in stacks):
        outputs, inputs = layer.weight.shape
        assert layer.weight.std().item() == pytest.approx((2 / (inputs + outputs)) ** 0.5, rel=0.05)
        assert layer.bias.std().item() == pytest.approx(outputs**-0.5, rel=0.15)
        assert layer.weight.abs().max() > 3 * layer.weight.std()  # normal, not uniform


def test_a_linear_part_adds_the_first_elements_and_the_bias_begins_as_given() -> None:
    model, plain = (_model(Interaction.cat, itself=False, **keys) for keys in ({"linear": 3.0}, {}))
    dense, ids = torch.randn(BATCH, NUM_DENSE), _ids()
    tables = [weight.detach() for weight in cast(nn.Module, plain.sparse_arch.bags).parameters()]
    rows = ids.values().view(3, BATCH)
    linear = sum(table[row, 0] for table, row in zip(tables, rows, strict=True))
    torch.testing.assert_close(model(dense, ids), plain(dense, ids) + 3.0 * linear)
    in_order, order = model.sparse_arch(ids)()[0], torch.tensor([2, 0, 1])
    by_rank = model.score(dense, in_order[:, order.argsort()], (order, order.argsort()))
    assert torch.equal(by_rank, model.score(dense, in_order, None))
    over_arch = cast(nn.Sequential, _model(Interaction.cat, itself=False, initial_logit=-2.5).over_arch)
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
    model = _model(Interaction.scalar_pairs, itself=False, mixes_samples=mixes)
    dense, ids = torch.randn(BATCH, NUM_DENSE), _ids()
    before = model(dense, ids)
    values = ids.values().clone()
    values[BATCH] = (values[BATCH] + 1) % FEATURES["cat_1"]  # the second feature of the first sample: vector 9 of 27
    difference = model(dense, KeyedJaggedTensor(list(FEATURES), values, lengths=ids.lengths())) != before
    assert difference.nonzero().flatten().tolist() == ([BATCH // 3] if mixes else [0])
    alone = model(dense[:1], KeyedJaggedTensor(list(FEATURES), ids.values()[::BATCH], lengths=torch.ones(3).int()))
    assert torch.allclose(alone, before[:1], rtol=1e-5, atol=1e-6) != mixes
