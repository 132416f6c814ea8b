"""A model declared for a dataset, sharded over the processes and initialised."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed import DistributedModelParallel

from app.config import AppConfig
from app.config.train import LAYOUT
from app.kinds.models import require_dataset
from app.model.embeddings import TableArch
from app.model.make import make_model, make_tables
from app.model.tables import Features, initial_rows
from app.runtime.platform import Runtime
from app.sharding import from_config
from app.sharding.execute import distribute, fill_tables
from app.sharding.plan import Plan
from common.errors import UserError
from data_prep.dataset.format import Manifest

# Optimizer of tables that are not updated: FBGEMM's lookup on CPUs needs one, and this one keeps no state.
WITHOUT_STATE = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.0, "stochastic_rounding": False}


def sharded_model(
    config: AppConfig,
    runtime: Runtime,
    root: Path,
    manifest: Manifest,
    fused_params: dict[str, Any],
    initial: bool = True,
) -> tuple[DistributedModelParallel, Plan]:
    """Return the sharded model and its plan; a collective call.

    fused_params: FBGEMM's parameters of the optimizer that updates tables in their backward. initial: whether to fill
    tables and row weights with initial values; otherwise a checkpoint must fill them.
    """
    require_dataset(config.model.kind, root, manifest)
    if not manifest.num_embeddings:
        raise UserError(f"{root}: DLRM needs at least one sparse feature")
    torch.manual_seed(config.train.seed)  # dense layers draw their values from it in the order of their declaration
    features = Features(
        manifest.num_embeddings,
        len(manifest.schema.get("dense", [])),
        from_config.multi_hot_features(config.data.multi_hot, manifest),
        manifest.encoding.get("raw_schema"),
    )
    sparse_arch = make_tables(config, features, initial)
    plan = from_config.plan_for(config, runtime, sparse_arch, from_config.bag_sizes_of(config, root, manifest))
    if config.train.micro_batch is not None:
        _require_layout(sparse_arch, plan, features.multi_hot)
    model = distribute(
        make_model(config, sparse_arch, features),
        plan,
        fused_params,
        config.sharding.qcomm,
        runtime.device,
        averages=config.train.micro_batch is None,
    )
    if initial:
        tables = {table.name: table for table in sparse_arch.tables}
        fill_tables(model, lambda table, start, stop: initial_rows(config.train.seed, tables[table], start, stop))
    return model, plan


def _require_layout(sparse_arch: TableArch, plan: Plan, multi_hot: Collection[str] | None) -> None:
    """Raise UserError for tables whose bits would depend on the number of processes or threads."""
    setting = f"train.deterministic={LAYOUT}"
    parts = {
        "model.tables.kind=mixed_dimension": ("projections", "plain or qr"),
        "model.tables.pooling=weighted": ("row_weights", "sum or mean"),
        "model.tables.qr_operation=mult": ("rows", "add or concat"),
    }
    for key, (part, instead) in parts.items():
        if len(getattr(sparse_arch, part)):
            name = key.partition("=")[0]
            raise UserError(
                f"{key}: not with {setting}: dense parameters follow its lookup; give {name}={instead.split()[0]} "
                f"(or {instead.split()[-1]}), or train.deterministic=true"
            )
    kinds = {table.type for table in plan.tables.values()}
    if "data_parallel" in kinds and len(kinds) > 1:
        raise UserError(
            f"sharding: some tables are data_parallel: not with {setting}, as torch updates those and FBGEMM the "
            "others, and another number of processes leads to another division; give sharding.types=table_wise"
        )
    by_rows = sorted(kind for kind in kinds if kind not in ("table_wise", "column_wise", "data_parallel"))
    if by_rows and multi_hot:
        raise UserError(
            f"sharding.types={by_rows[0]}: not with {setting} for bags of several ids, whose sum is then one of "
            "processes' sums; give sharding.types=table_wise or column_wise"
        )
