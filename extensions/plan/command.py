"""python -m app.plan: the sharding plan for any hardware, its cost, and its reasons.

No GPU, no process group: `python -m app.plan recipe=mlperf_v2 topology=mi300x topology.devices_per_node=8
plan.out=plan.json` on any machine; `python -m app.train sharding.plan=plan.json` trains by it.
"""

import itertools
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import torch
from msgspec import structs
from torchrec.distributed.planner.types import ShardingOption

from app.config.app_config import AppConfig
from app.config.kinds import ModelKind, PublishedTables, require_dataset
from app.config.sharding import AUTO_SHARDING, Plan, PlannedTable, TopologyConfig
from app.model.dlrm import make_tables
from app.model.embeddings import Features, TableArch
from app.report.read import size
from app.runtime import platform
from app.runtime.platform import log_to_terminal
from app.sharding import planner
from app.sharding.plan import load_plan, tables_in_order
from app.sharding.planner import Choice, sharding_options, table_choices, to_torchrec
from app.training.meta_build import published_features
from common.cli import EXIT_DONE
from common.documents import Json, Number, convert, encode, plain_object
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.files import write_atomically
from common.keys import WIDTH
from data_prep.dataset.format import MANIFEST_NAME, load_manifest, mean_bag_sizes
from extensions.plan.keys import PlanAppConfig

# Cost of one shard, or of all shards of a process: bytes of memory, and milliseconds per step.
Cost: TypeAlias = dict[str, Number]


class ForecastFile(Plan, kw_only=True):
    """A plan, what it is a plan for, and its forecast; another plan than the command's has the plan alone.

    tables: with further keys: sizes, bytes and milliseconds of the slowest shard, and the reason for the sharding.
    ranks: cost of all shards of a process. forecast: whether the plan fits; memory for tables on a device (on the host,
    for a CPU), without the reserve (`capacity_bytes`), and the rest of it on the fullest process, negative if the plan
    does not fit (`headroom_bytes`); time of the slowest process (`step_ms`), and that divided by the mean over
    processes (`imbalance`). what_if: the forecast for other hardware or another batch, with the slowest process and the
    types of sharding, or the problem.
    """

    nodes: int | None = None
    topology: Json | None = None
    global_batch_size: int | None = None
    optimizer: str | None = None
    types: str | None = None
    ranks: list[Cost] | None = None
    forecast: dict[str, Any] | None = None
    notes: list[str] | None = None
    what_if: list[dict[str, Any]] | None = None


def estimate_tables(
    config: AppConfig, model: TableArch, plan: Plan, bag_sizes: Mapping[str, float]
) -> dict[str, list[Cost]]:
    """Return TorchRec's estimates for the shards of each table, by table. Accept plans from any source."""
    # The plan is TorchRec's only choice here, so that its estimates compare with those of other plans.
    as_planned = {}
    for name, table in plan.tables.items():
        columns = min(shard.columns for shard in table.shards)
        as_planned[name] = Choice(name, ((table.type, table.kernel),), columns, table.cache_load_factor)
    options = sharding_options(config, model, as_planned, bag_sizes)
    return {name: costs_of(option, plan.world_size) for name, (option,) in options.items()}


def costs_of(option: ShardingOption, world_size: int) -> list[Cost]:
    """Return TorchRec's estimates of an option's shards, without communication that it counts for one process, too."""
    costs = []
    for shard in option.shards:
        perf: Any = shard.perf  # in milliseconds
        lookup = perf.fwd_compute + perf.bwd_compute + perf.prefetch_compute
        communication = perf.fwd_comms + perf.bwd_comms if world_size > 1 else 0.0
        cost = {"device_bytes": shard.storage.hbm, "host_bytes": shard.storage.ddr, "lookup_ms": lookup}
        costs.append(cost | {"communication_ms": communication, "total_ms": lookup + communication})
    return costs


def total_bytes(cost: Cost) -> Number:
    """Return the bytes on the device and on the host together."""
    return cost["device_bytes"] + cost["host_bytes"]


TIMES_NOTE = (
    "times are of tables alone (lookups, updates, exchange), estimated from data sheets; a whole step also has dense "
    "layers and input, so these are not two GPUs' speeds: make bench measures those"
)
COSTS = ("device_bytes", "host_bytes", "lookup_ms", "communication_ms", "total_ms")
# Sharding types as in the output of TorchRec's planner.
ABBREVIATIONS = {
    "data_parallel": "DP",
    "table_wise": "TW",
    "row_wise": "RW",
    "column_wise": "CW",
    "table_row_wise": "TWRW",
    "table_column_wise": "TWCW",
    "grid_shard": "GS",
}


def forecast_plan(
    config: AppConfig,
    model: TableArch,
    plan: Plan,
    bag_sizes: Mapping[str, float],
    choices: Mapping[str, Choice],
    possible: Mapping[str, Choice],
) -> ForecastFile:
    """Return a plan's file with its costs, and the reason for each table's sharding.

    choices: shardings that the planner could choose from, by table; empty for a plan of a file. possible: shardings
    that the reasons compare with, also those that the configuration rules out.
    """
    parts = estimate_tables(config, model, plan, bag_sizes)
    options_of = sharding_options(config, model, possible, bag_sizes)
    ranks: list[Cost] = [{"rank": rank, **dict.fromkeys(COSTS, 0)} for rank in range(plan.world_size)]
    document = convert(plain_object(plan), ForecastFile)
    for table in tables_in_order(model):
        shards, planned = parts[table.name], plan.tables[table.name]
        for shard, block in zip(shards, planned.shards, strict=True):
            for name in COSTS:
                ranks[block.rank][name] += shard[name]
        slowest, choice = _slowest_part(shards), choices.get(table.name)
        if choice is None:
            reason = "as the plan's file says"
        elif choice.is_forced:
            reason = f"as {choice.key}.types says"
        else:
            reason = _reason_text(planned, slowest, options_of[table.name], plan.world_size)
        document.tables[table.name].rest = {
            "name": table.name,
            "num_embeddings": table.num_embeddings,
            "embedding_dim": table.embedding_dim,
            "bytes": sum(map(total_bytes, shards)),
            "lookup_ms": slowest["lookup_ms"],
            "communication_ms": slowest["communication_ms"],
            "reason": reason,
        }
    # The reserve is taken off a CPU's topology already.
    topology = to_torchrec(config.topology)
    storage, is_cpu = topology.devices[0].storage, topology.compute_device == "cpu"
    room = int(storage.ddr if is_cpu else storage.hbm * (1 - (config.topology.reserve or 0)))
    # Tables of a CPU have all bytes on the host, and only there the host's memory is the limit.
    on_host = all(rank["device_bytes"] == 0 for rank in ranks)
    headroom = room - max(rank["host_bytes" if on_host else "device_bytes"] for rank in ranks)
    # All processes wait for the slowest.
    step_ms, mean = max(rank["total_ms"] for rank in ranks), sum(rank["total_ms"] for rank in ranks) / len(ranks)
    document.ranks = ranks
    document.forecast = {"fits": headroom >= 0, "capacity_bytes": room, "step_ms": step_ms, "headroom_bytes": headroom}
    document.forecast["imbalance"] = step_ms / mean if mean else 1.0
    return document


def _slowest_part(shards: Sequence[Cost]) -> Cost:
    """Return the slowest part; of equally slow ones, the one with the most bytes."""
    return max(shards, key=lambda shard: (shard["total_ms"], total_bytes(shard)))


def _reason_text(planned: PlannedTable, cost: Cost, possible: Sequence[ShardingOption], world_size: int) -> str:
    """Return the reason for the planner's choice, with the figures that it compared: each type's fastest kernel.

    cost: of the slowest part as planned.
    """
    ms, bytes_text = cost["total_ms"], size(total_bytes(cost))
    # By type, the time and bytes of the slowest part with its fastest kernel.
    by_type: dict[str, tuple[Number, str]] = {}
    for option in possible:
        other = _slowest_part(costs_of(option, world_size))
        if option.sharding_type not in by_type or other["total_ms"] < by_type[option.sharding_type][0]:
            by_type[option.sharding_type] = other["total_ms"], size(total_bytes(other))
    whole, copied = by_type.get("table_wise"), by_type.get("data_parallel")
    if planned.type == "data_parallel":
        text = f"small enough to copy ({bytes_text} a rank): its gradient takes {ms:.3f} ms"
        text += f", exchanging its vectors {whole[0]:.3f} (table_wise)" if whole else ""
    elif planned.type == "table_wise":
        text = f"whole on one rank, {ms:.3f} ms"
        if copied:
            text += f"; a copy on each: {copied[0]:.3f} ms, {copied[1]} a rank"
    else:
        text = f"over {len(planned.ranks)} rank(s), {ms:.3f} ms and {bytes_text} on each"
        text += f"; whole on one: {whole[0]:.3f} ms, {whole[1]}" if whole else ""
    # A difference below a thousandth is rounding of the estimates.
    faster = {
        kind: other_ms for kind, (other_ms, _) in by_type.items() if kind != planned.type and other_ms < ms * 0.999
    }
    if faster:
        fastest = min(faster, key=lambda kind: faster[kind])
        text += f"; {fastest} alone {faster[fastest]:.3f} ms, but the slowest rank counts"
    if planned.kernel != "fused" and planned.type != "data_parallel":
        text += f"; {planned.kernel}: device memory is short"
    return text


def plan_lines(plan: ForecastFile, topology: str, reasons: bool = False) -> list[str]:
    """Return the plan as text: a line per table with its reason if wanted, a line per process, and the forecast."""
    lines = [
        f"plan: {plan.world_size} devices ({plan.nodes} x {plan.local_world_size} {topology}), "
        f"global batch {plan.global_batch_size:,}, {plan.optimizer}",
        "",
    ]
    rows = [["table", "rows", "dim", "type", "kernel", "size", "lookup ms", "comm. ms", "ranks"]]
    for name, table in plan.tables.items():
        about: dict[str, Any] = table.rest
        shape = [f"{about['num_embeddings']:,}", str(about["embedding_dim"])]
        placement = [table.type, table.kernel, size(about["bytes"])]
        cost = [f"{about[name]:.3f}" for name in ("lookup_ms", "communication_ms")]
        rows.append([name, *shape, *placement, *cost, _ranks_text(table.ranks, plan.world_size)])
    lines += _align(rows)
    if reasons:
        lines += ["", *_align([[name, str(table.rest["reason"])] for name, table in plan.tables.items()])]
    rows = [["rank", "device", "host", "lookup ms", "comm. ms", "total ms"]]
    for rank in plan.ranks or []:
        cost = [f"{rank[name]:.3f}" for name in ("lookup_ms", "communication_ms", "total_ms")]
        rows.append([str(rank["rank"]), size(rank["device_bytes"]), size(rank["host_bytes"]), *cost])
    lines += ["", *_align(rows), ""]
    if forecast := plan.forecast:
        verdict = "fits" if forecast["fits"] else "DOES NOT FIT"
        lines += _wrap(
            f"forecast: {verdict}, headroom {size(forecast['headroom_bytes'])} of "
            f"{size(forecast['capacity_bytes'])} a device for tables; slowest rank {forecast['step_ms']:.3f} ms a step "
            f"for tables alone, imbalance {forecast['imbalance']:.2f}"
        )
    return [*lines, *(line for note in plan.notes or [] for line in _wrap(f"note: {note}"))]


def what_if_lines(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of other hardware and batches; the last lines explain its times and abbreviated types."""
    columns = ["topology", "devices", "global batch", "fullest", "headroom"]
    rows = [[*columns, "lookup ms", "comm. ms", "tables ms", "imbalance", "types"]]
    for case in cases:
        start = [case["topology"], str(case["world_size"]), f"{case['global_batch_size']:,}"]
        forecast, slowest = case["forecast"], case["slowest"]
        if forecast is None:
            rows.append([*start, case["problem"]])
            continue
        headroom = forecast["headroom_bytes"]
        cost = [f"{ms:.3f}" for ms in (slowest["lookup_ms"], slowest["communication_ms"], forecast["step_ms"])]
        short = re.sub(r"[a-z_]+", lambda name: ABBREVIATIONS[name[0]], case["types"])
        room = [size(forecast["capacity_bytes"] - headroom), size(headroom)]
        rows.append([*start, *room, *cost, f"{forecast['imbalance']:.2f}", short])
    types = set(re.findall(r"[a-z_]+", " ".join(case["types"] or "" for case in cases)))
    legend = ", ".join(f"{short}: {name}" for name, short in ABBREVIATIONS.items() if name in types)
    return ["what if:", *_align(rows), *_wrap(TIMES_NOTE), *_wrap(legend)]


def diff_lines(before: ForecastFile, after: ForecastFile, name: str) -> list[str]:
    """Return lines `what: before -> after` of tables, settings and figures that differ; name: of the plan `before`."""
    plans, changes = (before, after), []
    for table in dict.fromkeys([*before.tables, *after.tables]):
        placements = []
        for plan in plans:
            entry = plan.tables.get(table)
            ranks = _ranks_text(entry.ranks, plan.world_size) if entry else ""
            placements.append(f"{entry.type}/{entry.kernel} on {ranks}" if entry else "none")
        changes.append((table, *placements))
    settings = ("world_size", "local_world_size", "global_batch_size", "optimizer")
    changes += [(setting, *(str(getattr(plan, setting) or None) for plan in plans)) for setting in settings]
    figures = (("step_ms", "{:.3f} ms".format), ("imbalance", "{:.2f}".format), ("headroom_bytes", size))
    for key, format_figure in figures:
        values = [plan.forecast.get(key) if plan.forecast else None for plan in plans]
        texts = ("none" if value is None else format_figure(value) for value in values)
        changes.append((key.removesuffix("_bytes"), *texts))
    lines = [line for what, was, now in changes if was != now for line in _wrap(f"  {what}: {was} -> {now}")]
    return [f"against {name}:", *(lines or ["  the same"])]


def _ranks_text(ranks: Sequence[int], world_size: int) -> str:
    """Return ranks as `all`, as a range such as 0-3, or one by one."""
    if len(ranks) == world_size and world_size > 1:
        return "all"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _wrap(text: str) -> list[str]:
    """Wrap text to WIDTH, with all lines but the first indented; break a word only if it is longer than a line."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns in lines of at most WIDTH; cells that begin with a digit go to the right.

    Wraps the last cell of a row, and of a short row, over several lines; cuts long names in the first column.
    """
    columns, lines = max(map(len, rows)), []
    widths = [max((len(row[i]) for row in rows if len(row) == columns), default=0) for i in range(columns)]
    # The first column has 8 characters at least, the last 24.
    others = sum(widths[1:-1]) + 2 * (columns - 1) + min(widths[-1], 24)
    widths[0] = min(widths[0], max(8, WIDTH - others))
    widths[-1] = min(widths[-1], WIDTH - sum(widths[:-1]) - 2 * (columns - 1))
    for row in rows:
        indent = sum(widths[: len(row) - 1]) + 2 * (len(row) - 1)
        last = textwrap.wrap(row[-1], WIDTH - indent, break_on_hyphens=False) or [""]
        first = row[0] if len(row[0]) <= widths[0] else f"{row[0][: widths[0] - 1]}…"
        cells = [first, *row[1:-1], last[0]]
        # A last cell that runs over, or ends a short row, does not fill a column.
        aligned = len(cells) - (len(row) < columns or len(last) > 1)
        for place, width in enumerate(widths[:aligned]):
            is_number = cells[place][:1] in tuple("0123456789-.")
            cells[place] = cells[place].rjust(width) if is_number else cells[place].ljust(width)
        lines += ["  ".join(cells).rstrip(), *(f"{'':{indent}}{words}" for words in last[1:])]
    return lines


def forecast_notes(
    config: AppConfig, tables: TableArch, sizes: Mapping[str, float], local_batch_size: int
) -> list[str]:
    """Return what the forecast of HSTU assumes and leaves out.

    sizes: ids a bag by key. local_batch_size: samples of one device.
    """
    # Histories and candidates share the items' table, whose ids are positions; so are the context's.
    items = next(table for table in tables.tables if len(table.keys) > 1)
    context = sum(sizes[key] for table in tables.tables if len(table.keys) == 1 for key in table.keys)
    positions = context + sum(sizes[key] for key in items.keys)
    gib = local_batch_size * positions * attrgetter("sequences.hstu.dim")(config) * 4 / 2**30
    return [
        f"every history is taken to have {sizes[items.keys[0]]:,.0f} events; give their mean as "
        "sequences.history_length for mean times",
        "every id is a row that is looked up and sent, also one that a batch has already",
        f"attention, the dense layers and their memory are not estimated: {local_batch_size:,} samples of "
        f"{positions:,.0f} positions a device, {gib:.1f} GiB for each fp32 vector of sequences.hstu.dim that a "
        "layer keeps",
    ]


def main(config: PlanAppConfig) -> int:
    """Plan as configured, and return the exit status."""
    log_to_terminal(rank=0)
    platform.quieten_third_parties()
    tables, bag_sizes = _make_tables(config)
    resolved = _resolve_topology(config.topology)
    what_if = _what_if(config, resolved, tables, bag_sizes)
    try:
        plan = structs.replace(_make_plan_file(config, resolved, tables, bag_sizes), what_if=what_if)
    except UserError:
        # Where no plan fits, the alternatives may show which would.
        if what_if:
            print("\n".join(what_if_lines(what_if)))
        raise
    lines = plan_lines(plan, resolved.name, config.plan.reasons)
    if what_if:
        lines += ["", *what_if_lines(what_if)]
    if config.plan.against is not None:
        before = load_plan("plan.against", Path(config.plan.against), ForecastFile)
        lines += ["", *diff_lines(before, plan, config.plan.against)]
    # The JSON has standard output to itself, so that a program can read it.
    print("\n".join(lines), file=sys.stderr if config.plan.out == "-" else sys.stdout)
    text = encode(plan, indent=1) + "\n"
    if config.plan.out == "-":
        sys.stdout.write(text)
    elif config.plan.out is not None:
        write_atomically(Path(config.plan.out), text.encode())
    return EXIT_DONE


def _make_plan_file(
    config: PlanAppConfig, resolved: TopologyConfig, tables: TableArch, bag_sizes: Mapping[str, float]
) -> ForecastFile:
    """Make a plan, and return it with its conditions and its forecast. Raise UserError if none fits."""
    config = replace(config, topology=resolved)
    device = torch.device("cpu" if resolved.architecture == "cpu" else "cuda")
    plan = planner.decide(config, device, tables, bag_sizes)
    parts, name, is_hstu = tables_in_order(tables), config.optimizer.name, config.model.name == "hstu"
    choices = {}
    if config.sharding.plan is None:
        choices = planner.choices(config, parts, device, plan.world_size)
    # Reasons compare with every type, also with those that the configuration rules out.
    everything = replace(config.sharding, types=AUTO_SHARDING, tables={}, min_partition=None)
    possible = table_choices(everything, name, parts, device.type)
    return structs.replace(
        forecast_plan(config, tables, plan, bag_sizes, choices, possible),
        nodes=resolved.nodes,
        topology=asdict(resolved),
        global_batch_size=config.train.global_batch_size,
        optimizer=name.value,
        types=plan.summary(),
        notes=forecast_notes(config, tables, bag_sizes, config.train.local_rows(plan.world_size)) if is_hstu else [],
    )


def _what_if(
    config: PlanAppConfig, resolved: TopologyConfig, tables: TableArch, bag_sizes: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return forecasts for the configured hardware and batches; none unless configured."""
    settings = config.plan
    if not (settings.topologies or settings.batch_sizes or settings.devices):
        return []
    known, topologies = planner.load_all(), [resolved]
    cases: list[dict[str, Any]] = []
    for name in settings.topologies:
        is_file = name.endswith((".yaml", ".yml"))
        if not is_file and name not in known:
            raise UserError(f"topology={name}: not known; there are {', '.join(known)}, or give a YAML file")
        topology = planner.read(Path(name)) if is_file else known[name]
        topology = replace(topology, nodes=resolved.nodes, devices_per_node=resolved.devices_per_node)
        topologies.append(_resolve_topology(topology))
    devices = settings.devices or [resolved.devices_per_node or 1]
    batches = settings.batch_sizes or [config.train.global_batch_size]
    for topology, count, batch in itertools.product(topologies, devices, batches):
        case: dict[str, Any] = {"topology": topology.name, "nodes": topology.nodes, "devices_per_node": count}
        case |= {"world_size": (topology.nodes or 1) * count, "global_batch_size": batch}
        cases.append(case | dict.fromkeys(("forecast", "problem", "slowest", "types")))
        # A plan's file is for one number of devices, so alternatives are planned anew.
        train, sharding = replace(config.train, global_batch_size=batch), replace(config.sharding, plan=None)
        other = replace(config, train=train, sharding=sharding)
        try:
            plan = _make_plan_file(other, replace(topology, devices_per_node=count), tables, bag_sizes)
        except UserError as error:
            # The remedy after the semicolon would repeat in each line of the table.
            cases[-1]["problem"] = str(error).split(";")[0]
        else:
            slowest = max(plan.ranks or [], key=lambda rank: rank["total_ms"])
            cases[-1] |= {"forecast": plan.forecast, "types": plan.types, "slowest": slowest}
    return cases


def _resolve_topology(topology_config: TopologyConfig) -> TopologyConfig:
    """Return the topology with its figures resolved; by default one node, with this machine's GPUs or one device."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count = topology_config.devices_per_node or gpus or 1
    resolved = planner.resolve(topology_config, lambda: planner.probe("cuda" if gpus else "cpu"), count)
    return replace(resolved, nodes=topology_config.nodes or 1, devices_per_node=count)


def _make_tables(config: PlanAppConfig) -> tuple[TableArch, dict[str, float]]:
    """Return the tables and each feature's mean ids per bag: as configured, else the dataset's, else as published."""
    sizes, root, kind = config.plan.num_embeddings, config.data.root, config.model.kind
    means: dict[str, float] = {}  # of features with bags in the dataset
    if sizes is not None and not isinstance(sizes, str):
        if kind.parts is not None:
            raise UserError(
                f"plan.num_embeddings: rows alone are no tables of {kind.learns_from.name}; give {_sizes_remedy(kind)}"
            )
        features = Features(sizes if isinstance(sizes, dict) else {f"cat_{i}": rows for i, rows in enumerate(sizes)})
    elif sizes is None and (root / MANIFEST_NAME).is_file():
        manifest = load_manifest(root)
        require_dataset(kind, root, manifest)
        features = Features(manifest.num_embeddings, schema=manifest.encoding.get("raw_schema"))
        means = mean_bag_sizes(root, manifest)
    elif (published := sizes or config.data.published_tables) is not None:
        features = published_features(published, config.model)
    else:
        raise UserError(f"{root}: no dataset to plan for; give {_sizes_remedy(kind)}")
    bag_sizes = planner.bag_sizes(config, features, means)
    if (given := config.plan.bag_sizes) is not None:
        if len(given) != len(bag_sizes):
            raise UserError(f"plan.bag_sizes: {len(given)} given for {len(bag_sizes)} features; give one for each")
        bag_sizes = dict(zip(bag_sizes, map(float, given), strict=True))
    multi_hot = [feature for feature, size in bag_sizes.items() if size != 1]
    return make_tables(config, features._replace(multi_hot=multi_hot)), bag_sizes


def _sizes_remedy(kind: ModelKind) -> str:
    """Return what a user can give for the sizes of a model's tables, as the end of an error."""
    if kind.parts is None:
        return "data.path=DATASET, recipe=mlperf_v2, or rows of each table, such as plan.num_embeddings=[1000,7]"
    names = [row.name for row in rows_of_extensions(PublishedTables) if row.kind is kind.learns_from]
    return " or ".join([f"data.path of {kind.learns_from.name}", *map("plan.num_embeddings={}".format, names)])
