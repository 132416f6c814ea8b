"""The one training loop: the same on CPU, CUDA and ROCm, with one process or many.

It knows nothing of files, layouts or processes; `Parts` brings what it drives.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from app.config import OnNan, TrainConfig
from app.data.batch import Batch
from app.training.state import Parts, State, Stopped
from app.training.window import Window


def train(parts: Parts, config: TrainConfig, state: State) -> str:
    """Train from `state` to the end; return the run's status: completed, target_reached or interrupted."""
    if evaluation_due(parts, config, state):  # the checkpoint was made at this step, before its evaluation
        status = _evaluate(parts, config, state)
        if status is not None:
            return status
    if reached(state, config):
        return "target_reached"
    window = Window(parts, config, state)
    parts.meter.start()
    while state.step < parts.total_steps:
        waiting_since = time.perf_counter()
        for batch in parts.batches(state.epoch, state.step_in_epoch):
            input_wait = time.perf_counter() - waiting_since
            parts.step_begins(state.step + 1)
            parts.meter.step_begins()
            window.lr = parts.set_learning_rate(state.step)
            parts.optimizer.zero_grad()
            logits = parts.forward(batch)
            loss = parts.loss(logits, batch.labels)
            parts.meter.phase_done("forward")
            if config.on_nan is OnNan.skip and parts.not_finite(loss):
                window.skip()  # before the backward, which updates the tables
            else:
                loss.backward()
                parts.meter.phase_done("backward")
                parts.optimizer.step()
                parts.meter.phase_done("optimizer")
            window.add(loss, logits, batch.labels)
            state.step += 1
            state.step_in_epoch += 1
            parts.meter.step_done(input_wait)
            status = _after_step(parts, config, state, window)
            if status is not None:
                return status
            waiting_since = time.perf_counter()
        state.epoch, state.step_in_epoch = state.epoch + 1, 0
    return "completed"


def _after_step(parts: Parts, config: TrainConfig, state: State, window: Window) -> str | None:
    """Log, save and evaluate where that is due; return the status if the run ends here."""
    done = state.step == parts.total_steps
    stop = parts.interrupted(state.step)
    evaluate = evaluation_due(parts, config, state)
    save = done or stop or parts.checkpoint_due(state.step)
    logged = done or _every(config.log_every_steps, state.step)
    if evaluate or save or logged or state.step == window.first_counted_step:
        window.close(tell=logged)
    if save:
        parts.save(state)
    if done or (evaluate and not stop):  # whoever goes on from a stop evaluates first
        return _evaluate(parts, config, state)
    return "interrupted" if stop else None


def _evaluate(parts: Parts, config: TrainConfig, state: State) -> str | None:
    """Evaluate, keep the best; return the status if the run ends here."""
    try:
        state.evaluation = parts.evaluate(state)
    except Stopped:
        parts.save(state)
        return "interrupted"
    auc = state.evaluation["auc"] if state.evaluation else None
    if auc is not None and (state.best is None or auc > state.best["auc"]):
        state.best = {"step": state.step, "auc": auc}
        parts.keep_best(state)
    if reached(state, config):
        parts.save(state)
        return "target_reached"
    return "completed" if state.step == parts.total_steps else None


def predict(
    batches: Iterator[Batch],
    forward: Callable[[Batch], Tensor],
    interrupted: Callable[[int], bool] = lambda batches_done: False,
) -> tuple[Tensor, Tensor]:
    """Logits and labels [n] float32 of this process's valid samples, on the CPU.

    Raises:
        Stopped: `interrupted`, asked with the number of batches done, said so.
    """
    logits, labels = [torch.empty(0)], [torch.empty(0)]
    with torch.no_grad():
        for number, batch in enumerate(batches):
            if interrupted(number):
                raise Stopped
            logits.append(forward(batch)[: batch.num_valid].cpu())
            labels.append(batch.labels[: batch.num_valid].cpu())
    return torch.cat(logits), torch.cat(labels)


def _every(interval: int | None, step: int) -> bool:
    return interval is not None and step % interval == 0


def evaluation_due(parts: Parts, config: TrainConfig, state: State) -> bool:
    """Whether the state's step is one to be evaluated and has not been."""
    due = state.step > 0 and (state.step == parts.total_steps or _every(config.eval_every_steps, state.step))
    return due and (state.evaluation is None or state.evaluation["step"] != state.step)


def reached(state: State, config: TrainConfig) -> bool:
    """Whether this step's evaluation reached a target."""
    result = state.evaluation
    if result is None or result["step"] != state.step:
        return False
    targets = (("auc", config.target_auc), ("accuracy", config.target_accuracy))
    return any(target is not None and result[key] is not None and result[key] >= target for key, target in targets)
