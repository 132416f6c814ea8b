"""Time and energy of a run's steps, summed over windows and launches; no other module makes such sums.

An event of metrics.jsonl has the sums since the event before (`measured`). A checkpoint has those since the run began,
so they cover exactly the run's own steps, even if some were trained again after a kill.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray


@dataclass
class Measured:
    """Sums over steps that count for throughput, and energy.

    Attributes:
        steps: counted steps: all except the first ones of each launch.
        seconds: of these steps, by the clock of the process that records.
        device_seconds: seconds times the devices that computed meanwhile.
        input_wait: the part of seconds that was spent waiting for batches.
        phase_steps: steps whose phases were timed.
        phases: seconds of these steps by phase, on the slowest process in each window.
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
        """Return the mean number of devices that computed at a time; 1 if nothing was measured."""
        return self.device_seconds / self.seconds if self.seconds else 1.0

    def phase_means(self, names: Sequence[str]) -> dict[str, float | None]:
        """Return the mean seconds of a step's phases; None if they were not measured."""
        return {name: self.phases.get(name, 0.0) / self.phase_steps if self.phase_steps else None for name in names}


def of_steps(seconds: NDArray[np.float32], devices: int, input_wait: float) -> Measured:
    """Return the sums of counted steps [steps], without phases and energy."""
    total = float(seconds.sum(dtype=np.float64))
    return Measured(len(seconds), total, total * devices, input_wait)
