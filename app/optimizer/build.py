"""One optimizer over all parameters."""

from torch import nn
from torch.optim import Optimizer
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.clipping import GradientClipping, GradientClippingOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from app.config import OptimizerConfig
from app.optimizer.plain import plain_optimizer
from app.optimizer.tables import ReplicatedTables, table_of

TABLE_PART, DENSE_PART = "sparse", "dense"  # of the combined optimizer, and of its keys in checkpoints


def make_optimizer(model: DistributedModelParallel, config: OptimizerConfig) -> CombinedOptimizer:
    """One optimizer over fused tables, data-parallel tables and dense parameters.

    A row-wise algorithm keeps one second moment a row of a table (mean over the row) and is the plain one for
    dense parameters, as facebookresearch/dlrm has it. Gradients of dense parameters are clipped, if so asked, by
    their common norm, which is the same on all processes.
    """
    unfused = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {key: weight for key, weight in unfused.items() if table_of(key)}
    others = {key: parameter for key, parameter in unfused.items() if key not in tables}
    parts: list[tuple[str, KeyedOptimizer]] = [(TABLE_PART, model.fused_optimizer)]
    if tables:
        parts.append((TABLE_PART, ReplicatedTables(tables, config)))

    def make(params: list[nn.Parameter]) -> Optimizer:
        return plain_optimizer(config.dense_name, params, config.lr, config)

    dense: KeyedOptimizer = KeyedOptimizerWrapper(others, make)
    if config.max_grad_norm is not None:
        dense = GradientClippingOptimizer(dense, GradientClipping.NORM, config.max_grad_norm)
    return CombinedOptimizer([*parts, (DENSE_PART, dense)])


def set_learning_rate(optimizer: CombinedOptimizer, lr: float, sparse_lr: float | None = None) -> None:
    """Set a step's rate, and that of tables if it is another; call before zero_grad, which hands it to fused ones."""
    for part, keyed in optimizer.optimizers:
        for group in keyed.param_groups:
            group["lr"] = sparse_lr if part == TABLE_PART and sparse_lr is not None else lr
