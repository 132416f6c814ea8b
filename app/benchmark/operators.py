"""Single operators: table lookups, interactions, perceptrons, optimizer steps, collectives."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from app.benchmark.case import Case
from app.benchmark.shape import FLOAT_BYTES, ID_BYTES, Shape, keyed, random_ids
from app.config import Interaction, ModelConfig, OptimizerConfig, OptimizerName
from app.kinds.optimizers import Algorithm
from app.model.dlrm import DLRM
from app.model.interaction import make_interaction
from app.optimizer.build import optimizer_of_layers

log = logging.getLogger("clickwork")

MAX_PRODUCTS_BYTES = 1 << 34  # limit for the interaction of all pairs of elements


def lookup_bytes(shape: Shape) -> int:
    """Return the bytes of one lookup of a batch: ids and rows are read, pooled vectors written."""
    return ID_BYTES * shape.ids + FLOAT_BYTES * (shape.ids * shape.embedding_dim + shape.pooled)


def update_bytes(shape: Shape, algorithm: Algorithm) -> int:
    """Return the bytes of one fused update: gradients are read, rows and state read and written once per id."""
    row = shape.embedding_dim + algorithm.state_elements(shape.embedding_dim)
    return FLOAT_BYTES * (shape.pooled + 2 * shape.ids * row) + ID_BYTES * shape.ids


def lookup_cases(shape: Shape, device: torch.device) -> Iterator[Case]:
    """Yield cases of each kind of lookup: its forward, then forward and backward with the update."""
    ids = random_ids(shape, seed=0)
    bags = keyed(shape, ids).to(device)
    values, offsets = bags.values().long(), bags.offsets().long()
    grad = torch.ones(shape.batch_size, len(shape.num_embeddings) * shape.embedding_dim, device=device)
    yield from _torch_cases(shape, device, values, offsets, grad)
    for name, algorithm in ((name, name.algorithm) for name in OptimizerName if name.algorithm.fused_on_cpu):
        has_state = algorithm.state_elements(1) > 0
        for pooling in (PoolingMode.SUM, PoolingMode.MEAN):
            if pooling is PoolingMode.MEAN and has_state:
                continue  # pooling and optimizer are independent, so one combination each is enough
            tables = _batched(shape, device, EmbOptimType[str(algorithm.fbgemm)], pooling)
            label = f"embedding_bag/tbe_{name.value}_{pooling.name.lower()}"
            if not has_state:
                yield Case(
                    f"{label}_forward",
                    str(shape),
                    torch.no_grad()(partial(tables, values, offsets)),
                    shape.batch_size,
                    lookup_bytes(shape),
                    0,
                )
            moved = lookup_bytes(shape) + update_bytes(shape, algorithm)
            train = _lookup_and_update(tables, values, offsets, grad)
            yield Case(f"{label}_train", str(shape), train, shape.batch_size, moved, 0)
            del tables


def _batched(shape: Shape, device: torch.device, optimizer: EmbOptimType, pooling: PoolingMode) -> Any:
    location = (
        (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        if device.type == "cuda"
        else (EmbeddingLocation.HOST, ComputeDevice.CPU)
    )
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, shape.embedding_dim, *location) for rows in shape.num_embeddings],
        optimizer=optimizer,
        learning_rate=0.01,
        pooling_mode=pooling,
        device=device,
    )


def _lookup_and_update(tables: Any, values: Tensor, offsets: Tensor, grad: Tensor) -> Callable[[], Any]:
    return lambda: tables(values, offsets).backward(grad)


def _torch_cases(shape: Shape, device: torch.device, values: Tensor, offsets: Tensor, grad: Tensor) -> Iterator[Case]:
    """Yield cases of one nn.EmbeddingBag per table, with torch's SGD over sparse gradients."""
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
    yield Case(
        f"{label}_train",
        str(shape),
        train,
        shape.batch_size,
        lookup_bytes(shape) + update_bytes(shape, OptimizerName.sgd.algorithm),
        0,
    )


def flops_of(work: Callable[[], Any]) -> int:
    """Return the floating-point operations of the matrix products that `work` runs, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def dense_cases(shape: Shape, model: ModelConfig, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Yield cases of interactions by kind, dense_arch and over_arch: forward alone, then forward and backward."""
    dense = torch.randn(shape.batch_size, shape.embedding_dim, device=device)
    sparse = torch.randn(shape.batch_size, len(shape.num_embeddings), shape.embedding_dim, device=device)
    for kind in Interaction:
        num_elements = (len(shape.num_embeddings) + 1) * shape.embedding_dim
        products = FLOAT_BYTES * shape.batch_size * num_elements**2
        if kind is Interaction.scalar_pairs and products > MAX_PRODUCTS_BYTES:
            log.info("bench: interaction/scalar_pairs skipped: its products would take %.0f GB", products / 1e9)
            continue
        try:
            settings = replace(model, interaction=kind)
            module = make_interaction(settings, len(shape.num_embeddings), shape.num_dense).to(device)
        except (ValueError, TypeError):  # this shape has no widths for the kind
            continue
        yield from _pair(f"interaction/{kind.value}", shape, module, (dense, sparse), dtype)
    whole = _dense_layers(shape, model).to(device)
    stacks = {
        "dense_arch": (whole.dense_arch, shape.num_dense or 1),
        "over_arch": (whole.over_arch, whole.interaction.num_outputs),
    }
    for name, (layers, inputs) in stacks.items():
        yield from _pair(f"mlp/{name}", shape, layers, (torch.randn(shape.batch_size, inputs, device=device),), dtype)


def _pair(name: str, shape: Shape, module: nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> Iterator[Case]:
    """Yield cases of a module's forward, and of its forward and backward."""
    differentiable = [tensor.requires_grad_() for tensor in inputs]
    kind = inputs[0].device.type

    def forward() -> Any:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            return module(*differentiable)

    def inference() -> None:
        with torch.no_grad():
            forward()

    def train() -> None:
        for tensor in (*differentiable, *module.parameters()):
            tensor.grad = None
        outputs = forward()
        outputs.backward(torch.ones_like(outputs))

    moved = _bytes_moved(module, inputs)
    yield Case(f"{name}_forward", str(shape), inference, shape.batch_size, moved, flops_of(inference))
    # The backward reads gradients of outputs, writes those of inputs and weights, and reads inputs and weights again.
    yield Case(f"{name}_train", str(shape), train, shape.batch_size, 3 * moved, flops_of(train))


def _bytes_moved(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Return the bytes of inputs, parameters and each layer's outputs, counted once each."""
    elements = sum(tensor.numel() for tensor in (*inputs, *module.parameters()))
    outputs = [0]

    def count(_: nn.Module, __: Any, output: Tensor) -> None:
        outputs[0] += output.numel()

    leaves: list[nn.Module] = [part for part in module.modules() if isinstance(part, nn.Linear)]
    hooks = [part.register_forward_hook(count) for part in leaves or [module]]
    with torch.no_grad():
        module(*inputs)
    for hook in hooks:
        hook.remove()
    return FLOAT_BYTES * (elements + outputs[0])


def dense_parameters(shape: Shape, model: ModelConfig) -> int:
    """Return the number of the model's dense parameters."""
    return sum(parameter.numel() for parameter in _dense_layers(shape, model).parameters())


def _dense_layers(shape: Shape, model: ModelConfig) -> DLRM:
    """Return the model without tables."""
    return DLRM(model, shape.num_dense, len(shape.num_embeddings), nn.Identity())


def optimizer_case(shape: Shape, model: ModelConfig, device: torch.device) -> Iterator[Case]:
    """Yield a step of each of torch's optimizers over the dense parameters of the model.

    A step reads gradients, weights and state, and writes weights and state.
    """
    parameters = list(_dense_layers(shape, model).to(device).parameters())
    elements = sum(parameter.numel() for parameter in parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for name in (each for each in OptimizerName if each.algorithm.torch.startswith("torch.optim:")):
        settings: dict[str, Any] = {key: float(usual) for key, usual in name.algorithm.settings.items()}
        optimizer = optimizer_of_layers([{"params": parameters}], OptimizerConfig(name, 0.01, **settings))
        moved = FLOAT_BYTES * elements * (3 + 2 * len(name.algorithm.state))
        yield Case(f"optimizer_step/{name.value}", f"{elements:,} dense parameters", optimizer.step, 0, moved, 0)


def collective_cases(shape: Shape, dense_parameters: int, device: torch.device) -> Iterator[Case]:
    """Yield all-reduce of the dense gradients and all-to-all of the pooled vectors; nothing for a single process.

    Bytes are those that a process sends and receives: 2 (W - 1) / W of the array for an all-reduce, (W - 1) / W of it
    each way for an all-to-all.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return
    gradients = torch.ones(dense_parameters, device=device)
    moved = 2 * FLOAT_BYTES * dense_parameters * (world_size - 1) // world_size
    yield Case(
        "collective/all_reduce",
        f"{dense_parameters:,} float32, {world_size} processes",
        lambda: dist.all_reduce(gradients),
        0,
        2 * moved,
        0,
    )
    elements = -(-shape.pooled // world_size) * world_size
    send_buffer, receive_buffer = torch.ones(elements, device=device), torch.empty(elements, device=device)
    moved = FLOAT_BYTES * elements * (world_size - 1) // world_size
    yield Case(
        "collective/all_to_all",
        f"{elements:,} float32, {world_size} processes",
        lambda: dist.all_to_all_single(receive_buffer, send_buffer),
        0,
        2 * moved,
        0,
    )
