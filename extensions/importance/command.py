"""Permutation importance (Breiman 2001): what a metric loses when a feature's values are permuted among rows.

Each feature's values are permuted among rows of a split, a few times, and the loss of AUC (of RMSE, where labels are
numbers) is given with its interval. With slices=[column] the metrics of each value's rows are given, too. They are
written to importance.json of the run, and its report shows them.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.config.app_config import AppConfig, validate
from app.config.kinds import METRICS
from app.config.model import require_dlrm, require_own_scores
from app.data.batch import RowArrays
from app.data.split import SplitShards, verify_splits
from app.metrics.documents import EvaluationFigures
from app.record.documents import read_summary
from app.report.page import write_report
from app.report.statistics import spread
from app.runtime import platform
from app.runtime.platform import Runtime
from app.scoring import EvaluatedRows
from app.training import checkpointer, predictor
from app.training.checkpointer import TrainedRun
from app.training.predictor import Predictor, require_column
from common.cli import EXIT_DONE
from common.documents import Figures, Json, encode, plain_object
from common.errors import UserError
from common.files import write_atomically
from data_prep.dataset.format import Manifest, mean_bag_sizes, sampled_row_numbers
from data_prep.dataset.options import Table
from data_prep.lookup import vocabulary_values
from extensions.importance.report import IMPORTANCE, Feature, Importance, ImportanceConfig

MOST_VALUES = 20  # values of a column with metrics of their own
OTHERS = "all other values"


class Columns(NamedTuple):
    """Where `RowArrays` has a feature: indices of columns of `dense`, or one of `sparse`, or one of `bags`."""

    name: str
    dense: tuple[int, ...] = ()
    sparse: tuple[int, ...] = ()
    bags: tuple[int, ...] = ()


def columns_of(manifest: Manifest) -> list[Columns]:
    """Return the features of a dataset in the order of its schema; a vector is one feature."""
    dense, entry = list(manifest.schema["dense"]), manifest.encoding.get("table")
    vectors = () if entry is None else msgspec.convert(entry, Table).vectors
    vector_of = {feature: vector.column for vector in vectors for feature in vector.features}
    dense_indices: dict[str, list[int]] = {}
    for number, name in enumerate(dense):
        dense_indices.setdefault(vector_of.get(name, name), []).append(number)
    single = single_id_features(manifest)
    return [
        *(Columns(name, dense=tuple(columns)) for name, columns in dense_indices.items()),
        *(
            Columns(name, bags=(manifest.ragged.index(name),))
            if name in manifest.ragged
            else Columns(name, sparse=(single.index(name),))
            for name in manifest.num_embeddings
        ),
    ]


def single_id_features(manifest: Manifest) -> list[str]:
    """Return the names of the features in `RowArrays.sparse`, in the order of its columns: those of one id a row."""
    return [name for name in manifest.num_embeddings if name not in manifest.ragged]


def permute_feature(rows: RowArrays, feature: Columns, order: NDArray[np.int64]) -> RowArrays:
    """Return a copy of the rows in which row i has the feature's value of row order[i]; order: [rows]."""
    dense, sparse = rows.dense.copy(), rows.sparse.copy()
    for array, of_rows, places in ((dense, rows.dense, feature.dense), (sparse, rows.sparse, feature.sparse)):
        for place in places:
            array[:, place] = of_rows[order, place]
    bags = (bags.take(order) if place in feature.bags else bags for place, bags in enumerate(rows.bags))
    return rows._replace(dense=dense, sparse=sparse, bags=tuple(bags))


class ScoredRows:
    """A sample of a split's rows, and a model's metrics on them, unchanged or changed; all processes call together.

    rows: the sample. of_rows: number of the split's rows. figures: metrics on the unchanged sample.
    """

    def __init__(self, scorer: Predictor, split: str, limit: int) -> None:
        """Sample and score at most `limit` rows of the split; raise UserError if no metric is defined for them."""
        manifest = scorer.manifest
        shards, self._scorer, self.split = SplitShards(scorer.root, manifest, split), scorer, split
        numbers = sampled_row_numbers([shard.rows for shard in manifest.splits[split].shards], limit)
        self.rows, self.of_rows = shards.read([(0, shards.rows)], numbers), shards.rows
        self.figures = self.evaluate(self.rows)
        if self.figures.main_value is None:
            raise UserError(
                f"split={split}: the {len(numbers):,} of its {shards.rows:,} rows that rows={limit} takes are none, or "
                "of one label, so no metric is defined for them; give another split or more rows"
            )

    def evaluate(self, rows: RowArrays) -> EvaluationFigures:
        """Return the model's metrics on these rows, the sample's or changed ones; all processes call together."""
        return self._scorer.evaluate(self.split, rows=EvaluatedRows(rows, self._scorer)).figures

    def losses(self, feature: Columns, orders: Sequence[NDArray[np.int64]]) -> list[float]:
        """Return by how much the main metric worsens with each permutation [rows] of a feature's values.

        A permutation leaves the labels as they are, so the metric is defined as it is for the sample.
        """
        metric = METRICS[self.figures.main]
        sign = 1 if metric.larger_is_better else -1
        values = (self.evaluate(permute_feature(self.rows, feature, order)).figure(metric.name) for order in orders)
        return [sign * (self.figures.main_value or 0.0) - sign * (value or 0.0) for value in values]


def importances(
    scored: ScoredRows, scorer: Predictor, config: ImportanceConfig, unknown: dict[str, float], norms: Figures
) -> tuple[list[Feature], list[str]]:
    """Return the importance of each feature, the largest first, and the features that time did not suffice for.

    unknown, norms: see `Feature`, by name.
    """
    deadline = time.monotonic() + (config.seconds or float("inf"))
    size = len(scored.rows.labels)
    # Permutations depend on seed and rows alone, so figures repeat and all features have the same permutations.
    orders = [np.random.default_rng([config.seed, number]).permutation(size) for number in range(config.repeats)]
    features, missing = [], []
    for feature in columns_of(scorer.manifest):
        # All processes score together, so the first whose time is over decides for all.
        if scorer.runtime.highest(float(time.monotonic() > deadline)):
            missing.append(feature.name)
            continue
        loss, _, low, high = spread(scored.losses(feature, orders))
        name, share, norm = feature.name, unknown.get(feature.name), norms.get(feature.name)
        features.append(Feature(name=name, loss=loss, low=low, high=high, unknown=share, norm=norm))
    return sorted(features, key=lambda feature: -feature.loss), missing


def slices_of(scored: ScoredRows, scorer: Predictor, column: str) -> Iterator[Json]:
    """Yield the metrics of the rows of each value of a column, the most frequent first, and of all others together."""
    ids = scored.rows.sparse[:, single_id_features(scorer.manifest).index(column)]
    counts = np.bincount(ids)
    frequent = [int(number) for number in np.argsort(-counts, kind="stable")[:MOST_VALUES] if counts[number]]
    # An id without a value of its own has itself for a name.
    texts: list[str | None] = [None] * len(frequent)
    with contextlib.suppress(UserError):
        texts = vocabulary_values(scorer.root, scorer.manifest, column, frequent)
    masks = {f"id {id_}" if text is None else text: ids == id_ for id_, text in zip(frequent, texts, strict=True)}
    is_other = ~np.isin(ids, frequent)
    for name, mask in {**masks, **({OTHERS: is_other} if is_other.any() else {})}.items():
        figures = plain_object(scored.evaluate(scored.rows.take(np.flatnonzero(mask))))
        yield {"value": name, **{key: value for key, value in figures.items() if key not in ("step", "split")}}


def main(config: ImportanceConfig) -> int:
    """Compute importances and slices, write them to the run, and return the exit status."""
    directory = Path(config.run)
    trained = checkpointer.trained_config(directory, config.runtime, config.data.path)
    require_dlrm(trained.model, "importance")
    require_own_scores(trained.model, "importance")
    # The error of a histogram could hide a small loss, so metrics of these rows are exact.
    evaluation = replace(trained.eval, group_by=None, exact_rows=max(trained.eval.exact_rows, config.rows))
    trained = replace(trained, eval=evaluation)
    validate(trained)
    with platform.joined(trained, platform.READING) as runtime:
        run = checkpointer.open_checkpoint(directory, config.checkpoint, trained.data.path, runtime)
        for column in config.slices:
            require_column("slices", column, trained.data, run.root, run.manifest)
        measured = _measure(config, trained, run, runtime)
        run.log_chosen_checkpoint()
        if runtime.rank == 0:
            text = encode(measured, indent=1) + "\n"
            write_atomically(directory / IMPORTANCE, text.encode())
            write_report(directory)
            print(text, end="")
    return EXIT_DONE


def _measure(config: ImportanceConfig, trained: AppConfig, run: TrainedRun, runtime: Runtime) -> Importance:
    """Return the importances and slices of a checkpoint; a collective call."""
    split = config.split or trained.eval.split
    runtime.on_rank_0(lambda: verify_splits(run.root, run.manifest, [split], trained.data))
    scorer = predictor.load(run.path, trained, runtime, run.root, run.manifest)
    scored = ScoredRows(scorer, split, config.rows)
    # The share of a split's values without an id of their own, by feature; empty if they were not counted.
    counts = (run.manifest.extra.get("out_of_vocabulary") or {}).get(split, {})
    sizes, rows = mean_bag_sizes(run.root, run.manifest, split), run.manifest.splits[split].rows
    unknown = {name: number / max(1.0, rows * sizes.get(name, 1.0)) for name, number in counts.items()}
    # The mean norm of the rows of each sparse feature's first table, which comes last here and replaces its second.
    summary, arch = read_summary(Path(config.run)), scorer.model.module.sparse_arch
    measured = summary.tables if summary else {}
    tables = {arch.feature_of[key]: table.name for table in reversed(arch.tables) for key in table.keys}
    norms = {feature: measured[name]["mean_norm"] for feature, name in tables.items() if name in measured}
    features, missing = importances(scored, scorer, config, unknown, norms)
    return Importance(
        checkpoint=run.path.name,
        step=run.state.step,
        split=split,
        rows=len(scored.rows.labels),
        of_rows=scored.of_rows,
        repeats=config.repeats,
        seed=config.seed,
        metric=scored.figures.main,
        value=scored.figures.main_value or 0.0,
        features=features,
        missing=missing,
        slices={column: list(slices_of(scored, scorer, column)) for column in config.slices},
    )
