"""Lookups: torch's embedding bags against FBGEMM's table-batched one, by optimizer and pooling."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from app.benchmark.case import Case
from app.benchmark.shape import Shape, keyed, random_ids
from app.optimizer.tables import state_elements

FLOAT_BYTES = ID_BYTES = 4
OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def lookup_bytes(shape: Shape) -> int:
    """Of one lookup of a batch: ids and rows read, pooled vectors written."""
    return ID_BYTES * shape.ids + FLOAT_BYTES * (shape.ids * shape.embedding_dim + shape.pooled)


def update_bytes(shape: Shape, optimizer: str) -> int:
    """Of one fused update: the pooled vectors' gradients read, rows and state read and written once an id."""
    row = shape.embedding_dim + state_elements(optimizer, shape.embedding_dim)
    return FLOAT_BYTES * (shape.pooled + 2 * shape.ids * row) + ID_BYTES * shape.ids


def cases(shape: Shape, device: torch.device) -> Iterator[Case]:
    """Forward of each kind, then forward and backward with the update."""
    ids = random_ids(shape, seed=0)
    bags = keyed(shape, ids).to(device)
    values, offsets = bags.values().long(), bags.offsets().long()
    grad = torch.ones(shape.batch_size, len(shape.num_embeddings) * shape.embedding_dim, device=device)
    yield from _torch_cases(shape, device, values, offsets, grad)
    for name, optimizer in OPTIMIZERS.items():
        for pooling in (PoolingMode.SUM, PoolingMode.MEAN):
            if pooling is PoolingMode.MEAN and optimizer is not EmbOptimType.EXACT_SGD:
                continue  # pooling and optimizer do not meet: one of each tells all
            tables = _batched(shape, device, optimizer, pooling)
            label = f"embedding_bag/tbe_{name}_{pooling.name.lower()}"
            if optimizer is EmbOptimType.EXACT_SGD:
                yield Case(f"{label}_forward", str(shape), _forward(tables, values, offsets), shape.batch_size,
                           lookup_bytes(shape), 0)  # fmt: skip
            yield Case(f"{label}_train", str(shape), _train(tables, values, offsets, grad), shape.batch_size,
                       lookup_bytes(shape) + update_bytes(shape, name), 0)  # fmt: skip
            del tables


def _batched(shape: Shape, device: torch.device, optimizer: EmbOptimType, pooling: PoolingMode) -> Any:
    place = (
        (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        if device.type == "cuda"
        else (EmbeddingLocation.HOST, ComputeDevice.CPU)
    )
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, shape.embedding_dim, *place) for rows in shape.num_embeddings],
        optimizer=optimizer, learning_rate=0.01, pooling_mode=pooling, device=device,
    )  # fmt: skip


def _forward(tables: Any, values: Tensor, offsets: Tensor) -> Callable[[], Any]:
    def work() -> None:
        with torch.no_grad():
            tables(values, offsets)

    return work


def _train(tables: Any, values: Tensor, offsets: Tensor, grad: Tensor) -> Callable[[], Any]:
    return lambda: tables(values, offsets).backward(grad)


def _torch_cases(shape: Shape, device: torch.device, values: Tensor, offsets: Tensor, grad: Tensor) -> Iterator[Case]:
    """One nn.EmbeddingBag a table, and torch's SGD over sparse gradients."""
    bags = nn.ModuleList(
        nn.EmbeddingBag(rows, shape.embedding_dim, mode="sum", sparse=True, device=device)
        for rows in shape.num_embeddings
    )
    optimizer = torch.optim.SGD(bags.parameters(), lr=0.01)
    parts, start = [], 0
    for feature, bag in enumerate(shape.bag_sizes):
        stop = start + shape.batch_size * bag
        first = feature * shape.batch_size
        parts.append((values[start:stop], offsets[first : first + shape.batch_size] - start))
        start = stop

    def forward() -> Tensor:
        return torch.cat([table(*part) for table, part in zip(bags, parts, strict=True)], dim=1)

    def inference() -> None:
        with torch.no_grad():
            forward()

    def train() -> None:
        optimizer.zero_grad()
        forward().backward(grad)
        optimizer.step()

    label = "embedding_bag/torch_sgd_sum"
    yield Case(f"{label}_forward", str(shape), inference, shape.batch_size, lookup_bytes(shape), 0)
    yield Case(f"{label}_train", str(shape), train, shape.batch_size,
               lookup_bytes(shape) + update_bytes(shape, "sgd"), 0)  # fmt: skip
