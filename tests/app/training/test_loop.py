"""What the loop tells of its steps, against NumPy on the same logits."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from app.config import TrainConfig
from app.data.batch import Batch
from app.metrics.timing import StepTimer
from app.training import loop
from app.training.state import Parts, State, Steps


def test_losses_and_accuracies_of_each_step() -> None:
    torch.manual_seed(0)
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    model = nn.Linear(3, 1)
    told: list[Steps] = []

    def forward(batch: Batch) -> torch.Tensor:
        logits = model(batch.dense_features).squeeze(1)
        seen.append((logits.detach().double().numpy(), batch.labels.numpy()))
        return logits

    def batches(epoch: int, first: int) -> Iterator[Batch]:
        for _ in range(first, 7):
            yield Batch(torch.randn(32, 3), None, torch.randint(2, (32,)).float(), 32)

    parts = Parts(
        batches=batches,
        total_steps=7,
        steps_per_epoch=7,
        forward=forward,
        loss=nn.functional.binary_cross_entropy_with_logits,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        set_learning_rate=lambda step: 0.5 + step,
        mean_over_ranks=lambda values: values,
        meter=StepTimer(torch.device("cpu")),
        report=lambda state, steps: told.append(steps),
    )
    config = TrainConfig(global_batch_size=32, log_every_steps=3, warmup_steps_excluded=0)
    assert loop.train(parts, config, State()) == "completed"
    assert [len(steps.losses) for steps in told] == [3, 3, 1]
    assert [steps.lr for steps in told] == [2.5, 5.5, 6.5]
    losses = [np.mean(np.log1p(np.exp(z)) - y * z) for z, y in seen]
    accuracies = [np.mean((z > 0) == (y == 1)) for z, y in seen]
    np.testing.assert_allclose(np.concatenate([steps.losses for steps in told]), losses, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate([steps.accuracies for steps in told]), accuracies, rtol=1e-6)
    assert all(0 <= steps.input_wait <= steps.seconds.sum() for steps in told)
