"""Has anything become slower? The last commit, or another, against the working tree, measured in turn.

    python -m benchmarks.check [--against HEAD] [--rounds 5] [--bound 1.15] [-- app.bench's overrides]

Each round runs `app.bench` once in a checkout of the commit and once here, so that both meet the same machine; a case
has become slower if the median over rounds of the ratios here/there is above the bound and so is every round's.
Ends with 1 if one has. Seconds of different days are never compared.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> int:
    """Measure, print, say whether anything became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="HEAD", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bound", type=float, default=1.15, help="ratio of times that counts as slower")
    parser.add_argument("overrides", nargs="*", help="of app.bench, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory) / "checkout"
        git("worktree", "add", "--detach", str(there), arguments.against)
        try:
            ratios = compare(there, arguments.rounds, arguments.overrides)
        finally:
            git("worktree", "remove", "--force", str(there))
    return tell(ratios, arguments.bound)


def git(*arguments: str) -> None:
    """Run git in this repository."""
    subprocess.run(["git", "-C", str(REPOSITORY), *arguments], check=True, capture_output=True)


def compare(there: Path, rounds: int, overrides: list[str]) -> dict[str, list[float]]:
    """Ratios here/there of each case's median, one a round; which goes first changes from round to round."""
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        pair = [there, REPOSITORY] if number % 2 else [REPOSITORY, there]
        medians = {tree: bench(tree, overrides) for tree in pair}
        for name, here in medians[REPOSITORY].items():
            if name in medians[there]:
                ratios.setdefault(name, []).append(here / medians[there][name])
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return ratios


def bench(tree: Path, overrides: list[str]) -> dict[str, float]:
    """Milliseconds of each case in one checkout."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "bench.json"
        command = [sys.executable, "-m", "app.bench", f"out={out}", *overrides]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{tree}: {done.stderr.strip()}")
        return {result["name"]: result["median_ms"] for result in json.loads(out.read_bytes())["results"]}


def tell(ratios: dict[str, list[float]], bound: float) -> int:
    """Print a line a case; 1 if one became slower."""
    slower = []
    for name, found in ratios.items():
        median = statistics.median(found)
        mark = ""
        if median > bound and min(found) > bound:
            slower.append(name)
            mark = "  SLOWER"
        print(f"{name:<46} {median:.3f} ({min(found):.3f} to {max(found):.3f}){mark}")
    print(f"{len(slower)} of {len(ratios)} slower than {bound} times")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
