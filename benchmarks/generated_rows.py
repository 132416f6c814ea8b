"""How fast rows with a planted truth are made: rows per second of one core's CPU time.

    python -m benchmarks.generated_rows [--max-cardinality 50000] [--blocks 20] [--runs 5]

  drawn    rows, click probabilities and labels
  text     the same, as Criteo's TSV

Blocks are of 16,384 rows; medians of --runs rounds in turn, which differ by what else the processor's caches hold.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from data_prep.config import SyntheticConfig
from data_prep.synthetic import BLOCK_ROWS, LabelledRows, Teacher, calibrated_teacher, label_rows, rows_to_text

WAYS: dict[str, Callable[[Teacher, LabelledRows], object]] = {"drawn": lambda teacher, rows: rows, "text": rows_to_text}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-cardinality", type=int, default=50_000)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    teacher = calibrated_teacher(SyntheticConfig(max_cardinality=arguments.max_cardinality), 0)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for name in WAYS:  # compile
        rate(teacher, name, 1)
    for _ in range(arguments.runs):
        for name, runs in rates.items():
            runs.append(rate(teacher, name, arguments.blocks))
    for name, runs in rates.items():
        print(f"{name:>7}: {statistics.median(runs):>11,.0f} rows/s (from {min(runs):,.0f} to {max(runs):,.0f})")


def rate(teacher: Teacher, name: str, blocks: int) -> float:
    """Rows per second of CPU time."""
    begin = time.process_time()
    for block in range(blocks):
        WAYS[name](teacher, label_rows(teacher, 0, 0, block, BLOCK_ROWS))
    return blocks * BLOCK_ROWS / (time.process_time() - begin)


if __name__ == "__main__":
    main()
