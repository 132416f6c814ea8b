"""Learning rates over steps."""

import math

from app.config import ScheduleConfig, ScheduleName


def learning_rate(base: float, config: ScheduleConfig, step: int) -> float:
    """Learning rate of a step (the first is 0), from the base rate.

    warmup_poly is facebookresearch/dlrm's LRPolicyScheduler to the bit, quirks included: its count starts at 1;
    between warm-up and decay it holds the last rate of the warm-up, base * (warmup_steps - 1) / warmup_steps;
    from decay_start_step on it falls as base * ((decay_steps - steps in decay) / decay_steps)^2, not below 1e-7,
    and stays where it ended. Without decay_steps it holds the base rate after the warm-up.
    cosine rises to the base rate at step warmup_steps - 1, holds it, and falls over decay_steps from
    decay_start_step on as base * (end_factor + (1 - end_factor) * (1 + cos(pi * share of the decay)) / 2).
    warmup is base * min(1, step / warmup_steps): 0 in the first step.
    """
    if config.name is ScheduleName.constant:
        return base
    if config.name is ScheduleName.warmup:
        return base * min(1.0, step / config.warmup_steps)
    return _cosine(base, config, step) if config.name is ScheduleName.cosine else _warmup_poly(base, config, step)


def _warmup_poly(base: float, config: ScheduleConfig, step: int) -> float:
    count = step + 1
    if count < config.warmup_steps:
        return base * (1.0 - (config.warmup_steps - count) / config.warmup_steps)
    if not config.decay_steps:
        return base
    if count < config.decay_start_step:
        return base * (1.0 - 1.0 / config.warmup_steps) if config.warmup_steps > 1 else base
    in_decay = min(count - config.decay_start_step, config.decay_steps - 1)
    return max(1e-7, base * ((config.decay_steps - in_decay) / config.decay_steps) ** 2)


def _cosine(base: float, config: ScheduleConfig, step: int) -> float:
    if step < config.warmup_steps:
        return base * (step + 1) / config.warmup_steps
    share = min(max(step - config.decay_start_step, 0) / config.decay_steps, 1.0)
    return base * (config.end_factor + (1 - config.end_factor) * (1 + math.cos(math.pi * share)) / 2)
