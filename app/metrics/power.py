"""Energy that devices use, from the platforms' counters: NVML, AMD SMI, RAPL."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger("clickwork")

RAPL = Path("/sys/class/powercap")
Counter = Callable[[], float]  # returns joules since an arbitrary time


class EnergyMeter:
    """Joules of this process's device, or of the whole machine's processors."""

    def __init__(self, device: torch.device, rapl: Path = RAPL) -> None:
        self.source, self._counter = _find_counter(device, rapl)
        self._last: tuple[float, float] | None = None

    def start(self) -> None:
        """Start counting."""
        self._last = self._read()

    def lap(self) -> tuple[float, float] | None:
        """Return the joules since the last call or the start, and the seconds since then; None if not measured."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None or self._last[0] <= before[0]:
            return None
        return self._last[1] - before[1], self._last[0] - before[0]

    def _read(self) -> tuple[float, float] | None:
        if self._counter is None:
            return None
        try:
            return time.perf_counter(), self._counter()
        except Exception as error:  # noqa: BLE001  # NVML's and AMD SMI's errors derive only from Exception
            log.warning("power: %s can no longer be read (%s)", self.source, error)
            self._counter = None
            return None


def _find_counter(device: torch.device, rapl: Path) -> tuple[str, Counter | None]:
    if device.type != "cuda":
        counter = _rapl(rapl)
        return "RAPL: processor packages of all machines", counter
    if torch.version.hip:
        return "AMD SMI: the GPUs of all processes", _amd(device)
    return "NVML: the GPUs of all processes", _nvml(device)


def _nvml(device: torch.device) -> Counter | None:
    """Return NVML's energy counter by nvidia-ml-py, if installed; finds the GPU by UUID, as CUDA's indices differ."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID((uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").encode())
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # noqa: BLE001  # not installed, no driver, no such counter: each its own exception
        log.info("power: not measured (NVML: %s)", error)
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # millijoules


def _amd(device: torch.device) -> Counter | None:
    """Return AMD SMI's energy accumulator, by the amdsmi package of ROCm."""
    try:
        import amdsmi

        amdsmi.amdsmi_init()
        properties: Any = torch.cuda.get_device_properties(device)
        bus = properties.pci_bus_id
        handles = amdsmi.amdsmi_get_processor_handles()
        handle = next(h for h in handles if int(amdsmi.amdsmi_get_gpu_device_bdf(h).split(":")[1], 16) == bus)
        amdsmi.amdsmi_get_energy_count(handle)
    except Exception as error:  # noqa: BLE001  # as above
        log.info("power: not measured (AMD SMI: %s)", error)
        return None

    def joules() -> float:
        energy = amdsmi.amdsmi_get_energy_count(handle)
        return float(energy["energy_accumulator"]) * float(energy["counter_resolution"]) / 1e6  # microjoules

    return joules


def _rapl(root: Path) -> Counter | None:
    """Return the sum of the packages' counters in sysfs, which only root can read; None if there are none."""
    packages = []
    for zone in sorted(root.glob("*rapl:*")):
        try:
            if zone.name.count(":") == 1 and (zone / "name").read_text(encoding="utf-8").startswith("package"):
                packages.append(_Package(zone))
        except (OSError, ValueError):
            continue
    return (lambda: sum(package.joules() for package in packages)) if packages else None


class _Package:
    """One counter of microjoules, which goes on counting where it wraps around at max_energy_range_uj."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text(encoding="utf-8"))
        self._last, self._wraps = int(self._file.read_text(encoding="utf-8")), 0

    def joules(self) -> float:
        now = int(self._file.read_text(encoding="utf-8"))
        self._wraps += now < self._last
        self._last = now
        return (self._wraps * self._range + now) / 1e6
