"""What a run's steps took, summed over windows and launches: the one place where such sums are made.

An event of metrics.jsonl has what was added since the one before (`measured`); a checkpoint has the sums, so that they
are those of the steps that the run consists of, whatever was trained again after a kill.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Measured:
    """Sums over steps that count for throughput, and energy.

    Attributes:
        steps: steps that count: all but the first ones of each launch.
        seconds: of these steps, by the clock of the process that records.
        device_seconds: seconds times the devices that computed meanwhile.
        input_wait: seconds of them spent waiting for batches.
        phase_steps: those whose phases were timed.
        phases: seconds of these by phase, of the slowest process in each window.
        joules, energy_seconds: energy of the devices, and the seconds in which it was metered, evaluations included.
    """

    steps: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    input_wait: float = 0.0
    phase_steps: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    joules: float = 0.0
    energy_seconds: float = 0.0

    def add(self, other: "Measured") -> None:
        """Add another's sums to these."""
        for key in fields(self):
            if key.name != "phases":
                setattr(self, key.name, getattr(self, key.name) + getattr(other, key.name))
        for name, seconds in other.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds

    def devices(self) -> float:
        """The mean number of devices that computed at a time; 1 where nothing was measured."""
        return self.device_seconds / self.seconds if self.seconds else 1.0

    def phase_means(self, names: Sequence[str]) -> dict[str, float | None]:
        """Mean seconds of a step's phases; None where not measured."""
        return {name: self.phases.get(name, 0.0) / self.phase_steps if self.phase_steps else None for name in names}

    def power(self, source: str) -> dict[str, Any] | None:
        """Energy and mean power for summary.json; None where not measured."""
        if not self.energy_seconds:
            return None
        return {"mean_watts": self.joules / self.energy_seconds, "joules": self.joules, "source": source}


def of_steps(seconds: NDArray[np.float32], devices: int, input_wait: float) -> Measured:
    """Of steps that count [steps]; without phases and energy."""
    total = float(seconds.sum(dtype=np.float64))
    return Measured(len(seconds), total, total * devices, input_wait)


def from_checkpoint(state: Mapping[str, Any], step_seconds: NDArray[np.float32]) -> Measured:
    """The sums in a checkpoint's state; of an older one what can be known, as if all was done by its last processes."""
    if "measured" in state:
        return Measured(**state["measured"])
    return of_steps(step_seconds, state["world_size"], state["input_wait"])
