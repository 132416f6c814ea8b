"""DLRM (Naumov et al. 2019, arXiv:1906.00091), with any interaction.

Shapes: B samples, N dense features, F sparse features, D embedding_dim.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from app.config import ModelConfig
from app.config.model import DenseInit
from app.model.interaction import Order, make_interaction
from app.model.mlp import mlp
from common.errors import UserError

Programs = tuple[Callable[..., Tensor], Callable[..., Tensor]]
Autocast = Callable[[], AbstractContextManager[object]]


class DLRM(nn.Module):
    """dense_arch over dense features, sparse_arch over ids, their interaction, over_arch to one logit."""

    def __init__(self, config: ModelConfig, num_dense: int, num_sparse: int, sparse_arch: nn.Module) -> None:
        """sparse_arch: SparseArch, or a lookup like it. Without dense features dense_arch is given a constant."""
        super().__init__()
        self.sparse_arch = sparse_arch
        self.dense_arch = mlp(num_dense or 1, config.dense_arch, config.dense_final_relu)
        self.interaction = make_interaction(config, num_sparse)
        self.over_arch = mlp(self.interaction.num_outputs, config.over_arch, final_relu=False)
        self._compiled: Programs | None = None  # of dense_arch and `_top`, for training
        if config.dense_init is DenseInit.facebookresearch:
            for part in (self.dense_arch, self.interaction, self.over_arch):
                part.apply(_initialise_as_facebookresearch)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """dense_features [B, N] float32 and F bags a sample to logits [B] float32."""
        dense_arch, top = self._compiled if self._compiled and torch.is_grad_enabled() else (self.dense_arch, self._top)
        lookup = self.sparse_arch(sparse_features)
        dense = dense_arch(_or_constant(dense_features))  # while other processes' vectors are on their way
        return top(dense, *lookup())

    def _top(self, dense: Tensor, sparse: Tensor, order: Order) -> Tensor:
        """dense_arch's output [B, D] and the features' vectors [B, F, D], which come in `order`, to logits [B]."""
        return self.over_arch(self.interaction(dense, sparse, order)).squeeze(1).float()

    def compile_dense_layers(self) -> None:
        """Have torch.compile make one program of them when training begins; evaluation keeps its bits.

        Raises:
            UserError: torch.compile does not work on this machine.
        """
        torch._inductor.config.compile_threads = 1  # no processes beside ours, which signals and launchers would meet
        try:
            torch.compile(torch.neg)(torch.ones(2, device=next(self.over_arch.parameters()).device))
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line and line[-1] != ":"), type(error).__name__)
            raise UserError(f"runtime.compile=dense: torch.compile does not work on this machine ({reason}); install "
                            "a C++ compiler (g++), or give runtime.compile=none") from error  # fmt: skip
        self._compiled = (
            torch.compile(self.dense_arch, dynamic=False, fullgraph=True),
            torch.compile(self._top, dynamic=False, fullgraph=True),
        )

    def capture_dense_layers(
        self, dense_features: Tensor, sparse_features: KeyedJaggedTensor, autocast: Autocast
    ) -> None:
        """Record their kernels, forward and backward, as CUDA graphs that training replays; a collective call.

        They fit batches of the example's size, whatever its values, with the forward under `autocast()`. What they
        return is overwritten by the next replay.
        """
        inputs = _or_constant(dense_features)
        with torch.no_grad(), autocast():
            vectors, order = self.sparse_arch(sparse_features)()
            dense = self.dense_arch(inputs)

        def top(dense: Tensor, sparse: Tensor) -> Tensor:
            return self._top(dense, sparse, order)

        parts = (
            _WithParameters(self.dense_arch.forward, [self.dense_arch], autocast),
            _WithParameters(top, [self.interaction, self.over_arch], autocast),
        )
        examples = ((inputs,), (dense.requires_grad_(), vectors.requires_grad_()))
        graphs: Any = torch.cuda.make_graphed_callables(
            tuple(part.call for part in parts),
            tuple((*given, *part.aliases()) for part, given in zip(parts, examples, strict=True)),
        )
        dense_parameters, top_parameters = (tuple(part.parameters()) for part in parts)
        self._compiled = (
            lambda dense_features: graphs[0](dense_features, *dense_parameters),
            lambda dense, sparse, order: graphs[1](dense, sparse, *top_parameters),
        )


class _WithParameters(nn.Module):
    """A function of tensors as one of its layers' parameters too.

    A graph is recorded with aliases of the parameters: DistributedDataParallel has tied the parameters themselves to
    the default stream, of which nothing may be recorded.
    """

    def __init__(self, function: Callable[..., Tensor], layers: Iterable[nn.Module], autocast: Autocast) -> None:
        """function: not a module, whose parameters would be held twice: functional_call would leave aliases in it."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._function, self._autocast = function, autocast

    def forward(self, *inputs: Tensor) -> Tensor:
        with self._autocast():  # not around the backward, as in a plain step
            return self._function(*inputs)

    def call(self, *tensors: Tensor) -> Tensor:
        """Inputs, and then values in the place of all parameters, in their order."""
        names = [name for name, _ in self.named_parameters()]
        inputs, values = tensors[: -len(names)], tensors[-len(names) :]
        outputs: Tensor = torch.func.functional_call(self, dict(zip(names, values, strict=True)), inputs)
        return outputs

    def aliases(self) -> list[Tensor]:
        """Tensors in the parameters' memory."""
        return [parameter.detach().requires_grad_() for parameter in self.parameters()]


def _or_constant(dense_features: Tensor) -> Tensor:
    """[B, N], or [B, 1] of ones where N is 0."""
    return dense_features if dense_features.shape[1] else dense_features.new_ones(dense_features.shape[0], 1)


def _initialise_as_facebookresearch(module: nn.Module) -> None:
    """Redraw a linear layer; other modules stay."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=math.sqrt(2 / (module.in_features + module.out_features)))
        nn.init.normal_(module.bias, std=math.sqrt(1 / module.out_features))
