"""Composition: a run's final figures, and how they read on a terminal. What was not measured is None."""

from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.metrics import clicks
from app.metrics.timing import throughput
from app.metrics.utilisation import utilisation
from app.record import provenance
from app.training.session import Session
from app.training.state import State

COLLAPSED_AUC, COLLAPSED_NE = 0.005, 0.9999  # distance from 0.5; from below 1


def summarise(
    session: Session, state: State, status: str, seconds: dict[str, float], gauges: dict[str, Any]
) -> dict[str, Any]:
    """The content of summary.json; a collective call. `gauges` has what was measured beside steps: phases, power."""
    runtime, train = session.runtime, session.config.train
    losses = state.all_losses()
    device_peak = torch.cuda.max_memory_allocated() if runtime.device.type == "cuda" else None
    rates = throughput(
        state.all_step_seconds(),
        state.input_wait,
        train.global_batch_size,
        runtime.world_size,
        excluded=state.step - len(state.all_step_seconds()),
    )
    return {
        "status": status,
        "steps": state.step,
        "samples": state.step * train.global_batch_size,
        "world_size": runtime.world_size,
        "parameters": session.parameter_counts(),
        "train": {**_train_loss(session, losses), "skipped_steps": state.skipped},
        "best": state.best,
        "eval": state.evaluation or dict.fromkeys(clicks.NAMES),
        "throughput": rates,
        "memory": {
            "host_peak_bytes": int(runtime.highest(provenance.host_peak_bytes())),
            "device_peak_bytes": None if device_peak is None else int(runtime.highest(device_peak)),
        },
        "utilisation": utilisation(session, rates["samples_per_second_per_device"], seconds["train"]),
        **gauges,
        "seconds": seconds,
        "digest": {
            "parameters": session.parameters_digest(),
            "losses": sha256(losses.tobytes()).hexdigest(),
        },
    }


def failed(session: Session, state: State, error: Exception, seconds: dict[str, float]) -> dict[str, Any]:
    """What one process can say of a run that broke, without the others."""
    train, losses, measured = session.config.train, state.all_losses(), state.all_step_seconds()
    return {
        "status": "failed",
        "error": f"{type(error).__name__}: {error}",
        "steps": state.step,
        "samples": state.step * train.global_batch_size,
        "world_size": session.runtime.world_size,
        "parameters": session.parameter_counts(),
        "train": {**_train_loss(session, losses), "skipped_steps": state.skipped},
        "best": state.best,
        "eval": state.evaluation or dict.fromkeys(clicks.NAMES),
        "throughput": throughput(measured, state.input_wait, train.global_batch_size, session.runtime.world_size,
                                 excluded=len(losses) - len(measured)),
        "memory": {"host_peak_bytes": provenance.host_peak_bytes(), "device_peak_bytes": None},
        "power": None,
        "seconds": seconds,
        "digest": {"parameters": None, "losses": None},
    }  # fmt: skip


def unmeasured(world_size: int, parameters: dict[str, int], seconds: float) -> dict[str, Any]:
    """The summary of a run that was built and not trained."""
    return {
        "status": "completed",
        "steps": 0,
        "samples": 0,
        "world_size": world_size,
        "parameters": parameters,
        "train": {"loss": None, "logloss": None, "skipped_steps": 0},
        "best": None,
        "eval": dict.fromkeys(clicks.NAMES),
        "throughput": throughput(np.empty(0, np.float32), 0.0, 1, 1, 0),
        "memory": {"host_peak_bytes": provenance.host_peak_bytes(), "device_peak_bytes": None},
        "power": None,
        "seconds": {"total": seconds, "train": 0.0, "eval": 0.0, "checkpoint": 0.0},
        "digest": {"parameters": None, "losses": None},
    }


def mean_loss(losses: NDArray[np.float32]) -> float | None:
    """Mean of the finite ones (steps may have been skipped), None if there is none."""
    finite = losses[np.isfinite(losses)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else None


def _train_loss(session: Session, losses: NDArray[np.float32]) -> dict[str, float | None]:
    """The mean loss of the last window of steps, and where the loss is logloss, that."""
    loss = mean_loss(losses[-session.config.train.log_every_steps :])
    return {"loss": loss, "logloss": loss if session.config.loss.is_logloss else None}


def throughput_spread(state: State, window: int) -> float | None:
    """Standard deviation over mean of the throughput of windows of steps; None with fewer than two windows."""
    seconds = state.all_step_seconds()
    rates = [1 / seconds[i : i + window].mean() for i in range(0, len(seconds) - window + 1, window)]
    return float(np.std(rates) / np.mean(rates)) if len(rates) > 1 else None


def is_collapsed(evaluation: dict[str, Any]) -> bool:
    """Whether the model ranks no better than chance and knows no more than the base rate."""
    auc, ne = evaluation["auc"], evaluation["ne"]
    return auc is not None and abs(auc - 0.5) < COLLAPSED_AUC and ne > COLLAPSED_NE


def describe_evaluation(evaluation: dict[str, Any]) -> str:
    """An evaluation on one line."""
    figures = ("auc", "ne", "logloss", "accuracy", "calibration", "base_rate")
    shown = [f"{key} {evaluation[key]:.5f}" for key in figures if evaluation[key] is not None]
    return f"{evaluation['split']} ({evaluation['samples']:,} samples) " + " ".join(shown)


def describe_beside_train(train: dict[str, Any], held_out: dict[str, Any], epochs: float) -> list[str]:
    """Accuracy and average loss of both splits after so many epochs, and a guess that needs no model."""
    lines = [f"epoch {epochs:g}"]
    for result in (train, held_out):
        if result["samples"]:
            auc = "not defined" if result["auc"] is None else f"{result['auc']:.5f}"
            majority = max(result["base_rate"], 1 - result["base_rate"])
            lines.append(
                f"{result['split']} accuracy = {result['accuracy']:.2%}, avg loss = {result['logloss']:.6f}, "
                f"AUC = {auc}; always guessing the majority class: accuracy = {majority:.2%}"
            )
    return lines
