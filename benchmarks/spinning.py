"""How long OpenMP's threads should spin: a training step idle, beside other programs, and under a quota of the CPU.

    python -m benchmarks.spinning [--counts 0 100 1000 10000 300000] [--rounds 5] [--steps 120] [--batch 512]
                                  [--out FILE]

Round after round, the quickstart is trained without checkpoints and evaluations, once for each value of GOMP_SPINCOUNT
(how often a waiting thread of libgomp looks again before it sleeps), in each situation:

  idle    nothing else runs
  busy    one other program computes on every core
  quota   the process may use half of the cores' time, as a container with a limit (needs root and cgroups)

on one process with as many threads as cores, and on two processes that share them. The figure is the median of
samples/s over the windows of a run but the first; the table has medians over rounds, and of ratios to the default count
within rounds.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.default_run import OFF
from benchmarks.result_file import write_result

DEFAULT = 1000  # app/__init__.py
SITUATIONS = ("idle", "busy", "quota")
PERIOD_US = 100_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 100, DEFAULT, 10_000, 300_000])
    parser.add_argument("--situations", nargs="+", choices=SITUATIONS, default=SITUATIONS)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        train(Path(directory), 1, DEFAULT, 1, arguments.batch)  # makes the data
        for situation in arguments.situations:
            for processes in arguments.processes:
                with circumstances(situation):
                    rounds = [
                        {
                            count: train(Path(directory), processes, count, arguments.steps, arguments.batch)
                            for count in arguments.counts
                        }
                        for _ in range(arguments.rounds)
                    ]
                results.append({"situation": situation, "processes": processes, "samples/s": rounds})
                print_row(situation, processes, rounds)
    write_result(arguments, results)


def train(directory: Path, processes: int, count: int, steps: int, batch: int) -> float:
    """Median samples/s of a run; Raises SystemExit if it fails."""
    launcher = ["app.launch", "--nproc-per-node", str(processes), "-m"] if processes > 1 else []
    settings = [
        *OFF,
        f"train.max_steps={steps}",
        f"train.global_batch_size={batch}",
        "run.name=spinning",
        "baselines=false",
        "checkpoint.resume=never",
        "checkpoint.overwrite=true",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "GOMP_SPINCOUNT": str(count)}
    process = subprocess.run(
        [sys.executable, "-m", *launcher, "app.train", *settings],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stderr)
    lines = (directory / "runs/spinning/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "train"]
    return float(np.median([event["samples_per_second"] for event in events[1:] or events]))


@contextlib.contextmanager
def circumstances(situation: str) -> Iterator[None]:
    """What else the machine has to do, or what this process and those that it starts may use of it."""
    if situation == "busy":
        others = [multiprocessing.Process(target=_compute, daemon=True) for _ in os.sched_getaffinity(0)]
        for other in others:
            other.start()
        try:
            yield
        finally:
            for other in others:
                other.kill()
    elif situation == "quota":
        with _quota(PERIOD_US * len(os.sched_getaffinity(0)) // 2):
            yield
    else:
        yield


def _compute() -> None:
    while time.monotonic():
        pass


@contextlib.contextmanager
def _quota(microseconds: int) -> Iterator[None]:
    """A control group, of the first or the second kind, with this much CPU time in each tenth of a second."""
    root = Path("/sys/fs/cgroup")
    is_second = (root / "cgroup.controllers").exists()
    parent = root if is_second else root / "cpu"
    group = parent / f"spinning{os.getpid()}"
    group.mkdir()
    try:
        if is_second:
            (group / "cpu.max").write_text(f"{microseconds} {PERIOD_US}", encoding="utf-8")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(microseconds), encoding="utf-8")
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
        group.rmdir()


def print_row(situation: str, processes: int, rounds: list[dict[int, float]]) -> None:
    """Samples/s by count, and the ratio to the default's."""
    cells = []
    for count in rounds[0]:
        ratio = f" ({np.median([one[count] / one[DEFAULT] for one in rounds]):.2f})" if DEFAULT in rounds[0] else ""
        cells.append(f"{count}: {np.median([one[count] for one in rounds]):,.0f}{ratio}")
    print(f"| {situation} | {processes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
