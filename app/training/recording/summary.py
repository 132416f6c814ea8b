"""A run's final figures (summary.json), and how they read on a terminal. What was not measured is None."""

import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from app.config import TrainConfig
from app.kinds.metrics import AUC, LOGLOSS, METRICS, NE, OF_ROWS
from app.metrics import clicks
from app.metrics.documents import Best, EvaluationFigures, Power
from app.metrics.timing import PHASES, throughput
from app.record import provenance
from app.record.documents import SUMMARY_VERSION, Covered, Digests, Memory, Parameters, Summary, TrainFigures
from app.training.recording.table_figures import TableMeter
from app.training.session import Session
from app.training.state import RunState
from common.documents import Json, convert
from common.extensions import absence
from common.terminal import coloured

COLOURS = {"completed": "green", "target_reached": "green", "interrupted": "yellow", "failed": "red"}
INTERRUPTED = "saved; the same command resumes from here"


class Clocks(NamedTuple):
    """Measurements that a run's state lacks: seconds by phase, and what measured the energy (meter).

    communication_seconds: of a step's exchanges on this process; None if they were not measured.
    """

    seconds: dict[str, float]
    meter: str
    communication_seconds: float | None


def summarise(
    session: Session,
    state: RunState,
    served: EvaluationFigures | None,
    status: str,
    clocks: Clocks,
) -> Summary:
    """Return the content of summary.json; a collective call. served: the served model's evaluation, on rank 0."""
    runtime, measured = session.runtime, state.measured
    device_peak = torch.cuda.max_memory_allocated() if runtime.device.type == "cuda" else None
    summary = _figures_of(session, state)
    summary.eval = served or summary.eval
    summary.status = status
    summary.memory = Memory(
        host_peak_bytes=int(runtime.highest(provenance.host_peak_bytes())),
        device_peak_bytes=None if device_peak is None else int(runtime.highest(device_peak)),
    )
    exchanged = runtime.highest(clocks.communication_seconds or 0.0) or None
    summary.phase_seconds = {**measured.phase_means(PHASES), "communication": exchanged}
    summary.power = Power.of(measured, clocks.meter)
    summary.seconds = clocks.seconds
    digest = sha256(state.all_losses().tobytes()).hexdigest()
    # Where rows change only when a step looks them up, those that differ from the initial values have been looked up.
    config = session.config
    counts_touched = not config.optimizer.sparse_weight_decay and config.checkpoint.resume in ("auto", "never")
    meter_of_tables = TableMeter(session.model.module.sparse_arch.tables, config.train.seed, counts_touched)
    summary.digest = Digests(parameters=session.parameters_digest(meter_of_tables), losses=digest)
    summary.tables = meter_of_tables.figures()
    return summary


def summarise_failure(
    session: Session, state: RunState, served: EvaluationFigures | None, error: Exception, seconds: dict[str, float]
) -> Summary:
    """Return the summary of a failed run, made by one process without the others."""
    summary = _of_one_process(_figures_of(session, state), seconds)
    summary.eval = served or summary.eval
    summary.status, summary.error = "failed", f"{type(error).__name__}: {error}"
    return summary


def summarise_untrained(train: TrainConfig, world_size: int, parameters: dict[str, int], seconds: float) -> Summary:
    """Return the summary of a run that was built and not trained."""
    seconds_by_kind = {"total": seconds, "train": 0.0, "eval": 0.0, "checkpoint": 0.0}
    return _of_one_process(_figures(train, RunState(), 0, parameters, world_size, is_logloss=True), seconds_by_kind)


def _figures_of(session: Session, state: RunState) -> Summary:
    """Return the figures that one process of a session knows without the others."""
    world_size, samples = session.runtime.world_size, session.predictor.samples(state.step)
    figures = _figures(session.config.train, state, samples, session.parameter_counts(), world_size, session.is_logloss)
    figures.no_baselines = None if session.config.baselines is False else absence("baselines")
    return figures


def _figures(
    train: TrainConfig, state: RunState, samples: int, parameters: dict[str, int], world_size: int, is_logloss: bool
) -> Summary:
    """Return the figures that one process knows without the others; samples: of all steps."""
    losses, seconds = state.all_losses(), state.all_step_seconds()
    batch_size = samples / max(state.step, 1)
    last = losses[-train.log_every_steps :]
    loss, measured = mean_loss(last), state.measured
    newest = state.evaluation or undefined_evaluation()
    return Summary(
        status="completed",
        version=SUMMARY_VERSION,
        steps=state.step,
        samples=samples,
        world_size=world_size,
        parameters=convert(parameters, Parameters),
        train=TrainFigures(loss=loss, logloss=loss if is_logloss else None, skipped_steps=state.skipped),
        best=state.best,
        early_stop=None,  # the run decides it at its end
        eval=newest,
        last=newest,
        baselines=None,  # the extension computes them once the run is complete
        no_baselines=None,
        throughput=throughput(seconds, measured.input_wait, batch_size, measured.devices(), len(losses) - len(seconds)),
        covers={
            "train": Covered(steps=len(last)),
            "throughput": Covered(steps=len(seconds)),
            "phase_seconds": Covered(steps=measured.phase_steps),
            "power": Covered(seconds=measured.energy_seconds),
            "memory": Covered(launches="last"),
        },
    )


def undefined_evaluation() -> EvaluationFigures:
    """Return an evaluation whose figures are all None."""
    undefined: Json = {name: None for name in OF_ROWS if name != AUC}
    return EvaluationFigures(auc=None, rest=undefined)


def _of_one_process(summary: Summary, seconds: dict[str, float]) -> Summary:
    """Add the last figures of a summary that one process makes without the others; return it."""
    summary.memory = Memory(host_peak_bytes=provenance.host_peak_bytes())
    summary.power, summary.seconds, summary.digest = None, seconds, Digests()
    return summary


def mean_loss(losses: NDArray[np.float32]) -> float | None:
    """Return the mean of the finite losses (steps may have been skipped); None if there is none."""
    finite = losses[np.isfinite(losses)]
    return float(finite.mean(dtype=np.float64)) if len(finite) else None


def throughput_spread(state: RunState, window: int) -> float | None:
    """Return the standard deviation over the mean of windows' throughput; None with fewer than two windows."""
    seconds = state.all_step_seconds()
    rates = [1 / seconds[i : i + window].mean() for i in range(0, len(seconds) - window + 1, window)]
    return float(np.std(rates) / np.mean(rates)) if len(rates) > 1 else None


def closing_lines(
    summary: Summary,
    measured_before: int,
    keeps_best: bool = True,
    encoding: str | None = None,
    must_beat_rate: bool = False,
) -> list[str]:
    """Return a summary as lines of text.

    Args:
        measured_before: steps that were measured before the run was resumed.
        keeps_best, encoding: as `clicks.shortcomings` takes them.
        must_beat_rate: whether the model has seen an epoch, and its probabilities are rates.
    """
    seconds = summary.seconds.get("total", 0.0)
    head = f"{summary.status}: {summary.steps:,} steps, {summary.samples:,} samples in {seconds:.1f} s"
    evaluations = summary.events.get("eval", 0)
    remarks = clicks.shortcomings(summary.last, summary.best, evaluations, keeps_best, encoding)
    ne = summary.eval.figure(NE)
    if must_beat_rate and not remarks and ne is not None and ne >= 1:
        remarks = [
            f"After an epoch no better than the base rate, the same probability for each row: NE {ne:.5f} is not below "
            "1; train for more steps (train.epochs), or with another optimizer.lr or optimizer.sparse_lr"
        ]
    rows = [*_closing_rows(summary, measured_before, remarks)]
    width = max(len(name) for name, _ in rows)
    return [
        coloured(head, COLOURS.get(summary.status, "bold"), sys.stderr),
        *(f"  {coloured(name.ljust(width), 'dim', sys.stderr)}  {text}" for name, text in rows),
    ]


def _closing_rows(summary: Summary, measured_before: int, remarks: Sequence[str]) -> Iterator[tuple[str, str]]:
    best, seconds = summary.best, summary.seconds
    if summary.status == "interrupted":
        yield "to resume", INTERRUPTED
    yield from _quality_rows(summary, best)
    if summary.early_stop:
        yield "early stop", summary.early_stop.reason
    for sentence in remarks:
        yield "attention", coloured(sentence, "yellow", sys.stderr)
    yield from _speed_rows(summary, measured_before)
    kinds = (("train", "training"), ("eval", "evaluation"), ("checkpoint", "checkpoints"))
    rest = max(0.0, seconds.get("total", 0.0) - sum(seconds[key] for key, _ in kinds))
    times = [f"{label} {seconds[key]:.1f} s" for key, label in kinds]
    yield "time", ", ".join([*times, f"start (imports, data, model) and end {rest:.1f} s"])
    memory = summary.memory or Memory()
    peaks = (("host", memory.host_peak_bytes), ("device", memory.device_peak_bytes))
    if peak_texts := [f"{label} {peak / 2**20:,.0f} MiB" for label, peak in peaks if peak]:
        yield "peak memory", ", ".join(peak_texts)
    if summary.power and summary.power.mean_watts is not None:
        yield "power", f"{summary.power.mean_watts:,.1f} W ({summary.power.source or 'mean'})"


def _quality_rows(summary: Summary, best: Best | None) -> Iterator[tuple[str, str]]:
    """Yield the evaluation of the served model, if there was one; the last and the best too, if they differ from it."""
    evaluation, last = summary.eval, summary.last
    if evaluation.figure(evaluation.main) is None and evaluation.figure(LOGLOSS) is None:
        return
    metrics = [metric for metric in METRICS.values() if metric.in_summary]
    values = [(metric.label, evaluation.figure(metric.name)) for metric in metrics]
    figures = [f"{label} {value:.5f}" for label, value in values if value is not None]
    is_last = evaluation.step == last.step
    of = "" if is_last else f", of the best checkpoint, step {evaluation.step:,}"
    yield "evaluation", f"{', '.join(figures)} ({evaluation.split}, {evaluation.samples:,} samples{of})"
    if not is_last and (value := last.figure(last.main)) is not None:
        yield f"last {METRICS[last.main].label}", f"{value:.5f} at step {last.step:,} (checkpoint=last)"
    if best is not None and best.of_monitor is not None and evaluation.step not in (None, best.step):
        yield f"best {best.label}", f"{best.of_monitor:.5f} at step {best.step:,}"


def _speed_rows(summary: Summary, measured_before: int) -> Iterator[tuple[str, str]]:
    """Yield throughput and step times, if any step was measured."""
    rates = summary.throughput
    if rates.samples_per_second is None:
        return
    before = f", {measured_before:,} of them before the resumption" if measured_before else ""
    steps = f"(over {rates.steps_measured:,} steps{before})"
    each = rates.samples_per_second_per_device
    yield "throughput", f"{rates.samples_per_second:,.0f} samples/s global, {each:,.0f} per device {steps}"
    times = f"p50 {rates.step_ms_p50:.2f} ms, p95 {rates.step_ms_p95:.2f} ms"
    yield "step", f"{times}; waiting for input {rates.input_wait_fraction:.1%}{_phase_times(summary)}"


def _phase_times(summary: Summary) -> str:
    """Return the mean milliseconds of a step's phases, for those that were measured."""
    phases = summary.phase_seconds or {}
    phase_texts = [f"{name} {seconds * 1e3:.2f} ms" for name, seconds in phases.items() if seconds]
    return f"; {', '.join(phase_texts)}" if phase_texts else ""
