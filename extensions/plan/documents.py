"""Contents of a plan's file besides the plan: its tables, its hardware and its forecast. Needs no torch."""

from collections.abc import Mapping

import msgspec

from app.sharding.documents import PlanFile, PlannedTable
from common.documents import Json, Number, OpenDocument


class ForecastTable(PlannedTable, kw_only=True):
    """A table of a plan, with its size, its cost and the reason for its sharding."""

    name: str | None = None
    num_embeddings: int | None = None
    embedding_dim: int | None = None
    bytes: Number | None = None
    lookup_ms: Number | None = None
    communication_ms: Number | None = None
    reason: str | None = None


class RankCost(OpenDocument, kw_only=True):
    """Memory of one process for its tables, in bytes, and its time per step, in milliseconds."""

    rank: int
    device_bytes: int
    host_bytes: int
    lookup_ms: Number
    communication_ms: Number
    total_ms: Number
    rest: Json = msgspec.field(default_factory=dict)


class Forecast(OpenDocument, kw_only=True):
    """Forecast for a whole plan.

    capacity_bytes: memory for tables on a device (on the host, for a CPU), without the reserve. headroom_bytes: the
    rest of it on the fullest process, negative if the plan does not fit. step_ms: time of the slowest process.
    imbalance: step_ms divided by the mean over processes.
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
    problem: str | None = None
    slowest: RankCost | None = None
    types: str | None = None
    rest: Json = msgspec.field(default_factory=dict)


class ForecastFile(PlanFile, kw_only=True):
    """A plan, what it is a plan for, and its forecast; another plan than the command's has the plan alone."""

    tables: Mapping[str, ForecastTable]
    nodes: int | None = None
    topology: Json | None = None
    global_batch_size: int | None = None
    optimizer: str | None = None
    types: str | None = None
    ranks: list[RankCost] | None = None
    forecast: Forecast | None = None
    notes: list[str] | None = None
    what_if: list[WhatIf] | None = None
