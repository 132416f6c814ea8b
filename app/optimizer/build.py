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
from common.errors import UserError

CLIPPED_DECAY = "clipped_decay"  # key of a group's decay that is added to gradients before they are clipped
TABLE_PART, DENSE_PART = "sparse", "dense"  # names of the parts in the combined optimizer and in checkpoints


def make_optimizer(model: DistributedModelParallel, config: OptimizerConfig) -> CombinedOptimizer:
    """Return one optimizer over fused tables, data-parallel tables and dense parameters.

    A row-wise algorithm keeps one second moment per row of a table (the mean over the row) and is the plain algorithm
    for dense parameters, as in facebookresearch/dlrm. If configured, gradients of dense parameters are clipped by their
    common norm, which is the same on all processes; with clip_tables, the gradients of all parameters.
    """
    unfused = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {key: weight for key, weight in unfused.items() if table_of(key)}
    others = {key: parameter for key, parameter in unfused.items() if key not in tables}
    parts: list[tuple[str, KeyedOptimizer]] = [(TABLE_PART, model.fused_optimizer)]
    if tables:
        parts.append((TABLE_PART, ReplicatedTables(tables, config)))

    weights = {id(weight) for weight in model.module.feature_weights()}  # their decay is the tables'

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
    """Return a group of parameters with their L2, which the optimizer applies, or `Clipped` before clipping."""
    options = {"weight_decay": 0.0, CLIPPED_DECAY: decay} if config.clip_tables else {"weight_decay": decay}
    return [{"params": params, **(options if decay else {})}] if params else []


class Clipped(CombinedOptimizer):
    """Clips gradients by their common 2-norm before each step; with tables, the norm includes the decay."""

    def __init__(self, parts: list[tuple[str, KeyedOptimizer]], max_norm: float, with_tables: bool) -> None:
        super().__init__(parts)
        self._max_norm, self._with_tables = max_norm, with_tables

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Add decay to the gradients, clip them and update; does not call a closure."""
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
    """Set a step's rate, and the tables' if it differs; call before zero_grad, which passes it to fused optimizers."""
    for part, keyed in optimizer.optimizers:
        for group in keyed.param_groups:
            group["lr"] = sparse_lr if part == TABLE_PART and sparse_lr is not None else lr


def fused_params(config: OptimizerConfig) -> dict[str, Any]:
    """Return the arguments that select the tables' optimizer in FBGEMM's table-batched embedding."""
    # Rounding concerns fp16 tables; stochastic rounding could not be replayed.
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
    """Set the number of updates in the tables' optimizers; Adam and LAMB correct their moments' bias by it.

    FBGEMM counts each forward, also those of skipped steps and evaluations, and starts at 0 again in a new process.
    """
    for _, keyed in optimizer.optimizers:
        if isinstance(keyed, CombinedOptimizer):
            set_step(keyed, step)
        elif isinstance(keyed, EmbeddingFusedOptimizer):
            keyed._emb_module.iter.fill_(step)  # its own set_optimizer_step misses the counter in use
            keyed._emb_module.iter_cpu.fill_(step)
        elif isinstance(keyed, ReplicatedTables):
            keyed.set_optimizer_step(step)


class ReplicatedTables(KeyedOptimizerWrapper):
    """Data-parallel tables: FBGEMM does not fuse their update, so torch makes the same one.

    One thing differs: torch's Adam moves every row at every step, FBGEMM's only the rows of the batch. The state has
    the names and shapes that FBGEMM gives it, so that a checkpoint loads however a table is sharded.
    """

    def __init__(self, tables: dict[str, nn.Parameter], config: OptimizerConfig) -> None:
        algorithm = config.name.algorithm
        names = {**algorithm.state, **algorithm.row_state}  # torch's to FBGEMM's; steps are not kept, see `set_step`
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
    """View RowWiseAdagrad's sums [E, 1] as FBGEMM has them, [E]; the memory is shared."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state


def optimizer_of_layers(params: list[dict[str, Any]], config: OptimizerConfig) -> Optimizer:
    """Return torch's optimizer over groups of dense parameters, as configured."""
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
    """Return an optimizer of class `kind` over groups of whole tensors, with the settings of `config` that it takes."""
    optimizer_class, settings = load(kind), dict[str, Any](arguments)
    if "eps" in algorithm.settings:
        settings["eps"] = config.eps or 0.0
    if "beta1" in algorithm.settings:
        settings["betas"] = (config.beta1 or 0.0, config.beta2 or 0.0)
    if params[0]["params"][0].device.type == "cpu" and "fused" in signature(optimizer_class).parameters:
        settings["fused"] = True  # on GPUs torch's default is foreach, and False would disable both
    try:
        optimizer = optimizer_class(params, lr=lr, **settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"{kind}: cannot train this model: {str(error).splitlines()[0]}; choose another") from error
    return with_state(optimizer, algorithm)
