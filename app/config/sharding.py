"""`sharding` and `topology`: tables over processes, and the hardware that TorchRec plans for; the file of a plan."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from app.config.kinds import OptimizerName
from common.compose import convert_override
from common.documents import Number, OpenDocument
from common.errors import UserError
from common.keys import check_keys, key

# TorchRec's ShardingType. In this order: whole on every process; whole on one; blocks of rows over all processes;
# blocks of columns over all; blocks of rows over one machine's processes; blocks of columns over one machine's; blocks
# of columns over machines, with each block's rows over that machine's processes.
SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
COLUMN_TYPES = ("column_wise", "table_column_wise", "grid_shard")
AUTO_SHARDING = "auto"
# TorchRec's EmbeddingComputeKernel. In this order: torch's optimizer on the whole gradient (data_parallel only);
# FBGEMM's fused optimizer with the table in device memory; in host memory; in host memory behind a device cache.
KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")
UVM_KERNELS = ("fused_uvm", "fused_uvm_caching")
AUTO_TOPOLOGY = "auto"


# Precision of values sent between processes.
CommPrecision: TypeAlias = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class QCommConfig:
    """Precision of embeddings (forward) and gradients (backward) in transit; data-parallel tables travel as fp32."""

    forward: CommPrecision = key("fp32", "precision of embeddings between processes")
    backward: CommPrecision = key("fp32", "precision of their gradients between processes")


@dataclass(frozen=True)
class TableShardingConfig:
    """Distribution of one table; null: the value for all tables."""

    # The plan decides no bits either: a resumption on another agrees within rounding.
    decides_bits: ClassVar[bool] = False

    types: Any = key(
        None,
        f"{', '.join(SHARDING_TYPES)}, a list to choose from, or auto (all that fit but grid_shard); null: auto among "
        "several GPUs, else table_wise",
    )
    kernels: Any = key(None, f"{', '.join(KERNELS)}, or a list; null: fused, and dense for data_parallel")
    min_partition: int | None = key(
        None, "minimum columns of a shard of the column types; null: an equal part for each process", at_least=4
    )
    cache_load_factor: float | None = key(
        None, "fused_uvm_caching: share of a table's rows in the cache; null: FBGEMM's 0.2", within="(0, 1)"
    )


@dataclass(frozen=True)
class ShardingConfig(TableShardingConfig):
    """Distribution of tables over processes.

    One type and one kernel for a table is binding. If there is a choice (`auto`, or a list), TorchRec's planner makes
    it for the `topology`.
    """

    tables: dict[str, Any] = key({}, "keys of TableShardingConfig by a table's or feature's name")
    qcomm: QCommConfig = field(default_factory=QCommConfig)
    plan: str | None = key(None, "a file written by `python -m app.plan plan.out=FILE`, in place of the keys above")


def types_allowed(types: Any, optimizer: OptimizerName, key: str = "sharding.types") -> list[str]:
    """Return the sharding types that a configured value allows, in the order of SHARDING_TYPES."""
    names = [types] if isinstance(types, str) else types
    rule = f"{key}={types}: must be one of {', '.join(SHARDING_TYPES)}, a list of them, or {AUTO_SHARDING}"
    if not isinstance(names, list) or not names:
        raise UserError(rule)
    if names == [AUTO_SHARDING]:
        # torch may update a replicated table differently from FBGEMM: its Adam moves every row at every step.
        # A grid is only chosen on request, as in TorchRec's own planner.
        unfit = {"grid_shard", "data_parallel"} if optimizer.algorithm.moves_all_rows else {"grid_shard"}
        unfit |= set(COLUMN_TYPES) if optimizer.algorithm.needs_whole_rows else set()
        return [kind for kind in SHARDING_TYPES if kind not in unfit]
    for kind in names:
        if kind not in SHARDING_TYPES:
            raise UserError(rule)
        refuse_columns(key, kind, optimizer)
    return [kind for kind in SHARDING_TYPES if kind in names]


def refuse_columns(key: str, kind: str, optimizer: OptimizerName) -> None:
    """Raise UserError if this optimizer does not allow the columns of a row to be separated."""
    if optimizer.algorithm.needs_whole_rows and kind in COLUMN_TYPES:
        raise UserError(
            f"{key}={kind}: {optimizer.value} would look at each shard's columns alone, which is another algorithm; "
            "use table_wise, row_wise or table_row_wise, or optimizer=adagrad"
        )


def kernels_allowed(kernels: Any, types: list[str], auto: bool, key: str = "sharding.kernels") -> list[str]:
    """Return the compute kernels that a configured value allows for tables of these types.

    auto: the types are all that fit, of which those without one of these kernels drop out later (`table_choices`).

    Raises UserError: a kernel is unknown, or one of the types has none.
    """
    if kernels is None:
        return ["dense", "fused"]
    names = [kernels] if isinstance(kernels, str) else kernels
    if not isinstance(names, list) or not names or not set(names) <= set(KERNELS):
        raise UserError(f"{key}={kernels}: must be one of {', '.join(KERNELS)}, or a list of them")
    for kind in types:
        if not auto and not kernels_of(kind, names):
            raise UserError(
                f"{key}={kernels}: the kernel of data_parallel is dense, and dense is no other type's; "
                f"{kind} is among the sharding types"
            )
    return names


def kernels_of(kind: str, kernels: list[str]) -> list[str]:
    """Return those of the kernels that can hold a table of this sharding type."""
    return [kernel for kernel in kernels if (kernel == "dense") == (kind == "data_parallel")]


def settings_of_table(config: ShardingConfig, name: str, features: list[str]) -> tuple[str, TableShardingConfig]:
    """Return the key that has one table's settings, and these, completed by those of `sharding`.

    The key names the table or one of its features; it is `sharding` for a table without settings of its own.
    """
    keys = [key for key in (name, *features) if key in config.tables]
    if len(keys) > 1:
        raise UserError(f"sharding.tables.{keys[0]} and sharding.tables.{keys[1]}: are one table; give one of them")
    settings = {field.name: getattr(config, field.name) for field in fields(TableShardingConfig)}
    given = vars(settings_given(config, keys[0])) if keys else {}
    settings |= {name: value for name, value in given.items() if value is not None}
    return (f"sharding.tables.{keys[0]}" if keys else "sharding"), TableShardingConfig(**settings)


def settings_given(config: ShardingConfig, name: str) -> TableShardingConfig:
    """Return the settings under `sharding.tables.<name>` alone; None where it leaves them to `sharding`."""
    return convert_override(TableShardingConfig, config.tables[name], f"sharding.tables.{name}")


def sharding_faults(config: ShardingConfig, optimizer: OptimizerName) -> Iterator[str]:
    """Yield messages of values that cannot work or would do nothing."""
    for name in (None, *config.tables):
        path = "sharding" if name is None else f"sharding.tables.{name}"
        # Limits hold for the values given here, and whether they have an effect depends on those in force.
        given = config if name is None else settings_given(config, name)
        # The first of both values is the key, which `path` holds already.
        completed = config if name is None else settings_of_table(config, name, [])[1]
        check_keys(given, f"{path}.")
        types = types_allowed("table_wise" if completed.types is None else completed.types, optimizer, f"{path}.types")
        kernels = kernels_allowed(completed.kernels, types, completed.types == AUTO_SHARDING, f"{path}.kernels")
        columns, share = given.min_partition, given.cache_load_factor
        if columns is not None and not set(types) & set(COLUMN_TYPES):
            yield f"{path}.min_partition={columns}: has no effect without a column-wise type"
        if columns is not None and columns % 4:
            yield f"{path}.min_partition={columns}: must be a multiple of 4 (FBGEMM)"
        if share is not None and "fused_uvm_caching" not in kernels:
            yield f"{path}.cache_load_factor={share}: has no effect without the kernel fused_uvm_caching"
    if config.plan is not None and (config.tables or config.kernels is not None):
        yield (
            f"sharding.plan={config.plan}: the plan decides everything, so sharding.tables and sharding.kernels have "
            "no effect; leave them out"
        )


@dataclass(frozen=True)
class TopologyConfig:
    """One kind of device, and how many. GiB are 2^30 bytes, GB/s 10^9 bytes per second, in one direction.

    Figures are the vendor's peak; `link_efficiency` is the share of it that collectives are assumed to reach.
    """

    decides_bits: ClassVar[bool] = False

    name: str = key(AUTO_TOPOLOGY, "name of a file in conf/topology; auto: the file of the device here")
    file: str | None = key(None, "YAML file with these keys, for a device that conf/topology lacks")
    architecture: str | None = key(None, "name by ROCm or CUDA, such as gfx942 or sm_90; or cpu")
    memory_gib: float | None = key(
        None, "memory of the device; null for cpu: an equal share of this machine's for each process", above=0
    )
    memory_gb_per_s: float | None = key(None, "bandwidth of the device's memory", above=0)
    host_memory_gib: float | None = key(None, "host memory per device", above=0)
    host_memory_gb_per_s: float | None = key(None, "bandwidth of host memory per device", above=0)
    host_link_gb_per_s: float | None = key(None, "bandwidth between the device and host memory", above=0)
    intra_host_gb_per_s: float | None = key(
        None, "bandwidth between devices of a machine, all links of a device together", above=0
    )
    inter_host_gb_per_s: float | None = key(None, "bandwidth between machines per device", above=0)
    link_efficiency: float | None = key(
        None, "share of intra_host and inter_host that collectives reach; null: the file's, else 0.8", within="(0, 1]"
    )
    reserve: float | None = key(
        None,
        "share of memory left for dense layers, activations and allocator; null: the file's, else 0.15",
        within="[0, 1)",
    )
    sources: dict[str, str] = key({}, "source of each figure")
    nodes: int | None = key(None, "number of machines; null: those of the run, 1 for a plan", at_least=1)
    devices_per_node: int | None = key(
        None, "devices of each machine; null: those of the run; for a plan, the GPUs here, or 1", at_least=1
    )


# What is to be known of a device to plan for it: its architecture, then its figures.
HARDWARE = (
    "architecture",
    "memory_gib",
    "memory_gb_per_s",
    "host_memory_gib",
    "host_memory_gb_per_s",
    "host_link_gb_per_s",
    "intra_host_gb_per_s",
    "inter_host_gb_per_s",
)


PLAN_FORMAT = 1


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

    format: int = PLAN_FORMAT
    world_size: int
    local_world_size: int
    tables: Mapping[str, PlannedTable]

    def summary(self) -> str:
        """Count tables by type, such as `table_wise` or `data_parallel 10, table_wise 16`."""
        kinds = Counter(table.type for table in self.tables.values())
        return next(iter(kinds)) if len(kinds) == 1 else ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
