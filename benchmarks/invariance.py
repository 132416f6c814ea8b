"""Cost of train.deterministic=layout: runs with it beside the same runs without it.

    python -m benchmarks.invariance [--cases quickstart kaggle] [--micro-batches 128 256] [--rounds 5] [--steps N]
                                    [--out FILE]

Each round trains once without it and once for each size of micro-batches, on one process with one and two threads and
on two processes with one thread each; which goes first changes from round to round. Evaluation, checkpoints and
TensorBoard are off. The figure is the median of samples/s over windows of `train.log_every_steps`; ratios are of one
round, with it / without it. The table has their medians and extremes.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.default_run import CASES, OFF, Case, make_dataset, median, train, window_rates
from benchmarks.result_file import write_result

LAYOUTS = ((1, 1), (1, 2), (2, 1))  # processes and threads
DEFAULT = "default"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=["quickstart", "kaggle"], default=["quickstart", "kaggle"])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of each run, instead of the case's own")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = []
        for case in CASES:
            if case.name in arguments.cases:
                make_dataset(case, Path(scratch))
                results += [
                    measure(replace(case, processes=processes), threads, arguments, Path(scratch))
                    for processes, threads in LAYOUTS
                ]
    print_table(results)
    write_result(arguments, results)
    return 0


def measure(case: Case, threads: int, arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Rounds of one case and layout: samples/s of each kind of run."""
    kinds: dict[str, list[str]] = {DEFAULT: []}
    kinds |= {str(size): layout_of(size) for size in arguments.micro_batches}
    steps, rounds = arguments.steps or case.steps, []
    for number in range(arguments.rounds):
        names = list(kinds)
        names = names[number % len(names) :] + names[: number % len(names)]
        rounds.append({name: rate(case, threads, steps, kinds[name], scratch) for name in names})
        print(f"{case.name}, {case.processes} x {threads}: round {number + 1} done", file=sys.stderr, flush=True)
    return {"case": case.name, "processes": case.processes, "threads": threads, "steps": steps, "rounds": rounds}


def layout_of(size: int) -> list[str]:
    """Return the keys of a run whose bits do not depend on its layout."""
    return ["train.deterministic=layout", f"train.micro_batch_size={size}"]


def rate(case: Case, threads: int, steps: int, keys: list[str], scratch: Path) -> float:
    """Make one run; return its samples/s."""
    settings = [f"train.max_steps={steps}", "checkpoint.resume=never", "checkpoint.overwrite=true", *OFF, *keys]
    train(case, scratch, *settings, f"runtime.num_threads={threads}", "train.log_every_steps=10")
    lines = (scratch / "runs" / case.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    quiet, _ = window_rates([json.loads(line) for line in lines], steps // 4)
    value = median(quiet)
    assert value is not None, "the run has no window of steps"
    return value


def print_table(results: list[dict[str, Any]]) -> None:
    """Print medians of samples/s and of ratios to the run without it."""
    print(f"{'case':12}{'processes':>10}{'threads':>8}{'rows':>8}{'samples/s':>11}  with it / without it")
    for result in results:
        for name in result["rounds"][0]:
            ratios = [one[name] / one[DEFAULT] for one in result["rounds"]]
            speed = np.median([one[name] for one in result["rounds"]])
            line = f"{result['case']:12}{result['processes']:>10}{result['threads']:>8}{name:>8}{speed:>11,.0f}"
            spread = f"  {np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            print(line + (spread if name != DEFAULT else ""))


if __name__ == "__main__":
    sys.exit(main())
