"""Whole steps: training, and scoring of one to many samples, sharded and as served."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from app.benchmark.case import Case
from app.benchmark.operators import flops_of, lookup_bytes, update_bytes
from app.benchmark.shape import FLOAT_BYTES, ID_BYTES, Shape, random_batch
from app.config.commands import BenchConfig, TablePrecision, row_bytes
from app.data.batch import Batch
from app.model.tables import table_of
from app.runtime.platform import Runtime
from app.scoring import served_model
from app.training.build import WITHOUT_STATE, sharded_model
from app.training.predictor import Predictor
from app.training.session import Session
from data_prep.dataset.format import Manifest

BATCHES = 8
SAMPLES, MAX_BATCHES = 1 << 16, 64  # samples kept ready, so that small batches do not repeat the same rows
PRECISIONS = (TablePrecision.fp32, TablePrecision.fp16, TablePrecision.int8, TablePrecision.int4)
Score = Callable[[Batch], Tensor]


def step_cases(shape: Shape, session: Session) -> Iterator[Case]:
    """Yield one training step and one forward, through DistributedModelParallel."""
    device, world_size = session.runtime.device, session.runtime.world_size
    batches = cycle([random_batch(shape, seed, device) for seed in range(BATCHES)])

    def train() -> None:
        batch = next(batches)
        session.optimizer.zero_grad()
        session.backward(session.loss_of(session.forward(batch), batch))
        session.optimizer.step()

    def inference() -> None:
        with torch.no_grad():
            session.forward(next(batches))

    dense = FLOAT_BYTES * session.parameter_counts()["dense"]
    forward_bytes = lookup_bytes(shape) + dense
    # Dense parameters are read in forward and backward; their gradients are written, then read and applied.
    train_bytes = lookup_bytes(shape) + update_bytes(shape, session.config.optimizer.name.algorithm) + 5 * dense
    samples = shape.batch_size * world_size
    yield Case("step/inference", str(shape), inference, samples, forward_bytes, flops_of(inference))
    flops = flops_of(train)  # counted before compiling, since a program's products are not seen
    session.compile(shape.batch_size)
    yield Case("step/train", str(shape), train, samples, train_bytes, flops)


def inference_cases(
    shape: Shape,
    config: BenchConfig,
    runtime: Runtime,
    root: Path,
    manifest: Manifest,
    is_selected: Callable[[str], bool],
) -> Iterator[Case]:
    """Yield cases of one model after the other, each at every batch size; make only those that are selected.

    inference/sharded is DistributedModelParallel's forward as in training; inference/<precision> is the model of
    app.export, eager. Batches are on the device.
    """
    for form in ("sharded", *(precision.value for precision in PRECISIONS)):
        names = {size: f"inference/{form}_b{size}" for size in config.inference.batch_sizes}
        sizes = [size for size, name in names.items() if is_selected(name)]
        if not sizes:
            continue
        if form == "sharded":
            stored = config.model.tables.storage
            precision = TablePrecision.fp32 if stored is None else TablePrecision[stored.value]
            score, dense = _sharded(config, runtime, root, manifest)
        else:
            precision = TablePrecision[form]
            score, dense = _served(config, runtime, root, manifest, precision)
        for size in sizes:
            sized = replace(shape, batch_size=size)
            work = _work(score, sized, runtime.device)
            min_bytes = forward_bytes(sized, precision, dense)
            yield Case(
                names[size], str(sized), work, size * runtime.world_size, min_bytes, flops_of(work), is_latency=True
            )
        del score, work


def forward_bytes(shape: Shape, precision: TablePrecision, dense: int) -> int:
    """Return the bytes of scoring a batch: what is read (ids, rows, dense features, parameters) and written."""
    rows = shape.ids * row_bytes(precision, shape.embedding_dim)
    samples = shape.batch_size * (shape.num_dense + 1)
    return ID_BYTES * shape.ids + rows + FLOAT_BYTES * (shape.pooled + samples + dense)


def _work(score: Score, shape: Shape, device: torch.device) -> Callable[[], Any]:
    """Return a function that scores the prepared batches, one per call."""
    count = min(max(SAMPLES // shape.batch_size, 2), MAX_BATCHES)
    batches = cycle([random_batch(shape, seed, device) for seed in range(count)])

    def work() -> Any:
        with torch.no_grad():
            return score(next(batches))

    return work


def _sharded(config: BenchConfig, runtime: Runtime, root: Path, manifest: Manifest) -> tuple[Score, int]:
    """Return the model as it is trained, and the number of its dense parameters; a collective call."""
    model, _ = sharded_model(config, runtime, root, manifest, WITHOUT_STATE)
    dense = sum(parameter.numel() for name, parameter in model.named_parameters() if not table_of(name))
    return Predictor(config, runtime, root, manifest, model.eval()).forward, dense


def _served(
    config: BenchConfig, runtime: Runtime, root: Path, manifest: Manifest, precision: TablePrecision
) -> tuple[Score, int]:
    """Return the unsharded model with random weights, and the number of its dense parameters."""
    model = served_model.unsharded(config, manifest)
    dense = 0
    for name, parameter in model.named_parameters():
        if table_of(name):
            nn.init.uniform_(parameter, -0.05, 0.05)
        else:
            dense += parameter.numel()
    served = served_model.in_precision(model, precision, runtime.device)
    return Predictor(config, runtime, root, manifest, served).forward, dense
