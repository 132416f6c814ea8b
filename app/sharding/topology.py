"""Hardware that the planner plans for: known topologies, the device of this process, and TorchRec's form."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torchrec.distributed.planner.types import Topology

from app.config import CONFIG_DIR, TopologyConfig
from app.config.sharding import AUTO_TOPOLOGY, HARDWARE
from common.compose import ConversionError, convert
from common.errors import UserError
from common.keys import check_keys

log = logging.getLogger("clickwork")

GIB, GB_PER_S = 2**30, 1e6  # bytes; bytes per millisecond, TorchRec's unit
LINK_EFFICIENCY, RESERVE = 0.8, 0.15  # defaults
SAME_MEMORY = 0.06  # drivers report this much less or more than data sheets


@dataclass(frozen=True)
class Device:
    """A device as it was probed."""

    name: str
    architecture: str
    memory_gib: float

    def __str__(self) -> str:
        return f"{self.name} ({self.architecture}, {self.memory_gib:.1f} GiB)"


def probe(device_type: str) -> Device:
    """Return this process's device, `cuda` (also for ROCm) or `cpu`; memory is the total, used or not."""
    if device_type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Device("CPU", "cpu", memory / GIB)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    hip = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    architecture = hip.split(":")[0] or f"sm_{properties.major}{properties.minor}"
    return Device(properties.name, architecture, properties.total_memory / GIB)


def load_all() -> dict[str, TopologyConfig]:
    """Return the topologies of conf/topology by name."""
    files = sorted((CONFIG_DIR / "topology").glob("*.yaml"))
    return {path.stem: read(path) for path in files if path.stem != AUTO_TOPOLOGY}


def read(path: Path) -> TopologyConfig:
    """Read a topology from its YAML file. Raises UserError for another file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return convert(TopologyConfig, content)
    except OSError as error:
        raise UserError(f"topology.file={path}: not readable ({error.strerror})") from error
    except (yaml.YAMLError, ConversionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"topology.file={path}: not a topology ({reason})") from error


def resolve(config: TopologyConfig, find: Callable[[], Device], devices_per_node: int) -> TopologyConfig:
    """Return the configuration with every figure filled in: from its file, from the known device, or as given.

    `find` probes the device; it is not called if the configuration is complete.

    Raises:
        UserError: the device is not known, or a figure is missing.
    """
    if config.file is not None:
        config = _over(read(Path(config.file)), config)
    elif config.name == AUTO_TOPOLOGY and any(getattr(config, key) is None for key in HARDWARE):
        entry = identify(find(), load_all())
        config = replace(_over(entry, config), name=entry.name)
    if config.architecture == "cpu":
        memory = config.memory_gib or probe("cpu").memory_gib / devices_per_node
        config = replace(config, memory_gib=memory, host_memory_gib=config.host_memory_gib or memory)
    for key in HARDWARE:
        if getattr(config, key) is None:
            raise UserError(f"topology.{key}=null: topology {config.name} needs it; {_example(find())}")
    config = _over(TopologyConfig(link_efficiency=LINK_EFFICIENCY, reserve=RESERVE), config)
    check_keys(config, "topology.")  # also checks figures from a file
    return config


def identify(device: Device, among: Mapping[str, TopologyConfig]) -> TopologyConfig:
    """Return the known topology of a device, identified by architecture and measured memory."""
    fit = [
        entry
        for entry in among.values()
        if entry.architecture == device.architecture
        and (entry.memory_gib is None or abs(device.memory_gib / entry.memory_gib - 1) <= SAME_MEMORY)
    ]
    if not fit:
        raise UserError(f"topology=auto: {device} is not known; {_example(device)}")
    spelled = device.name.lower().replace(" ", "")
    # Gb300 also contains b300: the longest name wins.
    best = max(fit, key=lambda entry: len(entry.name) * (entry.name in spelled))
    log.info("topology: %s identified as %s", device, best.name)
    if "pcie" in spelled:
        log.warning(
            "topology: %s is the form with NVLink; give topology.memory_gb_per_s and .intra_host_gb_per_s of "
            "the PCIe card",
            best.name,
        )
    return best


def to_torchrec(topology: TopologyConfig, world_size: int, local_world_size: int) -> Topology:
    """Return a resolved topology in TorchRec's form.

    TorchRec's own factory is newer than the oldest supported TorchRec, and ignores bandwidths by default; the
    constructor takes the same figures. TorchRec calls ROCm's devices "cuda", too.
    """
    cpu = topology.architecture == "cpu"
    figures: dict[str, Any] = {key: getattr(topology, key) for key in HARDWARE[1:]}
    assert topology.link_efficiency is not None
    assert topology.reserve is not None
    links = GB_PER_S * topology.link_efficiency
    host_part = 1 - topology.reserve if cpu else 1.0  # the planner itself reserves only device memory
    return Topology(
        world_size=world_size,
        local_world_size=local_world_size,
        compute_device="cpu" if cpu else "cuda",
        hbm_cap=0 if cpu else int(figures["memory_gib"] * GIB),
        ddr_cap=int(figures["host_memory_gib"] * GIB * host_part),
        hbm_mem_bw=figures["memory_gb_per_s"] * GB_PER_S,
        ddr_mem_bw=figures["host_memory_gb_per_s"] * GB_PER_S,
        hbm_to_ddr_mem_bw=figures["host_link_gb_per_s"] * GB_PER_S,
        intra_host_bw=figures["intra_host_gb_per_s"] * links,
        inter_host_bw=figures["inter_host_gb_per_s"] * links,
    )


def _over(base: TopologyConfig, config: TopologyConfig) -> TopologyConfig:
    """Return `base` with the values that `config` sets itself."""
    plain = TopologyConfig()
    overrides = {key: value for key, value in vars(config).items() if value != getattr(plain, key)}
    return replace(base, **overrides)


def _example(device: Device) -> str:
    """Return the overrides that describe this device, on one line."""
    overrides = {"name": "mine", "architecture": device.architecture, "memory_gib": round(device.memory_gib)}
    text = ", ".join(f"{key}: {value}" for key, value in {**overrides, **dict.fromkeys(HARDWARE[2:], "...")}.items())
    return f"describe it in mine.yaml, in GiB and GB/s one way: {{{text}}}; then give topology.file=mine.yaml"
