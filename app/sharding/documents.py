"""The file of a sharding plan: the plan itself, its conditions, and its forecast. Needs no torch."""

import msgspec
from msgspec import UNSET, UnsetType

from common.documents import Json, Number, OpenDocument

FORMAT = 1


class PlannedTable(OpenDocument, kw_only=True):
    """Sharding of one table, and its cost in a plan's file.

    shards: rank, first row, first column, rows and columns of each; older runs did not record them.
    """

    type: str
    kernel: str
    shards: list[tuple[int, int, int, int, int]] | UnsetType = UNSET
    cache_load_factor: Number | UnsetType | None = UNSET
    ranks: list[int] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    num_embeddings: int | UnsetType = UNSET
    embedding_dim: int | UnsetType = UNSET
    bytes: Number | UnsetType = UNSET
    lookup_ms: Number | UnsetType = UNSET
    communication_ms: Number | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    rest: Json = msgspec.field(default_factory=dict)

    @property
    def holders(self) -> list[int]:
        """The processes that hold rows of the table, in order."""
        return sorted({shard[0] for shard in self.shards or [] if shard[3]})


class RankCost(OpenDocument, kw_only=True):
    """What one process holds of the tables, and its milliseconds a step."""

    rank: int
    device_bytes: int
    host_bytes: int
    lookup_ms: Number
    communication_ms: Number
    total_ms: Number
    rest: Json = msgspec.field(default_factory=dict)


class Forecast(OpenDocument, kw_only=True):
    """Of a whole plan.

    capacity_bytes: what tables may take on a device (of the host, for a CPU) without the reserve. headroom_bytes: of
    that left on the fullest process, negative if the plan does not fit. step_ms: of the slowest process. imbalance:
    that divided by the mean.
    """

    fits: bool
    capacity_bytes: int
    step_ms: Number
    headroom_bytes: int
    imbalance: Number
    rest: Json = msgspec.field(default_factory=dict)


class WhatIf(OpenDocument, kw_only=True):
    """The forecast for other hardware or another batch, and the slowest process; without one the problem."""

    topology: str
    nodes: int | None
    devices_per_node: int | None
    world_size: int
    global_batch_size: int
    forecast: Forecast | None
    problem: str | UnsetType = UNSET
    slowest: RankCost | UnsetType = UNSET
    types: str | UnsetType = UNSET
    rest: Json = msgspec.field(default_factory=dict)


class PlanFormat(msgspec.Struct):
    """The format of a file that may be a plan."""

    format: object = None


class PlanFile(OpenDocument, kw_only=True):
    """A plan; where it was made by the command, what it is a plan for, and its forecast."""

    format: int
    world_size: int
    local_world_size: int
    tables: dict[str, PlannedTable]
    nodes: int | UnsetType | None = UNSET
    topology: Json | UnsetType = UNSET
    global_batch_size: int | UnsetType = UNSET
    optimizer: str | UnsetType = UNSET
    types: str | UnsetType = UNSET
    ranks: list[RankCost] | UnsetType = UNSET
    forecast: Forecast | UnsetType = UNSET
    notes: list[str] | UnsetType = UNSET
    what_if: list[WhatIf] | UnsetType = UNSET
    rest: Json = msgspec.field(default_factory=dict)
