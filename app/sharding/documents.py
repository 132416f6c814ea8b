"""A sharding plan and its file. Needs no torch."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from common.documents import Number, OpenDocument

FORMAT = 1


class TableBlock(NamedTuple):
    """A part of a table: the process that holds it, its first row and column, and its size."""

    rank: int
    row: int
    column: int
    rows: int
    columns: int


class PlannedTable(OpenDocument, kw_only=True):
    """Sharding of one table; a data-parallel table has a shard of full size on every process.

    type: as in sharding.types. kernel: as in sharding.kernels. shards: for each, its rank, first row, first column,
    rows and columns. cache_load_factor: share of the rows that a device caches. ranks: processes that hold rows, in
    order.
    """

    type: str
    kernel: str
    shards: list[TableBlock]
    cache_load_factor: Number | None
    ranks: list[int]

    @classmethod
    def of(cls, kind: str, kernel: str, shards: list[TableBlock], cache_load_factor: float | None) -> "PlannedTable":
        """Return the sharding of a table with these shards."""
        ranks = sorted({shard.rank for shard in shards if shard.rows})
        return cls(type=kind, kernel=kernel, shards=shards, cache_load_factor=cache_load_factor, ranks=ranks)


class Plan(OpenDocument, kw_only=True):
    """FILE.json of a plan: `tables` by name for `world_size` processes, `local_world_size` of them on a machine.

    Further keys describe the hardware that `python -m app.plan` made it for, and its forecast.
    """

    format: int = FORMAT
    world_size: int
    local_world_size: int
    tables: Mapping[str, PlannedTable]

    def summary(self) -> str:
        """Count tables by type, such as `table_wise` or `data_parallel 10, table_wise 16`."""
        kinds = Counter(table.type for table in self.tables.values())
        return next(iter(kinds)) if len(kinds) == 1 else ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
