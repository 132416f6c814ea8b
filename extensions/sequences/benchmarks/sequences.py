"""What a history is worth: HSTU against a DLRM that sees the last event only, and against boosted trees.

    python -m extensions.sequences.benchmarks.sequences [--movielens DIR] [--models trees recent_trees dlrm hstu]
        [--seeds 1 2 3 4 5] [--choose] [--users 2000] [--app KEY=VALUE ...] [--out FILE.json]

The log is MovieLens-100K, where DIR has ml-100k.inter and ml-100k.item (RUCAIBox/RecBole, dataset/ml-100k): a rating is
an event, its label whether it is at least 4, a sample one with five earlier events of its user, a window 20 days. Else
it is `data.source=synthetic_events`, whose labels come from a known model: the best is what that model's probabilities
score.

All learn from the windows before the last and are evaluated on the last. With --choose it is the window before the
last, learned from those before it: settings are chosen there, never on the last.

  trees          scikit-learn's HistGradientBoostingClassifier on means of earlier events' actions: of the user, of the
                 item, and of the user with each attribute of the item (benchmarks/running_means.py)
  recent_trees   the same, and means of the user's last 5 and 20 events, and the seconds since the last
  dlrm           model=dlrm, whose rows are the samples with their last event alone: its item, attributes and actions,
                 the minutes since it, and the hour
  hstu           model=hstu with its defaults; on MovieLens with HSTU_ON_MOVIELENS besides

AUC of each seed after the last step, their mean, and half the width of its 95 % interval. The trees draw nothing, so
they are fitted once. Nothing here is timed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from benchmarks.precision import interval
from benchmarks.result_file import write_result
from data_prep.dataset.format import load_manifest
from extensions.sequences.benchmarks.running_means import recent_means, running_means
from extensions.sequences.event_log import EventLog
from extensions.sequences.keys import HistoryKind, SequencesConfig

REPOSITORY = Path(__file__).resolve().parents[3]
SPLITS, BATCH = ("train", "val"), 4096
DIM = 32
SETTINGS = {
    "dlrm": [
        "model=dlrm",
        f"model.embedding_dim={DIM}",
        f"model.dense_arch=[64,{DIM}]",
        "model.over_arch=[128,64,1]",
        "model.dropout=0.2",
        "optimizer=rowwise_adagrad_adam",
        "optimizer.sparse_lr=0.02",
    ],
    "hstu": ["model=hstu", "optimizer.sparse_lr=0.02"],
}
HSTU_ON_MOVIELENS = [
    "sequences.tasks=[loved,fair,bad]",
    "sequences.order=shuffled",
    "sequences.history=last_n",
    "sequences.candidate_time=own",
    "sequences.hstu.input_dropout=0.2",
    "sequences.hstu.linear_dropout=0.2",
    "train.epochs=2",
]
FEATURES = {"trees": (running_means,), "recent_trees": (running_means, recent_means)}
MODELS = [*FEATURES, *SETTINGS]
TREES = {"max_iter": 200, "learning_rate": 0.05, "max_leaf_nodes": 15, "min_samples_leaf": 50}
SHARED = [
    "baselines=false",
    "train.global_batch_size=256",
    "train.eval_every_steps=null",
    "eval.split=val",
    "checkpoint.keep_best=false",
    "record.tensorboard=false",
    "runtime.num_threads=1",
]
MOVIELENS = """\
user: "user_id:token"
item: "item_id:token"
time: "timestamp:float"
actions:
  liked: {"rating:float": ">= 4"}
  loved: {"rating:float": ">= 5"}
  fair: {"rating:float": ">= 3"}
  poor: {"rating:float": "<= 2"}
  bad: {"rating:float": "<= 1"}
label: liked
attributes:
  genre: {file: genres.tsv, item: item, column: genre}
  genre_2: {file: genres.tsv, item: item, column: genre_2}
  genre_3: {file: genres.tsv, item: item, column: genre_3}
min_history: 5
window_seconds: 1728000
delimiter: "\\t"
"""


def main() -> None:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--movielens", type=Path)
    parser.add_argument("--users", type=int, default=2000, help="of the generated log")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--choose", action="store_true", help="evaluate the window before the last")
    parser.add_argument("--app", nargs="*", default=[], metavar="KEY=VALUE", help="more overrides of app.train")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"log": "movielens-100k" if arguments.movielens else "synthetic_events"}
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        log = prepare(arguments, work)
        results |= {"samples": {name: log.split(name, 0, 1).rows for name in SPLITS}, "auc": {}}
        if "dlrm" in arguments.models:
            write_rows(log, work)
        for model in arguments.models:
            settings = [*SETTINGS.get(model, []), *SHARED]
            settings += [*(HSTU_ON_MOVIELENS if model == "hstu" and arguments.movielens else []), *arguments.app]
            aucs: list[float] = []
            for seed in arguments.seeds[:1] if model in FEATURES else arguments.seeds:  # the trees draw nothing
                aucs.append(train_and_score(model, seed, log, work, settings))
                results["auc"][model] = mean_and_interval(aucs)
                write_result(arguments, results)
            print(f"{model:12} {results['auc'][model]}", flush=True)
        if (best := load_manifest(work / "log").extra.get("bayes")) is not None and not arguments.choose:
            results["best"] = best["sampled_auc"]
            print(f"{'best':12} {results['best']:.4f}")
            write_result(arguments, results)


def mean_and_interval(aucs: list[float]) -> dict[str, Any]:
    """Return the mean over seeds and half the width of its 95 % interval; None with one seed."""
    mean, half = interval(aucs)
    return {"mean": mean, "interval": half if len(aucs) > 1 else None, "seeds": aucs}


def prepare(arguments: argparse.Namespace, work: Path) -> EventLog:
    """Make the log a dataset of events, and open it with what DLRM sees: histories of one event."""
    if arguments.movielens is None:
        source = ["data.source=synthetic_events", f"data.synthetic_events.users={arguments.users}"]
    else:
        write_genres(arguments.movielens / "ml-100k.item", work / "genres.tsv")
        (work / "log.yaml").write_text(MOVIELENS, encoding="utf-8")
        source = [f"data.raw={arguments.movielens / 'ml-100k.inter'}", f"data.schema={work}/log.yaml"]
    root = work / "log"
    run_module("data_prep", *source, f"data.path={root}")
    config, manifest = SequencesConfig(history=HistoryKind.last_n, history_length=1), load_manifest(root)
    log = EventLog(root, manifest, config)
    if arguments.choose:
        config = SequencesConfig(history=HistoryKind.last_n, history_length=1, eval_window=log.eval_window - 1)
        log = EventLog(root, manifest, config)
    return log


def write_genres(items: Path, out: Path) -> None:
    """Write the first three genres of each film of `ml-100k.item` (item, title, year, genres); `none` if fewer."""
    lines = ["item\tgenre\tgenre_2\tgenre_3"]
    for line in items.read_text(encoding="utf-8").splitlines()[1:]:
        item, _, _, genres = line.split("\t")
        lines.append("\t".join([item, *[*genres.split(), "none", "none"][:3]]))
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_rows(log: EventLog, work: Path) -> None:
    """Write samples with their last event alone, as train.parquet and val.parquet, and the schema of both."""
    columns: dict[str, Any] = {}
    for name in SPLITS:
        split, parts = log.split(name, 0, 1), []
        times = np.concatenate([log.events.times[log.anchors.window(number)] for number in split.windows])
        for batch in split.eval_batches(BATCH):
            histories: Any = batch.inputs_of_model
            ids = {key: jagged.values() for key, jagged in batch.sparse_features.to_dict().items()}
            targets = {
                "action": histories.actions,
                "then": histories.times,
                "label": batch.labels.int(),
            }
            columns_of_batch = {**ids, **targets}
            parts.append({key: values[: batch.num_valid].numpy() for key, values in columns_of_batch.items()})
        columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        columns["minutes"] = (times - columns.pop("then")) // 60
        columns["hour"] = times // 3600 % 24
        pq.write_table(pa.table(columns), work / f"{name}.parquet")
    sparse = ", ".join(name for name in columns if name not in ("label", "minutes"))
    (work / "rows.yaml").write_text(f"label: label\ndense: [minutes]\nsparse: [{sparse}]\n", encoding="utf-8")


def train_and_score(model: str, seed: int, log: EventLog, work: Path, settings: list[str]) -> float:
    """Train a model with a seed, and return its AUC on the evaluated window."""
    if model in FEATURES:
        return tree_auc(model, log)
    if model == "dlrm":
        files = [f"data.{name}={work}/{name}.parquet" for name in SPLITS]
        data = [*files, f"data.schema={work}/rows.yaml", f"data.path={work}/rows"]
    else:
        data = [f"data.path={work}/log", f"sequences.eval_window={log.eval_window}"]
    name = f"{model}_{seed}"
    run_module("app.train", *settings, *data, f"train.seed={seed}", f"run.name={name}", f"run.dir={work}/{name}")
    auc: float = json.loads((work / name / "summary.json").read_bytes())["last"]["auc"]
    return auc


def tree_auc(model: str, log: EventLog) -> float:
    """Fit boosted trees to a model's FEATURES, and return their AUC on the evaluated window."""
    features = np.column_stack([means(log.events, log.schema) for means in FEATURES[model]])
    labels = np.asarray(log.events.flags) & log.schema.label_bit != 0
    windows = [log.anchors.window(number) for number in range(log.eval_window + 1)]
    train_anchors, eval_anchors = np.concatenate(windows[:-1]), windows[-1]
    fitted = HistGradientBoostingClassifier(early_stopping=False, **TREES)
    fitted.fit(features[train_anchors], labels[train_anchors])
    return float(roc_auc_score(labels[eval_anchors], fitted.predict_proba(features[eval_anchors])[:, 1]))


def run_module(module: str, *overrides: str) -> None:
    """Run a module with overrides, and end with its messages if it fails."""
    command = [sys.executable, "-m", module, *overrides]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)


if __name__ == "__main__":
    main()
