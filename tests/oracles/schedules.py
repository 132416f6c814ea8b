"""Learning rates as a scheduler that is called once a step makes them; imports nothing of ours."""

import math


def rates(
    name: str, base: float, steps: int, warmup: int = 0, start: int = 0, decay: int = 0, end: float = 0.0
) -> list[float]:
    """The rate of each of `steps` steps.

    warmup_poly: facebookresearch/dlrm's LRPolicyScheduler, whose count begins at 1 and which keeps its last rate
    between warm-up and decay, and after it. cosine: linear warm-up, then half a cosine from `start` on. warmup:
    MLPerf's DLRMv4, from 0.
    """
    step_rates, last = [], base
    for step in range(steps):
        rate = base
        if name == "warmup":
            rate = base if step >= warmup else base * step / warmup
        elif name == "cosine":
            if step < warmup:
                rate = base * (step + 1) / warmup
            elif step > start:
                angle = math.pi * min(step - start, decay) / decay
                rate = base * end + base * (1 - end) / 2 * (1 + math.cos(angle))
        elif name == "warmup_poly":
            count = step + 1
            if count < warmup:
                rate = last = base * (1 - (warmup - count) / warmup)
            elif start <= count < start + decay:
                rate = last = max(1e-7, base * ((decay - (count - start)) / decay) ** 2)
            elif decay:
                rate = last
        step_rates.append(rate)
    return step_rates
