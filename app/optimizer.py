"""Optimizers: fused into FBGEMM's backward for tables, the same mathematics for dense parameters; schedules."""

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from app.config import OptimizerConfig, OptimizerName, ScheduleConfig, ScheduleName

_FUSED = {
    OptimizerName.sgd: EmbOptimType.EXACT_SGD,
    OptimizerName.adagrad: EmbOptimType.EXACT_ADAGRAD,
    OptimizerName.rowwise_adagrad: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def fused_params(config: OptimizerConfig) -> dict[str, Any]:
    """What TorchRec hands to FBGEMM's table-batched embedding for the tables' optimizer."""
    params: dict[str, Any] = {"optimizer": _FUSED[config.name], "learning_rate": config.lr}
    if config.eps is not None:
        params["eps"] = config.eps
    return params


def make_optimizer(model: DistributedModelParallel, config: OptimizerConfig) -> CombinedOptimizer:
    """One optimizer over fused tables and dense parameters.

    Row-wise Adagrad keeps one sum of squares a row of a table (mean over the row) and is plain Adagrad for
    dense parameters, as in facebookresearch/dlrm.
    """

    def dense_optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        fused = params[0].device.type == "cpu"  # on GPUs torch's own default, foreach, is as good
        if config.name is OptimizerName.sgd:
            return torch.optim.SGD(params, lr=config.lr, fused=fused)
        return torch.optim.Adagrad(params, lr=config.lr, eps=config.eps or 0.0, fused=fused)

    dense = KeyedOptimizerWrapper(dict(in_backward_optimizer_filter(model.named_parameters())), dense_optimizer)
    return CombinedOptimizer([("sparse", model.fused_optimizer), ("dense", dense)])


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
