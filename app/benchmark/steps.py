"""Whole steps of the model that the configuration names: training and inference on batches that lie ready."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from app.benchmark.case import Case
from app.benchmark.dense import flops_of
from app.benchmark.shape import Shape, random_batch
from app.benchmark.tables import lookup_bytes, update_bytes
from app.training.session import Session

BATCHES = 8
FLOAT_BYTES = 4


def cases(shape: Shape, session: Session) -> Iterator[Case]:
    """One training step and one forward, through DistributedModelParallel."""
    device, world_size = session.runtime.device, session.runtime.world_size
    batches = [random_batch(shape, seed, device) for seed in range(BATCHES)]
    turn = [0]

    def following() -> Any:
        turn[0] += 1
        return batches[turn[0] % BATCHES]

    def train() -> None:
        batch = following()
        session.optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(session.forward(batch), batch.labels).backward()
        session.optimizer.step()

    def inference() -> None:
        with torch.no_grad():
            session.forward(following())

    dense = FLOAT_BYTES * session.parameter_counts()["dense"]
    forward_bytes = lookup_bytes(shape) + dense
    # dense parameters: read forward and backward, their gradients written, then read and applied
    train_bytes = lookup_bytes(shape) + update_bytes(shape, session.config.optimizer.name.value) + 5 * dense
    samples = shape.batch_size * world_size
    yield Case("step/inference", str(shape), inference, samples, forward_bytes, flops_of(inference))
    yield Case("step/train", str(shape), train, samples, train_bytes, flops_of(train))
