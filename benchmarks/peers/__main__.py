"""Ours and other programs on the same rows, tables, layers, optimizer and machine, in turn: time to an AUC, samples/s.

    python -m benchmarks.peers [--dlrm DIR] [--peer-python PEERS/bin/python] [--rounds 3] [--quick] [--out FILE]

Each round trains each program once over the rows, in a process of its own, and evaluates it on the same held-out rows
eight times; time for evaluation and start-up does not count. --dlrm DIR is a clone of facebookresearch/dlrm, whose two
programs run from their own files; without it they are left out, as are those whose packages --peer-python lacks.
On a GPU (--device cuda) only TorchRec's own DLRM runs beside ours. --tune compares the learning rates of --rates.
benchmarks/peers/README.md says how the peers' environment is made and what each is.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.curve import Point, Task, reach
from benchmarks.peers.rows import REPOSITORY, make_rows

OURS, OURS_BF16, OURS_DEFAULT, OURS_PLAIN = "clickwork", "clickwork_bf16", "clickwork_default", "clickwork_plain"
SUPPORTS_GPUS = (OURS, OURS_BF16, OURS_DEFAULT, OURS_PLAIN, "torchrec_dlrm")
QUICK = {"rounds": 1, "rows": 4096, "batch": 64, "max_cardinality": 100, "margin": 0.25}


@dataclass(frozen=True)
class Program:
    """How one is run.

    Attributes:
        function: module:function in this package, of a Task.
        package: it is of, for its version; empty: it is of the repository.
        needs_dlrm: it is facebookresearch/dlrm's.
    """

    function: str
    package: str
    needs_dlrm: bool = False


PROGRAMS = {
    OURS: Program("clickwork:run", ""),
    OURS_BF16: Program("clickwork:run_in_bf16", ""),
    OURS_DEFAULT: Program("clickwork:run_with_defaults", ""),
    OURS_PLAIN: Program("clickwork:run_without_graphs", ""),
    "dlrm_s_pytorch": Program("facebookresearch:dlrm_s_pytorch", "", needs_dlrm=True),
    "torchrec_dlrm_main": Program("facebookresearch:torchrec_dlrm_main", "", needs_dlrm=True),
    "torchrec_dlrm": Program("torchrec_dlrm:run", "torchrec"),
    "fuxictr_dlrm": Program("fuxictr_dlrm:run", "fuxictr"),
    "deepctr_deepfm": Program("deepctr_deepfm:run", "deepctr-torch"),
}


def main() -> None:
    """Measure and print; with --one NAME, be one of those measured."""
    arguments = parse_arguments()
    if arguments.one:
        module, _, function = PROGRAMS[arguments.one].function.partition(":")
        task = Task(
            arguments.work,
            arguments.batch,
            arguments.evaluations,
            arguments.rate,
            arguments.seed,
            arguments.threads,
            arguments.device,
            arguments.dlrm,
        )
        points = getattr(importlib.import_module(f"benchmarks.peers.{module}"), function)(task)
        print("\n" + json.dumps(points))
        return
    with tempfile.TemporaryDirectory() as directory:
        arguments.work = Path(directory)
        best = make_rows(arguments.work, arguments.rows, arguments.max_cardinality)
        target = arguments.target or round(best - arguments.margin, 3)
        programs = {*arguments.programs} if arguments.tune else {OURS, *arguments.programs}
        names = [name for name in PROGRAMS if name in programs and is_ready(name, arguments)]
        if arguments.tune:
            tune(names, target, arguments)
            return
        all_curves: dict[str, list[list[Point]]] = {name: [] for name in names}
        for number in range(arguments.rounds):
            for name, curves in all_curves.items():
                curves.append(run(name, number, arguments.rate, arguments))
                log_result(f"round {number + 1}: {name}", curves[-1], target)
    results = summarise(all_curves, target, arguments)
    print(f"`{' '.join(['python -m benchmarks.peers', *sys.argv[1:]])}`\n")
    print(f"AUC {target}; of the true probabilities {best:.4f}\n")
    print(markdown(results, target))
    from benchmarks.result_file import write_result  # the peers' interpreter has not what it needs

    write_result(arguments, {"target_auc": target, "best_auc": best, "programs": results})


def parse_arguments() -> argparse.Namespace:
    """The command line's; --quick replaces sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dlrm", type=lambda text: Path(text).resolve(), help="a clone of facebookresearch/dlrm")
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable))
    parser.add_argument(
        "--programs",
        nargs="+",
        choices=PROGRAMS,
        default=list(PROGRAMS),
        metavar="NAME",
        help=f"of {', '.join(PROGRAMS)}; ours comes with them",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=160 * 2048, help="of training: --evaluations times whole batches")
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--max-cardinality", type=int, default=50_000, help="distinct values of the largest column")
    parser.add_argument("--margin", type=float, default=0.07, help="the AUC to reach is the best one less this")
    parser.add_argument("--target", type=float, help="or this one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rate", type=float, default=0.005, help="learning rate of all programs")
    parser.add_argument("--tune", action="store_true", help="one round with each of --rates")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--quick", action="store_true", help="so little that it shows only that they run")
    parser.add_argument("--out", type=Path)
    for key, kind in (("one", str), ("work", Path), ("seed", int)):
        parser.add_argument(f"--{key}", type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    if arguments.rows % (arguments.batch * arguments.evaluations):
        parser.error(
            f"--rows {arguments.rows}: must be a multiple of --batch times --evaluations, "
            f"{arguments.batch * arguments.evaluations}"
        )
    return arguments


def is_ready(name: str, arguments: argparse.Namespace) -> bool:
    """Return whether a program can run here; say why not."""
    program = PROGRAMS[name]
    if arguments.device != "cpu" and name not in SUPPORTS_GPUS:
        reason = "left out on GPUs"
    elif program.needs_dlrm and arguments.dlrm is None:
        reason = "needs --dlrm DIR, a clone of facebookresearch/dlrm"
    elif program.package and version(name, arguments) is None:
        reason = f"{arguments.peer_python} has no {program.package}; see benchmarks/peers/README.md"
    else:
        return True
    print(f"{name}: {reason}", file=sys.stderr)
    return False


def version(name: str, arguments: argparse.Namespace) -> str | None:
    """The version of a program's package, or the commit of its repository; None: it is not there."""
    program = PROGRAMS[name]
    if program.package:
        text = f"from importlib.metadata import version; print(version('{program.package}'))"
        command = [str(arguments.peer_python), "-c", text]
    else:
        root = arguments.dlrm if program.needs_dlrm else REPOSITORY
        command = ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if process.returncode else process.stdout.strip()


def run(name: str, seed: int, rate: float, arguments: argparse.Namespace) -> list[Point]:
    """The curve of one of them, in a process of its own."""
    python = arguments.peer_python if PROGRAMS[name].package or PROGRAMS[name].needs_dlrm else sys.executable
    command = [str(python), "-m", "benchmarks.peers", "--one", name, "--seed", str(seed), "--rate", str(rate)]
    for key in ("work", "batch", "rows", "evaluations", "threads", "device"):
        command += [f"--{key}", str(getattr(arguments, key))]
    if arguments.dlrm is not None:
        command += ["--dlrm", str(arguments.dlrm)]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{name}: {process.stderr.strip()[-2_000:]}")
    return [Point(*point) for point in json.loads(process.stdout.rsplit("\n", 2)[1])]


def log_result(name: str, points: list[Point], target: float) -> None:
    """Log a run's rate, the time to the AUC, and the last AUC."""
    last, reached = points[-1], reach(points, target)
    after = "never reached" if reached is None else f"after {reached.seconds:.1f} s and {reached.samples:,} samples"
    rate = last.samples / last.seconds
    print(f"{name}: {rate:,.0f} samples/s, AUC {target} {after}, {last.auc:.4f} at the end", file=sys.stderr)


def tune(names: list[str], target: float, arguments: argparse.Namespace) -> None:
    """Print each program's training samples to the AUC, and the AUC at the end, by learning rate."""
    print("| | " + " | ".join(map(str, arguments.rates)) + " |\n" + "|---" * (1 + len(arguments.rates)) + "|")
    for name in names:
        cells = []
        for rate in arguments.rates:
            points = run(name, 0, rate, arguments)
            log_result(f"{name} {rate}", points, target)
            reached = reach(points, target)
            cells.append(f"{'never' if reached is None else f'{reached.samples:,}'}, {points[-1].auc:.4f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def summarise(
    all_curves: dict[str, list[list[Point]]], target: float, arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Medians over rounds, of the ratios within rounds too; None where a round did not reach the AUC."""
    rates = {name: [curve[-1].samples / curve[-1].seconds for curve in curves] for name, curves in all_curves.items()}
    reached = {name: [reach(curve, target) for curve in curves] for name, curves in all_curves.items()}

    def later(name: str, than: str) -> float | None:
        """How many times as long it takes to the AUC."""
        pairs = zip(reached[name], reached.get(than, [None]), strict=False)
        return median([a and b and a.seconds / b.seconds for a, b in pairs])

    return {
        name: {
            "version": version(name, arguments) or "unknown",
            "samples_per_second": statistics.median(rates[name]),
            "faster": statistics.median(a / b for a, b in zip(rates[OURS], rates[name], strict=True)),
            "seconds_to_auc": median([point and point.seconds for point in reached[name]]),
            "samples_to_auc": median([point and point.samples for point in reached[name]]),
            "later": later(name, OURS),
            "later_than_bf16": later(name, OURS_BF16),
            "auc": statistics.median(curve[-1].auc for curve in curves),
            "curves": curves,
        }
        for name, curves in all_curves.items()
    }


def median(values: Sequence[float | None]) -> float | None:
    """Their median; None if one of them is."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if len(numbers) == len(values) else None


def markdown(results: dict[str, dict[str, Any]], target: float) -> str:
    """A row a program; ratios above 1: ours is better."""

    def shown(value: float | None, form: str, absent: str = "") -> str:
        return absent if value is None else format(value, form)

    lines = [
        f"| | version | seconds to AUC {target} | theirs / ours | theirs / ours in bf16 | samples to it "
        "| samples/s | ours / theirs | AUC at the end |",
        "|" + "---|" * 9,
    ]
    for name, result in results.items():
        seconds = shown(result["seconds_to_auc"], ".1f", "not in all rounds")
        later, bf16, faster = (
            shown(None if name in (OURS, OURS_BF16) else result[key], ".2f")
            for key in ("later", "later_than_bf16", "faster")
        )
        samples = shown(result["samples_to_auc"], ",.0f")
        lines.append(
            f"| `{name}` | {result['version']} | {seconds} | {later} | {bf16} | {samples} "
            f"| {result['samples_per_second']:,.0f} | {faster} | {result['auc']:.4f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
