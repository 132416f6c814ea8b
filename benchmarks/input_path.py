"""The input path: CPU time a row of 1, 2, 4 and 8 processes that read one dataset, and of multi-hot expansion.

    python -m benchmarks.input_path [--rows 4000000] [--processes 1 2 4 8] [--at-once 1] [--rounds 3] [--out FILE]

  reading    shuffled batches of one id a feature (13 dense, 26 sparse features)
  multi_hot  rows in memory to batches of MLPerf v2's bags (214 ids a row), tables of at most --max-rows rows

CPU time of all a process's threads: on a busy machine it varies less than seconds do. The dataset is random, and in the
page cache. Readers run one after the other, or --at-once, where they share caches and memory bandwidth. Medians of
rounds, in which the variants take turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from app.config.data import DataConfig
from app.data.batch import BatchBuilder, RowArrays
from app.data.split import SplitReader
from benchmarks.result_file import write_result
from common.machine import keep_freed_memory
from data_prep.dataset.format import Manifest, ShardArrays, Split, load_manifest, save_manifest, write_shard
from data_prep.dataset.multi_hot import MLPERF_SIZES, MultiHotTables

NUM_DENSE, NUM_SPARSE, NUM_EMBEDDINGS, SHARDS = 13, 26, 1 << 20, 4
MLPERF_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209),
    *(11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--batch-size", type=int, default=32_768, help="global")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--at-once", type=int, default=1, help="readers that run at the same time")
    parser.add_argument("--max-rows", type=int, default=200_000, help="of a multi-hot table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)  # one process: dataset, rank, world size
    arguments = parser.parse_args()
    keep_freed_memory()  # as training does
    if arguments.read is not None:
        path, *numbers = arguments.read
        print(json.dumps(read(Path(path), arguments.batch_size, *map(int, numbers))))
        return
    measurements: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        write_rows(Path(directory), arguments.rows)
        for _ in range(arguments.rounds):
            for world_size in arguments.processes:
                name = f"reading, {world_size} processes"
                measurements.setdefault(name, []).append(read_all(directory, arguments, world_size))
            measurements.setdefault("multi_hot", []).append(expand(arguments.batch_size, arguments.max_rows))
    for name, times in measurements.items():
        median = statistics.median(times)
        print(f"{name:<32} {median:8.1f} ns of CPU a row ({min(times):.1f} to {max(times):.1f})")
    write_result(arguments, measurements)


def write_rows(root: Path, rows: int) -> None:
    """A dataset of one split of random rows."""
    rng, shards = np.random.default_rng(0), []
    for number in range(SHARDS):
        count = rows // SHARDS
        arrays = ShardArrays(
            labels=rng.integers(0, 2, (count, 1), dtype=np.int32),
            dense=rng.random((count, NUM_DENSE), dtype=np.float32),
            sparse=rng.integers(0, NUM_EMBEDDINGS, (count, NUM_SPARSE), dtype=np.int32),
        )
        shards.append(write_shard(root, "train", f"{number:05d}", arrays))
    features = [f"cat_{i}" for i in range(NUM_SPARSE)]
    dense, total = [f"int_{i}" for i in range(NUM_DENSE)], rows // SHARDS * SHARDS
    save_manifest(
        root,
        Manifest(
            schema={"label": "label", "dense": dense, "sparse": features},
            encoding={"name": "random"},
            num_embeddings=dict.fromkeys(features, NUM_EMBEDDINGS),
            splits={"train": Split(total, 0.5, shards)},
            sources=[],
            rows=total,
            label_rate=0.5,
            tool_version="benchmark",
        ),
    )


def read_all(directory: str, arguments: argparse.Namespace, world_size: int) -> float:
    """CPU nanoseconds a row of processes that read an epoch together."""
    command = [sys.executable, "-m", "benchmarks.input_path", "--batch-size", str(arguments.batch_size), "--read"]

    def measure(rank: int) -> dict[str, float]:
        numbers = (str(number) for number in (rank, world_size))
        process = subprocess.run([*command, directory, *numbers], stdout=subprocess.PIPE, check=True)
        return json.loads(process.stdout)

    with ThreadPoolExecutor(arguments.at_once) as pool:
        measured = list(pool.map(measure, range(world_size)))
    return sum(one["seconds"] for one in measured) / sum(one["rows"] for one in measured) * 1e9


def read(root: Path, batch_size: int, rank: int, world_size: int) -> dict[str, float]:
    """CPU seconds and rows of one process's second epoch, after one that compiles the kernels and fills caches."""
    split = SplitReader(root, load_manifest(root), "train", DataConfig(), rank, world_size)
    for epoch in range(2):
        began = time.process_time()
        rows = sum(len(batch.labels) for batch in split.train_batches(batch_size, seed=0, epoch=epoch, first=0))
    return {"seconds": time.process_time() - began, "rows": rows}


def expand(batch_size: int, max_rows: int) -> float:
    """CPU nanoseconds a row of batches of MLPerf's bags, whose ids are uniform."""
    rng = np.random.default_rng(0)
    counts = [min(count, max_rows) for count in MLPERF_ROWS]
    tables = MultiHotTables(
        [
            None if size == 1 else rng.integers(0, count, (count, size), dtype=np.int32)
            for count, size in zip(counts, MLPERF_SIZES, strict=True)
        ]
    )
    builder = BatchBuilder([f"cat_{i}" for i in range(NUM_SPARSE)], batch_size, [], tables)
    times: list[float] = []
    for _ in range(10):
        ids = np.stack([rng.integers(0, count, batch_size, dtype=np.int32) for count in counts], axis=1)
        labels, dense = np.zeros(batch_size, np.float32), np.zeros((batch_size, NUM_DENSE), np.float32)
        began = time.process_time()
        builder.batch(RowArrays(labels, dense, ids))
        times.append(time.process_time() - began)
    return statistics.median(times[2:]) / batch_size * 1e9


if __name__ == "__main__":
    main()
