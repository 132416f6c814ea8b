"""What the checks of a step's values find."""

import pytest
import torch
from torch import nn

from app.config import Interaction, ModelConfig
from app.model.dlrm import DLRM
from app.training.window import FiniteChecks
from tests.app.model.given_vectors import GivenVectors

BATCH, DIM, NUM_SPARSE = 7, 4, 3


@pytest.mark.parametrize("interaction", list(Interaction))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_vector_that_is_not_finite_shows_in_the_loss_or_a_gradient(interaction: Interaction, value: float) -> None:
    """Wherever it is, whatever a ReLU hides of it."""
    config = ModelConfig(interaction, embedding_dim=DIM, dense_arch=[6, DIM], over_arch=[5, 1])
    for seed in range(20):
        torch.manual_seed(seed)
        model = DLRM(config, 2, NUM_SPARSE, GivenVectors())
        checks = FiniteChecks(dict(model.named_parameters()))
        vectors = torch.randn(BATCH, NUM_SPARSE, DIM)
        for spoiled in (False, True):
            if spoiled:
                vectors[seed % BATCH, seed % NUM_SPARSE, seed % DIM] = value
            model.zero_grad()
            logits = model(torch.randn(BATCH, 2), vectors)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, (torch.rand(BATCH) < 0.5).float())
            loss.backward()
            assert bool(torch.isfinite(checks(loss)).all()) is not spoiled
