"""Architecture against the oracle and TorchRec's own DLRM, forward and backward."""

import pytest
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models import dlrm

from app.config import Interaction, ModelConfig
from app.model import DLRM, CatInteraction, DotInteraction
from tests import reference

FEATURES = {"cat_0": 11, "cat_1": 5, "cat_2": 40}
DIM, NUM_DENSE, BATCH = 8, 6, 9


@pytest.mark.parametrize("itself", [False, True])
def test_dot_interaction_and_its_gradient_equal_the_oracle(itself: bool) -> None:
    torch.manual_seed(0)
    dense = torch.randn(BATCH, DIM, dtype=torch.float64, requires_grad=True)
    sparse = torch.randn(BATCH, 3, DIM, dtype=torch.float64, requires_grad=True)
    ours = DotInteraction(3, DIM, itself)(dense, sparse)
    theirs = reference.interact(dense, list(sparse.unbind(1)), "dot", itself)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    found = torch.autograd.grad((ours * weights).sum(), [dense, sparse])
    expected = torch.autograd.grad((theirs * weights).sum(), [dense, sparse])
    torch.testing.assert_close(found, expected)


def test_cat_interaction_equals_the_oracle() -> None:
    dense, sparse = torch.randn(BATCH, DIM), torch.randn(BATCH, 3, DIM)
    expected = reference.interact(dense, list(sparse.unbind(1)), "cat", itself=False)
    torch.testing.assert_close(CatInteraction(3, DIM)(dense, sparse), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("interaction", "itself", "over_inputs"),
    [(Interaction.dot, False, DIM + 6), (Interaction.dot, True, DIM + 10), (Interaction.cat, False, 4 * DIM)],
)
def test_widths_follow_the_interaction(interaction: Interaction, itself: bool, over_inputs: int) -> None:
    model = _model(interaction, itself)
    assert model.over_arch[0].in_features == over_inputs
    assert model(torch.randn(BATCH, NUM_DENSE), _ids()).shape == (BATCH,)


def test_equals_torchrec_given_the_same_weights() -> None:
    ours = _model(Interaction.dot, itself=False)
    theirs = dlrm.DLRM(_tables(), NUM_DENSE, dense_arch_layer_sizes=[12, DIM], over_arch_layer_sizes=[10, 1])
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    dense, ids = torch.randn(BATCH, NUM_DENSE), _ids()
    torch.testing.assert_close(ours(dense, ids), theirs(dense, ids).squeeze(1), rtol=0, atol=0)


def test_a_prediction_does_not_depend_on_the_batch() -> None:
    model = _model(Interaction.dot, itself=True)
    dense, ids = torch.randn(BATCH, NUM_DENSE), _ids()
    alone = [
        model(
            dense[i : i + 1],
            KeyedJaggedTensor(list(FEATURES), ids.values()[i::BATCH], lengths=torch.ones(3).int()),
        )
        for i in range(BATCH)
    ]
    torch.testing.assert_close(torch.cat(alone), model(dense, ids), rtol=1e-5, atol=1e-6)


def _tables() -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=f"t_{k}", embedding_dim=DIM, num_embeddings=n, feature_names=[k])
            for k, n in FEATURES.items()
        ]
    )


def _model(interaction: Interaction, itself: bool) -> DLRM:
    torch.manual_seed(1)
    config = ModelConfig(interaction, itself, embedding_dim=DIM, dense_arch=[12, DIM], over_arch=[10, 1])
    return DLRM(config, NUM_DENSE, _tables())


def _ids() -> KeyedJaggedTensor:
    torch.manual_seed(2)
    values = torch.cat([torch.randint(0, n, (BATCH,)) for n in FEATURES.values()])
    return KeyedJaggedTensor(list(FEATURES), values, lengths=torch.ones(3 * BATCH, dtype=torch.int32))
