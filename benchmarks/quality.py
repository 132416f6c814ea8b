"""What a recipe of BARS learns on the part of Frappe that public repositories hold, and what each of its parts gives.

    python -m benchmarks.quality [--frappe DIRECTORY] [--cases CASE …] [--seeds 1 2 3 4 5] [--threads 2] [--out FILE]

DIRECTORY has frappe.validation.libfm and frappe.test.libfm of hexiangnan/neural_factorization_machine, data/frappe.
The validation file, permuted by numpy.random.default_rng(1), gives train (the first 90 %) and val; the test file is
test. Without it, drawn rows of the same columns, which show only that it runs.

  published   recipe=bars_frappe_x1: batch norm, dropout 0.4, L2 0.1, plateau, patience 2, the best checkpoint
  without …   the same without one of them: l2, dropout, plateau (patience stays), batch_norm; or without all four
  small windows   the recipe, shuffled in windows of 8,192 rows (two blocks, two batches) and not as a whole
  dcnv2, crossnetv2, dnn, lr   the recipe with another model
  default     model=dlrm with the program's own defaults, over 20 epochs, the best checkpoint

Test AUC of each seed, their mean, the 95 % interval of the mean (Student's t), and the steps trained. The published
0.983995 is of four times as many rows (202,027), so this is no reproduction of it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.precision import interval
from benchmarks.result_file import write_result

COLUMNS = "user,item,daytime,weekday,isweekend,homework,cost,weather,country,city"
SIZES = (957, 4082, 7, 7, 2, 3, 2, 9, 80, 233)  # values of its columns
PARTS = {
    "l2": ["optimizer.sparse_weight_decay=0"],
    "dropout": ["model.dropout=0"],
    "plateau": ["schedule=constant"],
    "batch_norm": ["model.batch_norm=false"],
}
RECIPE = ["recipe=bars_frappe_x1"]
CASES = {
    "published": RECIPE,
    **{f"without {part}": [*RECIPE, *overrides] for part, overrides in PARTS.items()},
    "small windows": [*RECIPE, "data.shuffle_block_rows=4096", "data.shuffle_window_blocks=2"],
    "without all four": [*RECIPE, *(override for overrides in PARTS.values() for override in overrides)],
    **{model: [*RECIPE, f"model={model}"] for model in ("dcnv2", "crossnetv2", "dnn", "lr")},
    "default": [
        "train.epochs=20",
        "train.eval_every_steps=null",
        "train.eval_every_fraction=1",
        "eval.split=val",
        "data.schema=frappe_x1",
    ],
}


def main() -> int:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--rows", type=int, default=60_000, help="drawn rows, where --frappe is not given")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        write_splits(arguments, Path(directory))
        for case in arguments.cases:
            runs = [test_auc(CASES[case], seed, arguments.threads, Path(directory)) for seed in arguments.seeds]
            results[case] = summarise(runs)
            aucs = " ".join(f"{run['auc']:.5f}" for run in runs)
            print(f"{case:18} {results[case]['mean']:.5f} ± {results[case]['interval']:.5f}  {aucs}", flush=True)
    write_result(arguments, results)
    return 0


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds and half the width of its 95 % interval."""
    aucs = [run["auc"] for run in runs]
    mean, half = interval(aucs)
    spread = statistics.stdev(aucs) if len(aucs) > 1 else float("nan")
    return {"mean": mean, "std": spread, "interval": half, "runs": list(runs)}


def test_auc(overrides: Sequence[str], seed: int, threads: int, directory: Path) -> dict[str, Any]:
    """AUC and logloss of a run's best checkpoint on the test split, the step it is of, and the steps trained."""
    files = ["data.train=train.csv", "data.val=valid.csv", "data.test=test.csv", "data.path=shards"]
    settings = [
        f"train.seed={seed}",
        f"runtime.num_threads={threads}",
        "record.tensorboard=false",
        "baselines=false",
        "run.name=run",
        "checkpoint.resume=never",
        "checkpoint.overwrite=true",
    ]
    execute(["-m", "app.train", *overrides, *files, *settings], directory)
    evaluated = json.loads(execute(["-m", "app.evaluate", "run=runs/run", "split=test"], directory))
    summary = json.loads((directory / "runs/run/summary.json").read_text(encoding="utf-8"))
    return {
        "seed": seed,
        "auc": evaluated["auc"],
        "logloss": evaluated["logloss"],
        "step": evaluated["step"],
        "steps": summary["steps"],
    }


def execute(arguments: Sequence[str], directory: Path) -> str:
    """What a command prints; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, *arguments]
    process = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environment, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    return process.stdout


def write_splits(arguments: argparse.Namespace, target: Path) -> None:
    """train.csv, valid.csv and test.csv: of Frappe, or drawn."""
    if arguments.frappe is None:
        rows = list(drawn(arguments.rows))
        held_out = rows[: len(rows) // 4]
        rows = rows[len(held_out) :]
    else:
        rows, held_out = (list(read(arguments.frappe / f"frappe.{name}.libfm")) for name in ("validation", "test"))
    order = np.random.default_rng(1).permutation(len(rows))
    cut = len(rows) * 9 // 10
    splits = {"train": [rows[i] for i in order[:cut]], "valid": [rows[i] for i in order[cut:]], "test": held_out}
    for name, lines in splits.items():
        (target / f"{name}.csv").write_text("\n".join([f"label,{COLUMNS}", *lines]) + "\n", encoding="utf-8")


def drawn(count: int) -> Iterator[str]:
    """Rows of Frappe's columns whose labels have a known effect of each value, as CSV."""
    draw = np.random.default_rng(0)
    effects = [draw.normal(size=size) for size in SIZES]
    columns = [draw.integers(0, size, count) for size in SIZES]
    logits = sum(effect[column] for effect, column in zip(effects, columns, strict=True)) - 1.0
    labels = draw.random(count) < 1 / (1 + np.exp(-logits))
    for label, *values in zip(labels.astype(int).tolist(), *(column.tolist() for column in columns), strict=True):
        yield ",".join(map(str, [label, *values]))


def read(path: Path) -> Iterator[str]:
    """Rows of a libfm file, `1 451:1 4149:1 …`, as CSV."""
    for line in path.read_text(encoding="utf-8").splitlines():
        label, *features = line.split()
        yield ",".join(["1" if float(label) > 0 else "0", *(feature.partition(":")[0] for feature in features)])


if __name__ == "__main__":
    sys.exit(main())
