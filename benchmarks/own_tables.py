"""Rows per second of a user's own table: the parse stage, reading and converting alone, and other programs' reading.

    python -m benchmarks.own_tables [--rows N] [--rounds N] [--budget SIZE] [--raw-in DIR] [--out FILE.json]

A table of a label, five categories of 10 to 300,000 values and two numbers, as CSV (34 bytes a row) and as Parquet.
Everything takes turns, `--rounds` times after one round that does not count. "parse" is the stage of that name of
`python -m data_prep`: reading, converting, counting and writing; beside it are the memory of all its processes at the
most and the budget that they were given. "read and convert" is what the stage does before that, alone: bytes to
labels, numbers and categories. pyarrow and polars read the same file on one core, with the categories encoded by
dictionary and the numbers as numbers. All but the jobs of two workers are pinned to one core.
The files lie in `--raw-in`, by default in memory (/dev/shm).
"""

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.check import REPOSITORY
from benchmarks.preprocess import medians, memory_with_room, run_data_prep
from benchmarks.result_file import write_result
from data_prep.config import parse_size

VALUES = (10, 300, 3_000, 30_000, 300_000)  # of each category
CATEGORIES = [f"category_{number}" for number in range(len(VALUES))]
NUMBERS = ["price", "count"]
SCHEMA = f"label: label\ndense: [{', '.join(NUMBERS)}]\nsparse: [{', '.join(CATEGORIES)}]\n"
BLOCK_BYTES = 8 << 20  # of pyarrow's reading
ROW_BYTES_IN_MEMORY = 100
WORKERS = (1, 2)

Figures = dict[str, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", default="2GiB", help="data.memory_budget; 1GiB has no room for two workers")
    parser.add_argument("--raw-in", type=Path, help="where raw files lie; by default /dev/shm, where it has room")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    raw_in = arguments.raw_in or memory_with_room(ROW_BYTES_IN_MEMORY * arguments.rows)
    with tempfile.TemporaryDirectory(dir=raw_in) as raw, tempfile.TemporaryDirectory() as out:
        make_files(Path(raw), arguments.rows)
        results = measure(arguments, Path(raw), Path(out))
    print(markdown(results, parse_size(arguments.budget, "--budget") / 2**20))
    write_result(arguments, results)


def make_files(directory: Path, rows: int) -> None:
    """The table as CSV and Parquet, and its schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    columns = {"label": pa.array(rng.integers(0, 2, rows))}
    for name, values in zip(CATEGORIES, VALUES, strict=True):
        columns[name] = pa.array(rng.integers(0, values, rows).astype(str))
    columns |= {"price": pa.array(rng.normal(20, 30, rows).round(2)), "count": pa.array(rng.integers(0, 1000, rows))}
    pq.write_table(pa.table(columns), directory / "rows.parquet")
    with open(directory / "rows.csv", "w", encoding="utf-8") as file:
        file.write(",".join(columns) + "\n")
        for start in range(0, rows, 1 << 16):
            texts = [column[start : start + (1 << 16)].cast(pa.string()).to_pylist() for column in columns.values()]
            file.writelines(",".join(fields) + "\n" for fields in zip(*texts, strict=True))
    (directory / "schema.yaml").write_text(SCHEMA, encoding="utf-8")


def measure(arguments: argparse.Namespace, raw: Path, out: Path) -> list[dict[str, Any]]:
    """All measurements in turn, several times over."""
    tasks: dict[str, Callable[[], Figures]] = {}
    for name in ("CSV", "Parquet"):
        path = raw / f"rows.{name.lower()}"
        for workers in WORKERS:
            label = f"{name}: parse, {workers} worker{'s' * (workers > 1)}"
            tasks[label] = functools.partial(run_job, path, out, workers, arguments.budget)
        for label, reader in (("read and convert", convert), ("pyarrow", read_by_pyarrow), ("polars", read_by_polars)):
            tasks[f"{name}: {label}"] = functools.partial(on_one_core, reader, path, arguments.rows)
    rounds: dict[str, list[Figures]] = {name: [] for name in tasks}
    for number in range(arguments.rounds + 1):
        names = list(tasks) if number % 2 else list(reversed(tasks))
        for name in names:
            figures = tasks[name]()
            if number:
                rounds[name].append(figures)
    results = []
    for name, runs in rounds.items():
        results.append({"what": name, **medians(runs), "runs": runs})
    return results


def run_job(path: Path, out: Path, workers: int, budget: str) -> Figures:
    """Rows per second of the parse stage and of the whole job, and the memory of its processes."""
    root = out / "dataset"
    shutil.rmtree(root, ignore_errors=True)
    overrides = [f"data.raw={path}", f"data.schema={path.parent}/schema.yaml", f"data.path={root}"]
    overrides += [f"data.workers={workers}", f"data.memory_budget={budget}"]
    run_data_prep(REPOSITORY, overrides, pinned=workers == 1)
    manifest = json.loads((root / "manifest.json").read_bytes())
    rows, extra = manifest["rows"], manifest["extra"]
    return {
        "rows_per_second": rows / extra["stage_seconds"]["parse"],
        "whole_rows_per_second": rows / extra["seconds"],
        "peak_mib": extra["peak_memory_bytes"] / 2**20,
    }


def on_one_core(reader: Callable[[Path], float], path: Path, rows: int) -> Figures:
    """Rows per second of a reader in a fresh process on one core."""
    with multiprocessing.get_context("spawn").Pool(1, pin) as pool:
        seconds = pool.apply(reader, (path,))
    return {"rows_per_second": rows / seconds}


def pin() -> None:
    """Keep this process to one core, and the libraries that it will import to one thread."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


def convert(path: Path) -> float:
    """Seconds of this project's reading and converting, the schema and imports left out."""
    from data_prep.codec import convert as converter
    from data_prep.parsing.table import format_named, load_table, row_bytes, table_layout
    from data_prep.sources.files import resolve_sources

    sources = tuple(resolve_sources(str(path)))
    table = load_table(path.parent / "schema.yaml", sources)
    form, (columns, layout) = format_named(table.format), table_layout(table)
    begin = time.perf_counter()
    for chunk in form.chunks(sources[0], layout, row_bytes(table), BLOCK_BYTES):
        for batch, _ in form.batches(sources[0], chunk, columns, layout):
            converter.convert(batch, table)
    return time.perf_counter() - begin


def read_by_pyarrow(path: Path) -> float:
    """Seconds of pyarrow's reading, with one thread."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    begin = time.perf_counter()
    if path.suffix == ".parquet":
        table = pq.read_table(path, use_threads=False)
    else:
        kinds = {name: pa.string() for name in CATEGORIES} | {name: pa.float64() for name in ("label", *NUMBERS)}
        options = pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
        table = pyarrow.csv.read_csv(path, options, convert_options=pyarrow.csv.ConvertOptions(column_types=kinds))
    for name in CATEGORIES:
        table.column(name).dictionary_encode()
    for name in ("label", *NUMBERS):
        table.column(name).cast(pa.float64())
    return time.perf_counter() - begin


def read_by_polars(path: Path) -> float:
    """Seconds of polars' reading, with one thread."""
    import polars  # not before `pin`

    begin = time.perf_counter()
    kinds = polars.Schema(dict.fromkeys(CATEGORIES, polars.Categorical()))
    kinds |= dict.fromkeys(("label", *NUMBERS), polars.Float64())
    if path.suffix == ".parquet":
        polars.read_parquet(path).cast(kinds)
    else:
        polars.read_csv(path, schema_overrides=kinds)
    return time.perf_counter() - begin


def markdown(results: list[dict[str, Any]], budget_mib: float) -> str:
    """The table for benchmarks/README.md."""
    lines = ["| | rows/s | whole job, rows/s | peak memory, MiB |", "|---|---|---|---|"]
    for result in results:
        cells = [result.get(key) for key in ("rows_per_second", "whole_rows_per_second", "peak_mib")]
        if not result["runs"]:
            lines.append(f"| {result['what']} | not installed | | |")
            continue
        lines.append(f"| {result['what']} | " + " | ".join("" if c is None else f"{c:,.0f}" for c in cells) + " |")
    rates = {result["what"]: result.get("rows_per_second") for result in results}
    for name in ("CSV", "Parquet"):
        ratio = rates[f"{name}: parse, 2 workers"] / rates[f"{name}: parse, 1 worker"]  # type: ignore[operator]
        lines.append(f"\n{name}: 2 workers / 1: {ratio:.2f}")
    peak = max(result.get("peak_mib", 0.0) for result in results)
    lines.append(
        f"\nPeak memory {peak:,.0f} MiB of a budget of {budget_mib:,.0f} MiB" + ": BEYOND IT" * (peak > budget_mib)
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
