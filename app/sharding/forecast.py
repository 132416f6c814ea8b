"""What a plan will cost: memory and time of each table and process, by TorchRec's estimates, and why it is so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn
from torchrec.distributed.planner.types import ShardingOption

from app.sharding.choices import Choice
from app.sharding.collections import table_types
from app.sharding.plan import Plan, Table, TablePlan
from app.sharding.planner import Estimate, Workload, estimate_shard, estimates, options


class TableForecast(NamedTuple):
    """A table's bytes over all processes; milliseconds a step on the process that has most of it to do."""

    name: str
    num_embeddings: int
    embedding_dim: int
    bytes: int
    lookup_ms: float
    communication_ms: float
    reason: str


@dataclass
class RankForecast:
    """A process's part: bytes of tables, optimizer's state and buffers, in device and host memory; ms a step."""

    rank: int
    device_bytes: int = 0
    host_bytes: int = 0
    lookup_ms: float = 0.0
    communication_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Lookup and communication, forward and backward, one after the other."""
        return self.lookup_ms + self.communication_ms


@dataclass
class Forecast:
    """Of a whole plan.

    Attributes:
        capacity_bytes: memory that tables may take on a device (of the host, for a CPU), what is reserved left out.
        headroom_bytes: what the fullest process leaves of it; negative if the plan does not fit.
        step_ms: of the slowest process; imbalance: that, divided by the mean.
    """

    tables: list[TableForecast]
    ranks: list[RankForecast]
    capacity_bytes: int
    headroom_bytes: int = field(init=False)
    step_ms: float = field(init=False)
    imbalance: float = field(init=False)

    def __post_init__(self) -> None:
        on_host = all(rank.device_bytes == 0 for rank in self.ranks)
        fullest = max(rank.host_bytes if on_host else rank.device_bytes for rank in self.ranks)
        self.headroom_bytes = self.capacity_bytes - fullest
        self.step_ms = max(rank.total_ms for rank in self.ranks)
        mean = sum(rank.total_ms for rank in self.ranks) / len(self.ranks)
        self.imbalance = self.step_ms / mean if mean else 1.0

    @property
    def fits(self) -> bool:
        """Whether every process has memory for its part."""
        return self.headroom_bytes >= 0


class _Cost(NamedTuple):
    """Of one way to spread a table: ms on its busiest process and bytes on its fullest."""

    ms: float
    bytes: int


def forecast(
    model: nn.Module,
    plan: Plan,
    workload: Workload,
    chosen: Mapping[str, Choice],
    possible: Mapping[str, Choice],
) -> Forecast:
    """The forecast of a plan made within `chosen`; reasons look at all that is `possible`."""
    parts = estimates(model, plan, workload)
    every = options(model, possible, workload)
    ways = {name: _by_type(found, plan.world_size) for name, found in every.items()}
    ranks = [RankForecast(rank) for rank in range(plan.world_size)]
    rows = []
    for table in table_types(model):
        shards, planned = parts[table.name], plan.tables[table.name]
        for shard in shards:
            rank = ranks[shard.rank]
            rank.device_bytes += shard.device_bytes
            rank.host_bytes += shard.host_bytes
            rank.lookup_ms += shard.lookup_ms
            rank.communication_ms += shard.communication_ms
        busiest = max(shards, key=lambda shard: shard.lookup_ms + shard.communication_ms)
        choice = chosen.get(table.name)
        forced = "as the plan's file says" if choice is None else f"as {choice.key}.types says"
        reason = forced if choice is None or choice.is_forced else _reason(table, planned, shards, ways[table.name])
        size = sum(shard.device_bytes + shard.host_bytes for shard in shards)
        rows.append(TableForecast(table.name, table.num_embeddings, table.embedding_dim, size,
                                  busiest.lookup_ms, busiest.communication_ms, reason))  # fmt: skip
    return Forecast(rows, ranks, capacity(workload))


def capacity(workload: Workload) -> int:
    """Bytes that tables may take on each device, or of host memory for a CPU."""
    storage = workload.topology.devices[0].storage
    if workload.topology.compute_device == "cpu":
        return int(storage.ddr)
    return int(storage.hbm * (1 - workload.reserve))


def _by_type(found: Sequence[ShardingOption], world_size: int) -> dict[str, _Cost]:
    """The fastest way of each sharding type."""
    best: dict[str, _Cost] = {}
    for option in found:
        parts = [estimate_shard(shard, 0, world_size) for shard in option.shards]
        cost = _cost(parts)
        if option.sharding_type not in best or cost.ms < best[option.sharding_type].ms:
            best[option.sharding_type] = cost
    return best


def _cost(shards: Sequence[Estimate]) -> _Cost:
    return _Cost(
        max(shard.lookup_ms + shard.communication_ms for shard in shards),
        max(shard.device_bytes + shard.host_bytes for shard in shards),
    )


def _reason(table: Table, planned: TablePlan, shards: Sequence[Estimate], ways: Mapping[str, _Cost]) -> str:
    """Why the planner chose this, in the figures that it compared."""
    own = _cost(shards)
    whole, copied = ways.get("table_wise"), ways.get("data_parallel")
    num_shards = len(planned.ranks)
    if planned.type == "data_parallel":
        text = f"small enough to copy ({human_bytes(own.bytes)} a rank): its gradient takes {own.ms:.3f} ms"
        text += f", exchanging its vectors {whole.ms:.3f} (table_wise)" if whole else ""
    elif planned.type == "table_wise":
        text = f"whole on one rank, {own.ms:.3f} ms"
        if copied:
            text += f"; a copy on each: {copied.ms:.3f} ms, {human_bytes(copied.bytes)} a rank"
    else:
        text = f"over {num_shards} rank(s), {own.ms:.3f} ms and {human_bytes(own.bytes)} on each"
        text += f"; whole on one: {whole.ms:.3f} ms, {human_bytes(whole.bytes)}" if whole else ""
    others = {kind: cost for kind, cost in ways.items() if kind != planned.type and cost.ms < own.ms * 0.999}
    if others:
        kind = min(others, key=lambda kind: others[kind].ms)
        text += f"; {kind} alone {others[kind].ms:.3f} ms, but the slowest rank counts"
    if planned.kernel != "fused" and planned.type != "data_parallel":
        text += f"; {planned.kernel}: device memory is short"
    return text


def human_bytes(size: float) -> str:
    """Such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
