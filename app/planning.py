"""Composition: the sharding plan of a run, from where the configuration says."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from app import optimizer, sharding
from app.config import AppConfig, OptimizerName, ShardingConfig
from app.config.sharding import refuse_columns
from app.runtime import Runtime
from common.errors import UserError

log = logging.getLogger("clickwork")

MOST_REPLICATED = 1 << 26  # parameters in tables that torch updates; with gradient and moments 1 GiB


def plan_for(config: AppConfig, runtime: Runtime, tables: Sequence[sharding.Table]) -> sharding.Plan:
    """The plan that all processes use; a collective call.

    Raises:
        UserError: the configuration does not fit the tables or processes.
    """
    world, name = (runtime.world_size, runtime.local_world_size), config.optimizer.name
    if config.sharding.plan is not None:
        plan = sharding.read_plan(Path(config.sharding.plan), tables, *world)
        for table in plan.tables.values():
            refuse_columns("sharding.plan", table.type, name)
            if table.type != "data_parallel" and not optimizer.has_fused(name, runtime.device):
                raise UserError(
                    f"sharding.plan={config.sharding.plan}: has {table.type} tables, and FBGEMM has no {name.value} on "
                    f"{runtime.device.type}; use sharding.types=data_parallel"
                )
        return plan
    asked = _with_an_update_for_tables(config.sharding, name, tables, runtime.device)
    chosen = sharding.choices(asked, name, tables, runtime.device.type)
    for table_name, choice in chosen.items():
        if not choice.is_forced:
            raise UserError(f"{choice.key}.types: {table_name} may be {', '.join(choice.types)}; choose one")
    return sharding.place(tables, chosen, *world)


def _with_an_update_for_tables(
    config: ShardingConfig, name: OptimizerName, tables: Sequence[sharding.Table], device: torch.device
) -> ShardingConfig:
    """Data-parallel tables where FBGEMM has not the optimizer on this device: torch's then updates them.

    Raises:
        UserError: the tables are too big for that: it goes over whole tables at every step.
    """
    if optimizer.has_fused(name, device):
        return config
    parameters = sum(table.num_embeddings * table.embedding_dim for table in tables)
    if parameters > MOST_REPLICATED:
        raise UserError(
            f"optimizer={name.value}: FBGEMM has it on GPUs only, and torch's goes over whole tables at every step: "
            f"{parameters:,} parameters in tables are more than {MOST_REPLICATED:,}; use optimizer=rowwise_adagrad, "
            "smaller tables (data.max_ind_range), or a GPU"
        )
    if config.types == "data_parallel" and not config.tables:
        return config
    rows_moved = "all rows at every step" if name is OptimizerName.adam else "the rows of each batch"
    log.info("sharding: FBGEMM has no %s on %s: tables are data_parallel instead of %s and updated in torch, with the "
             "same mathematics over %s", name.value, device.type, config.types, rows_moved)  # fmt: skip
    return replace(config, types="data_parallel", kernels=None, tables={})
