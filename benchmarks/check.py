"""Has anything become slower? The last commit, or another, against the working tree, measured in turn.

    python -m benchmarks.check [--against HEAD] [--rounds 16] [--bound 1.03] [--default-rounds 5]
                               [-- app.bench's overrides]

Each round runs `app.bench` once in a checkout of the commit and once here, so that both meet the same machine; which
goes first alternates. A case's time is the 10th percentile of its runs: other work on the machine disturbs it least.
It has become slower if the median over rounds of the ratios here/there is at least the bound, and the one-sided
Wilcoxon signed-rank test of the ratios' logarithms against no change gives p < 0.01 divided by the number of cases.
"finds" is the smallest slowdown that this test would have found with this run's noise: where it is more than 5 %, the
machine was not quiet enough. Ends with 1 if a case has become slower. Seconds of different days are never compared.

Then `benchmarks.default_run` compares the quickstart with the same run without checkpoints and evaluations, in as many
rounds as `--default-rounds` says (0: not at all).
"""

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.stats

ALPHA = 0.01  # chance of any false alarm
STEPS = [1 + step / 100 for step in range(1, 100)]
REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> int:
    """Measure, print, say whether anything became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="HEAD", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--bound", type=float, default=1.03, help="ratio of times that counts as slower")
    parser.add_argument("--default-rounds", type=int, default=5, help="of benchmarks.default_run")
    parser.add_argument("overrides", nargs="*", help="of app.bench, after --")
    arguments = parser.parse_args()
    with checkout(arguments.against) as baseline:
        ratios = compare(baseline, arguments.rounds, arguments.overrides)
    slower = print_table(ratios, arguments.bound)
    if not arguments.default_rounds:
        return slower
    rounds = ["--rounds", str(arguments.default_rounds)]
    command = [sys.executable, "-m", "benchmarks.default_run", "--cases", "quickstart", "--threads", "2", *rounds]
    return max(slower, subprocess.run(command, cwd=REPOSITORY, check=False).returncode)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A directory with the files of a commit, which goes away."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "checkout"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def in_turn(baseline: Path, number: int) -> list[Path]:
    """Both trees, in the order of a round: which goes first alternates."""
    return [baseline, REPOSITORY] if number % 2 else [REPOSITORY, baseline]


def git(*arguments: str) -> None:
    """Run git in this repository."""
    subprocess.run(["git", "-C", str(REPOSITORY), *arguments], check=True, capture_output=True)


def compare(baseline: Path, rounds: int, overrides: list[str]) -> dict[str, list[float]]:
    """Ratios of each case's time to the baseline's, one a round; which goes first changes from round to round."""
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        times = {tree: bench(tree, overrides) for tree in in_turn(baseline, number)}
        for name, milliseconds in times[REPOSITORY].items():
            if name in times[baseline]:
                ratios.setdefault(name, []).append(milliseconds / times[baseline][name])
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return ratios


def bench(tree: Path, overrides: list[str]) -> dict[str, float]:
    """Milliseconds of each case in one checkout, the 10th percentile."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "bench.json"
        command = [sys.executable, "-m", "app.bench", f"out={out}", *overrides]
        process = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(f"{tree}: {process.stderr.strip()}")
        return {result["name"]: result["p10_ms"] for result in json.loads(out.read_bytes())["results"]}


def print_table(ratios: dict[str, list[float]], bound: float) -> int:
    """Print a line a case; 1 if one became slower."""
    if not ratios:
        raise SystemExit("nothing to compare: the two commits have no case in common")
    slower, p_value = 0, ALPHA / len(ratios)
    for name, case_ratios in ratios.items():
        is_slower = became_slower(case_ratios, bound, p_value)
        slower += is_slower
        noise = [ratio / statistics.median(case_ratios) for ratio in case_ratios]
        resolved = next((f for f in STEPS if became_slower([f * ratio for ratio in noise], bound, p_value)), None)
        resolution = "nothing below 2 times" if resolved is None else f"{resolved - 1:.0%}"
        spread = f"{statistics.median(case_ratios):.3f} ({min(case_ratios):.3f} to {max(case_ratios):.3f})"
        print(f"{name:<46} {spread}  finds {resolution}{'  SLOWER' if is_slower else ''}")
    print(f"{slower} of {len(ratios)} slower by {bound - 1:.0%} or more")
    rounds = min(map(len, ratios.values()))
    enough = math.floor(math.log2(1 / p_value)) + 1  # slower in all of them: p = 2 ** -rounds
    if rounds < enough:
        print(f"{rounds} rounds cannot show a slowdown of one case among {len(ratios)}; give --rounds {enough} or more")
    return 1 if slower else 0


def became_slower(ratios: list[float], bound: float, p_value: float) -> bool:
    """The test that the module's docstring states."""
    test = scipy.stats.wilcoxon(np.log(ratios), alternative="greater")
    return statistics.median(ratios) >= bound - 1e-9 and float(test.pvalue) < p_value


if __name__ == "__main__":
    sys.exit(main())
