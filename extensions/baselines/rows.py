"""Rows and keys of baselines, and their document."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import field as document_field
from numpy.typing import NDArray

from app.config.commands import DatasetConfig
from app.metrics.documents import rest
from common.documents import Json, Number, OpenDocument
from common.errors import UserError
from common.keys import MISSING, key
from data_prep.dataset.format import Manifest, open_shard, sample_split
from data_prep.dataset.spelling import Bags, join, offsets_of


@dataclass(frozen=True)
class BaselinesConfig:
    """Configuration of `python -m app.baselines`."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    data: DatasetConfig = field(default_factory=DatasetConfig)
    rows: int | None = key(
        None, "maximum rows of each split, in blocks chosen by a hash of their number; null: all", at_least=10_000
    )
    seconds: float | None = key(None, "time for all baselines; an unfinished baseline is null; null: no limit", above=0)


class Baseline(OpenDocument, kw_only=True):
    """A simple model's figures on the evaluated split; seconds: to fit and score it; rows: that it learned from.

    difference: the AUC of the run's model minus this one's on the rows that both scored; difference_interval: its ends
    at 95% by DeLong's test, None with fewer than two rows of a label.
    """

    auc: Number | None
    ne: Number | None
    seconds: Number | None
    rows: int | None
    difference: Number | None = None
    difference_interval: list[Number] | None = None
    rest: Json = rest()


class Baselines(OpenDocument, kw_only=True):
    """Scores of the baselines of a run; a baseline that was not computed is None.

    rows: training rows of the baselines, out of `of_rows`. eval_rows: scored rows of the split, out of
    `of_eval_rows`. compared_rows: rows of the differences; not_compared: reason if there are none. missing: reasons
    for missing baselines, by name.
    """

    split: str = ""
    rows: int
    of_rows: int
    eval_rows: int
    of_eval_rows: int
    compared_rows: int | None = None
    not_compared: str | None = None
    missing: dict[str, str] = document_field(default_factory=dict)
    base_rate: Baseline | None = None
    columns: Baseline | None = None
    lr: Baseline | None = None
    trees: Baseline | None = None
    rest: Json = rest()

    @property
    def is_whole(self) -> bool:
        """Whether each was computed."""
        return None not in (self.base_rate, self.columns, self.lr, self.trees)


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
    samples = sample_split([shard.rows for shard in split.shards], limit)
    for shard, rows in zip(split.shards, samples, strict=True):
        arrays = open_shard(root, name, shard, manifest)
        labels.append(arrays.labels[rows, 0] > 0)
        dense.append(arrays.dense[rows].astype(np.float32))
        if arrays.weights is not None:
            weights.append(arrays.weights[rows, 0].astype(np.float64))
        parts.append(_bags_of_features(manifest, arrays.sparse[rows], [bags.take(rows) for bags in arrays.bags]))
    joined = Rows(
        np.concatenate(labels), np.concatenate(dense), [join(bags) for bags in zip(*parts, strict=True)], split.rows
    )
    labels_with_weight = joined.labels
    if weights:
        joined.weights = np.concatenate(weights)
        labels_with_weight = joined.labels[joined.weights > 0]
        # Only ratios of weights matter, and the prior of the rates counts rows of weight 1.
        joined.weights /= joined.weights.mean() or 1.0
    if labels_with_weight.all() or not labels_with_weight.any():
        label = int(labels_with_weight[0]) if len(labels_with_weight) else "missing"
        raise UserError(f"{root}: every label of {name} is {label}, so there are no baselines; check the labels' rule")
    return joined


def _bags_of_features(manifest: Manifest, sparse: NDArray[np.int32], ragged: list[Bags]) -> list[Bags]:
    """Return the bags of each feature; those of features with single ids share their offsets."""
    offsets = offsets_of(np.ones(len(sparse), np.int64))
    single, multi_hot = iter(sparse.T), iter(ragged)
    names: list[Any] = manifest.schema["sparse"]
    return [next(multi_hot) if name in manifest.ragged else Bags(next(single).copy(), offsets) for name in names]
