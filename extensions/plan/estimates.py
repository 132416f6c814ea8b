"""TorchRec's estimates of a plan: memory and time of each table's parts."""

from typing import Any, NamedTuple

from torch import nn

from app.sharding.plan import Plan
from app.sharding.planner import Choice, Workload, sharding_options


class Estimate(NamedTuple):
    """Cost of a table's part on its process: bytes, and milliseconds per step for forward and backward."""

    rank: int
    device_bytes: int = 0
    host_bytes: int = 0
    lookup_ms: float = 0.0
    communication_ms: float = 0.0

    @property
    def total_bytes(self) -> int:
        """Return the bytes in device and host memory: weights, optimizer state and buffers."""
        return self.device_bytes + self.host_bytes

    @property
    def total_ms(self) -> float:
        """Return the time of lookup and communication in sequence."""
        return self.lookup_ms + self.communication_ms

    def plus(self, other: "Estimate") -> "Estimate":
        """Return the cost of both parts on this process."""
        return Estimate(
            self.rank,
            self.device_bytes + other.device_bytes,
            self.host_bytes + other.host_bytes,
            self.lookup_ms + other.lookup_ms,
            self.communication_ms + other.communication_ms,
        )


def estimates(model: nn.Module, plan: Plan, workload: Workload) -> dict[str, list[Estimate]]:
    """Return TorchRec's estimates for the shards of each table, by table. Accept plans from any source."""
    as_planned = {
        name: Choice(
            name,
            ((table.type, table.kernel),),
            min(shard.columns for shard in table.shards),
            table.cache_load_factor,
        )
        for name, table in plan.tables.items()
    }
    result = {}
    for name, (option,) in sharding_options(model, as_planned, workload).items():
        result[name] = [
            estimate_shard(shard, planned.rank, plan.world_size)
            for shard, planned in zip(option.shards, plan.tables[name].shards, strict=True)
        ]
    return result


def estimate_shard(shard: Any, rank: int, world_size: int) -> Estimate:
    """Return TorchRec's estimate of a shard; leave out communication that it counts even for a single process."""
    perf, storage = shard.perf, shard.storage
    lookup = perf.fwd_compute + perf.bwd_compute + perf.prefetch_compute
    communication = perf.fwd_comms + perf.bwd_comms if world_size > 1 else 0.0
    return Estimate(rank, storage.hbm, storage.ddr, lookup, communication)
