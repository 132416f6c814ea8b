"""Results as a table that reads on a terminal and is Markdown as well."""

from collections.abc import Sequence
from typing import Any

from app.metrics.ceilings import Ceilings

COLUMNS = ("", "median ms", "p10", "p90", "samples/s", "GB/s", "of bandwidth", "GFLOP/s", "of matrix rate")
LATENCY_COLUMNS = ("", "p50 ms", "p95 ms", "p99 ms", "runs")


def table(results: Sequence[dict[str, Any]], ceilings: Ceilings) -> str:
    """One line a result; shares are of the ceilings, which stand above."""
    about = (
        f"Ceilings measured here: {ceilings.bytes_per_second / 1e9:.1f} GB/s (triad), "
        f"{ceilings.flops_per_second / 1e9:.1f} GFLOP/s ({ceilings.dtype} product). "
        "Above 100% of bandwidth, caches served what was counted."
    )
    lines = [about, "", *_lines([COLUMNS, *(_cells(result) for result in results)])]
    if latencies := [result for result in results if result["p99_ms"] is not None]:
        lines += ["", "Latency of single runs:", "", *_lines([LATENCY_COLUMNS, *map(_latency_cells, latencies)])]
    return "\n".join(lines)


def _lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows, of which the first is of names, as a Markdown table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(_aligned(row, widths)) + " |" for row in rows]
    rule = "|" + "|".join(("-" * (width + 1) + ":") if i else "-" * (width + 2) for i, width in enumerate(widths)) + "|"
    return [lines[0], rule, *lines[1:]]


def _latency_cells(result: dict[str, Any]) -> tuple[str, ...]:
    figures = (f"{result[key]:.3f}" for key in ("median_ms", "p95_ms", "p99_ms"))
    return result["name"], *figures, str(result["timed_samples"])


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["name"],
        *(f"{result[key]:.3f}" for key in ("median_ms", "p10_ms", "p90_ms")),
        _number(result["samples_per_second"], 1, ",.0f"),
        _number(result["bytes_per_second"], 1e-9, ".2f"),
        _number(result["share_of_bandwidth"], 1, ".0%"),
        _number(result["flops_per_second"], 1e-9, ".1f"),
        _number(result["share_of_matrix_rate"], 1, ".0%"),
    )


def _number(value: float | None, factor: float, form: str) -> str:
    return "" if value is None else format(value * factor, form)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
