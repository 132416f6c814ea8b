"""Speed of stack distances and of the generator, and what locality does to the time of embedding lookups.

    python -m extensions.locality.benchmarks.locality [--rows 2000000] [--accesses 4000000] [--exponent 1.1]
        [--moves 1] [--dim 16] [--runs 5] [--out FILE.json]

Three traces of accesses to one table: `original` (Zipf-distributed ids in a working set that moves on), `generated`
from the original's profile, and `uniform` ids over the same rows. Of each:

  distances/s   accesses whose stack distances are found, per second of CPU time
  draws/s       accesses generated, per second of CPU time
  KS            distance of its stack distances to the original's
  hit rates     of LRU caches of 1 and 10 % of the rows used, and of a cache as FBGEMM's for tables in managed memory:
                sets of 32 rows each, the row used longest ago leaves its set, a tenth of the rows used in all
  lookup        nanoseconds per id of torch's embedding_bag on one thread, 20 ids a bag, in the trace's order, over a
                table far larger than the caches of the processor; medians of --runs rounds in turn
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.result_file import write_result
from common.jit import jit
from extensions.locality.histogram import BIN_STARTS, Profiler, TableProfile, distance_between
from extensions.locality.sampler import AccessGenerator

BAG, WAYS = 20, 32
HASH = np.uint64(0x9E3779B97F4A7C15)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--accesses", type=int, default=4_000_000)
    parser.add_argument("--exponent", type=float, default=1.1, help="of the original's Zipf law; more: hotter rows")
    parser.add_argument("--moves", type=float, default=1.0, help="how far its working set moves, in whole tables")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(arguments)
    for name, result in results.items():
        print(name, json.dumps(result))
    write_result(arguments, results)


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All figures by trace."""
    rng = np.random.default_rng(0)
    rows, count = int(arguments.rows), int(arguments.accesses)
    traces: dict[str, NDArray[np.int32]] = {"original": moving_zipf(rng, arguments)}
    profile_of(np.zeros(10, np.int32), 1)  # compile
    AccessGenerator(profile_of(traces["original"][:1000], rows), (0,)).draw(1000)
    profile, seconds = timed(lambda: profile_of(traces["original"], rows))
    results: dict[str, dict[str, Any]] = {"original": {"distances_per_s": round(count / seconds)}}
    generator = AccessGenerator(profile, (1,))
    traces["generated"], seconds = timed(lambda: generator.draw(count))
    results["generated"] = {"draws_per_s": round(count / seconds)}
    traces["uniform"] = rng.integers(0, rows, count, np.int32)
    cached = max(WAYS, profile.distinct // 10)
    for name, ids in traces.items():
        trace_profile, seconds = timed(lambda ids=ids: profile_of(ids, rows))
        one, ten = (int(np.searchsorted(BIN_STARTS[1:], profile.distinct * share)) for share in (0.01, 0.1))
        results.setdefault(name, {}).update(
            distances_per_s=round(count / seconds),
            distinct=trace_profile.distinct,
            ks=distance_between([profile], [trace_profile]).high,
            lru_1_percent=float(trace_profile.hit_rates()[one]),
            lru_10_percent=float(trace_profile.hit_rates()[ten]),
            sets_of_32=hits_in_sets(ids, np.full((cached // WAYS, WAYS), -1, np.int64)) / count,
        )
    table = torch.rand(rows, arguments.dim)
    times: dict[str, list[float]] = {name: [] for name in traces}
    for _ in range(arguments.runs):
        for name, ids in traces.items():
            times[name].append(lookup_seconds(table, torch.from_numpy(ids)) / count * 1e9)
    for name, values in times.items():
        results[name]["lookup_ns_per_id"] = round(statistics.median(values), 2)
    return results


def moving_zipf(rng: np.random.Generator, arguments: argparse.Namespace) -> NDArray[np.int32]:
    """Zipf-distributed places in a window of a tenth of the rows, which moves over the table, as random ids."""
    rows, count = arguments.rows, arguments.accesses
    window, power = rows // 10, 1 - arguments.exponent
    places = (((window + 1.0) ** power - 1) * rng.random(count) + 1) ** (1 / power)
    moved = np.minimum(places, window).astype(np.int64) - 1 + np.arange(count) * int(rows * arguments.moves) // count
    return rng.permutation(rows).astype(np.int32)[moved % rows]


def profile_of(ids: NDArray[np.int32], rows: int) -> TableProfile:
    """The profile of one trace."""
    profiler = Profiler(rows, exact=True)
    for start in range(0, len(ids), 1 << 16):
        profiler.feed(ids[start : start + (1 << 16)])
    return profiler.profile


def timed(work: Any) -> tuple[Any, float]:
    """What `work` returns, and the seconds of CPU time it took."""
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


def lookup_seconds(table: torch.Tensor, ids: torch.Tensor) -> float:
    """Seconds of CPU time for all lookups, bag after bag."""
    offsets = torch.arange(0, len(ids), BAG, dtype=torch.int32)
    begin = time.process_time()
    torch.nn.functional.embedding_bag(ids, table, offsets, mode="sum")
    return time.process_time() - begin


@jit
def hits_in_sets(ids: NDArray[np.int32], sets: NDArray[np.int32]) -> int:
    """Hits of a set-associative LRU cache; sets [S, WAYS], the row used last first."""
    hits = 0
    for i in range(len(ids)):
        ways = sets[np.int64((np.uint64(ids[i]) * HASH >> np.uint64(20)) % np.uint64(sets.shape[0]))]
        place = 0
        while place < WAYS - 1 and ways[place] != ids[i]:
            place += 1
        hits += ways[place] == ids[i]
        for way in range(place, 0, -1):
            ways[way] = ways[way - 1]
        ways[0] = ids[i]
    return hits


if __name__ == "__main__":
    main()
