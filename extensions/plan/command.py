"""python -m app.plan: the sharding plan for any hardware, its cost, and its reasons.

No GPU, no process group: `python -m app.plan recipe=mlperf_v2 topology=mi300x topology.devices_per_node=8
plan.out=plan.json` on any machine; `python -m app.train sharding.plan=plan.json` trains by it.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from msgspec import structs

from app.config import TopologyConfig
from app.config.sharding import AUTO_SHARDING
from app.config.train import with_batch_of_all
from app.kinds.models import ModelKind, require_dataset
from app.kinds.published import PublishedTables
from app.model.embeddings import TableArch
from app.model.make import make_tables
from app.model.tables import Features
from app.runtime import platform, process_group
from app.sharding import from_config, topology
from app.sharding.plan import load_plan, tables_in_order
from app.sharding.planner import table_choices
from app.training.meta_build import published_features
from common.cli import EXIT_DONE
from common.documents import encode
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.files import write_atomically
from data_prep.dataset.format import MANIFEST_NAME, load_manifest, mean_bag_sizes
from extensions.plan import hstu
from extensions.plan.documents import ForecastFile, WhatIf
from extensions.plan.forecast import diff_lines, forecast_plan, plan_lines, what_if_lines
from extensions.plan.keys import PlanAppConfig


def main(config: PlanAppConfig) -> int:
    """Plan as configured, and return the exit status."""
    process_group.log_to_terminal(rank=0)
    platform.quieten_third_parties()
    tables, bag_sizes = _tables(config)
    resolved = _resolved(config.topology)
    world_size = (resolved.nodes or 1) * (resolved.devices_per_node or 1)
    config = replace(config, train=with_batch_of_all(config.train, world_size))
    what_if = [_what_if(config, other, batch, tables, bag_sizes) for other, batch in _cases(config, resolved)]
    try:
        plan = structs.replace(_planned(config, resolved, tables, bag_sizes), what_if=what_if)
    except UserError:
        if what_if:
            print("\n".join(what_if_lines(what_if)))
        raise
    lines = plan_lines(plan, resolved.name, config.plan.reasons)
    if what_if:
        lines += ["", *what_if_lines(what_if)]
    if config.plan.against is not None:
        _, before = load_plan("plan.against", Path(config.plan.against), ForecastFile)
        lines += ["", *diff_lines(before, plan, config.plan.against)]
    print("\n".join(lines), file=sys.stderr if config.plan.out == "-" else sys.stdout)
    text = encode(plan, indent=1) + "\n"
    if config.plan.out == "-":
        sys.stdout.write(text)
    elif config.plan.out is not None:
        write_atomically(Path(config.plan.out), text.encode())
    return EXIT_DONE


def _planned(
    config: PlanAppConfig, resolved: TopologyConfig, tables: TableArch, bag_sizes: Mapping[str, float]
) -> ForecastFile:
    """Build the plan's file: the plan, its conditions, and its forecast."""
    config = replace(config, topology=resolved)
    device = torch.device("cpu" if resolved.architecture == "cpu" else "cuda")
    plan = from_config.decide(config, device, tables, bag_sizes)
    work = from_config.workload(config.train, config.optimizer, config.sharding, resolved, tables, bag_sizes)
    parts, name, is_hstu = tables_in_order(tables), config.optimizer.name, config.model.name == "hstu"
    choices = {}
    if config.sharding.plan is None:
        choices = from_config.choices(config.sharding, config.optimizer, parts, device, plan.world_size)
    everything = replace(config.sharding, types=AUTO_SHARDING, tables={}, min_partition=None)
    possible = table_choices(everything, name, parts, device.type)
    return structs.replace(
        forecast_plan(tables, plan, work, choices, possible),
        nodes=resolved.nodes,
        topology=asdict(resolved),
        global_batch_size=config.train.global_batch_size,
        optimizer=name.value,
        types=plan.summary(),
        notes=hstu.notes(config, tables, bag_sizes, work.local_batch_size) if is_hstu else [],
    )


def _what_if(
    config: PlanAppConfig,
    resolved: TopologyConfig,
    global_batch_size: int,
    tables: TableArch,
    bag_sizes: Mapping[str, float],
) -> WhatIf:
    """Return a line of the comparison: a new plan for that hardware and batch."""
    case = WhatIf(
        topology=resolved.name,
        nodes=resolved.nodes,
        devices_per_node=resolved.devices_per_node,
        world_size=(resolved.nodes or 1) * (resolved.devices_per_node or 1),
        global_batch_size=global_batch_size,
        forecast=None,
    )
    other = replace(
        config,
        train=replace(config.train, global_batch_size=global_batch_size),
        sharding=replace(config.sharding, plan=None),
    )
    try:
        plan = _planned(other, resolved, tables, bag_sizes)
    except UserError as error:
        case.problem = str(error).split(";")[0]
        return case
    slowest = max(plan.ranks or [], key=lambda rank: rank.total_ms)
    return structs.replace(case, forecast=plan.forecast or None, slowest=slowest, types=plan.types)


def _cases(config: PlanAppConfig, resolved: TopologyConfig) -> list[tuple[TopologyConfig, int]]:
    """Return the hardware and batches to compare; none unless configured."""
    settings = config.plan
    if not (settings.topologies or settings.batch_sizes or settings.devices):
        return []
    others = [resolved] + [
        _resolved(replace(_topology(name), nodes=resolved.nodes, devices_per_node=resolved.devices_per_node))
        for name in settings.topologies
    ]
    counts = settings.devices or [resolved.devices_per_node or 1]
    batches = settings.batch_sizes or [config.train.global_batch_size]
    return [(replace(t, devices_per_node=count), batch) for t in others for count in counts for batch in batches]


def _topology(name: str) -> TopologyConfig:
    """Return a topology of conf/topology, or of a YAML file if the name has its suffix."""
    if name.endswith((".yaml", ".yml")):
        return topology.read(Path(name))
    topologies = topology.load_all()
    if name not in topologies:
        raise UserError(f"topology={name}: not known; there are {', '.join(topologies)}, or give a YAML file")
    return topologies[name]


def _resolved(topology_config: TopologyConfig) -> TopologyConfig:
    """Return the topology with all figures, and with its numbers of nodes and devices."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count = topology_config.devices_per_node or gpus or 1
    resolved = topology.resolve(topology_config, lambda: topology.probe("cuda" if gpus else "cpu"), count)
    return replace(resolved, nodes=topology_config.nodes or 1, devices_per_node=count)


def _tables(config: PlanAppConfig) -> tuple[TableArch, dict[str, float]]:
    """Return the tables and each feature's mean ids per bag: as configured, else the dataset's, else as published."""
    features, means = _table_sizes(config)
    sizes = from_config.bag_sizes(config, features, means)
    if (bag_sizes := config.plan.bag_sizes) is not None:
        if len(bag_sizes) != len(sizes):
            raise UserError(f"plan.bag_sizes: {len(bag_sizes)} given for {len(sizes)} features; give one for each")
        sizes = dict(zip(sizes, map(float, bag_sizes), strict=True))
    multi_hot = [feature for feature, size in sizes.items() if size != 1]
    return make_tables(config, features._replace(multi_hot=multi_hot)), sizes


def _table_sizes(config: PlanAppConfig) -> tuple[Features, dict[str, float]]:
    """Return the features of the tables, and the mean number of ids per bag of each multi-hot feature."""
    sizes, root, kind = config.plan.num_embeddings, config.data.root, config.model.kind
    published = sizes if isinstance(sizes, str) else config.data.published_tables
    if sizes is not None and not isinstance(sizes, str):
        if kind.parts is not None:
            raise UserError(
                f"plan.num_embeddings: rows alone are no tables of {kind.learns_from.name}; give {_sizes_remedy(kind)}"
            )
        rows = dict(sizes) if isinstance(sizes, dict) else {f"cat_{i}": count for i, count in enumerate(sizes)}
        return Features(rows), {}
    if sizes is None and (root / MANIFEST_NAME).is_file():
        manifest = load_manifest(root)
        require_dataset(kind, root, manifest)
        return Features(manifest.num_embeddings, schema=manifest.encoding.get("raw_schema")), mean_bag_sizes(
            root, manifest
        )
    if published is None:
        raise UserError(f"{root}: no dataset to plan for; give {_sizes_remedy(kind)}")
    return published_features(published, config.model), {}


def _sizes_remedy(kind: ModelKind) -> str:
    """Return what a user can give for the sizes of a model's tables."""
    if kind.parts is None:
        return "data.path=DATASET, recipe=mlperf_v2, or rows of each table, such as plan.num_embeddings=[1000,7]"
    names = [row.name for row in rows_of_extensions(PublishedTables) if row.kind is kind.learns_from]
    return " or ".join([f"data.path of {kind.learns_from.name}", *map("plan.num_embeddings={}".format, names)])
