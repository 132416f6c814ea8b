"""A plan and its forecast for people: aligned columns of text."""

from collections.abc import Sequence
from typing import Any

_RIGHT = set("0123456789-.")


def plan_lines(content: dict[str, Any]) -> list[str]:
    """The plan: a line for each table, a line for each process, and the sum of it."""
    lines = [
        f"plan: {content['world_size']} devices ({content['nodes']} x {content['local_world_size']} "
        f"{content['topology']['name']}), global batch {content['global_batch_size']:,}, {content['optimizer']}",
        "",
    ]
    rows = [["table", "rows", "dim", "type", "kernel", "ranks", "size", "lookup ms", "comm. ms", "reason"]]
    for name, table in content["tables"].items():
        rows.append([name, f"{table['num_embeddings']:,}", str(table["embedding_dim"]), table["type"], table["kernel"],
                     _ranks(table["ranks"], content["world_size"]), _size(table["bytes"]), f"{table['lookup_ms']:.3f}",
                     f"{table['communication_ms']:.3f}", table["reason"]])  # fmt: skip
    lines += _aligned(rows)
    rows = [["rank", "device", "host", "lookup ms", "comm. ms", "total ms"]]
    rows += [
        [str(rank["rank"]), _size(rank["device_bytes"]), _size(rank["host_bytes"]), f"{rank['lookup_ms']:.3f}",
         f"{rank['communication_ms']:.3f}", f"{rank['total_ms']:.3f}"]
        for rank in content["ranks"]
    ]  # fmt: skip
    forecast = content["forecast"]
    verdict = "fits" if forecast["fits"] else "DOES NOT FIT"
    return [
        *lines,
        "",
        *_aligned(rows),
        "",
        f"forecast: {verdict}, headroom {_size(forecast['headroom_bytes'])} of {_size(forecast['capacity_bytes'])} a "
        f"device for tables; slowest rank {forecast['step_ms']:.3f} ms a step (embeddings only), imbalance "
        f"{forecast['imbalance']:.2f}",
    ]


def what_if_lines(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Other hardware and other batches, side by side."""
    rows = [["topology", "devices", "global batch", "fullest", "headroom", "lookup ms", "comm. ms", "step ms",
             "imbalance", "types"]]  # fmt: skip
    for case in cases:
        start = [case["topology"], str(case["world_size"]), f"{case['global_batch_size']:,}"]
        if case["forecast"] is None:
            rows.append([*start, case["problem"]])
            continue
        forecast, slowest = case["forecast"], case["slowest"]
        rows.append([*start, _size(forecast["capacity_bytes"] - forecast["headroom_bytes"]),
                     _size(forecast["headroom_bytes"]), f"{slowest['lookup_ms']:.3f}",
                     f"{slowest['communication_ms']:.3f}", f"{forecast['step_ms']:.3f}", f"{forecast['imbalance']:.2f}",
                     case["types"]])  # fmt: skip
    return ["what if:", *_aligned(rows)]


def diff_lines(before: dict[str, Any], after: dict[str, Any], name: str) -> list[str]:
    """What differs between two plans' files."""
    lines = []
    for table in dict.fromkeys([*before["tables"], *after["tables"]]):
        one, two = (_short(plan["tables"].get(table), plan["world_size"]) for plan in (before, after))
        if one != two:
            lines.append(f"  {table}: {one} -> {two}")
    lines += [
        f"  {key}: {before.get(key)} -> {after.get(key)}"
        for key in ("world_size", "local_world_size", "global_batch_size", "optimizer")
        if before.get(key) != after.get(key)
    ]
    figures = (("step_ms", "{:.3f} ms"), ("imbalance", "{:.2f}"), ("headroom_bytes", "{}"))
    for key, form in figures:
        one, two = (plan.get("forecast", {}).get(key) for plan in (before, after))
        if one != two:
            shown = [_size(v) if key.endswith("bytes") and v is not None else form.format(v) for v in (one, two)]
            lines.append(f"  {key.removesuffix('_bytes')}: {shown[0]} -> {shown[1]}")
    return [f"against {name}:", *(lines or ["  the same"])]


def _short(table: dict[str, Any] | None, world_size: int) -> str:
    if table is None:
        return "none"
    ranks = sorted({shard[0] for shard in table["shards"] if shard[3]})
    return f"{table['type']}/{table['kernel']} on {_ranks(ranks, world_size)}"


def _ranks(ranks: Sequence[int], world_size: int) -> str:
    if len(ranks) == world_size and world_size > 1:
        return "all"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _size(size: float) -> str:
    value, units = float(size), ["B", "KiB", "MiB", "GiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need; those that begin with a digit to the right. Short rows' last cell may run over."""
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if len(row) == columns), default=0) for i in range(columns)]
    lines = []
    for row in rows:
        cells = []
        for number, cell in enumerate(row):
            right = bool(cell) and set(cell[0]) <= _RIGHT
            last = number == len(row) - 1
            width = 0 if last and not right else widths[number]
            cells.append(cell.rjust(width) if right else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines
