"""A sharding plan: for each table its type, compute kernel and shards; read from a file, or from a model's tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets, placement
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding

from app.config.sharding import COLUMN_TYPES
from app.config.tables import Storage
from app.model.embeddings import TableArch
from app.model.tables import TableSpec
from app.sharding.documents import FORMAT, PlanFile, PlanFormat, PlannedTable
from common.documents import decode
from common.errors import UserError

# TorchRec's types for an EmbeddingCollection without data_parallel, for which FBGEMM reads wrong rows of several
# tables on CPU.
BY_ID_TYPES = ("table_wise", "row_wise", "column_wise")

FileT = TypeVar("FileT", bound=PlanFile)


class TableBlock(NamedTuple):
    """A part of a table: the process that holds it, its first row and column, and its size."""

    rank: int
    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class TablePlan:
    """Shards of one table; a data-parallel table has a shard of full size on every process."""

    type: str
    kernel: str
    shards: tuple[TableBlock, ...]
    cache_load_factor: float | None = None

    @property
    def ranks(self) -> list[int]:
        """Processes that hold a part of the table, in order."""
        return sorted({shard.rank for shard in self.shards if shard.rows})


@dataclass(frozen=True)
class Plan:
    """Sharding of all tables over all processes."""

    world_size: int
    local_world_size: int
    tables: dict[str, TablePlan]

    def to_torchrec(self, device_type: str) -> EmbeddingModuleShardingPlan:
        """Convert to the form that DistributedModelParallel takes."""
        plan = EmbeddingModuleShardingPlan()
        for name, table in self.tables.items():
            spec = [
                ShardMetadata(
                    shard_offsets=[shard.row, shard.column],
                    shard_sizes=[shard.rows, shard.columns],
                    placement=placement(device_type, shard.rank, self.local_world_size),
                )
                for shard in table.shards
            ]
            cache = None if table.cache_load_factor is None else CacheParams(load_factor=table.cache_load_factor)
            plan[name] = ParameterSharding(
                sharding_type=table.type,
                compute_kernel=table.kernel,
                ranks=[shard.rank for shard in table.shards],
                sharding_spec=None if table.type == "data_parallel" else EnumerableShardingSpec(spec),
                cache_params=cache,
            )
        return plan

    def describe_tables(self) -> dict[str, PlannedTable]:
        """Return the tables in the form of a plan's file and a run's manifest."""
        return {
            name: PlannedTable(
                type=table.type,
                kernel=table.kernel,
                shards=[(*shard,) for shard in table.shards],
                cache_load_factor=table.cache_load_factor,
                ranks=table.ranks,
            )
            for name, table in self.tables.items()
        }

    def to_document(self) -> PlanFile:
        """Return the content of a plan's file."""
        tables = self.describe_tables()
        return PlanFile(
            format=FORMAT, world_size=self.world_size, local_world_size=self.local_world_size, tables=tables
        )

    @staticmethod
    def from_document(document: PlanFile) -> "Plan":
        """Return the plan that a file holds."""
        tables = {
            name: TablePlan(
                table.type, table.kernel, tuple(TableBlock(*shard) for shard in table.shards), table.cache_load_factor
            )
            for name, table in document.tables.items()
        }
        return Plan(document.world_size, document.local_world_size, tables)

    def summary(self) -> str:
        """Count tables by type, such as `table_wise` or `data_parallel 10, table_wise 16`."""
        kinds = Counter(table.type for table in self.tables.values())
        return next(iter(kinds)) if len(kinds) == 1 else ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))


def shardable(key: str, kinds: Sequence[str], table: TableSpec) -> list[str]:
    """Return those of the sharding types that the table can have."""
    possible, reason = list(kinds), ""
    if table.by_id:
        possible = [kind for kind in possible if kind in BY_ID_TYPES]
        reason = (
            f"is looked up id by id (model.tables.qr_operation=mult or pooling=weighted, of bags), which can be "
            f"{', '.join(BY_ID_TYPES)}"
        )
    if table.storage is not Storage.fp32 and "data_parallel" in possible:
        possible.remove("data_parallel")
        reason = "is not stored as fp32 (model.tables.storage), and torch would compute its update in that precision"
    if not possible:
        raise UserError(f"{key}={', '.join(kinds)}: {table.name} {reason}")
    return possible


def blocks(kind: str, table: TableSpec, world_size: int, local_world_size: int, columns: int) -> list[TableBlock]:
    """Return the parts into which TorchRec's kernels cut a table; their ranks are still 0."""
    shape = torch.empty(table.num_embeddings, table.embedding_dim, device="meta")
    sizes, offsets = calculate_shard_sizes_and_offsets(
        shape, world_size, local_world_size, kind, col_wise_shard_dim=columns if kind in COLUMN_TYPES else None
    )
    return [
        TableBlock(0, row, column, rows, width) for (rows, width), (row, column) in zip(sizes, offsets, strict=True)
    ]


def load_plan(key: str, path: Path, kind: type[FileT]) -> tuple[Plan, FileT]:
    """Return a plan from its file, which the configuration's `key` names, and the file's content."""
    try:
        content = path.read_bytes()
        # Check the format before the keys, since another format has other keys.
        if (form := decode(content, PlanFormat).format) != FORMAT:
            raise ValueError(f"of format {form}, not {FORMAT}")
        document = decode(content, kind)
        return Plan.from_document(document), document
    except OSError as error:
        raise UserError(f"{key}={path}: not readable ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{key}={path}: not a plan of `python -m app.plan plan.out=FILE` ({error})") from error


def read_plan(path: Path, tables: Sequence[TableSpec], world_size: int, local_world_size: int) -> Plan:
    """Return a plan from its file, checked against tables and processes."""
    plan, _ = load_plan("sharding.plan", path, PlanFile)
    for unit, planned, actual in (
        ("processes", plan.world_size, world_size),
        ("processes a machine", plan.local_world_size, local_world_size),
    ):
        if planned != actual:
            raise UserError(f"sharding.plan={path}: made for {planned} {unit}, but there are {actual}; plan again")
    unknown = [name for name in plan.tables if name not in {table.name for table in tables}]
    missing = [table.name for table in tables if table.name not in plan.tables]
    if unknown or missing:
        some = f"it has {unknown[0]}, the model has not" if unknown else f"the model has {missing[0]}, it has not"
        raise UserError(f"sharding.plan={path}: made for other tables: {some}; plan again")
    for table in tables:
        _require_same(path, table, plan)
    return Plan(world_size, local_world_size, {table.name: plan.tables[table.name] for table in tables})


def _require_same(path: Path, table: TableSpec, plan: Plan) -> None:
    """Require the shards that TorchRec cuts from a table of this size for this number of processes."""
    planned = plan.tables[table.name]
    shardable(f"sharding.plan={path}", [planned.type], table)
    width = min((shard.columns for shard in planned.shards), default=0)
    try:
        expected = blocks(planned.type, table, plan.world_size, plan.local_world_size, width)
    except ValueError as error:
        raise UserError(f"sharding.plan={path}: {table.name}: {error}") from error
    ranks_fit = all(0 <= shard.rank < plan.world_size for shard in planned.shards)
    if not ranks_fit or [shard._replace(rank=0) for shard in planned.shards] != expected:
        rows = max((shard.row + shard.rows for shard in planned.shards), default=0)
        raise UserError(
            f"sharding.plan={path}: {table.name}: made for another table, of {rows} rows; here it has "
            f"{table.num_embeddings} rows of {table.embedding_dim}; plan again"
        )


def tables_in_order(arch: TableArch) -> list[TableSpec]:
    """Return tables in the order of a plan: those whose lookup pools the rows, then the others by width."""
    return sorted(arch.tables, key=lambda table: (table.by_id, table.embedding_dim if table.by_id else 0))
