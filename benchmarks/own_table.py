"""A default model beside simpler ones on users' own tables.

    python -m benchmarks.own_table [FILE.csv …] [--seeds 1 2 3 4 5] [--out FILE] [-- KEY …]

The tables have a column `label` of 0 and 1; without any, one of 20,000 users and items is drawn. The model takes the
proposed schema (data.schema=auto); *renamed*, that of columns named c0, c1, …; *by hand*, FILE.yaml beside it, if there
is one. Each seed shuffles the rows; val and test have a fifth of them each.

Each table is prepared and trained with `app.train data.path=…` and the given keys, once a seed. AUC is of test:
of the model that is served (the best on val), of the logistic regression of `app.baselines`, fitted on train, and of
boosted trees on its inputs, whose number and leaves are those with the highest AUC on val. Means over the seeds, with
the 95 % interval of the mean.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from benchmarks.precision import interval
from benchmarks.result_file import write_result
from data_prep.dataset.format import load_rows_manifest
from extensions.baselines.command import find_or_fit
from extensions.baselines.fit import BaselinesConfig, all_rates, load_rows, tree_inputs

MARGINS = {"hand": 0.003, "lr": 0.002, "trees": 0.004}  # by which the model's AUC may fall short of others
LEAVES = (4, 8, 16, 31)
QUIET = ["baselines=false", "record.tensorboard=false"]


def main() -> None:
    """Measure and print, one seed of all tables after another; what is measured is written at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="FILE.csv or KEY", help="tables, and keys of app.train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tables = [Path(word) for word in arguments.words if word.endswith(".csv")]
    keys = [word for word in arguments.words if "=" in word]
    with tempfile.TemporaryDirectory() as directory:
        tables = tables or [draw_table(Path(directory) / "drawn.csv")]
        results: dict[str, list[dict[str, Any]]] = {table.stem: [] for table in tables}
        for seed in arguments.seeds:
            for table in tables:
                results[table.stem].append(measure(table, seed, keys))
                print(table.stem, seed, json.dumps(results[table.stem][-1]), file=sys.stderr, flush=True)
                write_result(arguments, results)
    print(markdown(results))


def draw_table(path: Path) -> Path:
    """Write a table whose clicks follow from users' and items' own rates and from their tastes; return its path."""
    draw = np.random.default_rng(0)
    users, items = draw.integers(500, size=20_000), draw.integers(300, size=20_000)
    rates, tastes = (draw.normal(size=500), draw.normal(size=300)), draw.normal(size=(2, 500, 4))
    logits = rates[0][users] + rates[1][items] + (tastes[0][users] * tastes[1][items]).sum(1) / 2
    clicks = draw.random(len(users)) < 1 / (1 + np.exp(-logits))
    lines = [f"{click:d},u{user},i{item}" for click, user, item in zip(clicks, users, items, strict=True)]
    path.write_text("\n".join(["label,user,item", *lines, ""]), encoding="utf-8")
    return path


def write_csv(path: Path, seed: int, directory: Path) -> dict[str, list[str]]:
    """Write a table's rows in an order by the seed; return the keys of data_prep for each way to read them."""
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    names = ("label" if name == "label" else f"c{place}" for place, name in enumerate(head.split(",")))
    order = np.random.default_rng(seed).permutation(len(rows))
    for file, line in (("rows", head), ("renamed", ",".join(names))):
        (directory / f"{file}.csv").write_text("\n".join([line, *(rows[row] for row in order), ""]), encoding="utf-8")
    raw, split = f"data.raw={directory}/rows.csv", "data.split.held_out=0.4"
    auto = [split, "data.schema=auto", "data.label=label"]
    ways = {"model": [raw, *auto], "renamed": [f"data.raw={directory}/renamed.csv", *auto]}
    by_hand = path.with_suffix(".yaml")
    return ways | ({"hand": [raw, split, f"data.schema={by_hand}"]} if by_hand.exists() else {})


def measure(table: Path, seed: int, keys: list[str]) -> dict[str, Any]:
    """Return test AUCs of one order of a table's rows; ways to read it with the same inputs are trained once."""
    trained: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        for name, prepared in write_csv(table, seed, Path(work)).items():
            root = Path(work) / name / "data"
            _run_module("data_prep", *prepared, f"data.path={root}")
            inputs = load_rows_manifest(root)
            same = f"{len(inputs.schema['dense'])} numbers, {[*inputs.num_embeddings.values()]}"
            trained[name] = next((one for one in trained.values() if one["inputs"] == same), {})
            trained[name] = trained[name] or {"inputs": same, **train(root, seed, keys)}
        root = Path(work) / "model" / "data"
        run = root.parent / "run"
        lr = find_or_fit(root, load_rows_manifest(root), "test", run, BaselinesConfig(run=str(run))).figures.lr
        simpler = {"lr": lr and lr.auc, "trees": tuned_trees(root), "rows": load_rows_manifest(root).rows}
    return {**{name: one["auc"] for name, one in trained.items()}, **simpler, "trained": trained}


def train(root: Path, seed: int, keys: list[str]) -> dict[str, Any]:
    """Train the default on a dataset; return its AUC on test, its steps and its seconds."""
    run = root.parent / "run"
    _run_module("app.train", f"data.path={root}", f"run.dir={run}", f"train.seed={seed}", *QUIET, *keys)
    auc = json.loads(_run_module("app.evaluate", f"run={run}", "split=test"))["auc"]
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {"auc": auc, "steps": summary["steps"], "seconds": summary["seconds"]["total"]}


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
    aucs = [name for name in ("model", "renamed", *MARGINS) if any(name in runs[0] for runs in results.values())]
    compared = [name for name in aucs if name in MARGINS]
    head = ["table", "rows", *aucs, *(f"model − {name}" for name in compared)]
    lines, met = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], dict.fromkeys(compared, 0)
    for name, runs in results.items():
        cells = [_interval_text([run[auc] for run in runs if auc in run]) for auc in aucs]
        for other in compared:
            differences = [run["model"] - run[other] for run in runs if other in run]
            cells.append(_interval_text(differences))
            met[other] += bool(differences) and float(np.mean(differences)) >= -MARGINS[other]
        lines.append(f"| {name} | {runs[0]['rows']:,} | {' | '.join(cells)} |")
    counts = ", ".join(f"{other} minus {MARGINS[other]}: {count}" for other, count in met.items())
    return "\n".join([*lines, "", f"Tables of {len(results)} with at least the AUC of {counts}."])


def _interval_text(values: list[float]) -> str:
    """Return the mean of values over seeds, and half its 95 % interval if there are several; none: empty."""
    if not values:
        return ""
    mean, half = interval(values)
    return f"{mean:.4f}" if np.isnan(half) else f"{mean:.4f} ± {half:.4f}"


if __name__ == "__main__":
    main()
