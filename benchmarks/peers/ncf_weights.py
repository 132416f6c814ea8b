"""What the published weights of Neural Collaborative Filtering score by our metrics, on the published test file.

    python -m benchmarks.peers.ncf_weights --raw data/ncf_movielens_1m/raw --weights CHECKOUT/Pretrain [--out FILE]

--raw: where `python -m data_prep.published name=ncf_movielens_1m` put ml-1m.test.rating and ml-1m.test.negative.
--weights: a directory with the files of hexiangnan/neural_collaborative_filtering at 4aab159, Pretrain. Reading them
takes h5py (`pip install h5py`). --out: where the places of the positives among their 100 candidates are counted, [100]
a model; tests/golden/ncf_places.json has them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.metrics.quality import group_metrics

FILES = {"gmf": "ml-1m_GMF_8_1501651698.h5", "mlp": "ml-1m_MLP_[64,32,16,8]_1501652038.h5"}


def read_candidates(raw: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Users [6040], and items [6040, 100] of which the first is the positive."""
    positives = np.array(
        [line.split("\t")[:2] for line in (raw / "ml-1m.test.rating").open(encoding="utf-8")], np.int64
    )
    negatives = np.array(
        [line.split("\t")[1:] for line in (raw / "ml-1m.test.negative").open(encoding="utf-8")], np.int64
    )
    return positives[:, 0], np.concatenate([positives[:, 1:], negatives], axis=1)


def logits_of(weights: Any, users: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits [users, items] float32, in NumPy; weights: an open file of GMF's or MLP's."""
    of_users, of_items = (weights[f"{side}_embedding/{side}_embedding_W"][:] for side in ("user", "item"))
    of_users, of_items = np.broadcast_arrays(of_users[users][:, None], of_items[items])
    if "layer1" not in weights:
        vectors = of_users * of_items
    else:
        vectors = np.concatenate([of_users, of_items], axis=2)
        for name in ("layer1", "layer2", "layer3"):
            vectors = np.maximum(vectors @ weights[f"{name}/{name}_W"][:] + weights[f"{name}/{name}_b"][:], 0)
    logits = vectors @ weights["prediction/prediction_W"][:] + weights["prediction/prediction_b"][:]
    return np.asarray(logits[:, :, 0], np.float32)


def main() -> None:
    """Print each model's metrics, and count the places if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    import h5py

    users, items = read_candidates(arguments.raw)
    labels = np.zeros(items.shape, np.float32)
    labels[:, 0] = 1
    groups, counts = np.repeat(users, items.shape[1]), {}
    for model, file in FILES.items():
        with h5py.File(arguments.weights / file) as weights:
            logits = logits_of(weights, users, items)
        metrics = group_metrics(logits.reshape(-1), labels.reshape(-1), groups, items.reshape(-1))
        print(f"{model}: HR@10 {metrics['hr_at_10']:.4f}, NDCG@10 {metrics['ndcg_at_10']:.4f}")
        is_above = (logits >= logits[:, :1]) & (items != items[:, :1])
        counts[model] = np.bincount(is_above.sum(axis=1), minlength=items.shape[1]).tolist()
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(counts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
