"""A run's final figures (summary.json), and how they read on a terminal. What was not measured is None."""

import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.config import AppConfig
from app.metrics import clicks, users
from app.metrics.slowdown import slowdown_sentence
from app.metrics.timing import throughput
from app.metrics.utilisation import utilisation
from app.record import provenance
from app.record.reading import SUMMARY_VERSION
from app.training.session import Session
from app.training.state import RunState
from common.terminal import coloured

COLOURS = {"completed": "green", "target_reached": "green", "interrupted": "yellow", "failed": "red"}
INTERRUPTED = "saved; the same command resumes from here"


def summarise(
    session: Session, state: RunState, status: str, seconds: dict[str, float], gauges: dict[str, Any]
) -> dict[str, Any]:
    """The content of summary.json; a collective call. `gauges`: phases and power."""
    runtime = session.runtime
    device_peak = torch.cuda.max_memory_allocated() if runtime.device.type == "cuda" else None
    figures = _figures(session.config, state, session.parameter_counts(), runtime.world_size, session.is_logloss)
    tables, rate = session.model.module.sparse_arch.tables, figures["throughput"]["samples_per_second_per_device"]
    return {
        "status": status,
        **figures,
        "memory": {
            "host_peak_bytes": int(runtime.highest(provenance.host_peak_bytes())),
            "device_peak_bytes": None if device_peak is None else int(runtime.highest(device_peak)),
        },
        "utilisation": utilisation(
            session.config, runtime, session.root, session.manifest, tables, rate, seconds["train"]
        ),
        **gauges,
        "seconds": seconds,
        "digest": {
            "parameters": session.parameters_digest(),
            "losses": sha256(state.all_losses().tobytes()).hexdigest(),
        },
    }


def summarise_failure(session: Session, state: RunState, error: Exception, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary of a run that failed, by one process without the others."""
    counts, world_size = session.parameter_counts(), session.runtime.world_size
    figures = _figures(session.config, state, counts, world_size, session.is_logloss)
    return {"status": "failed", "error": f"{type(error).__name__}: {error}", **figures, **_of_one_process(seconds)}


def summarise_untrained(
    config: AppConfig, world_size: int, parameters: dict[str, int], seconds: float
) -> dict[str, Any]:
    """The summary of a run that was built and not trained."""
    spent = {"total": seconds, "train": 0.0, "eval": 0.0, "checkpoint": 0.0}
    figures = _figures(config, RunState(), parameters, world_size, is_logloss=True)
    return {"status": "completed", **figures, **_of_one_process(spent)}


def _figures(
    config: AppConfig, state: RunState, parameters: dict[str, int], world_size: int, is_logloss: bool
) -> dict[str, Any]:
    """The figures that one process knows without the others."""
    losses, seconds, batch_size = state.all_losses(), state.all_step_seconds(), config.train.global_batch_size
    last = losses[-config.train.log_every_steps :]
    loss, measured = mean_loss(last), state.measured
    return {
        "version": SUMMARY_VERSION,
        "steps": state.step,
        "samples": state.step * batch_size,
        "world_size": world_size,
        "parameters": parameters,
        "train": {"loss": loss, "logloss": loss if is_logloss else None, "skipped_steps": state.skipped},
        "best": state.best,
        "eval": state.evaluation or dict.fromkeys(clicks.NAMES),
        "throughput": throughput(
            seconds, measured.input_wait, batch_size, measured.devices(), len(losses) - len(seconds)
        ),
        "covers": {
            "train": {"steps": len(last)},
            "throughput": {"steps": len(seconds)},
            "utilisation": {"steps": len(seconds)},
            "phase_seconds": {"steps": measured.phase_steps},
            "power": {"seconds": measured.energy_seconds},
            "memory": {"launches": "last"},
        },
    }


def _of_one_process(seconds: dict[str, float]) -> dict[str, Any]:
    """What a summary ends with that one process makes without the others."""
    return {
        "memory": {"host_peak_bytes": provenance.host_peak_bytes(), "device_peak_bytes": None},
        "power": None,
        "seconds": seconds,
        "digest": {"parameters": None, "losses": None},
    }


def mean_loss(losses: NDArray[np.float32]) -> float | None:
    """Mean of the finite losses (steps may have been skipped), None if there is none."""
    finite = losses[np.isfinite(losses)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else None


def throughput_spread(state: RunState, window: int) -> float | None:
    """Standard deviation over mean of the throughput of windows of steps; None with fewer than two windows."""
    seconds = state.all_step_seconds()
    rates = [1 / seconds[i : i + window].mean() for i in range(0, len(seconds) - window + 1, window)]
    return float(np.std(rates) / np.mean(rates)) if len(rates) > 1 else None


def closing_lines(summary: dict[str, Any], measured_before: int, keeps_best: bool = True) -> list[str]:
    """A summary as lines of text; `measured_before` steps were measured before the run was resumed."""
    status = summary["status"]
    head = (
        f"{status}: {summary['steps']:,} steps, {summary['samples']:,} samples in {summary['seconds']['total']:.1f} s"
    )
    rows = [*_closing_rows(summary, measured_before, keeps_best)]
    width = max(len(name) for name, _ in rows)
    return [
        coloured(head, COLOURS.get(status, "bold"), sys.stderr),
        *(f"  {coloured(name.ljust(width), 'dim', sys.stderr)}  {text}" for name, text in rows),
    ]


def _closing_rows(summary: dict[str, Any], measured_before: int, keeps_best: bool) -> Iterator[tuple[str, str]]:
    rates, seconds, found = summary["throughput"], summary["seconds"], summary["eval"]
    if summary["status"] == "interrupted":
        yield "to resume", INTERRUPTED
    if found.get("logloss") is not None:
        names = {
            "auc": "AUC",
            **users.NAMES,
            "ne": "NE",
            "logloss": "logloss",
            "accuracy": "accuracy",
            "calibration": "calibration",
        }
        figures = [f"{label} {found[key]:.5f}" for key, label in names.items() if found.get(key) is not None]
        yield "evaluation", f"{', '.join(figures)} ({found['split']}, {found['samples']:,} samples)"
    best = summary.get("best")
    if best is not None and best["step"] != found.get("step", best["step"]):
        yield "best AUC", f"{best['auc']:.5f} at step {best['step']:,}{' (checkpoint=best)' if keeps_best else ''}"
    for sentence in clicks.shortcomings(found, best, keeps_best):
        yield "attention", coloured(sentence, "yellow", sys.stderr)
    if rates.get("slowdown") is not None:
        yield "attention", coloured(slowdown_sentence(rates["slowdown"]), "yellow", sys.stderr)
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
