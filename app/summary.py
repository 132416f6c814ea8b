"""Composition: a run's final figures, and how they read on a terminal. What was not measured is None."""

from hashlib import sha256
from typing import Any

import numpy as np
import torch

from app import metrics, provenance
from app.loop import State
from app.meter import throughput
from app.session import Session

COLLAPSED_AUC, COLLAPSED_NE = 0.005, 0.9999  # distance from 0.5; from below 1


def summarise(session: Session, state: State, status: str, seconds: dict[str, float]) -> dict[str, Any]:
    """The content of summary.json; a collective call."""
    runtime, train = session.runtime, session.config.train
    losses = state.all_losses()
    recent = losses[-train.log_every_steps :]
    loss = float(recent.mean(dtype=np.float64)) if len(recent) else None
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
        "train": {"loss": loss, "logloss": loss if session.config.loss.is_logloss else None},
        "eval": state.evaluation or dict.fromkeys(metrics.NAMES),
        "throughput": rates,
        "memory": {
            "host_peak_bytes": int(runtime.highest(provenance.host_peak_bytes())),
            "device_peak_bytes": None if device_peak is None else int(runtime.highest(device_peak)),
        },
        "power": None,
        "seconds": seconds,
        "digest": {
            "parameters": session.parameters_digest(),
            "losses": sha256(losses.tobytes()).hexdigest(),
        },
    }


def failed(session: Session, state: State, error: Exception, seconds: dict[str, float]) -> dict[str, Any]:
    """What one process can say of a run that broke, without the others."""
    none_measured = throughput(np.empty(0, np.float32), 0.0, 1, 1, 0)
    return {
        "status": "failed",
        "error": f"{type(error).__name__}: {error}",
        "steps": state.step,
        "samples": state.step * session.config.train.global_batch_size,
        "world_size": session.runtime.world_size,
        "parameters": session.parameter_counts(),
        "train": {"loss": None, "logloss": None},
        "eval": dict.fromkeys(metrics.NAMES),
        "throughput": none_measured,
        "memory": {"host_peak_bytes": provenance.host_peak_bytes(), "device_peak_bytes": None},
        "power": None,
        "seconds": seconds,
        "digest": {"parameters": None, "losses": None},
    }


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


def describe(summary: dict[str, Any]) -> list[str]:
    """The final figures as lines."""
    rates, seconds = summary["throughput"], summary["seconds"]
    lines = [
        f"{summary['status']}: {summary['steps']:,} steps, {summary['samples']:,} samples in {seconds['total']:.1f} s "
        f"(training {seconds['train']:.1f}, evaluation {seconds['eval']:.1f}, checkpoints {seconds['checkpoint']:.1f})"
    ]
    if rates["samples_per_second"] is not None:
        lines.append(
            f"throughput: {rates['samples_per_second']:,.0f} samples/s global, "
            f"{rates['samples_per_second_per_device']:,.0f} per device; step p50 {rates['step_ms_p50']:.2f} ms, "
            f"p95 {rates['step_ms_p95']:.2f} ms; waiting for input {rates['input_wait_fraction']:.1%}"
        )
    return lines
