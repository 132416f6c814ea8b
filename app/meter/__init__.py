"""Times of steps and of their phases, and the memory in use."""

from app.meter.meter import Meter, memory_in_use, step_time_histogram, throughput
from app.meter.phases import PHASES

__all__ = ["PHASES", "Meter", "memory_in_use", "step_time_histogram", "throughput"]
