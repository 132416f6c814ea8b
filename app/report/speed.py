"""Parts of a mean step's time, and the share of the machine's limits that a run reaches."""

from dataclasses import dataclass

from app.metrics.documents import MIN_TRAIN_SECONDS
from app.report.read import RunFiles
from app.report.tables import ReportTable
from app.report.words import METERS, NOT_MEASURED, figure, percent

EXCHANGE = "communication"  # key in summary.json's phase_seconds
SHARES = {
    "matrix_flops_per_second": "model_flops_utilisation",
    "memory_bytes_per_second": "memory_bandwidth_utilisation",
}
COLORS = {"input wait": 5, "forward": 0, "backward": 1, "optimizer": 2, "exchange": 4, "host": 3}


@dataclass
class StepPart:
    """A part of a mean step, with its place in the palette of report.css."""

    name: str
    milliseconds: float
    share: float
    color: int


def step_parts(run: RunFiles) -> list[StepPart]:
    """Return the parts of a mean step in their order, which add up to it; none if they were not measured.

    Exchanges happen within forward and backward, so they are subtracted from both in proportion.
    """
    rates, phases = run.throughput, dict(run.summary.phase_seconds or {}) if run.summary else {}
    steps, wait = rates.steps_per_second, rates.input_wait_fraction
    forward, backward, optimizer = (phases.get(name) or 0.0 for name in ("forward", "backward", "optimizer"))
    if not steps or wait is None or not forward + backward:
        return []
    exchange = min(phases.get(EXCHANGE) or 0.0, forward + backward)
    computed = 1 - exchange / (forward + backward)
    seconds = {
        "input wait": wait / steps,
        "forward": forward * computed,
        "backward": backward * computed,
        "exchange": exchange,
        "optimizer": optimizer,
    }
    seconds["host"] = max(0.0, 1 / steps - sum(seconds.values()))
    whole = sum(seconds.values())
    return [
        StepPart(name, 1e3 * duration, duration / whole, COLORS[name])
        for name, duration in seconds.items()
        if duration or name != "exchange"
    ]


def limits(run: RunFiles) -> ReportTable:
    """Return what a run computed and moved per second and device, and its machine's limits; the note has the energy."""
    utilisation = (run.summary.utilisation or {}) if run.summary else {}
    rows = []
    for label, unit, achieved, ceiling in (
        ("Model FLOPs, of matrix products", "GFLOP/s", "flops_per_second", "matrix_flops_per_second"),
        ("Table bytes, of memory bandwidth", "GB/s", "table_bytes_per_second", "memory_bytes_per_second"),
    ):
        values = utilisation.get(achieved), utilisation.get(ceiling)
        amounts = [NOT_MEASURED if value is None else f"{value / 1e9:,.2f} {unit}" for value in values]
        rows.append([label, *amounts, share_of_limit(run, SHARES[ceiling])])
    columns = ["A second and device", "This run", "This machine's ceiling", "Share"]
    return ReportTable(columns, rows, {1, 2, 3}, f"{_why_no_ceiling(run)}Samples a second and watt: {energy(run)}.")


def share_of_limit(run: RunFiles, key: str) -> str:
    """Format one of SHARES of a run."""
    return percent((run.summary.utilisation or {}).get(key) if run.summary else None)


def _why_no_ceiling(run: RunFiles) -> str:
    """Return sentences on why shares were not measured; empty if they were."""
    summary, reasons = run.summary, ""
    utilisation = (summary.utilisation or {}) if summary else {}
    if summary is None or not utilisation or not run.throughput.steps_per_second:
        return "Measured at the end of a run that has steps beyond its warm-up. "
    if utilisation.get("flops_per_second") is None:
        reasons = "FLOPs of this model depend on the sample. "
    if utilisation.get("memory_bytes_per_second") is None:
        trained = summary.seconds.get("train", 0.0)
        is_short = (
            f"it takes {MIN_TRAIN_SECONDS:.0f} s of training, and this run has {trained:.1f}; a run with more steps "
            "(train.epochs, train.max_steps) measures them, and make bench measures them alone"
        )
        why = is_short if trained < MIN_TRAIN_SECONDS else "the devices have too little memory left"
        reasons += f"Ceilings were not measured: {why}. "
    return reasons


def energy(run: RunFiles) -> str:
    """Return samples per second and watt, with the mean power; or why it was not measured."""
    watts = run.summary.power.mean_watts if run.summary and run.summary.power else None
    rate = run.throughput.samples_per_second
    if not watts or rate is None:
        reason = METERS.get(str(run.manifest.platform), "") if run.is_of_hardware else ""
        return f"{NOT_MEASURED}, {reason}" if reason and not watts else NOT_MEASURED
    return f"{figure(rate / watts, 1)} at {watts:,.1f} W"
