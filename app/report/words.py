"""Figures as text."""

from collections.abc import Mapping
from typing import Any

from app.record.documents import RunManifest

NOT_MEASURED = "not measured"
MINUS = "−"


def figure(value: float | int | None, digits: int = 4) -> str:
    """Format a number with `digits` digits after the point."""
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 4) -> str:
    """Format a difference, with its sign."""
    return NOT_MEASURED if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def count(value: float | int | None) -> str:
    """Format a whole number with separators."""
    return NOT_MEASURED if value is None else f"{round(value):,}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share of one as a percentage."""
    return NOT_MEASURED if value is None else f"{value:.{digits}%}"


def size(num_bytes: float | None) -> str:
    """Format bytes in a suitable unit."""
    if num_bytes is None:
        return NOT_MEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:,.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def duration(seconds: float | None) -> str:
    """Format seconds as hours, minutes and seconds."""
    if seconds is None:
        return NOT_MEASURED
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


METERS = {
    "cpu": "as this machine has no RAPL counter that the run may read (/sys/class/powercap)",
    "cuda": "as NVML's energy counter cannot be read (it takes the nvidia-ml-py package)",
    "rocm": "as AMD SMI's energy accumulator cannot be read (it takes ROCm's amdsmi package)",
}


def plural(number: int, noun: str) -> str:
    """Format a count and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def precision(config: Mapping[str, Any]) -> str:
    """Return the precision in a run's configuration."""
    return str(config["runtime"].get("precision") or "fp32")


def devices(manifest: RunManifest) -> str:
    """Return the number, platform and names of a run's devices."""
    hardware = manifest.hardware
    names = sorted({device.name for device in hardware.devices}) or [hardware.cpu or "CPU"]
    return f"{manifest.world_size} × {manifest.platform} ({', '.join(names)})"
