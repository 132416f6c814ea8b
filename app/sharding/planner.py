"""Ways to make a plan: the configuration, placement by size, and TorchRec's planner with its topologies."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torchrec import DataType
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, ShardingOption, Storage, Topology
from torchrec.distributed.types import CacheParams

from app.config.app_config import CONFIG_DIR, AppConfig
from app.config.data import MultiHotConfig
from app.config.kinds import Algorithm, OptimizerName
from app.config.sharding import (
    AUTO_SHARDING,
    AUTO_TOPOLOGY,
    HARDWARE,
    SHARDING_TYPES,
    UVM_KERNELS,
    Plan,
    PlannedTable,
    ShardingConfig,
    TableBlock,
    TopologyConfig,
    kernels_allowed,
    kernels_of,
    refuse_columns,
    settings_of_table,
    types_allowed,
)
from app.config.train import OptimizerConfig
from app.model.embeddings import FBGEMM_MULTIPLE, Features, TableArch, TableSpec
from app.optimizer import has_fused
from app.runtime.platform import Runtime
from app.sharding.plan import blocks, codecs, make_sharders, read_plan, shardable, tables_in_order
from common.command import log
from common.compose import ConversionError, convert
from common.errors import UserError
from common.keys import check_keys, shown
from data_prep.dataset.format import Manifest, mean_bag_sizes

GIB, GB_PER_S = 2**30, 1e6  # bytes; bytes per millisecond, TorchRec's unit
SAME_MEMORY = 0.06  # drivers report this much less or more than data sheets


@dataclass(frozen=True)
class Device:
    """A device as it was probed."""

    name: str
    architecture: str
    memory_gib: float

    def __str__(self) -> str:
        return f"{self.name} ({self.architecture}, {self.memory_gib:.1f} GiB)"


def probe(device_type: str) -> Device:
    """Return this process's device, `cuda` (also for ROCm) or `cpu`; memory is the total, used or not."""
    if device_type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Device("CPU", "cpu", memory / GIB)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    # ROCm appends features to the architecture, as in gfx942:sramecc+:xnack-; topologies name it alone.
    hip = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    architecture = hip.split(":")[0] or f"sm_{properties.major}{properties.minor}"
    return Device(properties.name, architecture, properties.total_memory / GIB)


def load_all() -> dict[str, TopologyConfig]:
    """Return the topologies of conf/topology by name, except `auto`, which has no figures of its own."""
    files = sorted((CONFIG_DIR / "topology").glob("*.yaml"))
    return {path.stem: read(path) for path in files if path.stem != AUTO_TOPOLOGY}


def read(path: Path) -> TopologyConfig:
    """Read a topology from its YAML file. Raises UserError for another file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return convert(TopologyConfig, content)
    except OSError as error:
        raise UserError(f"topology.file={path}: not readable ({error.strerror})") from error
    except (yaml.YAMLError, ConversionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"topology.file={path}: not a topology ({reason})") from error


def resolve(config: TopologyConfig, find: Callable[[], Device], devices_per_node: int) -> TopologyConfig:
    """Return the configuration with every figure filled in: from its file, from the known device, or as given.

    `find` probes the device; it is not called if the configuration is complete.

    Raises UserError: the device is not known, or a figure is missing.
    """
    if config.file is not None:
        config = _over(read(Path(config.file)), config)
    elif config.name == AUTO_TOPOLOGY and any(getattr(config, key) is None for key in HARDWARE):
        entry = identify(find(), load_all())
        config = replace(_over(entry, config), name=entry.name)
    # Processes on a CPU share the memory of the machine.
    if config.architecture == "cpu":
        memory = config.memory_gib or probe("cpu").memory_gib / devices_per_node
        config = replace(config, memory_gib=memory, host_memory_gib=config.host_memory_gib or memory)
    for key in HARDWARE:
        if getattr(config, key) is None:
            raise UserError(f"topology.{key}=null: topology {config.name} needs it; {_example(find())}")
    config = _over(TopologyConfig(link_efficiency=0.8, reserve=0.15), config)
    check_keys(config, "topology.")  # also checks figures from a file
    return config


def identify(device: Device, among: Mapping[str, TopologyConfig]) -> TopologyConfig:
    """Return the known topology of a device, identified by architecture and measured memory."""
    fit = [
        entry
        for entry in among.values()
        if entry.architecture == device.architecture
        and (entry.memory_gib is None or abs(device.memory_gib / entry.memory_gib - 1) <= SAME_MEMORY)
    ]
    if not fit:
        raise UserError(f"topology=auto: {device} is not known; {_example(device)}")
    spelled = device.name.lower().replace(" ", "")
    # Gb300 also contains b300: the longest name wins. If the device's name contains none, the first that fits does.
    best = max(fit, key=lambda entry: len(entry.name) * (entry.name in spelled))
    log.info("topology: %s identified as %s", device, best.name)
    if "pcie" in spelled:
        log.warning(
            "topology: %s is the form with NVLink; give topology.memory_gb_per_s and .intra_host_gb_per_s of "
            "the PCIe card",
            best.name,
        )
    return best


def num_devices(topology: TopologyConfig) -> tuple[int, int]:
    """Return the numbers of all devices and of those of one machine; by default one device of one machine."""
    return (topology.nodes or 1) * (topology.devices_per_node or 1), topology.devices_per_node or 1


def to_torchrec(topology: TopologyConfig) -> Topology:
    """Return a resolved topology in TorchRec's form.

    TorchRec's own factory is newer than the oldest supported TorchRec, and ignores bandwidths by default; the
    constructor takes the same figures. TorchRec calls ROCm's devices "cuda", too.
    """
    cpu = topology.architecture == "cpu"
    # The first of HARDWARE is the architecture, which is no figure.
    figures: dict[str, Any] = {key: getattr(topology, key) for key in HARDWARE[1:]}
    assert topology.link_efficiency is not None
    assert topology.reserve is not None
    # Data sheets give peaks that collectives do not reach.
    links = GB_PER_S * topology.link_efficiency
    host_part = 1 - topology.reserve if cpu else 1.0  # the planner itself reserves only device memory
    world_size, local_world_size = num_devices(topology)
    return Topology(
        world_size=world_size,
        local_world_size=local_world_size,
        compute_device="cpu" if cpu else "cuda",
        hbm_cap=0 if cpu else int(figures["memory_gib"] * GIB),
        ddr_cap=int(figures["host_memory_gib"] * GIB * host_part),
        hbm_mem_bw=figures["memory_gb_per_s"] * GB_PER_S,
        ddr_mem_bw=figures["host_memory_gb_per_s"] * GB_PER_S,
        hbm_to_ddr_mem_bw=figures["host_link_gb_per_s"] * GB_PER_S,
        intra_host_bw=figures["intra_host_gb_per_s"] * links,
        inter_host_bw=figures["inter_host_gb_per_s"] * links,
    )


def _over(base: TopologyConfig, config: TopologyConfig) -> TopologyConfig:
    """Return `base` with the values that `config` sets itself."""
    plain = TopologyConfig()
    overrides = {key: value for key, value in vars(config).items() if value != getattr(plain, key)}
    return replace(base, **overrides)


def _example(device: Device) -> str:
    """Return the advice to describe a device, with a topology file to complete.

    Architecture and memory, the first two of HARDWARE, are filled in as probed; the bandwidths are left to the user.
    """
    overrides = {"name": "mine", "architecture": device.architecture, "memory_gib": round(device.memory_gib)}
    text = ", ".join(f"{key}: {value}" for key, value in {**overrides, **dict.fromkeys(HARDWARE[2:], "...")}.items())
    return f"describe it in mine.yaml, in GiB and GB/s one way: {{{text}}}; then give topology.file=mine.yaml"


FP32_BYTES = 4


@dataclass(frozen=True)
class Choice:
    """The sharding types and compute kernels that one table may have, and the key that decides it."""

    key: str
    options: tuple[tuple[str, str], ...]  # (type, kernel)
    min_partition: int | None  # smallest number of columns of a shard
    cache_load_factor: float | None  # share of the rows that the device caches; None without a cache

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
    """Return each table's choice by `sharding` alone. Raises UserError for a type or kernel that it cannot have."""
    names = {name for table in tables for name in (table.name, *table.keys)}
    for name in config.tables:
        if name not in names:
            raise UserError(f"sharding.tables.{name}: no such table or feature; there are {', '.join(sorted(names))}")
    result = {}
    for table in tables:
        key, section = settings_of_table(config, table.name, list(table.keys))
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


def place_tables(
    tables: Sequence[TableSpec], choices: Mapping[str, Choice], world_size: int, local_world_size: int
) -> Plan:
    """Return the plan of tables whose choices are all forced; each shard goes where the fewest elements are."""
    if world_size % local_world_size:
        raise UserError(
            f"{world_size} processes, {local_world_size} on this machine: start the same number on each machine"
        )
    machines = [range(first, first + local_world_size) for first in range(0, world_size, local_world_size)]
    elements = [0] * world_size  # held by each process so far
    placed: dict[str, PlannedTable] = {}
    # The largest come first, so that small tables can even out the loads.
    for table in sorted(tables, key=lambda table: -table.num_embeddings * table.embedding_dim):
        choice = choices[table.name]
        ((kind, kernel),) = choice.options
        max_shards = {"column_wise": world_size, "table_column_wise": local_world_size, "grid_shard": len(machines)}
        columns = shard_columns(table.embedding_dim, max_shards.get(kind, 1), choice.min_partition)
        shards = blocks(kind, table, world_size, local_world_size, columns)
        # Sorting is stable, so equal loads give the lowest ranks, and every process gets the same plan.
        lightest_machines = sorted(machines, key=lambda machine: sum(elements[rank] for rank in machine))
        ranks: Sequence[int] = range(world_size)
        if kind in ("table_row_wise", "table_column_wise"):
            ranks = lightest_machines[0]
        elif kind == "grid_shard":
            machines_taken = lightest_machines[: table.embedding_dim // columns]
            ranks = sorted(rank for machine in machines_taken for rank in machine)
        if kind in ("table_wise", "column_wise", "table_column_wise"):
            ranks = sorted(sorted(ranks, key=elements.__getitem__)[: len(shards)])
        for shard, rank in zip(shards, ranks, strict=True):
            elements[rank] += shard.rows * shard.columns
        on_ranks = [shard._replace(rank=rank) for shard, rank in zip(shards, ranks, strict=True)]
        placed[table.name] = PlannedTable.of(kind, kernel, on_ranks, choice.cache_load_factor)
    planned = {table.name: placed[table.name] for table in tables}
    return Plan(world_size=world_size, local_world_size=local_world_size, tables=planned)


def shard_columns(embedding_dim: int, max_shards: int, min_partition: int | None) -> int:
    """Return the columns of each shard: the smallest width that makes at most `max_shards` equal shards.

    This width is a multiple of 4 (for FBGEMM) and at least `min_partition`; without such a width, the whole dimension.
    """
    minimum = max(min_partition or 4, 4)
    for shards in range(max_shards, 1, -1):
        width, rest = divmod(embedding_dim, shards)
        if not rest and width % 4 == 0 and width >= minimum:
            return width
    return embedding_dim


def search(config: AppConfig, model: TableArch, choices: Mapping[str, Choice], bag_sizes: Mapping[str, float]) -> Plan:
    """Return the best plan that TorchRec's planner finds within the choices; needs no process group.

    config: its topology has all figures and numbers of devices. bag_sizes: mean ids per bag of each feature.
    """
    enumerator, best, reserve = _Enumerator(config, model, choices, bag_sizes), _BestPlan(), config.topology.reserve
    topology = enumerator.topology
    assert reserve is not None
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=enumerator.batch_size,
        enumerator=enumerator,
        storage_reservation=FixedPercentageStorageReservation(reserve),
        stats=best,
        constraints=enumerator.constraints,
    )
    try:
        with _without_warning():
            planner.plan(model, make_sharders({}, codecs(config.sharding.qcomm)))
    except PlannerError as error:
        tables, optimizer, device = model.tables, config.optimizer.name, topology.devices[0].storage
        have = (device.ddr if topology.compute_device == "cpu" else device.hbm) / GIB
        gib = sum(table.bytes for table in tables) / GIB
        state = sum(table.num_embeddings * optimizer.algorithm.state_elements(table.embedding_dim) for table in tables)
        raise UserError(
            f"topology: no plan fits: {len(tables)} tables of {gib:.1f} GiB and {state * FP32_BYTES / GIB:.1f} GiB of "
            f"{optimizer.value}'s state on {len(topology.devices)} devices of {have:.1f} GiB, of which "
            f"{reserve:.0%} stay free (topology.reserve); use more devices, row-wise types among "
            "sharding.types, sharding.kernels=[fused,fused_uvm_caching] on GPUs, or smaller tables"
        ) from error
    planned = {}
    for option in best.options:
        kind, kernel, choice = option.sharding_type, option.compute_kernel, choices[option.name]
        shards = [TableBlock(shard.rank, *shard.offset, *shard.size) for shard in option.shards]
        # One shard is the whole table, so it gets the plainer name.
        if kind in ("column_wise", "table_column_wise") and len(shards) == 1 and "table_wise" in choice.types:
            kind = "table_wise"
        cached = option.cache_load_factor if kernel == "fused_uvm_caching" else None
        planned[option.name] = PlannedTable.of(kind, kernel, shards, cached)
    order = {table.name: planned[table.name] for table in tables_in_order(model)}
    return Plan(world_size=topology.world_size, local_world_size=topology.local_world_size, tables=order)


def sharding_options(
    config: AppConfig, model: TableArch, choices: Mapping[str, Choice], bag_sizes: Mapping[str, float]
) -> dict[str, list[ShardingOption]]:
    """Return each table's options within its choice, with TorchRec's estimates, which a `Plan` does not hold.

    The arguments are those of `search`.
    """
    options: dict[str, list[ShardingOption]] = {name: [] for name in choices}
    with _without_warning():
        enumerator = _Enumerator(config, model, choices, bag_sizes)
        for option in enumerator.enumerate(model, make_sharders({}, codecs(config.sharding.qcomm))):
            options[option.name].append(option)
    return options


@contextmanager
def _without_warning() -> Iterator[None]:
    """Drop TorchRec's warning that a data-parallel table has no shards."""

    def is_kept(record: logging.LogRecord) -> bool:
        return "Sharding spec not found" not in record.getMessage()

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)  # keeps logging from adding a handler of its own to the root
    root.addFilter(is_kept)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.removeFilter(is_kept)


class _Enumerator(EmbeddingEnumerator):
    """TorchRec's enumerator with options in the same order in every process; its own come from sets of strings."""

    def __init__(
        self, config: AppConfig, model: TableArch, choices: Mapping[str, Choice], bag_sizes: Mapping[str, float]
    ) -> None:
        """Leave each table the options of its choice; the arguments are those of `search`."""
        self.topology = to_torchrec(config.topology)
        self.batch_size = max(1, config.train.local_rows(self.topology.world_size))  # samples of one process
        keys = {table.name: table.keys for table in model.tables}
        self.constraints = {
            name: ParameterConstraints(
                sharding_types=choice.types,
                compute_kernels=list(dict.fromkeys(kernel for _, kernel in choice.options)),
                min_partition=choice.min_partition,
                pooling_factors=[bag_sizes.get(model.feature_of[key], 1.0) for key in keys[name]],
                output_dtype=DataType.FP32,  # FBGEMM's lookups return it, however rows are stored
                cache_params=None
                if choice.cache_load_factor is None
                else CacheParams(load_factor=choice.cache_load_factor),
            )
            for name, choice in choices.items()
        }
        super().__init__(self.topology, self.batch_size, self.constraints)
        on_host = self.topology.compute_device == "cpu"
        self._estimators.append(_OptimizerState(config.optimizer.name.algorithm, on_host))

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

    def __init__(self, algorithm: Algorithm, on_host: bool) -> None:
        self._algorithm, self._on_host = algorithm, on_host

    def estimate(self, sharding_options: Sequence[ShardingOption], *arguments: Any, **keywords: Any) -> None:
        """Add the bytes of state and gradient to each shard's storage."""
        for option in sharding_options:
            for shard in option.shards:
                rows, columns = shard.size
                moments, values_per_row = len(self._algorithm.state), len(self._algorithm.row_state)
                if option.compute_kernel == "dense":
                    moments += 1  # the gradient
                moment_bytes = rows * columns * moments * FP32_BYTES
                row_state_bytes = rows * values_per_row * FP32_BYTES
                if self._on_host:
                    shard.storage += Storage(hbm=0, ddr=moment_bytes + row_state_bytes)
                elif option.compute_kernel in UVM_KERNELS:
                    shard.storage += Storage(hbm=row_state_bytes, ddr=moment_bytes)
                else:
                    shard.storage += Storage(hbm=moment_bytes + row_state_bytes, ddr=0)


class _BestPlan:
    """Takes the place of the planner's statistics, to get hold of the options that it chose."""

    def log(self, *arguments: Any, best_plan: Sequence[ShardingOption], **keywords: Any) -> None:
        self.options = best_plan


MAX_REPLICATED = 1 << 26  # parameters in tables that torch updates; 1 GiB with a gradient and two moments, all fp32


def plan_for(config: AppConfig, runtime: Runtime, tables: TableArch, bag_sizes: Mapping[str, float]) -> Plan:
    """Return the plan that all processes use; a collective call. `bag_sizes`: mean ids per bag of each feature."""

    # Rank 0 decides for all, since TorchRec takes its options from sets of strings, whose order differs by process.
    def decide_on_rank_0() -> Plan:
        """Return the plan. Raise UserError for another number of machines or devices."""
        hardware = config.topology
        nodes, devices = runtime.world_size // runtime.local_world_size, runtime.local_world_size
        for key, number in (("nodes", nodes), ("devices_per_node", devices)):
            if getattr(hardware, key) not in (None, number):
                raise UserError(f"topology.{key}={getattr(hardware, key)}: the run has {number}; leave it out")
        of_run = replace(config, topology=replace(hardware, nodes=nodes, devices_per_node=devices))
        return decide(of_run, runtime.device, tables, bag_sizes)

    plan = runtime.on_rank_0(decide_on_rank_0)
    if runtime.world_size == 1 and config.sharding.qcomm != type(config.sharding.qcomm)():
        log.warning("sharding.qcomm: has no effect with one process: nothing travels")
    return plan


def decide(config: AppConfig, device: torch.device, tables: TableArch, bag_sizes: Mapping[str, float]) -> Plan:
    """Return the plan for `topology.nodes` machines of `topology.devices_per_node` devices; needs none of them."""
    plan, parts = _choose_plan(config, device, tables, bag_sizes), tables_in_order(tables)
    # Neither FBGEMM's kernel for GPUs nor pool_rows can read narrow tables of several widths.
    widths = {table.embedding_dim for table in parts if plan.tables[table.name].type == "data_parallel"}
    if device.type != "cpu" and len(widths) > 1 and any(width % FBGEMM_MULTIPLE for width in widths):
        raise UserError(
            f"model.embedding_dim: data_parallel tables have widths of {', '.join(map(str, sorted(widths)))}, which a "
            f"GPU can look up if all are equal or multiples of {FBGEMM_MULTIPLE}; give a multiple of {FBGEMM_MULTIPLE}"
        )
    return plan


def _choose_plan(config: AppConfig, device: torch.device, tables: TableArch, bag_sizes: Mapping[str, float]) -> Plan:
    """Return the plan of a file, the planner's, or the only possible one. Raise UserError if there is none."""
    hardware, optimizer, name = config.topology, config.optimizer, config.optimizer.name
    (world_size, local_world_size), parts = num_devices(hardware), tables_in_order(tables)
    if config.sharding.plan is not None:
        plan = read_plan(Path(config.sharding.plan), parts, world_size, local_world_size)
        reason = _whole_tables(optimizer, parts)
        if reason is None and not has_fused(name, device):
            reason = f"FBGEMM has no {name.value} on {device.type}"
        for table in plan.tables.values():
            refuse_columns("sharding.plan", table.type, name)
            if table.type != "data_parallel" and reason is not None:
                raise UserError(
                    f"sharding.plan={config.sharding.plan}: has {table.type} tables, and {reason}; use "
                    "sharding.types=data_parallel instead of the plan"
                )
        return plan
    # The planner's choice depends on the number of processes, which train.deterministic=layout excludes.
    table_choice = choices(config, parts, device, world_size if config.train.micro_batch is None else 1)
    # Without a choice no figures of the hardware are needed, so an unknown device is no obstacle.
    if not all(choice.is_forced for choice in table_choice.values()):
        try:
            resolved = resolve(hardware, lambda: probe(device.type), local_world_size)
        except UserError as error:
            # Only the default may fall back: a user who asks for the planner has to hear why there is no plan.
            if config.sharding.types is not None:
                raise
            log.warning("sharding: %s; tables are table_wise until then, balanced by their size alone", error)
            by_table = replace(config, sharding=replace(config.sharding, types="table_wise"))
            table_choice = choices(by_table, parts, device, world_size)
        else:
            return search(replace(config, topology=resolved), tables, table_choice, bag_sizes)
    return place_tables(parts, table_choice, world_size, local_world_size)


def choices(config: AppConfig, parts: Sequence[TableSpec], device: torch.device, world_size: int) -> dict[str, Choice]:
    """Return each table's choice, after defaults, on `world_size` such devices. Raises UserError as `decide` does.

    If torch must update the tables (`_whole_tables`, or FBGEMM lacks the optimizer), all are data_parallel.
    """
    reason, name, given = _whole_tables(config.optimizer, parts), config.optimizer.name, config.sharding
    if reason is not None and given.tables:
        raise UserError(f"sharding.tables: {reason}; leave it out, as all tables are data_parallel")
    if reason is not None and given.types not in (None, AUTO_SHARDING, "data_parallel"):
        raise UserError(f"sharding.types={shown(given.types)}: {reason}; give sharding.types=data_parallel")
    settings = given
    # The planner chooses among several GPUs, since equal bytes are not equal work.
    if given.types is None:
        is_chosen = world_size > 1 and device.type != "cpu"
        settings = replace(given, types=AUTO_SHARDING if is_chosen else "table_wise")
    if reason is None and has_fused(name, device):
        return table_choices(settings, name, parts, device.type)
    cause, instead = reason, ""
    if reason is None:
        cause, instead = f"optimizer={name.value}: FBGEMM lacks it on {device.type}", "optimizer=rowwise_adagrad, "
    if by_id := [table.name for table in parts if table.by_id]:
        fused = " or ".join(each.value for each in OptimizerName if has_fused(each, device))
        remedy = f"use optimizer={fused}" if reason is None else "leave that key out"
        raise UserError(f"{cause}, and torch updates no table that is looked up id by id, such as {by_id[0]}; {remedy}")
    parameters = sum(table.num_embeddings * table.embedding_dim for table in parts)
    if parameters > MAX_REPLICATED:
        raise UserError(
            f"{cause}, and torch goes over whole tables at every step: {parameters:,} parameters in tables are more "
            f"than {MAX_REPLICATED:,}; use {instead}smaller tables (data.max_ind_range)"
        )
    # Where the user has asked for data_parallel already, there is nothing to change or to log.
    if settings.types != "data_parallel" or settings.tables:
        # One process that no sharding was asked of holds all tables in any case.
        if reason is None or world_size > 1 or given.types is not None:
            description, mathematics = reason, ""
            if reason is None:
                rows_moved = "all rows at every step" if name.algorithm.moves_all_rows else "the rows of each batch"
                description = f"FBGEMM has no {name.value} on {device.type}"
                mathematics = f", with the same mathematics over {rows_moved}"
            text = "sharding: %s: tables are data_parallel instead of %s and updated in torch%s"
            log.info(text, description, settings.types, mathematics)
        settings = replace(settings, types="data_parallel", kernels=None, tables={})
    return table_choices(settings, name, parts, device.type)


def bag_sizes(config: AppConfig, features: Features, means: Mapping[str, float]) -> dict[str, float]:
    """Return ids per bag, by key of the model's ids: the expanded size, or the mean in the shards; otherwise 1.

    means: mean bag size by feature of the dataset; empty without one, as for published table sizes.
    """
    if (parts := config.model.parts) is not None:
        return parts.bag_sizes(config, features)
    names = list(features.num_embeddings)
    if (bags := config.data.multi_hot.bags(len(names))) is not None:
        return {name: float(size) for name, size in zip(names, bags.sizes, strict=True)}
    return {name: means.get(name, 1.0) for name in names}


def bag_sizes_of(config: AppConfig, root: Path, manifest: Manifest) -> dict[str, float]:
    """Return mean ids per bag of each feature of a dataset; for models other than DLRM, by key of their ids."""
    features = Features(manifest.num_embeddings, schema=manifest.encoding.get("raw_schema"))
    return bag_sizes(config, features, mean_bag_sizes(root, manifest))


def multi_hot_features(multi_hot: MultiHotConfig, manifest: Manifest) -> list[str]:
    """Return the features of a dataset whose bags may have more or fewer ids than one."""
    features = list(manifest.num_embeddings)
    bags = multi_hot.bags(len(features))
    sizes = bags.sizes if bags is not None else (1,) * len(features)
    pairs = zip(features, sizes, strict=True)
    return [feature for feature, size in pairs if size != 1 or feature in manifest.ragged]


def _whole_tables(optimizer: OptimizerConfig, tables: Sequence[TableSpec]) -> str | None:
    """Return why torch must update whole tables on any device; None if FBGEMM may fuse their update."""
    if optimizer.sparse_weight_decay:
        decay = f"optimizer.sparse_weight_decay={optimizer.sparse_weight_decay}"
        return f"{decay} needs whole tables, so each process holds all of them"
    if optimizer.clip_tables:
        return "optimizer.clip_tables=true needs the tables' gradients, which a fused update never has"
    widths = [table.embedding_dim for table in tables if table.embedding_dim % FBGEMM_MULTIPLE]
    if widths:
        return f"FBGEMM updates tables whose width is a multiple of {FBGEMM_MULTIPLE}, and there is one of {widths[0]}"
    return None
