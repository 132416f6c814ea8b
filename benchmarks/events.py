"""Logs of events: how fast and in how much memory they are prepared, and how fast histories are read.

    python -m benchmarks.events [--events 20000000] [--budget 512MiB] [--order time]
        [--workers 2] [--rounds 3] [--directory DIR] [--out FILE]

Writes a log in Yambda's columns as Parquet (4,650 events a user in the mean, 93 % listens of which 60 % are listened
to by half, 2 % likes, 9,390,623 items with artist and album, Zipf), prepares it by `data_prep` in a process of its own,
and makes batches of 1,024 samples on one thread: histories of 200 and 4,086 events, samples by user or shuffled.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.result_file import write_result
from data_prep.dataset.format import load_manifest
from data_prep.parsing.table import schema_path
from extensions.sequences.event_log import EventLog
from extensions.sequences.keys import AnchorOrder, SequencesConfig

ITEMS, ARTISTS, ALBUMS, EVENTS_PER_USER = 9_390_623, 1_293_394, 3_367_691, 4_650
GROUP = 1 << 20
BATCH, BATCHES = 1024, 20


def write_log(directory: Path, num_events: int, order: str) -> list[str]:
    """Write the log, sorted by `order` ("time" or "user"), and its tables; return the overrides that name them."""
    rng = np.random.default_rng(0)
    users = max(1, num_events // EVENTS_PER_USER)
    weights = rng.lognormal(0, 1, users)
    user = np.sort(rng.choice(users, num_events, p=weights / weights.sum()).astype(np.uint32))
    times = rng.integers(0, 26_000_000 // 5, num_events, np.uint32) * 5
    row_order = np.argsort(times, kind="stable") if order == "time" else np.lexsort((times, user))
    schema = pa.schema(
        {
            "uid": pa.uint32(),
            "timestamp": pa.uint32(),
            "item_id": pa.uint32(),
            "is_organic": pa.uint8(),
            "played_ratio_pct": pa.uint16(),
            "event_type": pa.string(),
        }
    )
    kinds = np.array(["listen", "like", "dislike", "unlike", "undislike"])
    with pq.ParquetWriter(directory / "multi_event.parquet", schema) as writer:
        for start in range(0, num_events, GROUP):
            rows = row_order[start : start + GROUP]
            kind = rng.choice(5, len(rows), p=[0.93, 0.03, 0.01, 0.02, 0.01])
            ratio = pa.array(rng.choice([10, 100], len(rows), p=[0.4, 0.6]).astype(np.uint16), mask=kind != 0)
            item = ((rng.pareto(0.8, len(rows)) * 1000).astype(np.int64) % ITEMS + 1).astype(np.uint32)
            organic = rng.integers(0, 2, len(rows), np.uint8)
            writer.write_table(pa.table([user[rows], times[rows], item, organic, ratio, kinds[kind]], schema=schema))
    for name, values in (("artist", ARTISTS), ("album", ALBUMS)):
        ids = {"item_id": np.arange(1, ITEMS + 1, dtype=np.uint32), f"{name}_id": rng.integers(1, values, ITEMS)}
        pq.write_table(pa.table(ids), directory / f"{name}_item_mapping.parquet")
    return [f"data.raw={directory}/multi_event.parquet", f"data.schema={schema_path('yambda')}"]


def measure_preparation(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write and prepare the log; return seconds, memory and bytes."""
    overrides = write_log(directory, arguments.events, arguments.order)
    overrides += [
        f"data.path={directory}/out",
        f"data.memory_budget={arguments.budget}",
        f"data.workers={arguments.workers}",
    ]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "data_prep", *overrides], check=True)
    seconds = time.perf_counter() - began
    manifest = load_manifest(directory / "out")
    size = sum(path.stat().st_size for path in (directory / "out/events").iterdir())
    return {
        "seconds": seconds,
        "events": manifest.rows,
        "events_per_second": arguments.events / seconds,
        "peak_memory_mib": manifest.extra["peak_memory_bytes"] / 2**20,
        "bytes_per_event": size / manifest.rows,
        "stage_seconds": manifest.extra["stage_seconds"],
    }


def measure_reading(root: Path, history: int, order: AnchorOrder, rounds: int) -> dict[str, Any]:
    """Return samples a second, the median over rounds, each from its own place in the order."""
    config = SequencesConfig(history_length=history, min_history=min(history, 1000), order=order)
    reader = EventLog(root, load_manifest(root), config).split("train", 0, 1)
    total, rates, mean = reader.num_batches(BATCH), [], 0.0
    for turn in range(rounds + 1):  # the first compiles
        batches = islice(reader.train_batches(BATCH, 0, 0, total * turn // (rounds + 2)), BATCHES + 1)
        # The first batch opens its windows of anchors, which the others share.
        next(batches)
        began = time.perf_counter()
        lengths = [batch.inputs_of_model.history_lengths for batch in batches if batch.inputs_of_model is not None]
        rates.append(BATCH * len(lengths) / (time.perf_counter() - began))
        mean = float(np.mean(lengths))
    return {"history": history, "order": order, "mean_length": mean, "samples_per_second": float(np.median(rates[1:]))}


def main() -> None:
    """Write, prepare and read as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--budget", default="512MiB")
    parser.add_argument("--order", choices=["time", "user"], default="time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        results: dict[str, Any] = {"prepare": measure_preparation(Path(directory), arguments), "read": []}
        print(json.dumps(results["prepare"], indent=1))
        for history in (200, 4_086):
            for order in get_args(AnchorOrder):
                results["read"].append(measure_reading(Path(directory) / "out", history, order, arguments.rounds))
                print(json.dumps(results["read"][-1]))
    write_result(arguments, results)


if __name__ == "__main__":
    main()
