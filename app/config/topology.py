"""`topology`: what TorchRec's planner must know of the hardware."""

from dataclasses import dataclass, field

from app.config.checks import require_at_least, require_positive
from common.errors import UserError

AUTO = "auto"


@dataclass
class TopologyConfig:
    """One kind of device, and how many. GiB are 2^30 bytes, GB/s 10^9 bytes a second, in one direction.

    What the vendor's documents say at best; `link_efficiency` says what part of it collectives are taken to reach.
    """

    name: str = AUTO  # auto: the device here is looked for among conf/topology/*.yaml
    file: str | None = None  # a YAML file with these keys, for a device that is not there
    architecture: str | None = None  # gfx942, sm_90, …: as ROCm and CUDA name it; cpu
    memory_gib: float | None = None  # of the device; null for cpu: this machine's, divided among its processes
    memory_gb_per_s: float | None = None
    host_memory_gib: float | None = None  # for each device
    host_memory_gb_per_s: float | None = None  # for each device
    host_link_gb_per_s: float | None = None  # between the device and host memory
    intra_host_gb_per_s: float | None = None  # between devices of a machine, all links of one device together
    inter_host_gb_per_s: float | None = None  # between machines, for each device
    link_efficiency: float = 0.8  # of intra_host and inter_host
    reserve: float = 0.15  # part of the memory kept free for dense layers, activations and the allocator
    sources: dict[str, str] = field(default_factory=dict)  # where each figure is from
    nodes: int | None = None  # machines; null: those of the run, 1 for a plan
    devices_per_node: int | None = None  # null: those of the run; for a plan, the GPUs here, or 1


HARDWARE = ("architecture", "memory_gib", "memory_gb_per_s", "host_memory_gib", "host_memory_gb_per_s",
            "host_link_gb_per_s", "intra_host_gb_per_s", "inter_host_gb_per_s")  # fmt: skip


def validate_topology(topology: TopologyConfig) -> None:
    """Raises UserError for values that cannot work or would do nothing."""
    require_at_least({f"topology.{key}": (getattr(topology, key), 1) for key in ("nodes", "devices_per_node")})
    require_positive({f"topology.{key}": getattr(topology, key) for key in HARDWARE[1:]})
    if not 0 < topology.link_efficiency <= 1:
        raise UserError(f"topology.link_efficiency={topology.link_efficiency}: must be in (0, 1]")
    if not 0 <= topology.reserve < 1:
        raise UserError(f"topology.reserve={topology.reserve}: must be in [0, 1)")
