"""The dense side: interactions, the two perceptrons, the optimizer's step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from app.benchmark.case import Case
from app.benchmark.shape import Shape
from app.config import Interaction, ModelConfig
from app.model.interaction import make_interaction, mlp

FLOAT_BYTES = 4


def flops_of(work: Callable[[], Any]) -> int:
    """Floating-point operations of the matrix products that `work` runs, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def cases(shape: Shape, model: ModelConfig, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Interactions by kind; dense_arch and over_arch; each forward alone, then forward and backward."""
    dense = torch.randn(shape.batch_size, shape.embedding_dim, device=device)
    sparse = torch.randn(shape.batch_size, len(shape.num_embeddings), shape.embedding_dim, device=device)
    for kind in Interaction:
        try:
            module = make_interaction(replace(model, interaction=kind), len(shape.num_embeddings)).to(device)
        except (ValueError, TypeError):  # a kind that this shape has no widths for
            continue
        yield from _pair(f"interaction/{kind.value}", shape, module, (dense, sparse), dtype)
    outputs = make_interaction(model, len(shape.num_embeddings)).num_outputs
    for name, inputs, widths, last in (("dense_arch", shape.num_dense, model.dense_arch, True),
                                       ("over_arch", outputs, model.over_arch, False)):  # fmt: skip
        layers = mlp(inputs, widths, final_relu=last).to(device)
        yield from _pair(f"mlp/{name}", shape, layers, (torch.randn(shape.batch_size, inputs, device=device),), dtype)


def _pair(name: str, shape: Shape, module: nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> Iterator[Case]:
    """A module's forward, and its forward and backward."""
    wanted = [tensor.requires_grad_() for tensor in inputs]
    kind = inputs[0].device.type

    def forward() -> Any:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            return module(*wanted)

    def inference() -> None:
        with torch.no_grad():
            forward()

    def train() -> None:
        for tensor in (*wanted, *module.parameters()):
            tensor.grad = None
        outputs = forward()
        outputs.backward(torch.ones_like(outputs))

    moved = _bytes_moved(module, inputs)
    yield Case(f"{name}_forward", str(shape), inference, shape.batch_size, moved, flops_of(inference))
    # backward: gradients of outputs read and of inputs and weights written, inputs and weights read again
    yield Case(f"{name}_train", str(shape), train, shape.batch_size, 3 * moved, flops_of(train))


def _bytes_moved(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Inputs, parameters and the outputs of each layer, once each."""
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


def count(shape: Shape, model: ModelConfig) -> int:
    """Dense parameters of the model."""
    interaction = make_interaction(model, len(shape.num_embeddings)).to("meta")
    parts = [mlp(shape.num_dense, model.dense_arch, True), mlp(interaction.num_outputs, model.over_arch, False)]
    return sum(p.numel() for part in (interaction, *parts) for p in part.parameters())


def optimizer_case(shape: Shape, model: ModelConfig, device: torch.device) -> Iterator[Case]:
    """One step of SGD over the dense parameters of the model: gradients and weights read, weights written."""
    outputs = make_interaction(model, len(shape.num_embeddings)).num_outputs
    layers = nn.ModuleList([mlp(shape.num_dense, model.dense_arch, True), mlp(outputs, model.over_arch, False)])
    parameters = list(layers.to(device).parameters())
    elements = sum(parameter.numel() for parameter in parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for name, optimizer, states in (
        ("sgd", torch.optim.SGD(parameters, lr=0.01, fused=device.type == "cpu"), 0),
        ("adagrad", torch.optim.Adagrad(parameters, lr=0.01, fused=device.type == "cpu"), 1),
        ("adam", torch.optim.Adam(parameters, lr=0.01, fused=True), 2),
    ):
        moved = FLOAT_BYTES * elements * (3 + 2 * states)
        yield Case(f"optimizer_step/{name}", f"{elements:,} dense parameters", optimizer.step, 0, moved, 0)
