"""DLRM (Naumov et al. 2019, arXiv:1906.00091), with any interaction; its losses; models by name.

Shapes: B samples, N dense features, F sparse features, D embedding_dim.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchrec import KeyedJaggedTensor

from app.config.app_config import AppConfig
from app.config.kinds import CLICK, Task
from app.config.model import DenseInit, ModelConfig
from app.config.train import LossConfig
from app.model.embeddings import Features, TableArch, make_sparse_arch
from app.model.layers import BatchNorm, Dropout, Order, make_interaction, mlp
from common.errors import UserError

# The loss of logits and labels (0 or 1), float32 of one shape, and any samples' weights: a scalar.
Loss: TypeAlias = Callable[..., Tensor]


def make_loss(config: LossConfig, factor: float = 1.0, task: Task = CLICK, mean_weight: float = 1.0) -> Loss:
    """Return a function from logits, labels and sample weights to factor times the mean loss.

    If labels are numbers, the function maps predicted numbers and labels to factor times their mean squared error.

    With weights, a sample's loss is multiplied by its weight over `mean_weight`, that of all training samples. The mean
    over an epoch is then sum(weight * loss) / sum(weight). The weights of a batch do not divide its loss: its samples
    would count for more in a batch of small weights, and the split of a batch over processes would matter.

    A clamped prediction gives no gradient, as in facebookresearch/dlrm. This clamps the logits instead, which is the
    same since sigmoid is monotonic; clamping predictions would lose the precision of small ones.
    """
    name, (negative, positive) = config.name, config.class_weights or (1.0, 1.0)
    bound = math.log((1 - config.threshold) / config.threshold) if config.threshold else math.inf

    def loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None, /) -> Tensor:
        logits = logits if bound == math.inf else logits.clamp(-bound, bound)
        weight = None if weights is None else weights / mean_weight
        if name == "mse":
            preds = torch.sigmoid(logits) if task.has_clicks else logits
            return F.mse_loss(preds, labels) if weight is None else (weight * (preds - labels).square()).mean()
        if name == "weighted_bce":
            class_weight = torch.where(labels > 0.5, positive, negative)
            weight = class_weight if weight is None else class_weight * weight
        # The loss is that of logits: from a rounded prediction, a hopeless sample's gradient would vanish.
        return F.binary_cross_entropy_with_logits(logits, labels, weight)

    return loss if factor == 1 else lambda logits, labels, *weights: factor * loss(logits, labels, *weights)


Programs = tuple[Callable[..., Tensor], Callable[..., Tensor]]
Autocast = Callable[[], AbstractContextManager[object]]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class DLRM(nn.Module):
    """dense_arch over dense features, sparse_arch over ids, their interaction, and over_arch, which gives one logit."""

    def __init__(self, config: ModelConfig, num_dense: int, num_sparse: int, sparse_arch: nn.Module) -> None:
        """sparse_arch: SparseArch, or a lookup like it. Without dense features dense_arch receives a constant."""
        super().__init__()
        self.sparse_arch = sparse_arch
        self.dense_arch = _make_dense_arch(config, num_dense)
        self.interaction = make_interaction(config, num_sparse, num_dense)
        outputs, widths = self.interaction.num_outputs, config.over_arch
        self.over_arch = mlp(outputs, widths, False, config.batch_norm, config.dropout) if widths else Bias()
        self.linear = config.linear
        self._compiled: Programs | None = None  # programs of dense_arch and `_top`, for training
        for part in (self.dense_arch, self.interaction, self.over_arch):
            part.apply(partial(_initialise, config.dense_init))
        # A bias at the log-odds of the label rate spares the first steps from learning that rate.
        if config.initial_logit is not None:
            biases = [value for name, value in self.over_arch.named_parameters() if name.endswith("bias")]
            nn.init.constant_(biases[-1], config.initial_logit)

    def begin_step(self, seed: int, step: int, rank: int, rows: int, num_valid: int | None = None) -> None:
        """Draw the dropout masks of a step for part number `rank` of the global batch, of `rows` rows.

        The part is a process's, or a micro-batch, whose number then stands for the rank. num_valid: its rows before
        padding; None: all.
        """
        for number, dropout in enumerate(self._modules_of(Dropout)):
            dropout.draw(seed, step, number, rank * rows)
        for norm in self._modules_of(BatchNorm):
            norm.begin_step(num_valid)

    def undo_step(self) -> None:
        """Set the statistics of batch norm, which the forward changed, back to those before the step."""
        for norm in self._modules_of(BatchNorm):
            norm.undo_step()

    def statistics(self) -> dict[str, Tensor]:
        """Return the running statistics of batch norm by name, float32."""
        return {
            f"{name}.{key}": value
            for name, module in self.named_modules()
            if isinstance(module, BatchNorm)
            for key, value in module.named_buffers()
        }

    def feature_weights(self) -> list[nn.Parameter]:
        """Return the parameters that decay like tables, by sparse_weight_decay: dense features' vectors, and `Bias`."""
        parts = (self.dense_arch, self.over_arch)
        return [
            parameter for part in parts if isinstance(part, (NumericVectors, Bias)) for parameter in part.parameters()
        ]

    def _modules_of(self, kind: type[ModuleT]) -> list[ModuleT]:
        """Return the modules of a kind, in the order of their declaration."""
        parts = (self.dense_arch, self.interaction, self.over_arch)
        return [module for part in parts for module in part.modules() if isinstance(module, kind)]

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Map dense_features [B, N] float32 and F bags per sample to logits [B] float32."""
        # Evaluation takes the plain layers, so that its bits do not depend on runtime.compile.
        dense_arch, top = self._compiled if self._compiled and torch.is_grad_enabled() else (self.dense_arch, self._top)
        lookup = self.sparse_arch(sparse_features)
        # The lookup has begun an exchange: dense_arch runs while other processes' vectors are on their way.
        dense = dense_arch(self._dense_inputs(dense_features))
        return top(dense, *lookup())

    def logits_of_vectors(self, dense_features: Tensor, vectors: Tensor, order: Order) -> Tensor:
        """Map dense features [B, N] and vectors [B, F, D], which come in `order`, to logits [B].

        Micro-batches, whose ids are looked up together, run the plain layers on one part at a time: a compiler would
        choose another order of sums.
        """
        return self._top(self.dense_arch(self._dense_inputs(dense_features)), vectors, order)

    def _dense_inputs(self, dense_features: Tensor) -> Tensor:
        """Return the dense features [B, N]; if N is 0 and there is a dense_arch, ones [B, 1]."""
        if dense_features.shape[1] or isinstance(self.dense_arch, NoVectors):
            return dense_features
        # From a constant, the layers learn one vector for all samples.
        return dense_features.new_ones(dense_features.shape[0], 1)

    def _top(self, dense: Tensor, sparse: Tensor, order: Order) -> Tensor:
        """Map dense_arch's output [B, D] and the features' vectors [B, F, D], which come in `order`, to logits [B]."""
        # Autocast may have computed in bf16, which is too coarse for a loss.
        logits: Tensor = self.over_arch(self.interaction(dense, sparse, order)).squeeze(1).float()
        if self.linear is None:
            return logits
        # With model.linear the first element of a feature's vector is also its weight in a logistic regression.
        weights = sparse[:, :, 0].float()
        # The sum's bits must not depend on which process has which table.
        weights = weights if order is None else weights.index_select(1, order[0])
        return logits + self.linear * weights.sum(1)

    def compile_dense_layers(self) -> None:
        """Let torch.compile make one program of the dense layers when training begins; evaluation keeps its bits."""
        # Compile in this process: signals and launchers would also reach worker processes.
        torch._inductor.config.compile_threads = 1
        # A trial reports a missing compiler here in one line, since torch.compile itself waits for the first step.
        try:
            torch.compile(torch.neg)(torch.ones(2, device=next(self.over_arch.parameters()).device))
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line and line[-1] != ":"), type(error).__name__)
            raise UserError(
                f"runtime.compile=dense: torch.compile does not work on this machine ({reason}); install "
                "a C++ compiler (g++), or give runtime.compile=none"
            ) from error
        # Training batches have one shape. With fullgraph a part that cannot be compiled is an error, not a slow step.
        self._compiled = (
            torch.compile(self.dense_arch, dynamic=False, fullgraph=True),
            torch.compile(self._top, dynamic=False, fullgraph=True),
        )

    def capture_dense_layers(
        self, dense_features: Tensor, sparse_features: KeyedJaggedTensor, autocast: Autocast
    ) -> None:
        """Record the dense layers' kernels, forward and backward, as CUDA graphs for training; a collective call.

        The graphs fit batches of the example's size, whatever its values, with the forward under `autocast()`. The next
        replay overwrites what they return.
        """
        inputs = self._dense_inputs(dense_features)
        for norm in self._modules_of(BatchNorm):
            norm.begin_step()
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
            tuple((*example, *part.aliases()) for part, example in zip(parts, examples, strict=True)),
        )
        # The example moved batch norm's statistics.
        self.undo_step()
        dense_parameters, top_parameters = (tuple(part.parameters()) for part in parts)
        self._compiled = (
            lambda dense_features: graphs[0](dense_features, *dense_parameters),
            lambda dense, sparse, order: graphs[1](dense, sparse, *top_parameters),
        )


class _WithParameters(nn.Module):
    """A function of tensors that also takes its layers' parameters as inputs.

    A graph is recorded with aliases of the parameters. DistributedDataParallel has tied the parameters themselves to
    the default stream, from which nothing may be recorded.
    """

    def __init__(self, function: Callable[..., Tensor], layers: Iterable[nn.Module], autocast: Autocast) -> None:
        """function: must not be a module, since it would hold the parameters twice.

        functional_call would then leave aliases in it.
        """
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._function, self._autocast = function, autocast

    def forward(self, *inputs: Tensor) -> Tensor:
        with self._autocast():  # leaves the backward out, as in a plain step
            return self._function(*inputs)

    def call(self, *tensors: Tensor) -> Tensor:
        """Call the function with inputs, followed by values for all parameters in their order."""
        names = [name for name, _ in self.named_parameters()]
        inputs, values = tensors[: -len(names)], tensors[-len(names) :]
        outputs: Tensor = torch.func.functional_call(self, dict(zip(names, values, strict=True)), inputs)
        return outputs

    def aliases(self) -> list[Tensor]:
        """Return tensors that share the parameters' memory."""
        return [parameter.detach().requires_grad_() for parameter in self.parameters()]


class NumericVectors(nn.Module):
    """Multiplies each of N dense features by a learned vector [D]: torch.nn.Linear(1, D, bias=False) per feature."""

    def __init__(self, num_dense: int, embedding_dim: int) -> None:
        super().__init__()
        # For a layer of one input torch draws the weights uniformly from -1 to 1.
        self.weight = nn.Parameter(torch.empty(num_dense, embedding_dim).uniform_(-1, 1))

    def forward(self, dense_features: Tensor) -> Tensor:
        """Map dense features [B, N] to vectors [B, N, D]."""
        return dense_features.unsqueeze(2) * self.weight


class NoVectors(nn.Module):
    """Takes the place of dense_arch if there are no dense features."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self._dim = embedding_dim

    def forward(self, dense_features: Tensor) -> Tensor:
        """Map dense features [B, 0] to vectors [B, 0, D]."""
        # len() would fix the batch size in an export.
        return dense_features.new_zeros(dense_features.shape[0], 0, self._dim)


class Bias(nn.Module):
    """Bias that a logistic regression adds to the sum of its features' weights."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the bias to inputs [B, 1]."""
        return inputs + self.bias


def _make_dense_arch(config: ModelConfig, num_dense: int) -> nn.Module:
    """Return the layers from dense features [B, N] to [B, D], or to a vector for each feature [B, N, D]."""
    if config.dense_arch:
        dropout = config.dense_dropout
        return mlp(num_dense or 1, config.dense_arch, config.dense_final_relu, config.batch_norm, dropout)
    if num_dense and config.numeric != "vectors":
        raise UserError(
            f"model.dense_arch=[]: the dataset has {num_dense} dense features; give widths that end with "
            f"model.embedding_dim={config.embedding_dim}, or model.numeric=vectors"
        )
    return NumericVectors(num_dense, config.embedding_dim) if num_dense else NoVectors(config.embedding_dim)


def _initialise(init: DenseInit, module: nn.Module) -> None:
    """Redraw a linear layer or, by Xavier's rule, dense features' vectors; other modules stay, and all by torch's."""
    if isinstance(module, nn.Linear) and init == "facebookresearch":
        nn.init.normal_(module.weight, std=math.sqrt(2 / (module.in_features + module.out_features)))
        nn.init.normal_(module.bias, std=math.sqrt(1 / module.out_features))
    elif isinstance(module, nn.Linear) and init == "xavier_normal":
        nn.init.xavier_normal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, NumericVectors) and init == "xavier_normal":
        # A feature's vector is a layer from 1 to D values, and this is Xavier's deviation for it.
        nn.init.normal_(module.weight, std=math.sqrt(2 / (1 + module.weight.shape[1])))


def make_tables(config: AppConfig, features: Features, initial: bool = True) -> TableArch:
    """Return the model's tables, on the meta device. initial: read initial row weights from their files."""
    if (parts := config.model.parts) is not None:
        return parts.tables(config, features)
    return make_sparse_arch(config.model, features.num_embeddings, features.multi_hot, initial)


def make_model(config: AppConfig, tables: TableArch, features: Features) -> nn.Module:
    """Return the model that the configuration names, DLRM or an extension's, around its tables."""
    if (parts := config.model.parts) is not None:
        return parts.model(config, tables, features)
    return DLRM(config.model, features.num_dense, len(features.num_embeddings), tables)
