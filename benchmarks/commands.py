"""Wall time of what users type: a commit and the working tree, in turn.

    python -m benchmarks.commands --against COMMIT [--cases NAME ...] [--rounds 5] [--out FILE]

Each round runs every command once in a checkout of the commit and once here, both on the same raw files; which goes
first alternates. One round more, the first, compiles and does not count. A ratio is the median over rounds of the time
here to the time there, beside the extremes. "help" is a process without work, "quickstart" generates, prepares and
writes the quickstart's rows, "own CSV" prepares the table of `benchmarks.own_tables`, "events" 2,000,000 events of
`benchmarks.events`, "train" is the default run on these rows, and "evaluate" scores its test split.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.check import checkout, in_turn
from benchmarks.events import write_log
from benchmarks.own_tables import make_files
from benchmarks.result_file import write_result

CASES = ("help", "quickstart", "own CSV", "events", "train", "evaluate")
ROWS, EVENTS = 1_000_000, 2_000_000
WORKERS = "data.workers=2"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, checkout(arguments.against) as baseline:
        raw = Path(directory) / "raw"
        raw.mkdir()
        make_files(raw, ROWS)
        commands = {
            "help": ["app.train", "--help"],
            "quickstart": ["data_prep", "data.source=synthetic", WORKERS],
            "own CSV": ["data_prep", f"data.raw={raw}/rows.csv", f"data.schema={raw}/schema.yaml", WORKERS],
            "events": ["data_prep", *write_log(raw, EVENTS, "time"), WORKERS],
            "train": ["app.train", "run.name=once", "baselines=false"],
            "evaluate": ["app.evaluate", "run=runs/once"],
        }
        seconds: dict[str, dict[str, list[float]]] = {name: {"there": [], "here": []} for name in arguments.cases}
        for number in range(arguments.rounds + 1):
            for name in arguments.cases:
                for tree in in_turn(baseline, number):
                    place = "there" if tree == baseline else "here"
                    taken = run(tree, Path(directory) / place, name, commands[name])
                    if number:
                        seconds[name][place].append(taken)
            print(f"round {number} of {arguments.rounds} done", file=sys.stderr)
    results = {}
    for name, times in seconds.items():
        ratios = [new / old for new, old in zip(times["here"], times["there"], strict=True)]
        results[name] = {**times, "ratio": statistics.median(ratios), "extremes": [min(ratios), max(ratios)]}
        old, new = (statistics.median(times[place]) for place in ("there", "here"))
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"| {name} | {old:.2f} | {new:.2f} | {spread} |")
    write_result(arguments, results)


def run(tree: Path, directory: Path, name: str, command: list[str]) -> float:
    """Seconds of one command of a tree, whose own outputs of an earlier round go first."""
    dataset = directory / ("quickstart" if name == "train" else name)
    if name != "evaluate":
        shutil.rmtree(directory / "runs" if name == "train" else dataset, ignore_errors=True)
    directory.mkdir(exist_ok=True)
    overrides = [f"data.path='{dataset}'"] if name not in ("help", "evaluate") else []
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-m", *command, *overrides],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"{tree}: {name}: {process.stderr.strip()}")
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
