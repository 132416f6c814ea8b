"""How long commands take before they do anything: help, errors, a report, the way to the first step.

    python -m benchmarks.startup [--rounds 7] [--out FILE]

In each round, in turn, each a process of its own from its start to its end:

  help        python -m app.train --help
  error       python -m app.train with a value that is refused
  report      python -m app.report of a finished run of the quickstart
  imports     torch, TorchRec and FBGEMM, and nothing else
  first step  python -m app.train of the quickstart, whose data is there, up to where the first step begins

The figure of the last is also its difference to `imports` in the same round. Seconds are medians over rounds with
extremes. Ends with 1 if one is above its limit, of at least five rounds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.result_file import write_result

RUN = ["run.name=finished", "train.max_steps=200", "baselines=false"]
AGAIN = ["run.name=again", "checkpoint.resume=never", "checkpoint.overwrite=true", "baselines=false"]
FIRST_STEP = """
import os
from app.commands import COMMANDS
from app.training.session import Session
from common.cli import run
Session.begin_step = lambda *_: os._exit(0)
run(COMMANDS["train"])
"""
# Arguments of Python, and the exit status.
CASES: dict[str, tuple[list[str], int]] = {
    "help": (["-m", "app.train", "--help"], 0),
    "error": (["-m", "app.train", "train.epochs=0"], 2),
    "report": (["-m", "app.report", "runs=[runs/finished]"], 0),
    "imports": (["-c", "import torch, torchrec, fbgemm_gpu"], 0),
    "first step": (["-c", FIRST_STEP, *AGAIN], 0),
}
DIFFERENCE = "first step - imports"
LIMITS = {"help": 0.8, "error": 0.8, "report": 1.2, DIFFERENCE: 0.7}  # seconds
LEAST_ROUNDS = 5


def main() -> int:
    """Measure and print; 1 if a median is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = list(CASES)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as directory:
        execute(["-m", "app.train", *RUN], 0, Path(directory))
        for number in range(arguments.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(execute(*CASES[name], Path(directory)))
    pairs = zip(seconds["first step"], seconds["imports"], strict=True)
    seconds[DIFFERENCE] = [step - imports for step, imports in pairs]
    print_table(seconds)
    write_result(arguments, seconds)
    return 1 if slow_cases(seconds) else 0


def execute(arguments: list[str], status: int, directory: Path) -> float:
    """Seconds of a Python process. Raises SystemExit if it ends with another status."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    began = time.perf_counter()
    process = subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    ended = time.perf_counter()
    if process.returncode != status:
        raise SystemExit(f"python {' '.join(arguments)}: status {process.returncode}\n{process.stderr}")
    return ended - began


def slow_cases(seconds: dict[str, list[float]]) -> list[str]:
    """What has a median above its limit; fewer than five rounds say nothing."""
    return [
        name
        for name, limit in LIMITS.items()
        if len(seconds[name]) >= LEAST_ROUNDS and float(np.median(seconds[name])) > limit
    ]


def print_table(seconds: dict[str, list[float]]) -> None:
    """A line a case."""
    print("| | seconds | wanted |\n|---|---|---|")
    for name, values in seconds.items():
        limit = f"at most {LIMITS[name]}" if name in LIMITS else ""
        print(f"| {name} | {np.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) | {limit} |")


if __name__ == "__main__":
    sys.exit(main())
