"""Parts of a mean step's time, and samples a second and watt."""

from dataclasses import dataclass

from app.report.read import RunFiles
from app.report.words import METERS, NOT_MEASURED, figure

EXCHANGE = "communication"  # key in summary.json's phase_seconds
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


def energy(run: RunFiles) -> str:
    """Return samples per second and watt, with the mean power; or why it was not measured."""
    watts = run.summary.power.mean_watts if run.summary and run.summary.power else None
    rate = run.throughput.samples_per_second
    if not watts or rate is None:
        reason = METERS.get(str(run.manifest.platform), "") if run.is_of_hardware else ""
        return f"{NOT_MEASURED}, {reason}" if reason and not watts else NOT_MEASURED
    return f"{figure(rate / watts, 1)} at {watts:,.1f} W"
