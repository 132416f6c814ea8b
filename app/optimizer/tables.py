"""The update of tables: fused into FBGEMM's backward, or torch's where a table is data-parallel."""

import re
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.optim import Optimizer
from torchrec.distributed.batched_embedding_kernel import EmbeddingFusedOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from app.config import OptimizerConfig, OptimizerName
from app.optimizer.adams import RowAdam
from app.optimizer.plain import betas_of, plain_optimizer

_WEIGHT = re.compile(r"\.(?:embedding_bags|embeddings)\.(?P<table>.+)\.weight$")
_FUSED = {
    OptimizerName.sgd: EmbOptimType.EXACT_SGD,
    OptimizerName.adagrad: EmbOptimType.EXACT_ADAGRAD,
    OptimizerName.rowwise_adagrad: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    OptimizerName.adam: EmbOptimType.ADAM,
    OptimizerName.rowwise_adam: EmbOptimType.PARTIAL_ROWWISE_ADAM,
    OptimizerName.lamb: EmbOptimType.LAMB,
    OptimizerName.rowwise_lamb: EmbOptimType.PARTIAL_ROWWISE_LAMB,
}
_FUSED_ON_CPU = (OptimizerName.sgd, OptimizerName.adagrad, OptimizerName.rowwise_adagrad)
# torch's names of what an optimizer keeps, and FBGEMM's. Steps are not kept with tables: `set_step` brings them.
_FUSED_STATE = {"sum": "momentum1", "exp_avg": "momentum1", "exp_avg_sq": "exp_avg_sq"}


def fused_params(config: OptimizerConfig) -> dict[str, Any]:
    """What TorchRec hands to FBGEMM's table-batched embedding for the tables' optimizer."""
    params: dict[str, Any] = {
        "optimizer": _FUSED[config.name],
        "learning_rate": config.table_lr,
        "stochastic_rounding": False,
    }  # of fp16 tables: it could not be replayed
    for key in ("eps", "beta1", "beta2"):
        value = getattr(config, key)
        if value is not None:
            params[key] = value
    return params


def table_of(key: str) -> str | None:
    """The table whose weight a parameter's name means; None if it means none."""
    found = _WEIGHT.search(key)
    return found["table"] if found else None


def has_fused(name: OptimizerName, device: torch.device) -> bool:
    """Whether FBGEMM has the algorithm for tables on this kind of device."""
    return device.type != "cpu" or name in _FUSED_ON_CPU


def set_step(optimizer: CombinedOptimizer, step: int) -> None:
    """Tell the tables' optimizers how many steps there were: Adam and LAMB correct their moments' bias by that.

    FBGEMM counts each forward as a step, those of an evaluation too, and starts again from 0 in a new process.
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
        super().__init__(tables, lambda params: _table_optimizer(params, config))
        self.state = {
            weight: {
                f"{table_of(key)}.{_FUSED_STATE[name]}": _as_fused(value)
                for name, value in self._optimizer.state[weight].items()
                if name in _FUSED_STATE
            }
            for key, weight in tables.items()
            if weight in self._optimizer.state
        }

    def set_optimizer_step(self, step: int) -> None:
        for state in self._optimizer.state.values():
            if "step" in state:
                state["step"].fill_(step)


def _table_optimizer(params: list[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    name, lr, eps = config.name, config.table_lr, config.eps or 0.0
    if name is OptimizerName.rowwise_adagrad:
        return RowWiseAdagrad(params, lr=lr, eps=eps)
    if name in (OptimizerName.rowwise_adam, OptimizerName.lamb, OptimizerName.rowwise_lamb):
        rowwise, trust = name is not OptimizerName.lamb, name is not OptimizerName.rowwise_adam
        return RowAdam(params, lr, betas_of(config), eps, rowwise, trust)
    return plain_optimizer(name, params, lr, config)


def _as_fused(state: torch.Tensor) -> torch.Tensor:
    """RowWiseAdagrad's sums are [E, 1], FBGEMM's are [E]; the view shares their memory."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state


def state_elements(optimizer: str, dim: int) -> int:
    """Elements of state beside a row of `dim` elements: whole moments, or one number for the row where row-wise."""
    return {"sgd": 0, "adagrad": dim, "rowwise_adagrad": 1, "rowwise_adam": dim + 1, "rowwise_lamb": dim + 1}.get(
        optimizer, 2 * dim
    )
