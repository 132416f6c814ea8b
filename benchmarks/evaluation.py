"""Time and memory of the metrics of an evaluation, exact and from a histogram, after the scores are computed.

    python -m benchmarks.evaluation [--rows 10000000 40000000] [--out FILE]

Each case runs in a process of its own: CPU seconds, and the peak of memory beyond that of the scores themselves, which
take 8 bytes a row. The last line of either way extrapolates the largest case to MLPerf's 89,137,319 rows.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from app.metrics.quality import click_metrics, click_sums, histogram_metrics, score_counts
from benchmarks.result_file import write_result

MLPERF_ROWS = 89_137_319


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000, 40_000_000])
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # way, rows
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    results = []
    for way in ("exact", "histogram"):
        for rows in arguments.rows:
            command = [sys.executable, "-m", "benchmarks.evaluation", "--one", way, str(rows)]
            result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            results.append({"way": way, "rows": rows, **result})
            print(line(way, rows, result["seconds"], result["mib"], ""))
        scale = MLPERF_ROWS / rows
        print(line(way, MLPERF_ROWS, result["seconds"] * scale, result["mib"] * scale, " (extrapolated)"))
    write_result(arguments, results)


def line(way: str, rows: int, seconds: float, mib: float, note: str) -> str:
    """One case as text."""
    return f"{way:<10} {rows:>12,} rows {seconds:7.1f} s of CPU {mib:8,.0f} MiB beyond the scores{note}"


def measure(way: str, rows: int) -> dict[str, float]:
    """CPU seconds, and MiB at the peak beyond what the scores take."""
    for count in (1_000, rows):  # the first compiles
        rng = np.random.default_rng(0)
        logits = rng.standard_normal(count, dtype=np.float32)
        labels = np.empty(count, np.float32)
        for start in range(0, count, 1 << 20):
            block = slice(start, start + (1 << 20))
            labels[block] = rng.random(len(labels[block])) < 1 / (1 + np.exp(3 - logits[block]))
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        if way == "exact":
            click_metrics(logits, labels)
        else:
            histogram_metrics(score_counts(logits, labels), click_sums(logits, labels))
        seconds = time.process_time() - began
    return {"seconds": seconds, "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


if __name__ == "__main__":
    main()
