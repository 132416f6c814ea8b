"""Ways to make a plan: the choices that the configuration leaves open, placement by size, and TorchRec's planner."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec import DataType
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, ShardingOption, Storage, Topology
from torchrec.distributed.types import CacheParams, ModuleSharder

from app.config import OptimizerName, QCommConfig, ShardingConfig
from app.config.sharding import (
    AUTO_SHARDING,
    SHARDING_TYPES,
    UVM_KERNELS,
    kernels_allowed,
    kernels_of,
    of_table,
    types_allowed,
)
from app.model.embeddings import TableArch
from app.model.tables import TableSpec
from app.sharding.execute import codecs, make_sharders
from app.sharding.plan import Plan, TableBlock, TablePlan, blocks, shardable, tables_in_order
from common.errors import UserError

FP32_BYTES = 4


@dataclass(frozen=True)
class Choice:
    """The sharding types and compute kernels that one table may have, and the key that decides it."""

    key: str
    options: tuple[tuple[str, str], ...]  # (type, kernel)
    min_partition: int | None
    cache_load_factor: float | None

    @property
    def is_forced(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.options) == 1

    @property
    def types(self) -> list[str]:
        """The sharding types among the options."""
        return list(dict.fromkeys(kind for kind, _ in self.options))


def table_choices(
    config: ShardingConfig, optimizer: OptimizerName, tables: Sequence[TableSpec], device_type: str
) -> dict[str, Choice]:
    """Return each table's choice."""
    names = {name for table in tables for name in (table.name, *table.keys)}
    for name in config.tables:
        if name not in names:
            raise UserError(f"sharding.tables.{name}: no such table or feature; there are {', '.join(sorted(names))}")
    result = {}
    for table in tables:
        key, section = of_table(config, table.name, list(table.keys))
        types = shardable(f"{key}.types", types_allowed(section.types, optimizer, f"{key}.types"), table)
        kernels = kernels_allowed(section.kernels, types, section.types == AUTO_SHARDING, f"{key}.kernels")
        if device_type == "cpu" and (uvm_kernels := [kernel for kernel in kernels if kernel in UVM_KERNELS]):
            raise UserError(
                f"{key}.kernels={uvm_kernels[0]}: keeps a table in host memory for a GPU to read; a CPU's tables are "
                "there anyway, use fused"
            )
        options = tuple((kind, kernel) for kind in types for kernel in kernels_of(kind, kernels))
        cached = any(kernel == "fused_uvm_caching" for _, kernel in options)
        result[table.name] = Choice(key, options, section.min_partition, section.cache_load_factor if cached else None)
    return result


class _Loads:
    """Elements held by each process so far."""

    def __init__(self, world_size: int, local_world_size: int) -> None:
        self.of_rank = [0] * world_size
        self.machines = [range(first, first + local_world_size) for first in range(0, world_size, local_world_size)]

    def lightest(self, ranks: Sequence[int], count: int) -> list[int]:
        """Return the `count` processes among these with the fewest elements, in order of rank."""
        return sorted(sorted(ranks, key=lambda rank: self.of_rank[rank])[:count])

    def lightest_machines(self, count: int) -> list[range]:
        """Return the `count` machines with the fewest elements, in order."""
        loads = {machine: sum(self.of_rank[rank] for rank in machine) for machine in self.machines}
        return sorted(sorted(self.machines, key=lambda machine: loads[machine])[:count], key=lambda m: m.start)

    def take(self, shards: Sequence[TableBlock], ranks: Sequence[int]) -> tuple[TableBlock, ...]:
        """Put one shard on each of these processes; return the placed shards."""
        for shard, rank in zip(shards, ranks, strict=True):
            self.of_rank[rank] += shard.rows * shard.columns
        return tuple(shard._replace(rank=rank) for shard, rank in zip(shards, ranks, strict=True))


def place_tables(
    tables: Sequence[TableSpec], choices: Mapping[str, Choice], world_size: int, local_world_size: int
) -> Plan:
    """Return the plan of tables whose choices are all forced; places the largest first."""
    require_equal_machines(world_size, local_world_size)
    loads = _Loads(world_size, local_world_size)
    placed: dict[str, TablePlan] = {}
    for table in sorted(tables, key=lambda table: -table.num_embeddings * table.embedding_dim):
        choice = choices[table.name]
        ((kind, kernel),) = choice.options
        shards = _placed_shards(kind, table, loads, choice.min_partition)
        placed[table.name] = TablePlan(kind, kernel, shards, choice.cache_load_factor)
    return Plan(world_size, local_world_size, {table.name: placed[table.name] for table in tables})


def require_equal_machines(world_size: int, local_world_size: int) -> None:
    """Raise UserError unless every machine has the same number of processes."""
    if world_size % local_world_size:
        raise UserError(
            f"{world_size} processes, {local_world_size} on this machine: start the same number on each machine"
        )


def _placed_shards(kind: str, table: TableSpec, loads: _Loads, min_partition: int | None) -> tuple[TableBlock, ...]:
    world, local, machines = len(loads.of_rank), len(loads.machines[0]), len(loads.machines)
    max_shards = {"column_wise": world, "table_column_wise": local, "grid_shard": machines}.get(kind, 1)
    columns = shard_columns(table.embedding_dim, max_shards, min_partition)
    shards = blocks(kind, table, world, local, columns)
    everyone = range(world)
    if kind in ("data_parallel", "row_wise"):
        return loads.take(shards, everyone)
    if kind in ("table_wise", "column_wise"):
        return loads.take(shards, loads.lightest(everyone, len(shards)))
    if kind == "table_row_wise":
        return loads.take(shards, loads.lightest_machines(1)[0])
    if kind == "table_column_wise":
        return loads.take(shards, loads.lightest(loads.lightest_machines(1)[0], len(shards)))
    lightest = loads.lightest_machines(table.embedding_dim // columns)
    return loads.take(shards, [rank for machine in lightest for rank in machine])


def shard_columns(embedding_dim: int, max_shards: int, min_partition: int | None) -> int:
    """Return the columns of each shard: the smallest width that makes at most `max_shards` equal shards.

    The number is a multiple of 4 (for FBGEMM) and at least `min_partition`.
    """
    minimum = max(min_partition or 4, 4)
    for shards in range(max_shards, 1, -1):
        width, rest = divmod(embedding_dim, shards)
        if not rest and width % 4 == 0 and width >= minimum:
            return width
    return embedding_dim


@dataclass(frozen=True)
class Workload:
    """The planner's input besides tables and hardware.

    Attributes:
        topology: in TorchRec's form.
        reserve: share of each device's memory that plans leave free.
        local_batch_size: samples of one process.
        pooling_factors: mean ids per bag, for each of a table's features.
    """

    topology: Topology
    reserve: float
    local_batch_size: int
    pooling_factors: Mapping[str, list[float]]
    optimizer: OptimizerName
    qcomm: QCommConfig

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """Return TorchRec's sharders; their estimates depend on the precision of exchanged values."""
        return make_sharders({}, codecs(self.qcomm))


def search(model: TableArch, choices: Mapping[str, Choice], workload: Workload) -> Plan:
    """Return the best plan that TorchRec's planner finds within the choices; needs no process group."""
    constraints = _constraints(choices, workload)
    best = _BestPlan()
    planner = EmbeddingShardingPlanner(
        topology=workload.topology,
        batch_size=workload.local_batch_size,
        enumerator=_Enumerator(workload, constraints),
        storage_reservation=FixedPercentageStorageReservation(workload.reserve),
        stats=best,
        constraints=constraints,
    )
    try:
        with _silenced():
            planner.plan(model, workload.sharders())
    except PlannerError as error:
        raise UserError(_no_plan(model, workload)) from error
    planned = {option.name: _table_plan(option, choices[option.name]) for option in best.options}
    topology = workload.topology
    order = {table.name: planned[table.name] for table in tables_in_order(model)}
    return Plan(topology.world_size, topology.local_world_size, order)


def sharding_options(
    model: nn.Module, choices: Mapping[str, Choice], workload: Workload
) -> dict[str, list[ShardingOption]]:
    """Return each table's options within its choice, with TorchRec's estimates."""
    enumerator = _Enumerator(workload, _constraints(choices, workload))
    options: dict[str, list[ShardingOption]] = {name: [] for name in choices}
    with _silenced():
        for option in enumerator.enumerate(model, workload.sharders()):
            options[option.name].append(option)
    return options


def _constraints(choices: Mapping[str, Choice], workload: Workload) -> dict[str, ParameterConstraints]:
    return {
        name: ParameterConstraints(
            sharding_types=choice.types,
            compute_kernels=list(dict.fromkeys(kernel for _, kernel in choice.options)),
            min_partition=choice.min_partition,
            pooling_factors=workload.pooling_factors[name],
            output_dtype=DataType.FP32,  # FBGEMM's lookups return it, however rows are stored
            cache_params=None
            if choice.cache_load_factor is None
            else CacheParams(load_factor=choice.cache_load_factor),
        )
        for name, choice in choices.items()
    }


@contextmanager
def _silenced() -> Iterator[None]:
    root, silence = logging.getLogger(), _Silence()
    root.addHandler(silence)  # keeps logging from adding a handler of its own to the root
    root.addFilter(silence.filter)
    try:
        yield
    finally:
        root.removeHandler(silence)
        root.removeFilter(silence.filter)


class _Silence(logging.NullHandler):
    """Drops TorchRec's warning that a data-parallel table has no shards."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Sharding spec not found" not in record.getMessage()


def _table_plan(option: ShardingOption, choice: Choice) -> TablePlan:
    shards = tuple(
        TableBlock(shard.rank, shard.offset[0], shard.offset[1], shard.size[0], shard.size[1])
        for shard in option.shards
    )
    cached = option.compute_kernel == "fused_uvm_caching"
    kind = option.sharding_type
    if kind in ("column_wise", "table_column_wise") and len(shards) == 1 and "table_wise" in choice.types:
        kind = "table_wise"  # one shard is the whole table, so give it the plainer name
    return TablePlan(kind, option.compute_kernel, shards, option.cache_load_factor if cached else None)


def _no_plan(model: TableArch, workload: Workload) -> str:
    tables, optimizer = model.tables, workload.optimizer
    gib = sum(table.bytes for table in tables) / 2**30
    state = sum(table.num_embeddings * optimizer.algorithm.state_elements(table.embedding_dim) for table in tables)
    devices = workload.topology.devices
    device = devices[0].storage
    have = (device.ddr if workload.topology.compute_device == "cpu" else device.hbm) / 2**30
    return (
        f"topology: no plan fits: {len(tables)} tables of {gib:.1f} GiB and {state * FP32_BYTES / 2**30:.1f} GiB of "
        f"{optimizer.value}'s state on {len(devices)} devices of {have:.1f} GiB, of which {workload.reserve:.0%} stay "
        "free (topology.reserve); use more devices, row-wise types among sharding.types, "
        "sharding.kernels=[fused,fused_uvm_caching] on GPUs, or smaller tables"
    )


class _Enumerator(EmbeddingEnumerator):
    """TorchRec's enumerator with options in the same order in every process; its own come from sets of strings."""

    def __init__(self, workload: Workload, constraints: dict[str, ParameterConstraints]) -> None:
        super().__init__(workload.topology, workload.local_batch_size, constraints)
        self._estimators.append(_OptimizerState(workload))

    def _filter_sharding_types(self, *arguments: Any, **keywords: Any) -> list[str]:
        return sorted(super()._filter_sharding_types(*arguments, **keywords), key=SHARDING_TYPES.index)

    def _filter_compute_kernels(self, *arguments: Any, **keywords: Any) -> list[str]:
        return sorted(super()._filter_compute_kernels(*arguments, **keywords))


class _OptimizerState:
    """An estimator beside TorchRec's, for optimizer state and gradients.

    TorchRec's estimators leave them out, or count them by the weights' own type; both are fp32. FBGEMM keeps whole
    moments beside the weights, and one value per row always on the device; torch keeps the gradient of all rows of a
    data-parallel table.
    """

    def __init__(self, workload: Workload) -> None:
        self._algorithm, self._on_host = workload.optimizer.algorithm, workload.topology.compute_device == "cpu"

    def estimate(self, sharding_options: Sequence[ShardingOption], *arguments: Any, **keywords: Any) -> None:
        for option in sharding_options:
            for shard in option.shards:
                rows, columns = shard.size
                moments, of_row = len(self._algorithm.state), len(self._algorithm.row_state)
                if option.compute_kernel == "dense":
                    moments += 1  # the gradient
                beside, row_state_bytes = rows * columns * moments * FP32_BYTES, rows * of_row * FP32_BYTES
                if self._on_host:
                    shard.storage += Storage(hbm=0, ddr=beside + row_state_bytes)
                elif option.compute_kernel in UVM_KERNELS:
                    shard.storage += Storage(hbm=row_state_bytes, ddr=beside)
                else:
                    shard.storage += Storage(hbm=beside + row_state_bytes, ddr=0)


class _BestPlan:
    """Takes the place of the planner's statistics, to get hold of the options that it chose."""

    def log(self, *arguments: Any, best_plan: Sequence[ShardingOption], **keywords: Any) -> None:
        self.options = best_plan
