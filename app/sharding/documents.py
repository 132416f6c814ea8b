"""The file of a sharding plan. Needs no torch."""

from collections.abc import Mapping

import msgspec

from common.documents import Number, OpenDocument

FORMAT = 1


class PlannedTable(OpenDocument, kw_only=True):
    """Sharding of one table.

    type: as in sharding.types. kernel: as in sharding.kernels. shards: for each, its rank, first row, first column,
    rows and columns. cache_load_factor: share of the rows that a device caches. ranks: processes that hold rows, in
    order.
    """

    type: str
    kernel: str
    shards: list[tuple[int, int, int, int, int]]
    cache_load_factor: Number | None
    ranks: list[int]


class PlanFormat(msgspec.Struct):
    """The format of a file that may be a plan."""

    format: object = None


class PlanFile(OpenDocument, kw_only=True):
    """FILE.json of a plan: `tables` by name for `world_size` processes, `local_world_size` of them on a machine.

    Further keys describe the hardware that `python -m app.plan` made it for, and its forecast.
    """

    format: int
    world_size: int
    local_world_size: int
    tables: Mapping[str, PlannedTable]
