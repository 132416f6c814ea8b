"""One optimizer over all parameters, fused into FBGEMM's backward for tables; norms, clipping, learning rates."""

import math
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.batched_embedding_kernel import EmbeddingFusedOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from app.config.kinds import Algorithm, OptimizerName
from app.config.train import OptimizerConfig, ScheduleConfig
from app.model.embeddings import table_of
from common.extensions import load

BLOCK = 4096  # torch adds up this many values on one thread


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all values of the tensors, a scalar float32; 0 if there are none."""
    squares = [_sum(tensor.float().square()) for tensor in tensors]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def _sum(values: Tensor) -> Tensor:
    """Return the sum, added block by block: torch divides a longer sum by the number of threads."""
    values = values.flatten()
    while len(values) > BLOCK:
        values = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK).sum(dim=1)
    return values.sum()


def clip(gradients: list[Tensor], max_norm: float) -> None:
    """Scale gradients in place so that their common 2-norm is at most max_norm, as torch's clip_grad_norm_ does."""
    factor = (max_norm / (total_norm(gradients) + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, factor)


class RowAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) or LAMB (You et al. 2020) over the rows of tables [E, D].

    Like FBGEMM's fused kernels, it moves only rows that have a gradient, and their moments; the number of all steps
    corrects the bias. `rowwise` keeps one second moment per row, the mean over the row. `trust` scales each row's
    update by the ratio of the row's norm to the update's (1 if either is 0).
    """

    def __init__(self, params: list[dict[str, Any]], *, rowwise: bool, **settings: Any) -> None:
        """settings: lr, betas, eps and trust."""
        super().__init__(params, {"rowwise": rowwise, **settings})
        # The state exists from the start, since a checkpoint is loaded into it before the first step.
        for table in _all_parameters(self):
            second = torch.zeros_like(table[:, 0] if rowwise else table, requires_grad=False)
            self.state[table] = _new_state(table, second)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the rows of tables [E, D] whose gradient is not 0, and their moments; a closure is not called."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for table in group["params"]:
                if table.grad is None:
                    continue
                state = self.state[table]
                state["step"] += 1
                rows = (table.grad != 0).any(dim=1).nonzero().squeeze(1)
                grad = table.grad[rows]
                square = grad.square().mean(dim=1) if group["rowwise"] else grad.square()
                first = state["exp_avg"][rows].lerp_(grad, 1 - beta1)
                second = state["exp_avg_sq"][rows].mul_(beta2).add_(square, alpha=1 - beta2)
                # Indexing by rows copies them, so the moments have to be written back.
                state["exp_avg"][rows], state["exp_avg_sq"][rows] = first, second
                update = _adam_update(first, second.unsqueeze(1) if group["rowwise"] else second, state["step"], group)
                if group["trust"]:
                    update *= _trust_ratio(table[rows].norm(dim=1, keepdim=True), update.norm(dim=1, keepdim=True))
                table.index_add_(0, rows, update, alpha=-group["lr"])


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962) for dense parameters: one trust ratio per tensor, no weight decay."""

    def __init__(self, params: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for parameter in _all_parameters(self):
            self.state[parameter] = _new_state(parameter, torch.zeros_like(parameter, requires_grad=False))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update parameters and their moments from .grad; a closure is not called."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["step"] += 1
                state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                update = _adam_update(state["exp_avg"], state["exp_avg_sq"], state["step"], group)
                # The norms are those of blocks, since torch's own sums depend on the number of threads.
                parameter.sub_(update * _trust_ratio(total_norm([parameter]), total_norm([update])) * group["lr"])


def make_state(optimizer: torch.optim.Optimizer, algorithm: Algorithm) -> torch.optim.Optimizer:
    """Make the state of an optimizer now, as a checkpoint needs it; torch makes some only at the first step.

    Without it torch.distributed.checkpoint would silently leave out Adam's moments when it loads a checkpoint.
    """
    parameters = _all_parameters(optimizer)
    if parameters[0] in optimizer.state:  # made with the optimizer
        return optimizer
    for parameter in parameters:
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)  # `fused` wants it there
        zeros = {name: torch.zeros_like(parameter, requires_grad=False) for name in algorithm.state}
        optimizer.state[parameter] = {"step": step, **zeros} if zeros else {}
    return optimizer


def _all_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _new_state(parameter: Tensor, second: Tensor) -> dict[str, Tensor]:
    """Return a state under the names of torch's Adam; `step` is on the CPU, so reading it does not wait for a GPU."""
    first = torch.zeros_like(parameter, requires_grad=False)
    return {"step": torch.zeros((), dtype=torch.float32), "exp_avg": first, "exp_avg_sq": second}


def _adam_update(first: Tensor, second: Tensor, step: Tensor, group: dict[str, Any]) -> Tensor:
    """Return Adam's update without its rate, from both moments, corrected for their start at 0; step: [] float32."""
    (beta1, beta2), count = group["betas"], step.item()
    return (first / (1 - beta1**count)) / ((second / (1 - beta2**count)).sqrt() + group["eps"])


def _trust_ratio(weight_norm: Tensor, update_norm: Tensor) -> Tensor:
    """Return LAMB's factor of each update; 1 where either norm is 0."""
    usable = (weight_norm > 0) & (update_norm > 0)
    return torch.where(usable, weight_norm / update_norm, torch.ones_like(weight_norm))


def learning_rate(base: float, config: ScheduleConfig, step: int, cuts: int = 0) -> float:
    """Return the learning rate of a step (the first is 0); cuts: how often evaluations have cut it so far."""
    rate = load(config.name.schedule.rate)(base, config, step, cuts)
    assert isinstance(rate, float)
    return rate


def constant(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return the base rate."""
    return base


def warmup(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return base * min(1, step / warmup_steps), which is 0 in the first step."""
    return base * min(1.0, step / config.warmup_steps)


def warmup_poly(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return the rate of facebookresearch/dlrm's LRPolicyScheduler to the bit, quirks included: its count starts at 1.

    Between warm-up and decay it holds the last rate of the warm-up, base * (warmup_steps - 1) / warmup_steps. From
    decay_start_step on it falls as base * ((decay_steps - steps in decay) / decay_steps)^2, not below 1e-7, and stays
    where it ended. Without decay_steps it holds the base rate after the warm-up.
    """
    count = step + 1
    if count < config.warmup_steps:
        return base * (1.0 - (config.warmup_steps - count) / config.warmup_steps)
    if not config.decay_steps:
        return base
    if count < config.decay_start_step:
        return base * (1.0 - 1.0 / config.warmup_steps) if config.warmup_steps > 1 else base
    in_decay = min(count - config.decay_start_step, config.decay_steps - 1)
    return float(max(1e-7, base * ((config.decay_steps - in_decay) / config.decay_steps) ** 2))


def cosine(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return a rate that rises linearly to the base rate at step warmup_steps - 1, and decays along half a cosine.

    From decay_start_step on it is base * (end_factor + (1 - end_factor) * (1 + cos(pi * share of the decay)) / 2).
    """
    if step < config.warmup_steps:
        return base * (step + 1) / config.warmup_steps
    share = min(max(step - config.decay_start_step, 0) / config.decay_steps, 1.0)
    return base * (config.end_factor + (1 - config.end_factor) * (1 + math.cos(math.pi * share)) / 2)


def plateau(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return the rate of torch's ReduceLROnPlateau: each cut multiplies it by `factor`, but not below min_lr."""
    rate = base
    for _ in range(cuts):
        # A base rate that is below min_lr already stays as it is.
        rate = min(rate, max(rate * config.factor, config.min_lr))
    return rate


CLIPPED_DECAY = "clipped_decay"  # key of a group's decay that is added to gradients before they are clipped
# Names of the parts in the combined optimizer and in checkpoints; fused and replicated tables share one.
TABLE_PART, DENSE_PART = "sparse", "dense"


def make_optimizer(model: DistributedModelParallel, config: OptimizerConfig) -> CombinedOptimizer:
    """Return one optimizer over fused tables, data-parallel tables and dense parameters.

    A row-wise algorithm keeps one second moment per row of a table (the mean over the row) and is the plain algorithm
    for dense parameters, as in facebookresearch/dlrm. If configured, gradients of dense parameters are clipped by their
    common norm, which is the same on all processes; with clip_tables, the gradients of all parameters.
    """
    unfused = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {key: weight for key, weight in unfused.items() if table_of(key)}
    layers = {key: parameter for key, parameter in unfused.items() if key not in tables}
    parts: list[tuple[str, KeyedOptimizer]] = [(TABLE_PART, model.fused_optimizer)]
    if tables:
        parts.append((TABLE_PART, ReplicatedTables(tables, config)))

    # Features' own weights decay as tables do.
    feature_weights = {id(weight) for weight in model.module.feature_weights()}

    def make(params: list[nn.Parameter]) -> Optimizer:
        plain = [parameter for parameter in params if id(parameter) not in feature_weights]
        like_tables = [parameter for parameter in params if id(parameter) in feature_weights]
        groups = _group_with_decay(plain, config.weight_decay, config)
        groups += _group_with_decay(like_tables, config.sparse_weight_decay, config)
        algorithm = config.dense_name.algorithm
        kind, arguments = (algorithm.torch, algorithm.arguments) if algorithm.layers is None else (algorithm.layers, {})
        return _make_optimizer(algorithm, kind, arguments, groups, config.lr, config)

    parts.append((DENSE_PART, KeyedOptimizerWrapper(layers, make)))
    if config.max_grad_norm is None:
        return CombinedOptimizer(parts)
    return Clipped(parts, config.max_grad_norm, config.clip_tables)


def _group_with_decay(params: list[nn.Parameter], decay: float, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Return a group of parameters with their L2, which the optimizer applies, or `Clipped` before clipping."""
    # The clipped norm includes the decay, so the decay must be in the gradients before the optimizer sees them.
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
                params = [parameter for parameter in group["params"] if parameter.grad is not None]
                group_gradients = [parameter.grad for parameter in params]
                gradients += group_gradients
                if params and (decay := group.get(CLIPPED_DECAY)):
                    torch._foreach_add_(group_gradients, params, alpha=decay)
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
    # Where FBGEMM lacks the algorithm, all tables are data-parallel and torch updates them.
    if config.name.algorithm.fbgemm is not None:
        params["optimizer"] = EmbOptimType[config.name.algorithm.fbgemm]
    for key in ("eps", "beta1", "beta2"):
        value = getattr(config, key)
        if value is not None:
            params[key] = value
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
            groups = _group_with_decay(params, config.sparse_weight_decay, config)
            return _make_optimizer(algorithm, algorithm.torch, arguments, groups, rate, config)

        super().__init__(tables, make)
        self.state = {
            weight: {
                f"{table_of(key)}.{names[name]}": (
                    value.view(-1) if value.dim() == 2 and value.shape[1] == 1 else value
                )
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


def _make_optimizer(
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
    return make_state(optimizer_class(params, lr=lr, **settings), algorithm)
