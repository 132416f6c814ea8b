"""One thing to measure, its result, and results as a table."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from app.metrics.ceilings import Ceilings, WorkTiming

COLUMNS = ("", "median ms", "p10", "p90", "samples/s", "GB/s", "of bandwidth", "GFLOP/s", "of matrix rate")
LATENCY_COLUMNS = ("", "p50 ms", "p95 ms", "p99 ms", "runs")


class Case(NamedTuple):
    """Work to be timed, and the minimum that one run of it must do.

    Attributes:
        name: family/variant, such as embedding_bag/tbe_sgd_sum_train.
        shape: its sizes in words.
        work: performs one run.
        samples: number that a run handles over all processes; 0 if that is meaningless.
        bytes: minimum to move between memory and the device's cores if no cache helps: each operand is read once, each
            result written once, and rows of tables once per lookup.
        flops: floating-point operations of its matrix products; a multiplication and an addition count as two.
        is_latency: whether the duration of single runs matters, so that runs are timed one by one.
    """

    name: str
    shape: str
    work: Callable[[], Any]
    samples: int
    bytes: int
    flops: int
    is_latency: bool = False

    @property
    def family(self) -> str:
        """First part of the name, by which `operators` selects."""
        return self.name.split("/")[0]


def result(case: Case, timing: WorkTiming, ceilings: Ceilings) -> dict[str, Any]:
    """Return a case's figures; shares of the measured ceilings exceed 1 if caches serve the counted bytes."""
    seconds = timing.median
    return {
        "name": case.name,
        "shape": case.shape,
        "median_ms": seconds * 1e3,
        "p10_ms": timing.p10 * 1e3,
        "p90_ms": timing.p90 * 1e3,
        "p95_ms": None if timing.p95 is None else timing.p95 * 1e3,
        "p99_ms": None if timing.p99 is None else timing.p99 * 1e3,
        "timed_samples": timing.samples,
        "runs_per_timed_sample": timing.runs_per_sample,
        "samples_per_second": case.samples / seconds if case.samples else None,
        "bytes": case.bytes,
        "flops": case.flops,
        "bytes_per_second": case.bytes / seconds,
        "flops_per_second": case.flops / seconds if case.flops else None,
        "share_of_bandwidth": case.bytes / seconds / ceilings.bytes_per_second,
        "share_of_matrix_rate": case.flops / seconds / ceilings.flops_per_second if case.flops else None,
    }


def results_table(results: Sequence[dict[str, Any]], ceilings: Ceilings) -> str:
    """Return one line per result; the ceilings, which shares refer to, stand above."""
    about = (
        f"Ceilings measured here: {ceilings.bytes_per_second / 1e9:.1f} GB/s (triad), "
        f"{ceilings.flops_per_second / 1e9:.1f} GFLOP/s ({ceilings.dtype} product). "
        "Above 100% of bandwidth, caches served the counted bytes."
    )
    lines = [about, "", *markdown_lines([COLUMNS, *(_cells(result) for result in results)])]
    if latencies := [result for result in results if result["p99_ms"] is not None]:
        lines += [
            "",
            "Latency of single runs:",
            "",
            *markdown_lines([LATENCY_COLUMNS, *map(_latency_cells, latencies)]),
        ]
    return "\n".join(lines)


def markdown_lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as a Markdown table; the first row has the names."""
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
