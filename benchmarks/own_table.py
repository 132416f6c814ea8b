"""A default model beside simpler ones on users' own tables of ten shapes (benchmarks/own_table_shapes.py).

    python -m benchmarks.own_table [--tables NAME …] [--csv FILE.csv …] [--seeds 1 2 3 4 5]
        [--out FILE] [-- KEY …]

--csv: tables of others, which are no part of this project, with a column `label` of 0 and 1: by the proposed schema
(data.schema=auto), with their own names and, as NAME_c, with the names c0, c1, …; each seed shuffles their rows.

Each table is drawn, prepared and trained with `app.train data.path=…` and the given keys, once a seed. AUC is of test:
of the model that is served (the best on val), of the logistic regression of `app.baselines`, fitted on train, and of
boosted trees on its inputs, whose number and leaves are those with the highest AUC on val. Means over the seeds, with
the 95 % interval of the mean.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from benchmarks.own_table_shapes import (
    LEAST_LR,
    LEAST_TREES,
    MARGIN_LR,
    MARGIN_TREES,
    SHAPES,
    write_table,
)
from benchmarks.precision import interval
from benchmarks.result_file import write_result
from data_prep.dataset.format import load_rows_manifest
from extensions.baselines.command import find_or_fit
from extensions.baselines.fit import all_rates, tree_inputs
from extensions.baselines.rows import BaselinesConfig, load_rows

Writer: TypeAlias = Callable[[int, Path], list[str]]  # of a seed and a directory, to keys of data_prep
LEAVES = (4, 8, 16, 31)
QUIET = ["baselines=false", "record.tensorboard=false"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--csv", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("keys", nargs="*", help="of app.train")
    arguments = parser.parse_args()
    results = {}
    tables: dict[str, Writer] = {name: partial(write_table, SHAPES[name]) for name in arguments.tables}
    for path in arguments.csv:
        tables |= {path.stem: partial(write_csv, path, False), f"{path.stem}_c": partial(write_csv, path, True)}
    for name, write in tables.items():
        runs = [measure(write, seed, arguments.keys) for seed in arguments.seeds]
        results[name] = runs
        print(name, json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print(markdown(results))
    write_result(arguments, results)


def write_csv(path: Path, is_renamed: bool, seed: int, directory: Path) -> list[str]:
    """Write a table's rows in an order by the seed, which decides the split; return the keys that prepare them."""
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    if is_renamed:
        head = ",".join("label" if name == "label" else f"c{place}" for place, name in enumerate(head.split(",")))
    order = np.random.default_rng(seed).permutation(len(rows))
    (directory / "rows.csv").write_text("\n".join([head, *(rows[row] for row in order), ""]), encoding="utf-8")
    return [f"data.raw={directory}/rows.csv", "data.schema=auto", "data.label=label"]


def measure(write: Writer, seed: int, keys: list[str]) -> dict[str, Any]:
    """Return test AUCs of one draw of a table."""
    with tempfile.TemporaryDirectory() as work:
        root, run = Path(work) / "data", Path(work) / "run"
        _run_module("data_prep", *write(seed, Path(work)), f"data.path={root}")
        _run_module("app.train", f"data.path={root}", f"run.dir={run}", f"train.seed={seed}", *QUIET, *keys)
        scored = json.loads(_run_module("app.evaluate", f"run={run}", "split=test"))
        baselines = find_or_fit(root, load_rows_manifest(root), "test", run, BaselinesConfig(run=str(run))).figures
        trees, rows = tuned_trees(root), load_rows_manifest(root).rows
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "rows": rows,
        "model": scored["auc"],
        "lr": baselines.lr and baselines.lr.auc,
        "trees": trees,
        "untuned_trees": baselines.trees and baselines.trees.auc,
        "steps": summary["steps"],
        "seconds": summary["seconds"]["total"],
        "parameters": summary["parameters"],
    }


def tuned_trees(root: Path) -> float:
    """Return the AUC on test of scikit-learn's boosted trees with the best of LEAVES and their best number, by val."""
    manifest = load_rows_manifest(root)
    train, val, test = (load_rows(root, manifest, split, None) for split in ("train", "val", "test"))
    columns, val_columns = tree_inputs(train, val, all_rates(train, val))
    _, test_columns = tree_inputs(train, test, all_rates(train, test))
    aucs = []
    for leaves in LEAVES:
        trees = HistGradientBoostingClassifier(
            max_iter=500, max_leaf_nodes=leaves, early_stopping=True, n_iter_no_change=10, random_state=0
        ).fit(columns, train.labels, X_val=val_columns, y_val=val.labels)
        # The trees fitted after the best number of them do not count.
        best = int(np.argmax(trees.validation_score_[1:]))
        preds = [
            next(islice(trees.staged_predict_proba(inputs), best, None))[:, 1] for inputs in (val_columns, test_columns)
        ]
        aucs.append(tuple(map(roc_auc_score, (val.labels, test.labels), preds)))
    return float(max(aucs)[1])


def _run_module(module: str, *arguments: str) -> str:
    """Run a module and return what it prints; end with its messages if it fails."""
    process = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"python -m {module} {' '.join(arguments)}\n{process.stderr}")
    return process.stdout


def markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of means with their intervals, and how many tables meet each margin."""
    head = "| table | rows | model | logistic regression | boosted trees | model − lr | model − trees |"
    lines = [head, "|---|" + "---|" * 6]
    met = {"lr": 0, "trees": 0}
    for name, runs in results.items():
        cells = [_interval_text([run[key] for run in runs]) for key in ("model", "lr", "trees")]
        differences = {key: [run["model"] - run[key] for run in runs] for key in met}
        for key, margin in (("lr", MARGIN_LR), ("trees", MARGIN_TREES)):
            met[key] += float(np.mean(differences[key])) >= -margin
        cells += [_interval_text(differences[key]) for key in met]
        lines.append(f"| {name} | {runs[0]['rows']:,} | {' | '.join(cells)} |")
    lines += [
        "",
        f"At least the logistic regression's AUC minus {MARGIN_LR}: {met['lr']} of {len(results)} (held to {LEAST_LR} "
        f"of 11); boosted trees' minus {MARGIN_TREES}: {met['trees']} (held to {LEAST_TREES}).",
    ]
    return "\n".join(lines)


def _interval_text(values: list[float]) -> str:
    """Return the mean of values over seeds, and half its 95 % interval if there are several."""
    mean, half = interval(values)
    return f"{mean:.4f}" if np.isnan(half) else f"{mean:.4f} ± {half:.4f}"


if __name__ == "__main__":
    main()
