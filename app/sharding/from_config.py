"""The sharding plan of a run as configured: read from a file, placed by size, or made by the planner."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from app.config import (
    AppConfig,
    MultiHotConfig,
    OptimizerConfig,
    OptimizerName,
    ShardingConfig,
    TopologyConfig,
    TrainConfig,
)
from app.config.sharding import AUTO_SHARDING, refuse_columns, with_default_types
from app.config.tables import Storage
from app.model.embeddings import TableArch
from app.model.tables import FBGEMM_MULTIPLE, Features, TableSpec
from app.optimizer.build import has_fused
from app.runtime.platform import Runtime
from app.sharding import topology
from app.sharding.documents import PlanFile
from app.sharding.plan import Plan, read_plan, tables_in_order
from app.sharding.planner import Choice, Workload, place_tables, search, table_choices
from common.documents import decode, encode
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.format import Manifest, mean_bag_sizes

log = logging.getLogger("clickwork")

MAX_REPLICATED = 1 << 26  # parameters in tables that torch updates; 1 GiB with gradient and moments


def plan_for(config: AppConfig, runtime: Runtime, tables: TableArch, bag_sizes: Mapping[str, float]) -> Plan:
    """Return the plan that all processes use; a collective call. `bag_sizes`: mean ids per bag of each feature."""

    def decided() -> str:
        hardware = config.topology
        numbers = {
            "nodes": runtime.world_size // runtime.local_world_size,
            "devices_per_node": runtime.local_world_size,
        }
        for key, number in numbers.items():
            if getattr(hardware, key) not in (None, number):
                raise UserError(f"topology.{key}={getattr(hardware, key)}: the run has {number}; leave it out")
        run_config = replace(
            config, topology=replace(hardware, nodes=numbers["nodes"], devices_per_node=numbers["devices_per_node"])
        )
        return encode(decide(run_config, runtime.device, tables, bag_sizes).to_document())

    plan = Plan.from_document(decode(runtime.on_rank_0(decided), PlanFile))
    if runtime.world_size == 1 and config.sharding.qcomm != type(config.sharding.qcomm)():
        log.warning("sharding.qcomm: has no effect with one process: nothing travels")
    return plan


def decide(config: AppConfig, device: torch.device, tables: TableArch, bag_sizes: Mapping[str, float]) -> Plan:
    """Return the plan for `topology.nodes` machines of `topology.devices_per_node` devices; needs none of them."""
    plan = _decide(config, device, tables, bag_sizes)
    if config.optimizer.fused_weight_decay is not None:
        _refuse_ignored_decay(config.optimizer, plan, tables_in_order(tables), device)
    if device.type != "cpu":
        _refuse_several_narrow_widths(plan, tables_in_order(tables))
    return plan


def _refuse_several_narrow_widths(plan: Plan, tables: Sequence[TableSpec]) -> None:
    """Raise UserError for data-parallel tables that neither FBGEMM's kernel for GPUs nor pool_rows can read."""
    widths = {table.embedding_dim for table in tables if plan.tables[table.name].type == "data_parallel"}
    if len(widths) > 1 and any(width % FBGEMM_MULTIPLE for width in widths):
        raise UserError(
            f"model.embedding_dim: data_parallel tables have widths of {', '.join(map(str, sorted(widths)))}, which a "
            f"GPU can look up if all are equal or multiples of {FBGEMM_MULTIPLE}; give a multiple of {FBGEMM_MULTIPLE}"
        )


def _refuse_ignored_decay(
    optimizer: OptimizerConfig, plan: Plan, tables: Sequence[TableSpec], device: torch.device
) -> None:
    """Raise UserError for a table to which FBGEMM would silently not apply its weight decay.

    FBGEMM's CPU kernel has a fast path for fp32 tables of one feature with pooled bags, and passes a decay of 0 to it:
    codegen/training/backward/embedding_backward_split_cpu_template.cpp of 1.8.0.
    """
    prefix, name = f"optimizer.fused_weight_decay={optimizer.fused_weight_decay}: ", optimizer.name
    instead = ", or optimizer.sparse_weight_decay" if name.algorithm.has_weight_decay else ""
    if not has_fused(name, device):
        raise UserError(
            f"{prefix}FBGEMM has no {name.value} on {device.type}; use optimizer=rowwise_adagrad{instead}, or leave it "
            "out"
        )
    for table in tables:
        if plan.tables[table.name].type == "data_parallel":
            raise UserError(
                f"{prefix}table {table.name} is data_parallel, so that torch updates it; use another sharding.types"
                f"{instead}"
            )
        if device.type == "cpu" and table.storage is Storage.fp32 and len(table.keys) == 1 and not table.by_id:
            raise UserError(
                f"{prefix}on CPU FBGEMM ignores it for fp32 tables of one feature, such as {table.name}; use "
                f"model.tables.storage=fp16{instead}"
            )


def _decide(config: AppConfig, device: torch.device, tables: TableArch, bag_sizes: Mapping[str, float]) -> Plan:
    hardware, optimizer, name = config.topology, config.optimizer, config.optimizer.name
    local_world_size = hardware.devices_per_node or 1
    world_size = (hardware.nodes or 1) * local_world_size
    parts = tables_in_order(tables)
    if config.sharding.plan is not None:
        plan = read_plan(Path(config.sharding.plan), parts, world_size, local_world_size)
        for table in plan.tables.values():
            refuse_columns("sharding.plan", table.type, name)
            if table.type != "data_parallel" and not has_fused(name, device):
                raise UserError(
                    f"sharding.plan={config.sharding.plan}: has {table.type} tables, and FBGEMM has no {name.value} on "
                    f"{device.type}; use sharding.types=data_parallel"
                )
            if table.type != "data_parallel" and (reason := _whole_tables(optimizer, parts)) is not None:
                raise UserError(
                    f"sharding.plan={config.sharding.plan}: has {table.type} tables, and {reason}; use "
                    "sharding.types=data_parallel instead of the plan"
                )
        return plan
    # The planner's choice depends on the number of processes, which train.deterministic=layout excludes.
    of_tables = choices(
        config.sharding, optimizer, parts, device, world_size if config.train.micro_batch is None else 1
    )
    if not all(choice.is_forced for choice in of_tables.values()):
        try:
            resolved = topology.resolve(hardware, lambda: topology.probe(device.type), local_world_size)
        except UserError as error:
            if config.sharding.types is not None:
                raise
            log.warning("sharding: %s; tables are table_wise until then, balanced by their size alone", error)
            of_tables = choices(replace(config.sharding, types="table_wise"), optimizer, parts, device, world_size)
        else:
            return search(
                tables, of_tables, workload(config.train, optimizer, config.sharding, resolved, tables, bag_sizes)
            )
    return place_tables(parts, of_tables, world_size, local_world_size)


def choices(
    config: ShardingConfig,
    optimizer: OptimizerConfig,
    parts: Sequence[TableSpec],
    device: torch.device,
    world_size: int,
) -> dict[str, Choice]:
    """Return each table's open choices on `world_size` such devices. Raises UserError as `decide` does."""
    reason = _whole_tables(optimizer, parts)
    if reason is not None and (config.types not in (None, AUTO_SHARDING, "data_parallel") or config.tables):
        if config.tables:
            raise UserError(f"sharding.tables: {reason}; leave it out, as all tables are data_parallel")
        raise UserError(f"sharding.types={shown(config.types)}: {reason}; give sharding.types=data_parallel")
    settings = with_default_types(config, world_size, device.type)
    if reason is not None or not has_fused(optimizer.name, device):
        is_news = reason is None or world_size > 1 or config.types is not None
        settings = replicated(settings, optimizer, reason, parts, device, is_news)
    return table_choices(settings, optimizer.name, parts, device.type)


def workload(
    train: TrainConfig,
    optimizer: OptimizerConfig,
    sharding: ShardingConfig,
    resolved: TopologyConfig,
    tables: TableArch,
    bag_sizes: Mapping[str, float],
) -> Workload:
    """Return the planner's input; `resolved`: a topology with all figures and numbers of devices."""
    local_world_size = resolved.devices_per_node or 1
    world_size = (resolved.nodes or 1) * local_world_size
    assert resolved.reserve is not None
    return Workload(
        topology=topology.to_torchrec(resolved, world_size, local_world_size),
        reserve=resolved.reserve,
        local_batch_size=max(1, train.local_rows(world_size)),
        pooling_factors={
            table.name: [bag_sizes.get(tables.feature_of[key], 1.0) for key in table.keys] for table in tables.tables
        },
        optimizer=optimizer.name,
        qcomm=sharding.qcomm,
    )


def bag_sizes(config: AppConfig, features: Features, means: Mapping[str, float]) -> dict[str, float]:
    """Return mean ids per bag, by key of the model's ids; `means`: of multi-hot features, from the shards."""
    if (parts := config.model.parts) is not None:
        return parts.bag_sizes(config, features)
    return bag_sizes_of_rows(config.data.multi_hot, list(features.num_embeddings), means)


def bag_sizes_of_rows(
    multi_hot: MultiHotConfig, features: Sequence[str], means: Mapping[str, float]
) -> dict[str, float]:
    """Return ids per bag of each feature: the expanded size, or the mean in the shards; otherwise 1."""
    bags = multi_hot.bags()
    if bags is not None:
        return {feature: float(size) for feature, size in zip(features, bags.sizes, strict=True)}
    return {feature: means.get(feature, 1.0) for feature in features}


def bag_sizes_of(config: AppConfig, root: Path, manifest: Manifest) -> dict[str, float]:
    """Return mean ids per bag of each feature of a dataset; for models other than DLRM, by key of their ids."""
    features = Features(manifest.num_embeddings, schema=manifest.encoding.get("raw_schema"))
    return bag_sizes(config, features, mean_bag_sizes(root, manifest))


def multi_hot_features(multi_hot: MultiHotConfig, manifest: Manifest) -> list[str]:
    """Return the features of a dataset whose bags may have more or fewer ids than one."""
    sizes = bag_sizes_of_rows(multi_hot, list(manifest.num_embeddings), {})
    return [feature for feature, size in sizes.items() if size != 1 or feature in manifest.ragged]


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


def replicated(
    config: ShardingConfig,
    optimizer: OptimizerConfig,
    reason: str | None,
    tables: Sequence[TableSpec],
    device: torch.device,
    is_news: bool,
) -> ShardingConfig:
    """Make all tables data-parallel, so that torch updates them: for `reason`, or as FBGEMM lacks the optimizer here.

    It is logged if `is_news`: one process that no sharding was asked of holds all tables in any case.
    """
    by_id = next((table.name for table in tables if table.by_id), None)
    if by_id is not None:
        cause, remedy = f"{reason}, and", "leave that key out"
        if reason is None:
            cause = f"optimizer={optimizer.name.value}: FBGEMM lacks it on {device.type}, and"
            remedy = f"use optimizer={' or '.join(name.value for name in OptimizerName if has_fused(name, device))}"
        raise UserError(f"{cause} torch updates no table that is looked up id by id, such as {by_id}; {remedy}")
    name, parameters = optimizer.name, sum(table.num_embeddings * table.embedding_dim for table in tables)
    if parameters > MAX_REPLICATED:
        of_gpus = name.algorithm.fbgemm is not None
        limitation, or_a_gpu = ("FBGEMM has it on GPUs only", ", or a GPU") if of_gpus else ("FBGEMM lacks it", "")
        cause, remedy = f"optimizer={name.value}: {limitation}, and torch's", "use optimizer=rowwise_adagrad, "
        if reason is not None:
            cause, remedy, or_a_gpu = f"{reason}; that", "use ", ""
        raise UserError(
            f"{cause} goes over whole tables at every step: {parameters:,} parameters in tables are more than "
            f"{MAX_REPLICATED:,}; {remedy}smaller tables (data.max_ind_range){or_a_gpu}"
        )
    if config.types == "data_parallel" and not config.tables:
        return config
    description, mathematics = reason, ""
    if reason is None:
        rows_moved = "all rows at every step" if name.algorithm.moves_all_rows else "the rows of each batch"
        description = f"FBGEMM has no {name.value} on {device.type}"
        mathematics = f", with the same mathematics over {rows_moved}"
    text = "sharding: %s: tables are data_parallel instead of %s and updated in torch%s"
    if is_news:
        log.info(text, description, config.types, mathematics)
    return replace(config, types="data_parallel", kernels=None, tables={})
