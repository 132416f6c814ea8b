"""Where a step's time goes: forward, backward (with the fused tables' update), the dense optimizer, the rest."""

from typing import Any

import torch

PHASES = ("forward", "backward", "optimizer")
SAMPLED_EVERY = {"cpu": 1, "cuda": 16}  # marks cost nothing beside a CPU's step, a little beside a GPU's


class Phases:
    """Marks on the device's own clock within some of the steps.

    `mark` makes a mark; `between` gives the seconds from one to another, once the device is done with both.
    """

    def __init__(self, device: torch.device, mark: Any, between: Any) -> None:
        self._every, self._mark, self._between = SAMPLED_EVERY.get(device.type, 1), mark, between
        self._count = 0
        self._marks: list[tuple[str, Any]] = []  # of the sampled steps: "", then the phases that were done

    def step_begins(self) -> None:
        """The step's batch is there."""
        self._count += 1
        if self._count % self._every == 0:
            self._marks.append(("", self._mark()))

    def done(self, phase: str) -> None:
        """A phase of PHASES is done."""
        if self._count % self._every == 0:
            self._marks.append((phase, self._mark()))

    def take(self) -> dict[str, float]:
        """Seconds a step of each phase since the last call, means over the sampled steps; empty if there was none."""
        totals: dict[str, float] = {}
        steps = sum(name == "" for name, _ in self._marks)
        for (_, before), (name, after) in zip(self._marks, self._marks[1:], strict=False):
            if name:
                totals[name] = totals.get(name, 0.0) + self._between(before, after)
        self._marks.clear()
        return {name: seconds / steps for name, seconds in totals.items()}
