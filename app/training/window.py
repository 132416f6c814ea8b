"""Steps that run without the host waiting for the device: their losses and times, and whether all was finite."""

import logging
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from app.config import OnNan
from app.data.batch import Batch
from app.metrics.timing import PHASES, StepTimer
from app.metrics.totals import Measured, of_steps
from app.training.session import Session
from app.training.state import RunLength, RunState
from common.errors import UserError

log = logging.getLogger("clickwork")

LOSS = "loss"
MAX_SKIPPED = 10  # consecutive steps; more of them mean a lost model, not a bad batch
ADVICE = "training cannot continue: lower optimizer.lr; the checkpoints are from before this step"


class FiniteChecks:
    """Sums that stop being finite where a step goes wrong: the loss, and one over each dense gradient.

    A sum is NaN or infinite if one of its terms is. (Finite terms can also add up beyond float32, 3e38; such a model is
    lost as well.) Table vectors need no check of their own: one that is not finite makes the logits non-finite or,
    where a ReLU hides it, the gradient of the layer that it enters (0 times infinity is NaN). Gradients of tables never
    exist as tensors: FBGEMM's backward updates rows directly.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = list(parameters.values())
        self.names = (LOSS, *(f"gradient of {name}" for name in parameters))

    def __call__(self, loss: Tensor) -> Tensor:
        """Return the sums [K], float32 on the device, in the order of `names`; a gradient not computed counts as 0."""
        zero = torch.zeros((), device=loss.device)
        computed = [p.grad for p in self._parameters if p.grad is not None]
        if loss.is_cuda and computed:
            sums = iter(torch._foreach_norm(computed, 1))  # one kernel for all; on CPUs slower than sums
        else:
            sums = (gradient.sum(dtype=torch.float32) for gradient in computed)
        gradients = [zero if p.grad is None else next(sums) for p in self._parameters]
        return torch.stack([loss.detach().float(), *gradients])


class StepFigures(NamedTuple):
    """Figures of consecutive steps, [steps] each."""

    lr: float  # rate of the last step
    losses: NDArray[np.float32]  # mean over the global batch
    accuracies: NDArray[np.float32]  # share of the global batch on the right side of probability 0.5
    seconds: NDArray[np.float32]  # on this process; shorter if some steps ran before a resumption
    input_wait: float  # sum over these steps, on this process
    phases: dict[str, float]  # mean over the sampled steps, on the slowest process
    gradient_norm: float | None  # 2-norm of the last step's dense gradients; None if it was skipped


class StepWindow:
    """The steps since the host last waited for the device, and those since the last report."""

    def __init__(self, session: Session, timer: StepTimer, length: RunLength, state: RunState) -> None:
        self.lr = 0.0
        self.gradient_norm: Tensor | None = None  # norm at the last reported step
        self.first_counted_step = state.step + length.train.warmup_steps_excluded
        self._checks, self._runtime = FiniteChecks(session.dense_parameters()), session.runtime
        self._timer, self._length, self._state, self._micro_batches = (
            timer,
            length,
            state,
            session.predictor.micro_batches,
        )
        self._values: list[Tensor] = []  # per step: its finite checks and its accuracy
        self._of_micro_batches: list[Tensor] = []  # per step: losses and hits of this process, [2, micro-batches]
        self._rows: list[int] = []  # per step: rows of its global batch
        self._losses = [state.all_losses()[state.step - len(state.accuracies) :]]  # losses of the unreported steps
        self._seconds: list[NDArray[np.float32]] = []
        self._input_wait = 0.0
        self._phases = Measured()  # phases of all steps since the last report, counted or not
        self._skipped: list[int] = []  # the latest consecutive steps that were skipped

    def add(self, loss: Tensor, logits: Tensor, batch: Batch) -> None:
        """Note a step's results, without waiting for them."""
        labels = batch.labels
        if labels.ndim > 1:  # accuracy is that of the dataset's label, which comes first
            logits, labels = logits[:, 0], labels[:, 0]
        hits = ((logits.detach() > 0) == (labels > 0.5)).float()
        if self._micro_batches is not None:
            hits[batch.num_valid :] = 0
            losses = self._micro_batches.losses
            self._of_micro_batches.append(torch.stack([losses, hits.view(len(losses), -1).sum(dim=1)]))
            self._rows.append(batch.num_global)
        if batch.share == 1:
            accuracy = hits.mean()
        else:
            accuracy = batch.share * hits[: batch.num_valid].sum() / max(batch.num_valid, 1)
        self._values.append(torch.cat([self._checks(loss), accuracy.unsqueeze(0)]))

    def skip(self) -> None:
        """Note that this step makes no update. Raises UserError after too many in a row."""
        state = self._state
        self._skipped = [*self._skipped, state.step] if state.step - 1 in self._skipped[-1:] else [state.step]
        state.skipped += 1
        log.warning("%s: the loss is not finite: skipped, no parameter is updated", self._describe(state.step + 1))
        if len(self._skipped) > MAX_SKIPPED:
            raise UserError(f"step {state.step + 1}: {len(self._skipped)} steps in a row were skipped, {ADVICE}")

    def synchronise(self) -> None:
        """Bring losses and times to the host: the one place where the loop waits for the device."""
        state = self._state
        seconds, wait, phase_steps, phases = self._timer.take()
        values = self._runtime.mean(torch.stack(self._values).cpu().numpy())
        self._values.clear()
        checks, accuracies = values[:, :-1], values[:, -1]
        self._require_finite(checks)
        losses = np.ascontiguousarray(checks[:, 0])
        if self._of_micro_batches:
            losses, accuracies = self._sums_of_micro_batches()
        timed = self._on_slowest(phase_steps, phases)
        self._phases.add(timed)
        state.losses.append(losses)
        # The loop also synchronises at first_counted_step, so one call's steps are all warm-up or all counted.
        if state.step - len(losses) >= self.first_counted_step:
            state.step_seconds.append(seconds)
            state.count(of_steps(seconds, self._runtime.world_size, wait))
            state.count(timed)
        state.accuracies = np.concatenate([state.accuracies, accuracies])
        self._losses.append(losses)
        self._seconds.append(seconds)
        self._input_wait += wait

    def _sums_of_micro_batches(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the steps' losses and accuracies, added in the order of the micro-batches; a collective call."""
        most = max(values.shape[1] for values in self._of_micro_batches)  # the last step of an epoch may have fewer
        parts = [torch.nn.functional.pad(values, (0, most - values.shape[1])) for values in self._of_micro_batches]
        total = np.zeros((len(parts), 2))
        for of_rank in self._runtime.gather(torch.stack(parts).cpu().numpy()):
            for number in range(most):
                total += of_rank[:, :, number]
        rows = np.array(self._rows)
        self._of_micro_batches, self._rows = [], []
        return total[:, 0].astype(np.float32), (total[:, 1] / rows).astype(np.float32)

    def take(self) -> StepFigures:
        """Return the figures of the steps since the last call."""
        figures = StepFigures(
            self.lr,
            np.concatenate(self._losses),
            self._state.accuracies,
            np.concatenate(self._seconds),
            self._input_wait,
            {name: seconds / self._phases.phase_steps for name, seconds in self._phases.phases.items()},
            None if self.gradient_norm is None else float(self.gradient_norm),
        )
        self.gradient_norm = None
        self._state.accuracies = np.empty(0, np.float32)
        self._losses, self._seconds, self._input_wait, self._phases = [], [], 0.0, Measured()
        return figures

    def _on_slowest(self, steps: int, phases: dict[str, float]) -> Measured:
        """Return the seconds of sampled steps by phase, each as long as on its slowest process; a collective call."""
        seconds = np.array([phases.get(name, 0.0) for name in PHASES])
        most = np.max(self._runtime.gather(seconds), axis=0).tolist()
        return Measured(phase_steps=steps, phases=dict(zip(PHASES, most, strict=True)) if steps else {})

    def _require_finite(self, checks: NDArray[np.float32]) -> None:
        """Raise UserError at the first non-finite value of `checks` [steps, K]; a skipped step's loss may be one."""
        bad = ~np.isfinite(checks)
        if self._length.train.on_nan is OnNan.skip:
            bad[:, 0] = False
        if bad.any():
            row, column = divmod(int(bad.argmax()), bad.shape[1])
            place = self._describe(self._state.step - len(checks) + row + 1)
            name = self._checks.names[column]
            raise UserError(f"{place}: first non-finite value: {name} ({checks[row, column]}); {ADVICE}")

    def _describe(self, step: int) -> str:
        epoch, batch = divmod(step - 1, self._length.steps_per_epoch)
        return f"step {step} (epoch {epoch}, batch {batch} of {self._length.steps_per_epoch}, counted from 0)"
