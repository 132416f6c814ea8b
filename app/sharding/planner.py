"""TorchRec's planner for what the configuration leaves open, and its estimates for a plan that is there."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn
from torchrec import optim
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, ShardingOption, Topology
from torchrec.distributed.types import CacheParams, ModuleSharder

from app.config import OptimizerName, QCommConfig
from app.config.optimizer import ADAGRADS
from app.config.sharding import SHARDING_TYPES
from app.sharding.choices import Choice
from app.sharding.collections import table_types
from app.sharding.execute import codecs, make_sharders
from app.sharding.plan import Plan, Shard, TablePlan
from common.errors import UserError

# By how many values an element of a table is kept: TorchRec's estimates ask the class of the optimizer for that.
_KEEPS = {
    OptimizerName.sgd: optim.SGD,
    OptimizerName.rowwise_adagrad: optim.RowWiseAdagrad,
    OptimizerName.adam: optim.Adam,
    OptimizerName.lamb: optim.Adam,
}


@dataclass(frozen=True)
class Workload:
    """What the planner must know beside tables and hardware.

    Attributes:
        topology: TorchRec's.
        reserve: part of each device's memory that plans leave free.
        local_batch_size: samples of one process.
        pooling_factors: mean ids a bag of each table's features.
    """

    topology: Topology
    reserve: float
    local_batch_size: int
    pooling_factors: Mapping[str, list[float]]
    optimizer: OptimizerName
    qcomm: QCommConfig

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """TorchRec's, whose estimates depend on what travels how."""
        return make_sharders({}, codecs(self.qcomm))


class Estimate(NamedTuple):
    """Of a part of a table on its process: bytes, and milliseconds a step forward and backward."""

    rank: int
    device_bytes: int
    host_bytes: int
    lookup_ms: float
    communication_ms: float


def search(model: nn.Module, chosen: Mapping[str, Choice], workload: Workload) -> Plan:
    """The best plan that TorchRec's planner finds within the choices; needs no process group.

    Raises:
        UserError: it finds none, for lack of memory.
    """
    constraints = _constraints(chosen, workload)
    best = _BestPlan()
    planner = EmbeddingShardingPlanner(
        topology=workload.topology,
        batch_size=workload.local_batch_size,
        enumerator=_Enumerator(workload.topology, workload.local_batch_size, constraints),
        storage_reservation=FixedPercentageStorageReservation(workload.reserve),
        stats=best,
        constraints=constraints,
    )
    try:
        with _described(model, workload.optimizer):
            planner.plan(model, workload.sharders())
    except PlannerError as error:
        raise UserError(_no_plan(model, workload)) from error
    planned = {option.name: _table_plan(option, chosen[option.name]) for option in best.options}
    topology = workload.topology
    order = {table.name: planned[table.name] for table in table_types(model)}
    return Plan(topology.world_size, topology.local_world_size, order)


def options(model: nn.Module, chosen: Mapping[str, Choice], workload: Workload) -> dict[str, list[ShardingOption]]:
    """What each table could be within its choice, with TorchRec's estimates."""
    enumerator = _Enumerator(workload.topology, workload.local_batch_size, _constraints(chosen, workload))
    found: dict[str, list[ShardingOption]] = {name: [] for name in chosen}
    with _described(model, workload.optimizer):
        for option in enumerator.enumerate(model, workload.sharders()):
            found[option.name].append(option)
    return found


def estimates(model: nn.Module, plan: Plan, workload: Workload) -> dict[str, list[Estimate]]:
    """TorchRec's estimates for each table's parts as planned, whoever planned them."""
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
    for name, (option,) in options(model, as_planned, workload).items():
        result[name] = [
            estimate_shard(shard, planned.rank, plan.world_size)
            for shard, planned in zip(option.shards, plan.tables[name].shards, strict=True)
        ]
    return result


def estimate_shard(shard: Any, rank: int, world_size: int) -> Estimate:
    """From TorchRec's form; it counts what one process alone sends to itself, too, and nothing travels there."""
    perf, storage = shard.perf, shard.storage
    lookup = perf.fwd_compute + perf.bwd_compute + perf.prefetch_compute
    communication = perf.fwd_comms + perf.bwd_comms if world_size > 1 else 0.0
    return Estimate(rank, storage.hbm, storage.ddr, lookup, communication)


def _constraints(chosen: Mapping[str, Choice], workload: Workload) -> dict[str, ParameterConstraints]:
    return {
        name: ParameterConstraints(
            sharding_types=choice.types,
            compute_kernels=list(dict.fromkeys(kernel for _, kernel in choice.options)),
            min_partition=choice.min_partition,
            pooling_factors=workload.pooling_factors[name],
            cache_params=None
            if choice.cache_load_factor is None
            else CacheParams(load_factor=choice.cache_load_factor),
        )
        for name, choice in chosen.items()
    }


@contextmanager
def _described(model: nn.Module, name: OptimizerName) -> Iterator[None]:
    """Weights that say whose optimizer's state is to be counted with them, and a planner that does not chatter."""
    root, silence = logging.getLogger(), _Silence()
    weights: list[Any] = list(model.parameters())
    for weight in weights:
        weight._optimizer_classes = [_KEEPS.get(name, optim.Adagrad)]
    root.addHandler(silence)  # logging would add one of its own to the root otherwise
    root.addFilter(silence.filter)
    try:
        yield
    finally:
        root.removeHandler(silence)
        root.removeFilter(silence.filter)
        for weight in weights:
            del weight._optimizer_classes


class _Silence(logging.NullHandler):
    """TorchRec warns of each data-parallel table that it has no shards."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Sharding spec not found" not in record.getMessage()


def _table_plan(option: ShardingOption, choice: Choice) -> TablePlan:
    shards = tuple(
        Shard(shard.rank, shard.offset[0], shard.offset[1], shard.size[0], shard.size[1]) for shard in option.shards
    )
    cached = option.compute_kernel == "fused_uvm_caching"
    kind = option.sharding_type
    if kind in ("column_wise", "table_column_wise") and len(shards) == 1 and "table_wise" in choice.types:
        kind = "table_wise"  # the same by its plainer name
    return TablePlan(kind, option.compute_kernel, shards, option.cache_load_factor if cached else None)


def _no_plan(model: nn.Module, workload: Workload) -> str:
    parts = table_types(model)
    gib = sum(table.num_embeddings * table.embedding_dim for table in parts) * 4 / 2**30
    devices = workload.topology.devices
    device = devices[0].storage
    have = (device.ddr if workload.topology.compute_device == "cpu" else device.hbm) / 2**30
    state = "with the optimizer's state" if workload.optimizer in ADAGRADS else "and the optimizer's state"
    return (
        f"topology: no plan fits: {len(parts)} tables of {gib:.1f} GiB {state} on {len(devices)} devices of "
        f"{have:.1f} GiB, of which {workload.reserve:.0%} stay free (topology.reserve); use more devices, row-wise "
        "types among sharding.types, sharding.kernels=[fused,fused_uvm_caching] on GPUs, or smaller tables"
    )


class _Enumerator(EmbeddingEnumerator):
    """TorchRec's, with options in the same order in every process: its own come from sets of strings."""

    def __init__(self, topology: Topology, batch_size: int, constraints: dict[str, ParameterConstraints]) -> None:
        super().__init__(topology, batch_size, constraints)

    def _filter_sharding_types(self, *arguments: Any, **keywords: Any) -> list[str]:
        return sorted(super()._filter_sharding_types(*arguments, **keywords), key=SHARDING_TYPES.index)

    def _filter_compute_kernels(self, *arguments: Any, **keywords: Any) -> list[str]:
        return sorted(super()._filter_compute_kernels(*arguments, **keywords))


class _BestPlan:
    """The planner's statistics: only to get hold of the options that it chose."""

    options: Sequence[ShardingOption] = ()

    def log(self, *arguments: Any, best_plan: Sequence[ShardingOption], **keywords: Any) -> None:
        self.options = best_plan
