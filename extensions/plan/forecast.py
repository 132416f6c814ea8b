"""The cost of a plan by TorchRec's estimates, for tables and processes, as figures and as text."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from torchrec.distributed.planner.types import ShardingOption

from app.model.embeddings import TableArch
from app.sharding.plan import Plan, TablePlan, tables_in_order
from app.sharding.planner import Choice, Workload, sharding_options
from common.documents import convert, plain_object
from common.help import WIDTH
from extensions.plan.documents import Forecast, ForecastFile, ForecastTable, RankCost, WhatIf
from extensions.plan.estimates import Estimate, estimate_shard, estimates

# Sharding types as in the output of TorchRec's planner.
OF_TABLES = (
    "times are of tables alone (lookups, updates, exchange), estimated from data sheets; a whole step also has dense "
    "layers and input, so these are not two GPUs' speeds: make bench measures those"
)
ABBREVIATIONS = {
    "data_parallel": "DP",
    "table_wise": "TW",
    "row_wise": "RW",
    "column_wise": "CW",
    "table_row_wise": "TWRW",
    "table_column_wise": "TWCW",
    "grid_shard": "GS",
}
_RIGHT = set("0123456789-.")
# Least characters for the first column, whose cells are cut, and for the last, whose cells are wrapped.
_LEAST_OF_FIRST, _LEAST_OF_LAST = 8, 24


def forecast_plan(
    model: TableArch,
    plan: Plan,
    workload: Workload,
    choices: Mapping[str, Choice],
    possible: Mapping[str, Choice],
) -> ForecastFile:
    """Return the plan's file with the cost of a plan made within `choices`. Reasons consider all of `possible`."""
    parts = estimates(model, plan, workload)
    every = sharding_options(model, possible, workload)
    ways = {name: _by_type(options, plan.world_size) for name, options in every.items()}
    ranks = [Estimate(rank) for rank in range(plan.world_size)]
    document = convert(plain_object(plan.to_document()), ForecastFile)
    for table in tables_in_order(model):
        shards = parts[table.name]
        for shard in shards:
            ranks[shard.rank] = ranks[shard.rank].plus(shard)
        busiest, choice = _busiest(shards), choices.get(table.name)
        forced = "as the plan's file says" if choice is None else f"as {choice.key}.types says"
        is_forced = choice is None or choice.is_forced
        entry = document.tables[table.name]
        entry.name, entry.num_embeddings, entry.embedding_dim = table.name, table.num_embeddings, table.embedding_dim
        entry.bytes = sum(shard.total_bytes for shard in shards)
        entry.lookup_ms, entry.communication_ms = busiest.lookup_ms, busiest.communication_ms
        entry.reason = forced if is_forced else _reason(plan.tables[table.name], busiest, ways[table.name])
    on_host = all(rank.device_bytes == 0 for rank in ranks)
    room = capacity(workload)
    headroom = room - max(rank.host_bytes if on_host else rank.device_bytes for rank in ranks)
    step_ms, mean = max(rank.total_ms for rank in ranks), sum(rank.total_ms for rank in ranks) / len(ranks)
    document.ranks = [RankCost(**rank._asdict(), total_ms=rank.total_ms) for rank in ranks]
    document.forecast = Forecast(
        fits=headroom >= 0,
        capacity_bytes=room,
        step_ms=step_ms,
        headroom_bytes=headroom,
        imbalance=step_ms / mean if mean else 1.0,
    )
    return document


def capacity(workload: Workload) -> int:
    """Return the bytes for tables on each device; for a CPU, of host memory."""
    storage = workload.topology.devices[0].storage
    if workload.topology.compute_device == "cpu":
        return int(storage.ddr)
    return int(storage.hbm * (1 - workload.reserve))


def _by_type(options: Sequence[ShardingOption], world_size: int) -> dict[str, Estimate]:
    best: dict[str, Estimate] = {}
    for option in options:
        cost = _busiest([estimate_shard(shard, 0, world_size) for shard in option.shards])
        if option.sharding_type not in best or cost.total_ms < best[option.sharding_type].total_ms:
            best[option.sharding_type] = cost
    return best


def _busiest(shards: Sequence[Estimate]) -> Estimate:
    """Return the slowest part; of equally slow ones, the one with the most bytes."""
    return max(shards, key=lambda shard: (shard.total_ms, shard.total_bytes))


def _reason(planned: TablePlan, estimate: Estimate, ways: Mapping[str, Estimate]) -> str:
    """Return the reason for the planner's choice, with the figures that it compared."""
    ms, size = estimate.total_ms, _size(estimate.total_bytes)
    whole, copied = ways.get("table_wise"), ways.get("data_parallel")
    if planned.type == "data_parallel":
        text = f"small enough to copy ({size} a rank): its gradient takes {ms:.3f} ms"
        text += f", exchanging its vectors {whole.total_ms:.3f} (table_wise)" if whole else ""
    elif planned.type == "table_wise":
        text = f"whole on one rank, {ms:.3f} ms"
        if copied:
            text += f"; a copy on each: {copied.total_ms:.3f} ms, {_size(copied.total_bytes)} a rank"
    else:
        text = f"over {len(planned.ranks)} rank(s), {ms:.3f} ms and {size} on each"
        text += f"; whole on one: {whole.total_ms:.3f} ms, {_size(whole.total_bytes)}" if whole else ""
    others = {kind: way.total_ms for kind, way in ways.items() if kind != planned.type and way.total_ms < ms * 0.999}
    if others:
        kind = min(others, key=lambda kind: others[kind])
        text += f"; {kind} alone {others[kind]:.3f} ms, but the slowest rank counts"
    if planned.kernel != "fused" and planned.type != "data_parallel":
        text += f"; {planned.kernel}: device memory is short"
    return text


def _size(size: float) -> str:
    """Format bytes, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def plan_lines(plan: ForecastFile, topology: str, reasons: bool = False) -> list[str]:
    """Return the plan as text: a line per table with its reason if wanted, a line per process, and the forecast."""
    lines = [
        f"plan: {plan.world_size} devices ({plan.nodes} x {plan.local_world_size} {topology}), "
        f"global batch {plan.global_batch_size:,}, {plan.optimizer}",
        "",
    ]
    rows = [["table", "rows", "dim", "type", "kernel", "size", "lookup ms", "comm. ms", "ranks"]]
    for name, table in plan.tables.items():
        size = [f"{table.num_embeddings:,}", str(table.embedding_dim)]
        how = [table.type, table.kernel, _size(table.bytes or 0)]
        cost = [f"{table.lookup_ms:.3f}", f"{table.communication_ms:.3f}"]
        rows.append([name, *size, *how, *cost, _ranks(table.ranks, plan.world_size)])
    lines += _aligned(rows)
    if reasons:
        lines += ["", *_aligned([[name, table.reason or ""] for name, table in plan.tables.items()])]
    rows = [["rank", "device", "host", "lookup ms", "comm. ms", "total ms"]]
    for rank in plan.ranks or []:
        cost = [f"{ms:.3f}" for ms in (rank.lookup_ms, rank.communication_ms, rank.total_ms)]
        rows.append([str(rank.rank), _size(rank.device_bytes), _size(rank.host_bytes), *cost])
    lines += ["", *_aligned(rows), ""]
    if forecast := plan.forecast:
        verdict = "fits" if forecast.fits else "DOES NOT FIT"
        lines += _wrapped(
            f"forecast: {verdict}, headroom {_size(forecast.headroom_bytes)} of {_size(forecast.capacity_bytes)} a "
            f"device for tables; slowest rank {forecast.step_ms:.3f} ms a step for tables alone, imbalance "
            f"{forecast.imbalance:.2f}"
        )
    return [*lines, *(line for note in plan.notes or [] for line in _wrapped(f"note: {note}"))]


def what_if_lines(cases: Sequence[WhatIf]) -> list[str]:
    """Return a table of other hardware and batches; the last lines explain its times and abbreviated types."""
    rows = [
        [
            "topology",
            "devices",
            "global batch",
            "fullest",
            "headroom",
            "lookup ms",
            "comm. ms",
            "tables ms",
            "imbalance",
            "types",
        ]
    ]
    for case in cases:
        start = [case.topology, str(case.world_size), f"{case.global_batch_size:,}"]
        forecast, slowest = case.forecast, case.slowest
        if forecast is None or not slowest:
            rows.append([*start, case.problem or ""])
            continue
        room = [_size(forecast.capacity_bytes - forecast.headroom_bytes), _size(forecast.headroom_bytes)]
        cost = [f"{ms:.3f}" for ms in (slowest.lookup_ms, slowest.communication_ms, forecast.step_ms)]
        short = re.sub(r"[a-z_]+", lambda name: ABBREVIATIONS[name[0]], case.types or "")
        rows.append([*start, *room, *cost, f"{forecast.imbalance:.2f}", short])
    types = set(re.findall(r"[a-z_]+", " ".join(case.types or "" for case in cases)))
    legend = ", ".join(f"{short}: {name}" for name, short in ABBREVIATIONS.items() if name in types)
    return ["what if:", *_aligned(rows), *_wrapped(OF_TABLES), *_wrapped(legend)]


def diff_lines(before: ForecastFile, after: ForecastFile, name: str) -> list[str]:
    """Return the differences between two plans' files."""
    lines = []
    for table in dict.fromkeys([*before.tables, *after.tables]):
        one, two = (_summary_of(plan.tables.get(table), plan.world_size) for plan in (before, after))
        if one != two:
            lines += _wrapped(f"  {table}: {one} -> {two}")
    for key in ("world_size", "local_world_size", "global_batch_size", "optimizer"):
        values = [getattr(plan, key) or None for plan in (before, after)]
        if values[0] != values[1]:
            lines.append(f"  {key}: {values[0]} -> {values[1]}")
    figures = (("step_ms", "{:.3f} ms".format), ("imbalance", "{:.2f}".format), ("headroom_bytes", _size))
    for key, format_figure in figures:
        forecasts = [plan.forecast.figure(key) if plan.forecast else None for plan in (before, after)]
        if forecasts[0] != forecasts[1]:
            before_it, after_it = ("none" if figure is None else format_figure(figure) for figure in forecasts)
            lines.append(f"  {key.removesuffix('_bytes')}: {before_it} -> {after_it}")
    return [f"against {name}:", *(lines or ["  the same"])]


def _summary_of(table: ForecastTable | None, world_size: int) -> str:
    if table is None:
        return "none"
    return f"{table.type}/{table.kernel} on {_ranks(table.holders, world_size)}"


def _ranks(ranks: Sequence[int], world_size: int) -> str:
    if len(ranks) == world_size and world_size > 1:
        return "all"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _wrapped(text: str, indent: int = 4) -> list[str]:
    """Wrap text to WIDTH, with all lines but the first indented; break a word only if it is longer than a line."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns in lines of at most WIDTH; cells that begin with a digit go to the right.

    Wraps the last cell of a row, and of a short row, over several lines; cuts long names in the first column.
    """
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if len(row) == columns), default=0) for i in range(columns)]
    others = sum(widths[1:-1]) + 2 * (columns - 1) + min(widths[-1], _LEAST_OF_LAST)
    widths[0] = min(widths[0], max(_LEAST_OF_FIRST, WIDTH - others))
    widths[-1] = min(widths[-1], WIDTH - sum(widths[:-1]) - 2 * (columns - 1))
    return [line for row in rows for line in _row_lines(row, widths)]


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    indent = sum(widths[: len(row) - 1]) + 2 * (len(row) - 1)
    last = textwrap.wrap(row[-1], WIDTH - indent, break_on_hyphens=False) or [""]
    first = row[0] if len(row[0]) <= widths[0] else f"{row[0][: widths[0] - 1]}…"
    cells = [first, *row[1:-1], last[0]]
    runs_over = len(row) < len(widths) or len(last) > 1
    fitted = [
        cell.rjust(width) if cell and cell[0] in _RIGHT else cell.ljust(width)
        for cell, width in zip(cells[: -1 if runs_over else None], widths, strict=False)
    ]
    fitted += cells[-1:] * runs_over
    yield "  ".join(fitted).rstrip()
    yield from (f"{'':{indent}}{words}" for words in last[1:])
