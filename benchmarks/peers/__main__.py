"""Ours and installable peers on the same rows, tables, layers and machine, in turn.

    python -m benchmarks.peers --peer-python PEERS/bin/python [--rounds 3] [--batch 2048] [--rows 100000]
                               [--cap 10000] [--threads 1] [--device cpu|cuda] [--out FILE]

Each round trains each of them once over the rows, in a process of its own; medians, and medians of the ratios within
rounds, are printed. On a GPU (--device cuda) only TorchRec's own DLRM runs beside ours. benchmarks/peers/README.md says
how the peers' environment is made and what each is.
"""

import argparse
import importlib
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.rows import make_rows

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = "clickwork"
ON_GPUS = ("torchrec_dlrm",)
PEERS = {"torchrec_dlrm": False, "fuxictr_dlrm": True, "deepctr_deepfm": True}  # whether it needs the peers' Python


def main() -> None:
    """Measure and print; with --one NAME, be one of those measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--cap", type=int, default=10_000, help="rows of a table at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        module = importlib.import_module(f"benchmarks.peers.{arguments.one}")
        rows, device = make_rows(arguments.rows, arguments.cap), [arguments.device] if arguments.device != "cpu" else []
        seconds = module.seconds_of_epoch(rows, arguments.batch, arguments.threads, *device)
        print(f"\nseconds {seconds}")
        return
    found: dict[str, list[float]] = {name: [] for name in (OURS, *(PEERS if arguments.device == "cpu" else ON_GPUS))}
    for number in range(arguments.rounds):
        for name in found:
            found[name].append(arguments.rows / run(name, arguments))
            print(f"round {number + 1}: {name} {found[name][-1]:,.0f} samples/s", file=sys.stderr)
    tell(found, arguments)


def run(name: str, arguments: argparse.Namespace) -> float:
    """Seconds of one of them, in a process of its own."""
    python = arguments.peer_python if PEERS.get(name) else sys.executable
    command = [python, "-m", "benchmarks.peers", "--one", name]
    for key in ("batch", "rows", "cap", "threads", "device"):
        command += [f"--{key}", str(getattr(arguments, key))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.rsplit("seconds ", 1)[1])


def tell(found: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    """A Markdown table, and JSON if it is wanted."""
    print(f"`{' '.join(['python -m benchmarks.peers', *sys.argv[1:]])}`\n")
    print("| | samples/s | seconds an epoch of Kaggle's 39.3 M rows | ours / theirs |\n|---|---|---|---|")
    results = {}
    for name, rates in found.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(found[OURS], rates, strict=True))
        rate = statistics.median(rates)
        results[name] = {"samples_per_second": rates, "ours_over_theirs": ratio}
        print(f"| {name} | {rate:,.0f} | {39_291_958 / rate:,.0f} | {ratio:.2f} |")
    from benchmarks.result_file import write_result  # the peers' interpreter has not what it needs

    write_result(arguments, results)


if __name__ == "__main__":
    main()
