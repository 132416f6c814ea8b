"""Permutation importance (Breiman 2001): the loss of a metric when a feature's values are permuted among rows."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.data.batch import RowArrays
from app.data.shards import SplitShards
from app.kinds.metrics import METRICS
from app.metrics.documents import EvaluationFigures
from app.report.statistics import spread
from app.scoring.labelled_rows import EvaluatedRows
from app.training.predictor import Predictor
from common.documents import Json, plain_object
from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.sample import sampled_numbers
from data_prep.dataset.table_spec import Table
from data_prep.encoding.vocabulary import vocabulary_values
from extensions.importance.documents import Feature
from extensions.importance.keys import ImportanceConfig

MOST_VALUES = 20  # values of a column with metrics of their own
OTHERS = "all other values"


class Columns(NamedTuple):
    """Places of a feature in rows: columns of `dense`, or one of `sparse`, or one of `bags`."""

    name: str
    dense: tuple[int, ...] = ()
    sparse: tuple[int, ...] = ()
    bags: tuple[int, ...] = ()


def columns_of(manifest: Manifest) -> list[Columns]:
    """Return the features of a dataset in the order of its schema; a vector is one feature."""
    dense, entry = list(manifest.schema["dense"]), manifest.encoding.get("table")
    vectors = () if entry is None else Table.from_manifest(entry).vectors
    vector_of = {feature: vector.column for vector in vectors for feature in vector.features}
    places: dict[str, list[int]] = {}
    for place, name in enumerate(dense):
        places.setdefault(vector_of.get(name, name), []).append(place)
    single = single_of(manifest)
    return [
        *(Columns(name, dense=tuple(columns)) for name, columns in places.items()),
        *(
            Columns(name, bags=(manifest.ragged.index(name),))
            if name in manifest.ragged
            else Columns(name, sparse=(single.index(name),))
            for name in manifest.num_embeddings
        ),
    ]


def single_of(manifest: Manifest) -> list[str]:
    """Return the features in the columns of `RowArrays.sparse`."""
    return [name for name in manifest.num_embeddings if name not in manifest.ragged]


def permuted(rows: RowArrays, feature: Columns, order: NDArray[np.int64]) -> RowArrays:
    """Return the rows, of which row i has the feature's value of row order[i]."""
    dense, sparse = rows.dense.copy(), rows.sparse.copy()
    for array, of_rows, places in ((dense, rows.dense, feature.dense), (sparse, rows.sparse, feature.sparse)):
        for place in places:
            array[:, place] = of_rows[order, place]
    bags = (bags.take(order) if place in feature.bags else bags for place, bags in enumerate(rows.bags))
    return rows._replace(dense=dense, sparse=sparse, bags=tuple(bags))


class ScoredRows:
    """A sample of a split's rows, and the metrics of a model on them as they are or changed; collective calls."""

    def __init__(self, scorer: Predictor, split: str, limit: int) -> None:
        """Read at most `limit` rows."""
        manifest = scorer.manifest
        shards, self._scorer, self.split = SplitShards(scorer.root, manifest, split), scorer, split
        numbers = sampled_numbers([shard.rows for shard in manifest.splits[split].shards], limit)
        self.rows, self.of_rows = shards.read([(0, shards.rows)], numbers), shards.rows
        self.figures = self.of(self.rows)
        if self.figures.main_value is None:
            raise UserError(
                f"split={split}: the {len(numbers):,} of its {shards.rows:,} rows that rows={limit} takes are none, or "
                "of one label, so no metric is defined for them; give another split or more rows"
            )

    def of(self, rows: RowArrays) -> EvaluationFigures:
        """Return the metrics of rows."""
        return self._scorer.evaluate(self.split, rows=EvaluatedRows(rows, self._scorer)).figures

    def losses(self, feature: Columns, orders: Sequence[NDArray[np.int64]]) -> list[float]:
        """Return by how much the main metric worsens with each permutation of a feature."""
        metric = METRICS[self.figures.main]
        sign = 1 if metric.larger_is_better else -1
        values = (self.of(permuted(self.rows, feature, order)).figure(metric.name) for order in orders)
        return [sign * (self.figures.main_value or 0.0) - sign * (value or 0.0) for value in values]


def importances(
    scored: ScoredRows, scorer: Predictor, config: ImportanceConfig, unknown: dict[str, float], norms: dict[str, float]
) -> tuple[list[Feature], list[str]]:
    """Return the importance of each feature, the largest first, and the features that time did not suffice for.

    unknown, norms: see `Feature`, by name.
    """
    until = time.monotonic() + (config.seconds or float("inf"))
    size = len(scored.rows.labels)
    orders = [np.random.default_rng([config.seed, number]).permutation(size) for number in range(config.repeats)]
    features, missing = [], []
    for feature in columns_of(scorer.manifest):
        if scorer.runtime.highest(float(time.monotonic() > until)):  # one decision of all processes
            missing.append(feature.name)
            continue
        loss = spread(scored.losses(feature, orders))
        entry = Feature(
            name=feature.name,
            loss=loss.mean,
            low=loss.low,
            high=loss.high,
            unknown=unknown.get(feature.name),
            norm=norms.get(feature.name),
        )
        features.append(entry)
    return sorted(features, key=lambda feature: -feature.loss), missing


def slices_of(scored: ScoredRows, scorer: Predictor, column: str) -> Iterator[Json]:
    """Yield the metrics of the rows of each value of a column, the most frequent first, and of all others together."""
    ids = scored.rows.sparse[:, single_of(scorer.manifest).index(column)]
    counts = np.bincount(ids)
    most = [int(number) for number in np.argsort(-counts, kind="stable")[:MOST_VALUES] if counts[number]]
    rows_of = {name: ids == number for name, number in zip(_names(scorer, column, most), most, strict=True)}
    others = ~np.isin(ids, most)
    for name, is_of in {**rows_of, **({OTHERS: others} if others.any() else {})}.items():
        figures = plain_object(scored.of(scored.rows.take(np.flatnonzero(is_of))))
        yield {"value": name, **{key: value for key, value in figures.items() if key not in ("step", "split")}}


def _names(scorer: Predictor, column: str, ids: list[int]) -> list[str]:
    """Return the values of ids, or the ids themselves where they have no value of their own."""
    try:
        texts = vocabulary_values(scorer.root, scorer.manifest, column, ids)
    except UserError:
        texts = [None] * len(ids)
    return [f"id {number}" if text is None else text for number, text in zip(ids, texts, strict=True)]
