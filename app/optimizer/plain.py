"""torch's optimizers, for dense parameters and for data-parallel tables."""

import torch
from torch import nn
from torch.optim import Optimizer

from app.config import OptimizerConfig, OptimizerName
from app.optimizer.adams import Lamb, with_state


def plain_optimizer(name: OptimizerName, params: list[nn.Parameter], lr: float, config: OptimizerConfig) -> Optimizer:
    """The algorithm `name` over whole tensors, with what `config` says beside the rate."""
    fused = params[0].device.type == "cpu"  # on GPUs torch's own default, foreach, is as good
    eps, betas = config.eps or 0.0, betas_of(config)
    if name is OptimizerName.sgd:
        return torch.optim.SGD(params, lr=lr, fused=fused)
    if name is OptimizerName.adagrad:
        return torch.optim.Adagrad(params, lr=lr, eps=eps, fused=fused)
    if name is OptimizerName.adam:
        return with_state(torch.optim.Adam(params, lr=lr, betas=betas, eps=eps, fused=True))
    return Lamb(params, lr, betas, eps)


def betas_of(config: OptimizerConfig) -> tuple[float, float]:
    """Adam's and LAMB's decays; of no meaning to the others."""
    return config.beta1 or 0.0, config.beta2 or 0.0
