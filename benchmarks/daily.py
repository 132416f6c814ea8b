"""AUC on tomorrow's clicks, by day, of models that are trained each day in different ways, on generated days.

  python -m benchmarks.daily [--days 5] [--rows 100000] [--seeds 1] [--drift 0.1] [--picture docs/images/daily.svg]

daily     begins with the model of the day before (checkpoint.warm_start_from) and learns the day
anew      begins with initial values and learns the day
all days  begins with initial values and learns all days so far
day 0     learnt day 0 alone
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.result_file import write_result

COLORS = {"daily": "#3b6fd4", "all days": "#6b7280", "anew": "#c2571a", "day 0": "#3f8f5b"}


def main() -> int:
    """Measure, print and draw; 1 if the daily model's AUC is more than 0.02 below that of all days."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000, help="of a day")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--drift", type=float, default=0.1)
    parser.add_argument("--picture", type=Path, help="draw the means to this SVG file")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, list[list[float]]] = {name: [] for name in COLORS}  # by seed and day
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as directory:
            for name, aucs in train_days(Path(directory), arguments, seed).items():
                results[name].append(aucs)
    means = {name: [statistics.fmean(day) for day in zip(*seeds, strict=True)] for name, seeds in results.items()}
    print(f"{'AUC on the day after':<22}" + "".join(f"{f'day {day}':>9}" for day in range(arguments.days)))
    for name, line in means.items():
        print(f"{name:<22}" + "".join(f"{auc:>9.4f}" for auc in line))
    write_result(arguments, results)
    if arguments.picture:
        arguments.picture.write_text(draw(means), encoding="utf-8")
    largest_gap = max(whole - daily for whole, daily in zip(means["all days"], means["daily"], strict=True))
    print(f"the daily model is at most {largest_gap:.4f} below the one of all days")
    return int(largest_gap > 0.02)


def train_days(root: Path, arguments: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    """Return each model's AUC on the day after, by day."""
    rows, drift = arguments.rows * (arguments.days + 1), arguments.drift
    days = [f"data.synthetic.days={arguments.days + 1}", f"data.synthetic.rows={rows}", f"data.synthetic.drift={drift}"]
    run(root, "data_prep", "data.source=synthetic", *days, f"data.synthetic.seed={seed}", "data.path=days")
    files = [f"days/raw/day_{day}.tsv" for day in range(arguments.days + 1)]
    aucs: dict[str, list[float]] = {name: [] for name in COLORS}
    for day, tomorrow in enumerate(files[1:]):
        so_far = f"data.train=[{','.join(files[: day + 1])}]"
        for path, train in ((f"day_{day}", f"data.train={files[day]}"), (f"until_{day}", so_far)):
            run(root, "data_prep", train, f"data.val={tomorrow}", f"data.path={path}")
        start = [f"checkpoint.warm_start_from=runs/daily_{day - 1}"] if day else []
        for name, data, more in (("daily", "day", start), ("anew", "day", []), ("all days", "until", [])):
            directory = f"runs/{name.replace(' ', '_')}_{day}"
            keys = [f"data.path={data}_{day}", f"run.dir={directory}", f"train.seed={seed}", "baselines=false"]
            run(root, "app.train", *keys, *more)
            aucs[name].append(json.loads((root / directory / "summary.json").read_text())["last"]["auc"])
        figures = run(root, "app.evaluate", "run=runs/anew_0", f"data.raw={tomorrow}", "checkpoint=last")
        aucs["day 0"].append(json.loads(figures)["auc"])
    return aucs


def run(root: Path, module: str, *overrides: str) -> str:
    """Run a command in `root`; return what it prints. Raise CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", module, *overrides]
    return subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def draw(means: dict[str, list[float]]) -> str:
    """Return a chart as SVG: a line for each model, with its name beside its end."""
    width, height, left, right, top, bottom = 640, 300, 56, 80, 28, 36
    values = [auc for line in means.values() for auc in line]
    low, high = min(values) - 0.005, max(values) + 0.005
    days = len(means["daily"])
    step = (width - left - right) / max(days - 1, 1)
    middle = "#6b7280"

    def place(auc: float) -> float:
        return top + (high - auc) / (high - low) * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="16" fill="#374151">AUC on the day after</text>',
    ]
    first_tick = int(low * 50) + 1
    for tick in [number / 50 for number in range(first_tick, int(high * 50) + 1)]:
        grid = f'x1="{left}" x2="{width - right}" y1="{place(tick):.1f}" y2="{place(tick):.1f}" stroke="#e5e7eb"'
        label = f'<text x="{left - 8}" y="{place(tick) + 4:.1f}" text-anchor="end" fill="{middle}">{tick:.2f}</text>'
        parts += [f"<line {grid}/>", label]
    for day in range(days):
        x = left + day * step
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" fill="{middle}">day {day}</text>')
    # Names of lines that end close to each other are moved apart.
    below = 0.0
    for name in sorted(means, key=lambda name: -means[name][-1]):
        line, color = means[name], COLORS[name]
        points = " ".join(f"{left + day * step:.1f},{place(auc):.1f}" for day, auc in enumerate(line))
        below = max(place(line[-1]) + 4, below + 14)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{width - right + 8}" y="{below:.1f}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
