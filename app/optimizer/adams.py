"""Adam and LAMB in forms that torch lacks: per row, as FBGEMM fuses them on GPUs, and LAMB for layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from app.kinds.optimizers import Algorithm
from app.optimizer.norm import total_norm
from common.errors import UserError


class RowAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) or LAMB (You et al. 2020) over the rows of tables [E, D].

    Like FBGEMM's fused kernels, it moves only rows that have a gradient, and their moments; the number of all steps
    corrects the bias. `rowwise` keeps one second moment per row, the mean over the row. `trust` scales each row's
    update by the ratio of the row's norm to the update's (1 if either is 0).
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        rowwise: bool,
        trust: bool,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "rowwise": rowwise, "trust": trust})
        for table in _all_of(self):
            second = torch.zeros_like(table[:, 0] if rowwise else table, requires_grad=False)
            self.state[table] = _new_state(table, second)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update rows from .grad; a closure is not called."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, table.grad, group)

    def _update(self, table: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        state["step"] += 1
        rows = (grad != 0).any(dim=1).nonzero().squeeze(1)
        grad, (beta1, beta2) = grad[rows], group["betas"]
        square = grad.square().mean(dim=1) if group["rowwise"] else grad.square()
        first = state["exp_avg"][rows].lerp_(grad, 1 - beta1)
        second = state["exp_avg_sq"][rows].mul_(beta2).add_(square, alpha=1 - beta2)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = first, second
        update = _corrected(first, second.unsqueeze(1) if group["rowwise"] else second, state["step"], group)
        if group["trust"]:
            update *= _trust_ratio(table[rows].norm(dim=1, keepdim=True), update.norm(dim=1, keepdim=True))
        table.index_add_(0, rows, update, alpha=-group["lr"])


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962) for dense parameters: one trust ratio per tensor, no weight decay."""

    def __init__(self, params: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for parameter in _all_of(self):
            self.state[parameter] = _new_state(parameter, torch.zeros_like(parameter, requires_grad=False))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update from .grad; a closure is not called."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["step"] += 1
                state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                update = _corrected(state["exp_avg"], state["exp_avg_sq"], state["step"], group)
                parameter.sub_(update * _trust_ratio(total_norm([parameter]), total_norm([update])) * group["lr"])


def with_state(optimizer: torch.optim.Optimizer, algorithm: Algorithm) -> torch.optim.Optimizer:
    """Make the state of an optimizer now, as a checkpoint needs it; torch makes some only at the first step.

    Without it torch.distributed.checkpoint would silently leave out Adam's moments when it loads a checkpoint.
    """
    parameters = _all_of(optimizer)
    if parameters[0] in optimizer.state:  # made with the optimizer
        return optimizer

    def add_state(parameter: nn.Parameter) -> None:
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)  # `fused` wants it there
        zeros = {name: torch.zeros_like(parameter, requires_grad=False) for name in algorithm.state}
        optimizer.state[parameter] = {"step": step, **zeros} if zeros else {}

    # A step of two parameters, one with state by torch and one with ours, shows whether both begin alike.
    probes = [nn.Parameter(torch.ones(2, 2, device=parameters[0].device)) for _ in range(2)]
    for probe in probes:
        probe.grad = torch.ones_like(probe)
    add_state(probes[1])
    optimizer.add_param_group({"params": probes})
    try:
        optimizer.step()
        by_torch, by_row = ({**optimizer.state.pop(probe, {}), "parameter": probe} for probe in probes)
        differing = sorted(by_torch.keys() - {"step", "parameter"} ^ algorithm.state.keys())
        differing = differing or [name for name in by_torch if not torch.equal(by_torch[name], by_row[name])]
    except (KeyError, AssertionError) as error:
        differing = [str(error)]
    except (TypeError, RuntimeError) as error:  # of these probes alone: a lack of memory is reported elsewhere
        raise UserError(f"{algorithm.torch}: cannot make a step: {error}; choose another optimizer") from error
    if differing:
        raise UserError(
            f"{algorithm.torch}: its state ({', '.join(differing)}) is not what its row of app/kinds/optimizers.py "
            "names, or does not begin as zeros; correct the row, or choose another optimizer"
        )
    del optimizer.param_groups[-1]
    for parameter in parameters:
        add_state(parameter)
    return optimizer


def _all_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _new_state(parameter: Tensor, second: Tensor) -> dict[str, Tensor]:
    """Return a state under the names of torch's Adam; `step` is on the CPU, so reading it does not wait for a GPU."""
    first = torch.zeros_like(parameter, requires_grad=False)
    return {"step": torch.zeros((), dtype=torch.float32), "exp_avg": first, "exp_avg_sq": second}


def _corrected(first: Tensor, second: Tensor, step: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the update without its rate, from moments that start at 0."""
    (beta1, beta2), count = group["betas"], step.item()
    return (first / (1 - beta1**count)) / ((second / (1 - beta2**count)).sqrt() + group["eps"])


def _trust_ratio(weight_norm: Tensor, update_norm: Tensor) -> Tensor:
    usable = (weight_norm > 0) & (update_norm > 0)
    return torch.where(usable, weight_norm / update_norm, torch.ones_like(weight_norm))
