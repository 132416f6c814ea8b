"""Rows and keys of baselines, and the simpler models, fitted: label rates, logistic regression, boosted trees.

scikit-learn takes seconds to import, so only the process that fits does so.
"""

import importlib.util
import queue
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import field as document_field
from numpy.typing import NDArray

from app.config.commands import DatasetConfig
from common.command import log
from common.documents import Number, OpenDocument
from common.errors import UserError
from common.keys import MISSING, key
from data_prep.codec.values import Bags, join, offsets_of
from data_prep.dataset.format import Manifest, open_shard, sample_split, splitmix64


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

    @property
    def is_whole(self) -> bool:
        """Whether every baseline was computed; otherwise another attempt may have enough time."""
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
        # Features with a single id are columns of a matrix; they share the offsets of their bags.
        offsets = offsets_of(np.ones(len(labels[-1]), np.int64))
        single, ragged = iter(arrays.sparse[rows].T), iter([bags.take(rows) for bags in arrays.bags])
        names: list[Any] = manifest.schema["sparse"]
        parts.append(
            [next(ragged) if each in manifest.ragged else Bags(next(single).copy(), offsets) for each in names]
        )
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


FOLDS = 5  # parts of train; a row's rate comes from the other four
PRIOR_ROWS = 10.0  # rows at the base rate that smooth each rate
DENSE_BINS = 32  # a number is counted by its quantile in train


# Smoothed label rates of a column, float64: out-of-fold for train's rows [train], overall for others [others].
Rates: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]


def folds_of(rows: int) -> NDArray[np.int64]:
    """Return the fold of each row, [rows], from 0 to FOLDS - 1, by a hash of the row's number."""
    return (splitmix64(np.arange(rows, dtype=np.uint64)) % np.uint64(FOLDS)).astype(np.int64)


def label_rates(
    train: Bags, labels: NDArray[np.bool_], others: Bags, weights: NDArray[np.float64] | None = None
) -> Rates:
    """Return the label rate of each row by its ids: a bag has the mean of its ids' rates, an empty bag the base rate.

    weights: of train's rows, with mean 1; None: all 1.
    """
    base = np.average(labels, weights=weights)
    num_ids = int(max(train.ids.max(initial=0), others.ids.max(initial=0))) + 1
    folds, ids = np.repeat(folds_of(len(labels)), train.lengths), train.ids.astype(np.int64)
    counts = np.ones(len(labels)) if weights is None else weights
    cells, shape = (ids * FOLDS + folds, (num_ids, FOLDS))
    rows, positives = (
        np.bincount(cells, np.repeat(counted, train.lengths), num_ids * FOLDS).reshape(shape)
        for counted in (counts, counts * labels)
    )
    # The rate of a row leaves out the row's own fold, since its label would reveal itself, above all for rare ids.
    other_rows, other_positives = (sums.sum(axis=1, keepdims=True) - sums for sums in (rows, positives))
    out_of_fold = (other_positives + PRIOR_ROWS * base) / (other_rows + PRIOR_ROWS)
    overall = (positives.sum(axis=1) + PRIOR_ROWS * base) / (rows.sum(axis=1) + PRIOR_ROWS)
    return _bag_means(out_of_fold[ids, folds], train, base), _bag_means(overall[others.ids], others, base)


def _bag_means(values: NDArray[np.float64], bags: Bags, empty: float) -> NDArray[np.float64]:
    """Return the mean of each bag, [n], of a value for each of its ids, [ids of all bags]; `empty` for an empty bag."""
    lengths = bags.lengths
    if (lengths == 1).all():
        return values
    rows = np.repeat(np.arange(len(lengths)), lengths)
    sums = np.bincount(rows, weights=values, minlength=len(lengths))
    return np.where(lengths > 0, sums / np.maximum(lengths, 1), empty)


Preds = NDArray[np.float64]
STRENGTHS = [0.01, 0.1, 1.0]  # values for logistic regression's C, the inverse weight of L2


BASELINES_BY_COST = ("base_rate", "columns", "trees", "lr")


Fitted: TypeAlias = tuple[str, Baseline, Preds]  # a baseline by its name, and its predictions [others] of other rows


def fit_baselines(
    train: Rows, others: Rows, names: Sequence[str], seconds: float | None
) -> tuple[Baselines, dict[str, Preds]]:
    """Fit all baselines, and return them with their predictions on the other rows by name.

    Baselines that take too long are None; `missing` has the reason.

    names: names of the dense, then the sparse features. seconds: limit for all baselines; None: no limit.
    """
    baselines = Baselines(
        rows=len(train.labels), of_rows=train.of, eval_rows=len(others.labels), of_eval_rows=others.of
    )
    preds = {}
    rows = (train, others, names)
    for name, figures, predicted in _fit_each(*rows) if seconds is None else _fit_in_time(seconds, *rows):
        setattr(baselines, name, figures)
        preds[name] = predicted
    reasons = {
        name: f"not fitted within {seconds:g} s" if names else "no columns"
        for name in BASELINES_BY_COST
        if name not in preds
    }
    baselines.missing = reasons
    return baselines, preds


def _fit_in_time(seconds: float, train: Rows, others: Rows, names: Sequence[str]) -> Iterator[Fitted]:
    """Yield what a thread fits in the given time; libraries cannot be interrupted safely, so the thread runs on."""
    results: queue.Queue[Fitted | Exception | None] = queue.Queue()

    def fit() -> None:
        try:
            for fitted in _fit_each(train, others, names):
                results.put(fitted)
            results.put(None)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised below
            results.put(error)

    until = time.monotonic() + seconds
    threading.Thread(target=fit, daemon=True).start()
    try:
        while (result := results.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            if isinstance(result, Exception):
                raise result
            yield result
    except queue.Empty:
        log.warning("baselines: stopped after %g s; give more seconds", seconds)


def _fit_each(train: Rows, others: Rows, names: Sequence[str]) -> Iterator[Fitted]:
    """Yield each baseline once it is fitted, cheapest first (BASELINES_BY_COST), as time may end between two."""
    began = time.perf_counter()
    constant = np.full(len(others.labels), np.average(train.labels, weights=train.weights))
    yield "base_rate", score(constant, others, len(train.labels), began), constant
    rates = all_rates(train, others)
    if rates:
        yield _best_column(rates, train, others, names, began)
    trees = "scikit-learn" if importlib.util.find_spec("lightgbm") is None else "lightgbm"
    for name, fit, library in (("trees", _fit_trees, trees), ("lr", _fit_logistic_regression, "scikit-learn")):
        began = time.perf_counter()
        preds = fit(train, others, rates)
        figures = score(preds, others, len(train.labels), began)
        figures.rest = {"library": library}
        yield name, figures, preds


def score(preds: Preds, others: Rows, rows: int, began: float) -> Baseline:
    """Return the figures of a baseline by its probabilities [others] for the other rows, which have both classes.

    rows: number that it learned from. began: time.perf_counter() when its fit began.
    """
    from sklearn.metrics import log_loss, roc_auc_score

    base = np.average(others.labels, weights=others.weights)
    entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)
    return Baseline(
        auc=float(roc_auc_score(others.labels, preds, sample_weight=others.weights)),
        ne=float(log_loss(others.labels, preds, sample_weight=others.weights) / entropy),
        seconds=round(time.perf_counter() - began, 3),
        rows=rows,
    )


def all_rates(train: Rows, others: Rows) -> list[Rates]:
    """Return the label rates of each dense feature, by its quantiles in train, then of each sparse one, by its ids."""
    columns = list(zip(train.bags, others.bags, strict=True))
    numbers = []
    for values, other_values in zip(train.dense.T, others.dense.T, strict=True):
        # A number is counted by its quantile in train, as if that were its id.
        edges = np.unique(np.quantile(values, np.arange(1, DENSE_BINS) / DENSE_BINS, method="lower"))
        bins = (np.searchsorted(edges, each) for each in (values, other_values))
        numbers.append(tuple(Bags(ids, np.arange(len(ids) + 1)) for ids in bins))
    return [label_rates(bags, train.labels, other_bags, train.weights) for bags, other_bags in [*numbers, *columns]]


def _best_column(rates: list[Rates], train: Rows, others: Rows, names: Sequence[str], began: float) -> Fitted:
    """Score the column with the best out-of-fold rates in train, and add the AUC of each column on the other rows."""
    from sklearn.metrics import roc_auc_score

    # Rates of other folds choose the column; rates of a row's own fold would favour columns of rare ids.
    aucs = [roc_auc_score(train.labels, of_train, sample_weight=train.weights) for of_train, _ in rates]
    best = int(np.argmax(aucs))
    figures = score(rates[best][1], others, len(train.labels), began)
    auc_of_each = {
        name: float(roc_auc_score(others.labels, of_others, sample_weight=others.weights))
        for name, (_, of_others) in zip(names, rates, strict=True)
    }
    figures.rest = {"column": names[best], "auc_of_each": auc_of_each}
    return "columns", figures, rates[best][1]


def tree_inputs(train: Rows, others: Rows, rates: list[Rates]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the columns of trees, [rows, features] of train and of the other rows: numbers, then rates of ids.

    rates: as from `all_rates`, dense features first; train's are out-of-fold, so that no row knows its own label.
    """
    # Ids have no order that a tree could split, so trees get their rates.
    sparse_rates = rates[train.dense.shape[1] :]
    columns = np.column_stack([train.dense, *(of_train for of_train, _ in sparse_rates)])
    return columns, np.column_stack([others.dense, *(of_others for _, of_others in sparse_rates)])


def _fit_trees(train: Rows, others: Rows, rates: list[Rates]) -> Preds:
    """Fit boosted trees on numbers and rates of ids, and return their probabilities [others].

    They are LightGBM's if installed, else scikit-learn's; both default to 100 trees with 31 leaves.
    """
    columns, scored = tree_inputs(train, others, rates)
    trees: Any
    if importlib.util.find_spec("lightgbm") is None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        trees = HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    else:
        from lightgbm import LGBMClassifier

        trees = LGBMClassifier(random_state=0, deterministic=True, force_row_wise=True, verbose=-1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="joblib")  # of a machine without lscpu
        model = trees.fit(columns, train.labels, sample_weight=train.weights)
    return model.predict_proba(scored)[:, 1]


def _fit_logistic_regression(train: Rows, others: Rows, rates: list[Rates]) -> Preds:
    """Fit a logistic regression (L-BFGS) on one-hot ids and standardised numbers; return its probabilities [others].

    The weight of L2 is the one of STRENGTHS with the lowest logloss on a fold of train; the model is then fitted again.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from threadpoolctl import threadpool_limits

    mean, deviation = train.dense.mean(axis=0), np.maximum(train.dense.std(axis=0), 1e-6)
    columns, scored = (_one_hot_matrix(train, rows, (rows.dense - mean) / deviation) for rows in (train, others))
    labels, folds = train.labels, folds_of(len(train.labels))
    weights = np.ones(len(labels)) if train.weights is None else train.weights
    fitted, held = np.flatnonzero(folds != 0), np.flatnonzero(folds == 0)
    # Each fit begins where the last one ended; the steps and the tolerance limit the time.
    model = LogisticRegression(max_iter=100, tol=1e-3, warm_start=True)
    best = np.inf
    # BLAS threads would wait for each other longer than these vectors take.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")  # about convergence
        for strength in STRENGTHS if all(0 < labels[part].sum() < len(part) for part in (fitted, held)) else []:
            candidate = deepcopy(model).set_params(C=strength).fit(columns[fitted], labels[fitted], weights[fitted])
            loss = log_loss(labels[held], candidate.predict_proba(columns[held])[:, 1], sample_weight=weights[held])
            if loss >= best:  # a weaker L2 would only do worse
                break
            model, best = candidate, loss
        return model.fit(columns, labels, weights).predict_proba(scored)[:, 1]


def _one_hot_matrix(train: Rows, rows: Rows, dense: NDArray[np.floating[Any]]) -> Any:
    """Return a sparse matrix [rows, N + ids of train]: numbers, and the count of each id in the row's bag."""
    from scipy import sparse

    parts = [sparse.csr_array(dense)]
    for train_bags, bags in zip(train.bags, rows.bags, strict=True):
        # Only ids of train have a weight.
        train_ids = np.unique(train_bags.ids)
        places = np.minimum(np.searchsorted(train_ids, bags.ids), max(len(train_ids) - 1, 0))
        is_known = train_ids[places] == bags.ids if len(train_ids) else np.zeros(len(bags.ids), bool)
        row = np.repeat(np.arange(len(rows.labels)), bags.lengths)[is_known]
        ones = np.ones(len(row), np.float32)
        parts.append(sparse.csr_array((ones, (row, places[is_known])), shape=(len(rows.labels), len(train_ids))))
    return sparse.hstack(parts, format="csr")
