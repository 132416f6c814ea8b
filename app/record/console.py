"""The last lines of a run on a terminal: its figures as a small table."""

import sys
from collections.abc import Iterator
from typing import Any

from common.terminal import coloured

COLOURS = {"completed": "green", "target_reached": "green", "interrupted": "yellow", "failed": "red"}
INTERRUPTED = "saved; the same command goes on from here"


def closing_lines(summary: dict[str, Any], measured_before: int) -> list[str]:
    """Lines that tell summary.json; `measured_before` steps were measured before the run was resumed."""
    status = summary["status"]
    head = (
        f"{status}: {summary['steps']:,} steps, {summary['samples']:,} samples in {summary['seconds']['total']:.1f} s"
    )
    rows = [*_rows(summary, measured_before)]
    width = max(len(name) for name, _ in rows)
    return [
        coloured(head, COLOURS.get(status, "bold"), sys.stderr),
        *(f"  {coloured(name.ljust(width), 'dim', sys.stderr)}  {text}" for name, text in rows),
    ]


def _rows(summary: dict[str, Any], measured_before: int) -> Iterator[tuple[str, str]]:
    rates, seconds, found = summary["throughput"], summary["seconds"], summary["eval"]
    if summary["status"] == "interrupted":
        yield "to go on", INTERRUPTED
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
                f"{rates['input_wait_fraction']:.1%}{_phases(summary)}"
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


def _phases(summary: dict[str, Any]) -> str:
    """Mean milliseconds of a step's phases, where they were measured."""
    phases = summary.get("phase_seconds") or {}
    told = [f"{name} {seconds * 1e3:.2f} ms" for name, seconds in phases.items() if seconds]
    return f"; {', '.join(told)}" if told else ""
