"""A run's final figures (summary.json), and how they read on a terminal. What was not measured is None."""

import sys
from collections.abc import Iterator
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
from app.training.state import RunState
from common.terminal import coloured

COLOURS = {"completed": "green", "target_reached": "green", "interrupted": "yellow", "failed": "red"}
INTERRUPTED = "saved; the same command resumes from here"


def summarise(
    session: Session, state: RunState, status: str, seconds: dict[str, float], gauges: dict[str, Any]
) -> dict[str, Any]:
    """The content of summary.json; a collective call. `gauges`: phases and power."""
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
        "utilisation": utilisation(
            session.config,
            runtime,
            session.manifest,
            session.model.module.sparse_arch.tables,
            rates["samples_per_second_per_device"],
            seconds["train"],
        ),
        **gauges,
        "seconds": seconds,
        "digest": {
            "parameters": session.parameters_digest(),
            "losses": sha256(losses.tobytes()).hexdigest(),
        },
    }


def summarise_failure(session: Session, state: RunState, error: Exception, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary of a run that failed, by one process without the others."""
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


def summarise_untrained(world_size: int, parameters: dict[str, int], seconds: float) -> dict[str, Any]:
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
    """Mean of the finite losses (steps may have been skipped), None if there is none."""
    finite = losses[np.isfinite(losses)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else None


def _train_loss(session: Session, losses: NDArray[np.float32]) -> dict[str, float | None]:
    """The mean loss of the last window of steps; as logloss too, if the loss is that."""
    loss = mean_loss(losses[-session.config.train.log_every_steps :])
    return {"loss": loss, "logloss": loss if session.config.loss.is_logloss else None}


def throughput_spread(state: RunState, window: int) -> float | None:
    """Standard deviation over mean of the throughput of windows of steps; None with fewer than two windows."""
    seconds = state.all_step_seconds()
    rates = [1 / seconds[i : i + window].mean() for i in range(0, len(seconds) - window + 1, window)]
    return float(np.std(rates) / np.mean(rates)) if len(rates) > 1 else None


def closing_lines(summary: dict[str, Any], measured_before: int) -> list[str]:
    """A summary as lines of text; `measured_before` steps were measured before the run was resumed."""
    status = summary["status"]
    head = (
        f"{status}: {summary['steps']:,} steps, {summary['samples']:,} samples in {summary['seconds']['total']:.1f} s"
    )
    rows = [*_closing_rows(summary, measured_before)]
    width = max(len(name) for name, _ in rows)
    return [
        coloured(head, COLOURS.get(status, "bold"), sys.stderr),
        *(f"  {coloured(name.ljust(width), 'dim', sys.stderr)}  {text}" for name, text in rows),
    ]


def _closing_rows(summary: dict[str, Any], measured_before: int) -> Iterator[tuple[str, str]]:
    rates, seconds, found = summary["throughput"], summary["seconds"], summary["eval"]
    if summary["status"] == "interrupted":
        yield "to resume", INTERRUPTED
    if found.get("logloss") is not None:
        names = {"auc": "AUC", "ne": "NE", "logloss": "logloss", "accuracy": "accuracy", "calibration": "calibration"}
        figures = [f"{label} {found[key]:.5f}" for key, label in names.items() if found[key] is not None]
        yield "evaluation", f"{', '.join(figures)} ({found['split']}, {found['samples']:,} samples)"
    if rates["samples_per_second"] is not None:
        before = f", {measured_before:,} of them before the resumption" if measured_before else ""
        each = rates["samples_per_second_per_device"]
        steps = f"(over {rates['steps_measured']:,} steps{before})"
        yield "throughput", f"{rates['samples_per_second']:,.0f} samples/s global, {each:,.0f} per device {steps}"
        yield (
            "step",
            (
                f"p50 {rates['step_ms_p50']:.2f} ms, p95 {rates['step_ms_p95']:.2f} ms; waiting for input "
                f"{rates['input_wait_fraction']:.1%}{_phase_times(summary)}"
            ),
        )
    yield (
        "time",
        ", ".join(
            f"{label} {seconds[key]:.1f} s"
            for key, label in (("train", "training"), ("eval", "evaluation"), ("checkpoint", "checkpoints"))
        ),
    )
    memory, power = summary["memory"], summary["power"]
    peaks = [f"{label} {memory[key] / 2**20:,.0f} MiB" for key, label in (("host_peak_bytes", "host"),
             ("device_peak_bytes", "device")) if memory.get(key)]  # fmt: skip
    if peaks:
        yield "peak memory", ", ".join(peaks)
    if power is not None and power.get("mean_watts") is not None:
        yield "power", f"{power['mean_watts']:,.1f} W ({power.get('source', 'mean')})"


def _phase_times(summary: dict[str, Any]) -> str:
    """Mean milliseconds of a step's phases, where they were measured."""
    phases = summary.get("phase_seconds") or {}
    shown = [f"{name} {seconds * 1e3:.2f} ms" for name, seconds in phases.items() if seconds]
    return f"; {', '.join(shown)}" if shown else ""
