"""Optimizers: fused into FBGEMM's backward for tables, the same mathematics for dense parameters; schedules."""

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from app.config import OptimizerConfig, OptimizerName, ScheduleConfig, ScheduleName

_FUSED = {
    OptimizerName.sgd: EmbOptimType.EXACT_SGD,
    OptimizerName.adagrad: EmbOptimType.EXACT_ADAGRAD,
    OptimizerName.rowwise_adagrad: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}

TABLES = ".embedding_bags."  # in the names of tables' parameters
# torch's names of what an optimizer keeps, and FBGEMM's; FBGEMM counts no steps of Adagrad, nor uses them
_FUSED_STATE = {"sum": "momentum1"}


def fused_params(config: OptimizerConfig) -> dict[str, Any]:
    """What TorchRec hands to FBGEMM's table-batched embedding for the tables' optimizer."""
    params: dict[str, Any] = {"optimizer": _FUSED[config.name], "learning_rate": config.lr}
    if config.eps is not None:
        params["eps"] = config.eps
    return params


def make_optimizer(model: DistributedModelParallel, config: OptimizerConfig) -> CombinedOptimizer:
    """One optimizer over fused tables, data-parallel tables and dense parameters.

    Row-wise Adagrad keeps one sum of squares a row of a table (mean over the row) and is plain Adagrad for
    dense parameters, as in facebookresearch/dlrm.
    """
    unfused = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {key: weight for key, weight in unfused.items() if TABLES in key}
    dense = {key: parameter for key, parameter in unfused.items() if key not in tables}
    parts: list[tuple[str, KeyedOptimizer]] = [("sparse", model.fused_optimizer)]
    if tables:
        parts.append(("sparse", _ReplicatedTables(tables, config)))
    parts.append(("dense", KeyedOptimizerWrapper(dense, lambda params: _plain_optimizer(params, config))))
    return CombinedOptimizer(parts)


class _ReplicatedTables(KeyedOptimizerWrapper):
    """Data-parallel tables: FBGEMM does not fuse their update, so torch makes the same one.

    Their state goes under the names and shapes that FBGEMM gives it: a checkpoint then loads however a table is
    sharded.
    """

    def __init__(self, tables: dict[str, nn.Parameter], config: OptimizerConfig) -> None:
        def make(params: list[nn.Parameter]) -> torch.optim.Optimizer:
            if config.name is OptimizerName.rowwise_adagrad:
                return RowWiseAdagrad(params, lr=config.lr, eps=config.eps or 0.0)
            return _plain_optimizer(params, config)

        super().__init__(tables, make)
        self.state = {
            weight: {
                f"{key.split(TABLES)[1].removesuffix('.weight')}.{_FUSED_STATE[name]}": _as_fused(value)
                for name, value in self._optimizer.state[weight].items()
                if name in _FUSED_STATE
            }
            for key, weight in tables.items()
            if weight in self._optimizer.state
        }


def _as_fused(state: torch.Tensor) -> torch.Tensor:
    """RowWiseAdagrad's sums are [E, 1], FBGEMM's are [E]; the view shares their memory."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state


def _plain_optimizer(params: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    fused = params[0].device.type == "cpu"  # on GPUs torch's own default, foreach, is as good
    if config.name is OptimizerName.sgd:
        return torch.optim.SGD(params, lr=config.lr, fused=fused)
    return torch.optim.Adagrad(params, lr=config.lr, eps=config.eps or 0.0, fused=fused)


def set_learning_rate(optimizer: CombinedOptimizer, lr: float) -> None:
    """Set the learning rate of all parameters; call before zero_grad, which hands it to the fused tables."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def learning_rate(base: float, config: ScheduleConfig, step: int) -> float:
    """Learning rate of a step (the first is 0), from the base rate.

    warmup_poly is facebookresearch/dlrm's LRPolicyScheduler to the bit, quirks included: its count starts at 1;
    between warm-up and decay it holds the last rate of the warm-up, base * (warmup_steps - 1) / warmup_steps;
    from decay_start_step on it falls as base * ((decay_steps - steps in decay) / decay_steps)^2, not below 1e-7,
    and stays where it ended. Without decay_steps it holds the base rate after the warm-up.
    """
    if config.name is ScheduleName.constant:
        return base
    count = step + 1
    if count < config.warmup_steps:
        return base * (1.0 - (config.warmup_steps - count) / config.warmup_steps)
    if not config.decay_steps:
        return base
    if count < config.decay_start_step:
        return base * (1.0 - 1.0 / config.warmup_steps) if config.warmup_steps > 1 else base
    in_decay = min(count - config.decay_start_step, config.decay_steps - 1)
    return max(1e-7, base * ((config.decay_steps - in_decay) / config.decay_steps) ** 2)
