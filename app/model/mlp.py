"""Perceptrons; their products use oneDNN where it is faster than the library that torch takes.

Shapes: B samples, I inputs and O outputs of a layer.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from app.config.train import LARGE_BATCH
from app.model.batch_norm import BatchNorm
from app.model.dropout import Dropout

HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")


class HiddenLayers(NamedTuple):
    """Parts that follow a hidden layer's product: batch norm if `batch_norm`, a ReLU, then dropout.

    dropout: one rate per hidden layer, or one for all; none means 0. This is FuxiCTR's MLP_Block.
    """

    batch_norm: bool = False
    dropout: Sequence[float] = ()

    def rate(self, number: int) -> float:
        """Return the dropout rate of hidden layer `number`, counted from 0."""
        if not self.dropout:
            return 0.0
        return self.dropout[number if len(self.dropout) > 1 else 0]


PLAIN = HiddenLayers()


def mlp(
    num_inputs: int, widths: Sequence[int], final_relu: bool, hidden: HiddenLayers = PLAIN, has_output: bool = True
) -> nn.Sequential:
    """Return layers of the given widths, which map [B, num_inputs] to [B, the last width].

    A ReLU follows each layer, but the last one only if final_relu. All layers but the last are hidden; without
    has_output the last one is, too. Names are those of a torch.nn.Sequential with each ReLU as a module, so checkpoints
    of both load.
    """
    layers: dict[str, nn.Module] = {}
    num_hidden = len(widths) - 1 if has_output else len(widths)
    for number, (num_in, num_out) in enumerate(pairwise([num_inputs, *widths])):
        is_hidden, relu = number < num_hidden, final_relu or number < len(widths) - 1
        has_norm = is_hidden and hidden.batch_norm
        layers[str(2 * number)] = Layer(num_in, num_out, relu=relu and not has_norm)
        following: list[nn.Module] = [BatchNorm(num_out), nn.ReLU()] if has_norm else []
        if is_hidden and (rate := hidden.rate(number)):
            following.append(Dropout(num_out, rate))
        if following:
            layers[str(2 * number + 1)] = nn.Sequential(*following)
    return nn.Sequential(OrderedDict(layers))


class Layer(nn.Linear):
    """A linear layer, with a ReLU if `relu`.

    Training in fp32 on a CPU calls oneDNN from LARGE_BATCH samples on. In all other cases, evaluation and exported
    programs included, the layer is torch's.
    """

    def __init__(self, in_features: int, out_features: int, relu: bool) -> None:
        super().__init__(in_features, out_features)
        self.relu = relu

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs [B, I] to outputs [B, O]."""
        if _calls_onednn(inputs):
            by_onednn: Tensor = _OneDNN.apply(inputs, self.weight, self.bias, self.relu)
            return by_onednn
        outputs = super().forward(inputs)
        return nn.functional.relu(outputs) if self.relu else outputs


def _calls_onednn(inputs: Tensor) -> bool:
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_exporting()  # an exported program takes any batch size
        and len(inputs) >= LARGE_BATCH
        and inputs.is_cpu
        and inputs.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
        and HAS_ONEDNN
    )


torch.library.define("clickwork::linear", "(Tensor inputs, Tensor weight, Tensor? bias, bool relu) -> Tensor")


@torch.library.impl("clickwork::linear", "CPU")
def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Compute a linear layer by oneDNN.

    This is an operator of its own, since torch.compile uses oneDNN's for constant weights only.
    """
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "relu" if relu else "none", [], "")
    return outputs


@torch.library.register_fake("clickwork::linear")
def _(inputs: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0])


@register_flop_formula(torch.ops.clickwork.linear)
def _linear_flops(inputs: tuple[int, int], weight: tuple[int, int], *settings: Any, **keywords: Any) -> int:
    """Return the FLOPs of `_linear`; a multiplication and an addition count as two."""
    return 2 * inputs[0] * inputs[1] * weight[0]


class _OneDNN(torch.autograd.Function):
    """Maps inputs [B, I], weight [O, I] and bias [O] to [B, O], with a ReLU if `relu`.

    The library that torch uses on CPUs loses up to half its speed if I is odd, as it is after an interaction. But it
    computes the weight's gradient [O, I] fastest of all, if that is computed as [I, O].
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        outputs: Tensor = torch.ops.clickwork.linear(inputs, weight, bias, relu)
        ctx.save_for_backward(inputs, weight, outputs if relu else None)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        inputs, weight, outputs = ctx.saved_tensors
        grad = grad_outputs[0].contiguous()
        if outputs is not None:
            grad = torch.ops.aten.threshold_backward(grad, outputs, 0)
        of_inputs = torch.ops.clickwork.linear(grad, weight.t(), None, False) if ctx.needs_input_grad[0] else None
        return of_inputs, (inputs.t() @ grad).t(), grad.sum(0), None
