"""Runs that are built without data on the meta device: parameters are counted and tables planned; nothing is trained.

Table sizes are the ones that a recipe's source publishes (data.published_tables). No table needs memory.
"""

import time
from pathlib import Path

from torch import nn

from app.checkpoint.files import whole_checkpoints
from app.config.app_config import AppConfig
from app.config.data import own_files
from app.config.model import ModelConfig, published_tables
from app.model.dlrm import make_model, make_tables
from app.model.embeddings import Features, TableArch, parameter_counts
from app.record.directory import RunDirectory
from app.record.documents import Dataset
from app.runtime.platform import Runtime
from app.sharding import planner
from app.training import recorder
from app.training.state import RunState
from common.command import log
from common.documents import plain
from common.errors import UserError
from data_prep.dataset.format import MANIFEST_NAME


def is_wanted(config: AppConfig) -> bool:
    """Return whether to build the run from published sizes: nothing is to be trained and there is no data."""
    data = config.data
    # Published sizes stand in for a dataset, so one that exists goes first.
    if config.train.max_steps != 0 or data.published_tables is None or (data.root / MANIFEST_NAME).exists():
        return False
    # A recipe names a file for each split. While none of them exists, the user has not got the data yet; a list, or
    # data.raw, is the user's own.
    splits = [files for files in (data.train, data.val, data.test) if files is not None]
    if data.raw is None and splits and all(isinstance(files, str) and not Path(files).exists() for files in splits):
        return True
    return own_files(data) is None


def meta_model(config: AppConfig) -> nn.Module:
    """Return the configured model with published table sizes, on the meta device."""
    tables, _, features = published_arch(config)
    return make_model(config, tables, features).to("meta")


def write(config: AppConfig, runtime: Runtime, record: RunDirectory, began: float) -> None:
    """Write the directory of a run of no steps; a collective call.

    began: time.perf_counter() when the command began.

    Raises UserError: the tables do not fit these processes as configured, or the directory has a trained run.
    """
    runtime.on_rank_0(record.open)
    if whole_checkpoints(record.checkpoints):
        raise UserError(f"run.dir={record.path}: contains a trained run; give another run.name")
    counts = parameter_counts(meta_model(config))
    sparse_arch, bag_sizes, _ = published_arch(config)
    plan = planner.plan_for(config, runtime, sparse_arch, bag_sizes)
    dataset = Dataset(path=None, digest=None, published_tables=config.data.published_tables)
    tables = recorder.describe_tables(sparse_arch, bag_sizes)
    manifest = recorder.launch_manifest(config, runtime, dataset, plan, tables, files={})
    runtime.on_rank_0(lambda: record.begin(plain(config), manifest, 0, evaluated=False, afresh=True))
    seconds = {"total": time.perf_counter() - began, "train": 0.0, "eval": 0.0, "checkpoint": 0.0}
    world_size = runtime.world_size
    record.summary(recorder.local_summary(config.train, RunState(), 0, counts, world_size, True, seconds))
    log.info(
        "run: %s, built from the table sizes of %s and not trained: %s parameters (%s in tables)",
        Path(record.path),
        config.data.published_tables,
        f"{counts['total']:,}",
        f"{counts['embedding']:,}",
    )


def published_arch(config: AppConfig) -> tuple[TableArch, dict[str, float], Features]:
    """Return tables of published sizes, the mean ids per bag of each feature, and the features of the model."""
    name = config.data.published_tables
    if name is None:
        raise UserError("data.published_tables=null: without data, table sizes must come from it; name one")
    features = published_features(name, config.model)
    return make_tables(config, features), planner.bag_sizes(config, features, {}), features


def published_features(name: str, model: ModelConfig) -> Features:
    """Return the features of published table sizes. Raises UserError if the model learns from another kind of data."""
    tables, kind = published_tables(name), model.kind
    if tables.kind is not kind.learns_from:
        raise UserError(
            f"table sizes of {name}: of {tables.kind.name}, which {kind.label} does not learn from; choose another"
        )
    return Features(tables.rows, tables.num_dense, schema=tables.schema and tables.schema())
