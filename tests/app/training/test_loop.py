"""What the loop reports of its steps, against NumPy on the same logits, and what its checks of their values find."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from app.config import Interaction, ModelConfig, TrainConfig
from app.data.batch import Batch
from app.model.dlrm import DLRM
from app.runtime.platform import Runtime
from app.training.window import FiniteChecks
from tests.app import loops
from tests.app.model.given_vectors import GivenVectors


class OneLayer:
    """In place of a session: one linear layer, its learning rate other at each step."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.computed: list[tuple[np.ndarray, np.ndarray]] = []

    def begin_step(self, step: int) -> float:
        return 0.5 + step

    def forward(self, batch: Batch) -> torch.Tensor:
        logits = self.model(batch.dense_features).squeeze(1)
        self.computed.append((logits.detach().double().numpy(), batch.labels.numpy()))
        return logits

    def loss_of(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)

    def gradient_norm(self) -> torch.Tensor:
        return torch.nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])

    def dense_parameters(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    predictor = SimpleNamespace(micro_batches=None)


def test_losses_and_accuracies_of_each_step(runtime: Runtime) -> None:
    torch.manual_seed(0)
    session = OneLayer(runtime)
    batches = (Batch(torch.randn(32, 3), None, torch.randint(2, (32,)).float(), 32) for _ in range(7))
    config = TrainConfig(global_batch_size=32, log_every_steps=3, warmup_steps_excluded=0)
    _, reported = loops.train(session, batches, 7, config)
    assert [len(steps.losses) for steps in reported] == [3, 3, 1]
    assert [steps.lr for steps in reported] == [2.5, 5.5, 6.5]
    losses = [np.mean(np.log1p(np.exp(z)) - y * z) for z, y in session.computed]
    accuracies = [np.mean((z > 0) == (y == 1)) for z, y in session.computed]
    np.testing.assert_allclose(np.concatenate([steps.losses for steps in reported]), losses, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate([steps.accuracies for steps in reported]), accuracies, rtol=1e-6)
    assert all(0 <= steps.input_wait <= steps.seconds.sum() for steps in reported)


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
