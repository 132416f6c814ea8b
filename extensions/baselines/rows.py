"""Rows of a split, in memory, that baselines learn from or are scored on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import Bags, join, offsets_of
from data_prep.dataset.format import Manifest, open_shard
from data_prep.dataset.sample import sampled_split

FOLDER = ".baselines"  # folder of a run, for the scores of its model
SAMPLE_ROWS = 200_000  # rows of a split on which a model and its baselines are compared


@dataclass
class Rows:
    """Rows of one split.

    Attributes:
        labels: [rows] bool. dense: [rows, N] float32. bags: bags of each sparse feature, in the manifest's order.
        of: total rows of the split.
        weights: sample weights [rows] float64, with mean 1; None if the dataset has none.
    """

    labels: NDArray[np.bool_]
    dense: NDArray[np.float32]
    bags: list[Bags]
    of: int
    weights: NDArray[np.float64] | None = None


def load_rows(root: Path, manifest: Manifest, name: str, limit: int | None) -> Rows:
    """Load the rows of a split, or a sample of at most `limit`, in blocks chosen by a hash of their number."""
    split = manifest.splits.get(name)
    if split is None or not split.rows:
        raise UserError(f"{root}: split {name!r} has no rows, so there are no baselines; train with another eval.split")
    labels, dense, parts, weights = [], [], [], []
    samples = sampled_split([shard.rows for shard in split.shards], limit)
    for shard, rows in zip(split.shards, samples, strict=True):
        arrays = open_shard(root, name, shard, manifest)
        labels.append(arrays.labels[rows, 0] > 0)
        dense.append(arrays.dense[rows].astype(np.float32))
        if arrays.weights is not None:
            weights.append(arrays.weights[rows, 0].astype(np.float64))
        parts.append(_bags(manifest, arrays.sparse[rows], [bags.take(rows) for bags in arrays.bags]))
    joined = Rows(
        np.concatenate(labels), np.concatenate(dense), [join(each) for each in zip(*parts, strict=True)], split.rows
    )
    counted = joined.labels
    if weights:
        joined.weights = np.concatenate(weights)
        counted = counted[joined.weights > 0]
        joined.weights /= joined.weights.mean() or 1.0
    if counted.all() or not counted.any():
        label = int(counted[0]) if len(counted) else "missing"
        raise UserError(f"{root}: every label of {name} is {label}, so there are no baselines; check the labels' rule")
    return joined


def _bags(manifest: Manifest, sparse: NDArray[np.int32], ragged: list[Bags]) -> list[Bags]:
    """Return the bags of each feature; those of features with single ids share their offsets."""
    offsets = offsets_of(np.ones(len(sparse), np.int64))
    single, multi_hot = iter(sparse.T), iter(ragged)
    names: list[Any] = manifest.schema["sparse"]
    return [next(multi_hot) if name in manifest.ragged else Bags(next(single).copy(), offsets) for name in names]
