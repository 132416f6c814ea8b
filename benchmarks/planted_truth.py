"""How far models get from the best possible scores on synthetic clicks: the order in which they come, and the gap.

    python -m benchmarks.planted_truth [--rows 560000] [--models lr cat dot dcn] [--out FILE.json] [--work DIR]

For each number of rows a dataset is made (`data.source=synthetic`, split into train, val and test as usual), and each
model is trained for one epoch on its train split and evaluated on its test split:

  lr    scikit-learn's logistic regression on one-hot ids and the dense features
  cat   embeddings and dense features side by side into an MLP, no products of any two
  dot   DLRM
  dcn   DCN v2

The last three are `python -m app.train` with the same tables, MLPs, optimizer and schedule. The gap is to what the
true probabilities score against the very labels of the test split.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.result_file import write_result
from data_prep.dataset.format import load_manifest, open_shard

REPOSITORY = Path(__file__).resolve().parents[1]
BATCH = 1024
DENSE_SCALE = 8  # logarithms of the large integers, to the size of the other features: the solver needs it
SHARED = [
    "model.dense_arch=[64,16]",
    "model.over_arch=[64,1]",
    "optimizer=adagrad",
    "optimizer.lr=0.02",
    "optimizer.sparse_lr=0.04",
    "schedule=cosine",
    f"train.global_batch_size={BATCH}",
    "eval.split=test",
    "baselines=false",
]
OF_MODEL = {
    "cat": ["model.interaction=cat"],
    "dot": ["model.interaction=dot"],
    "dcn": ["model.interaction=dcn", "model.dcn_num_layers=2"],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[560_000])
    parser.add_argument("--models", nargs="+", choices=["lr", *OF_MODEL], default=["lr", *OF_MODEL])
    parser.add_argument("--synthetic", nargs="*", default=[], metavar="KEY=VALUE", help="such as drift=0.2 days=7")
    parser.add_argument("--app", nargs="*", default=[], metavar="KEY=VALUE", help="more overrides for app.train")
    parser.add_argument("--work", type=Path, help="where datasets and runs are kept")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = measure(arguments, arguments.work or Path(directory))
    print(markdown(results))
    write_result(arguments, results)


def measure(arguments: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """All models on all datasets."""
    results = []
    for rows in arguments.rows:
        root = work / f"data-{rows}"
        keys = [f"data.synthetic.{item}" for item in (f"rows={rows}", *arguments.synthetic)]
        run("data_prep", "data.source=synthetic", f"data.path={root}", *keys)
        manifest = load_manifest(root)
        truth = manifest.extra["bayes"]["splits"]["test"]
        for model in arguments.models:
            begin = time.perf_counter()
            if model == "lr":
                auc, logloss = logistic_regression(root)
            else:
                auc, logloss = train(root, work / f"{model}-{rows}", OF_MODEL[model], arguments.app)
            results.append(
                {
                    "model": model,
                    "train_rows": manifest.splits["train"].rows,
                    "auc": auc,
                    "logloss": logloss,
                    "bayes_auc": truth["sampled_auc"],
                    "bayes_logloss": truth["sampled_logloss"],
                    "gap": truth["sampled_auc"] - auc,
                    "seconds": round(time.perf_counter() - begin, 1),
                }
            )
            print(results[-1], file=sys.stderr, flush=True)
    return results


def run(module: str, *overrides: str) -> None:
    """Run an entry point, its messages passed on if it fails."""
    process = subprocess.run(
        [sys.executable, "-m", module, *overrides], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SystemExit(process.stderr)


def train(root: Path, directory: Path, overrides: list[str], more: list[str]) -> tuple[float, float]:
    """Test AUC and logloss of a model of ours after one epoch."""
    steps = load_manifest(root).splits["train"].rows // BATCH
    schedule = f"schedule.decay_steps={steps}"
    run(
        "app.train",
        f"data.path={root}",
        f"run.dir={directory}",
        "checkpoint.resume=never",
        "checkpoint.overwrite=true",
        *SHARED,
        schedule,
        *overrides,
        *more,
    )
    evaluation = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["eval"]
    return evaluation["auc"], evaluation["logloss"]


def logistic_regression(root: Path) -> tuple[float, float]:
    """Test AUC and logloss of logistic regression, its penalty chosen on val."""
    manifest = load_manifest(root)
    sizes = np.array(list(manifest.num_embeddings.values()))
    train_x, train_y = one_hot(root, "train", sizes)
    (val_x, val_y), (test_x, test_y) = one_hot(root, "val", sizes), one_hot(root, "test", sizes)
    best, best_model = 0.0, None
    for strength in (0.1, 0.5):
        model = LogisticRegression(C=strength, max_iter=300, tol=1e-3).fit(train_x, train_y)
        auc = roc_auc_score(val_y, model.decision_function(val_x))
        if auc > best:
            best, best_model = auc, model
    assert best_model is not None
    preds = best_model.predict_proba(test_x)[:, 1]
    return float(roc_auc_score(test_y, preds)), float(log_loss(test_y, preds))


def one_hot(root: Path, split: str, sizes: np.ndarray) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Features [rows, N + sum of num_embeddings] and labels [rows] of a split."""
    manifest = load_manifest(root)
    shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
    labels = np.concatenate([shard.labels[:, 0] for shard in shards])
    dense = np.concatenate([shard.dense for shard in shards])
    ids = np.concatenate([shard.sparse for shard in shards]) + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    hot = sparse.csr_matrix((np.ones(ids.size, np.float32), ids.ravel(), starts), (len(ids), int(sizes.sum())))
    return sparse.hstack([hot, sparse.csr_matrix(dense / DENSE_SCALE)]).tocsr(), labels


def markdown(results: list[dict[str, Any]]) -> str:
    """A table."""
    lines = ["| train rows | model | test AUC | of the truth | gap | test logloss | of the truth |", "|" + "---|" * 7]
    lines += [
        f"| {r['train_rows']:,} | {r['model']} | {r['auc']:.4f} | {r['bayes_auc']:.4f} | {r['gap']:.4f} "
        f"| {r['logloss']:.4f} | {r['bayes_logloss']:.4f} |"
        for r in results
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
