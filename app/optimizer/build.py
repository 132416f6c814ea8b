"""One optimizer over all parameters: fused into FBGEMM's backward for tables, torch's for the others."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torch.optim import Optimizer
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.batched_embedding_kernel import EmbeddingFusedOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from app.config import OptimizerConfig
from app.kinds.optimizers import Algorithm, OptimizerName
from app.model.tables import table_of
from app.optimizer.adams import with_state
from app.optimizer.norm import clip
from common.command import load

CLIPPED_DECAY = "clipped_decay"  # of a group's parameters, which is added to gradients before they are clipped
TABLE_PART, DENSE_PART = "sparse", "dense"  # of the combined optimizer, and of its keys in checkpoints


def make_optimizer(model: DistributedModelParallel, config: OptimizerConfig) -> CombinedOptimizer:
    """One optimizer over fused tables, data-parallel tables and dense parameters.

    A row-wise algorithm keeps one second moment a row of a table (mean over the row) and is the plain one for
    dense parameters, as facebookresearch/dlrm has it. Gradients of dense parameters are clipped, if configured, by
    their common norm, which is the same on all processes; with clip_tables those of all parameters.
    """
    unfused = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {key: weight for key, weight in unfused.items() if table_of(key)}
    others = {key: parameter for key, parameter in unfused.items() if key not in tables}
    parts: list[tuple[str, KeyedOptimizer]] = [(TABLE_PART, model.fused_optimizer)]
    if tables:
        parts.append((TABLE_PART, ReplicatedTables(tables, config)))

    weights = {id(weight) for weight in model.module.feature_weights()}  # decayed as tables are

    def make(params: list[nn.Parameter]) -> Optimizer:
        layers, vectors = ([each for each in params if (id(each) in weights) is member] for member in (False, True))
        groups = _decayed(layers, config.weight_decay, config) + _decayed(vectors, config.sparse_weight_decay, config)
        return optimizer_of_layers(groups, config)

    dense: KeyedOptimizer = KeyedOptimizerWrapper(others, make)
    parts.append((DENSE_PART, dense))
    if config.max_grad_norm is None:
        return CombinedOptimizer(parts)
    return Clipped(parts, config.max_grad_norm, config.clip_tables)


def _decayed(params: list[nn.Parameter], decay: float, config: OptimizerConfig) -> list[dict[str, Any]]:
    """A group of parameters with their L2: applied by the optimizer, or before clipping by `Clipped`."""
    options = {"weight_decay": 0.0, CLIPPED_DECAY: decay} if config.clip_tables else {"weight_decay": decay}
    return [{"params": params, **(options if decay else {})}] if params else []


class Clipped(CombinedOptimizer):
    """Clips the common 2-norm of gradients, decay included if tables are clipped, before each step."""

    def __init__(self, parts: list[tuple[str, KeyedOptimizer]], max_norm: float, with_tables: bool) -> None:
        super().__init__(parts)
        self._max_norm, self._with_tables = max_norm, with_tables

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Add decay to the gradients, clip them, update; a closure is not called."""
        gradients = []
        for part, keyed in self.optimizers:
            if part != DENSE_PART and not self._with_tables:
                continue
            for group in keyed.param_groups:
                params = [each for each in group["params"] if each.grad is not None]
                gradients += [each.grad for each in params]
                if params and (decay := group.get(CLIPPED_DECAY)):
                    torch._foreach_add_([each.grad for each in params], params, alpha=decay)
        clip(gradients, self._max_norm)
        super().step(closure)


def set_learning_rate(optimizer: CombinedOptimizer, lr: float, sparse_lr: float | None = None) -> None:
    """Set a step's rate, and the tables' if different; call before zero_grad, which passes it to the fused ones."""
    for part, keyed in optimizer.optimizers:
        for group in keyed.param_groups:
            group["lr"] = sparse_lr if part == TABLE_PART and sparse_lr is not None else lr


def fused_params(config: OptimizerConfig) -> dict[str, Any]:
    """Arguments for FBGEMM's table-batched embedding that select the tables' optimizer."""
    # Rounding is of fp16 tables: stochastic, it could not be replayed.
    params: dict[str, Any] = {"learning_rate": config.table_lr, "stochastic_rounding": False}
    if config.name.algorithm.fbgemm is not None:
        params["optimizer"] = EmbOptimType[config.name.algorithm.fbgemm]
    for key in ("eps", "beta1", "beta2"):
        value = getattr(config, key)
        if value is not None:
            params[key] = value
    if config.fused_weight_decay is not None and config.fused_weight_decay_mode is not None:
        params["weight_decay"] = config.fused_weight_decay
        params["weight_decay_mode"] = WeightDecayMode[config.fused_weight_decay_mode.value.upper()]
    return params


def has_fused(name: OptimizerName, device: torch.device) -> bool:
    """Return whether FBGEMM has the algorithm for tables on this kind of device."""
    return name.algorithm.fbgemm is not None and (device.type != "cpu" or name.algorithm.fused_on_cpu)


def set_step(optimizer: CombinedOptimizer, step: int) -> None:
    """Set the number of updates in the tables' optimizers: Adam and LAMB correct their moments' bias by it.

    FBGEMM counts each forward, those of skipped steps and evaluations too, and starts again from 0 in a new process.
    """
    for _, keyed in optimizer.optimizers:
        if isinstance(keyed, CombinedOptimizer):
            set_step(keyed, step)
        elif isinstance(keyed, EmbeddingFusedOptimizer):
            keyed._emb_module.iter.fill_(step)  # its own set_optimizer_step leaves out the counter that is used
            keyed._emb_module.iter_cpu.fill_(step)
        elif isinstance(keyed, ReplicatedTables):
            keyed.set_optimizer_step(step)


class ReplicatedTables(KeyedOptimizerWrapper):
    """Data-parallel tables: FBGEMM does not fuse their update, so torch makes the same one.

    But for one thing: torch's Adam moves every row at every step, FBGEMM's the rows of the batch. Their state goes
    under the names and shapes that FBGEMM gives it: a checkpoint then loads however a table is sharded.
    """

    def __init__(self, tables: dict[str, nn.Parameter], config: OptimizerConfig) -> None:
        algorithm = config.name.algorithm
        names = {**algorithm.state, **algorithm.row_state}  # torch's and FBGEMM's; steps are not kept: see `set_step`
        rate, arguments = config.table_lr, algorithm.arguments

        def make(params: list[nn.Parameter]) -> Optimizer:
            groups = _decayed(params, config.sparse_weight_decay, config)
            return _make(algorithm, algorithm.torch, arguments, groups, rate, config)

        super().__init__(tables, make)
        self.state = {
            weight: {
                f"{table_of(key)}.{names[name]}": _as_fused(value)
                for name, value in self._optimizer.state[weight].items()
                if name in names
            }
            for key, weight in tables.items()
            if weight in self._optimizer.state
        }

    def set_optimizer_step(self, step: int) -> None:
        for state in self._optimizer.state.values():
            if "step" in state:
                state["step"].fill_(step)


def _as_fused(state: torch.Tensor) -> torch.Tensor:
    """RowWiseAdagrad's sums are [E, 1], FBGEMM's are [E]; the view shares their memory."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state


def optimizer_of_layers(params: list[dict[str, Any]], config: OptimizerConfig) -> Optimizer:
    """torch's optimizer of groups of dense parameters, as configured."""
    algorithm = config.dense_name.algorithm
    kind, arguments = (algorithm.torch, algorithm.arguments) if algorithm.layers is None else (algorithm.layers, {})
    return _make(algorithm, kind, arguments, params, config.lr, config)


def _make(
    algorithm: Algorithm,
    kind: str,
    arguments: Mapping[str, bool],
    params: list[dict[str, Any]],
    lr: float,
    config: OptimizerConfig,
) -> Optimizer:
    """The algorithm over groups of whole tensors, by the class `kind`, with those settings of `config` that it has."""
    optimizer_class, settings = load(kind), dict[str, Any](arguments)
    if "eps" in algorithm.settings:
        settings["eps"] = config.eps or 0.0
    if "beta1" in algorithm.settings:
        settings["betas"] = (config.beta1 or 0.0, config.beta2 or 0.0)
    if params[0]["params"][0].device.type == "cpu" and "fused" in signature(optimizer_class).parameters:
        settings["fused"] = True  # on GPUs torch's default, foreach; False is neither
    return with_state(optimizer_class(params, lr=lr, **settings), algorithm)
