"""Learning rates over steps."""

import math

from app.config import ScheduleConfig
from common.command import load


def learning_rate(base: float, config: ScheduleConfig, step: int, cuts: int = 0) -> float:
    """Return the learning rate of a step (the first is 0); cuts: how often evaluations have cut it so far."""
    rate = load(config.name.schedule.rate)(base, config, step, cuts)
    assert isinstance(rate, float)
    return rate


def constant(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return the base rate."""
    return base


def warmup(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return base * min(1, step / warmup_steps), which is 0 in the first step."""
    return base * min(1.0, step / config.warmup_steps)


def warmup_poly(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return the rate of facebookresearch/dlrm's LRPolicyScheduler to the bit, quirks included: its count starts at 1.

    Between warm-up and decay it holds the last rate of the warm-up, base * (warmup_steps - 1) / warmup_steps. From
    decay_start_step on it falls as base * ((decay_steps - steps in decay) / decay_steps)^2, not below 1e-7, and stays
    where it ended. Without decay_steps it holds the base rate after the warm-up.
    """
    count = step + 1
    if count < config.warmup_steps:
        return base * (1.0 - (config.warmup_steps - count) / config.warmup_steps)
    if not config.decay_steps:
        return base
    if count < config.decay_start_step:
        return base * (1.0 - 1.0 / config.warmup_steps) if config.warmup_steps > 1 else base
    in_decay = min(count - config.decay_start_step, config.decay_steps - 1)
    return float(max(1e-7, base * ((config.decay_steps - in_decay) / config.decay_steps) ** 2))


def cosine(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return a rate that rises linearly to the base rate at step warmup_steps - 1, and decays along half a cosine.

    From decay_start_step on it is base * (end_factor + (1 - end_factor) * (1 + cos(pi * share of the decay)) / 2).
    """
    if step < config.warmup_steps:
        return base * (step + 1) / config.warmup_steps
    share = min(max(step - config.decay_start_step, 0) / config.decay_steps, 1.0)
    return base * (config.end_factor + (1 - config.end_factor) * (1 + math.cos(math.pi * share)) / 2)


def plateau(base: float, config: ScheduleConfig, step: int, cuts: int) -> float:
    """Return the rate of torch's ReduceLROnPlateau: each cut multiplies it by `factor`, but not below min_lr."""
    rate = base
    for _ in range(cuts):
        rate = min(rate, max(rate * config.factor, config.min_lr))
    return rate
