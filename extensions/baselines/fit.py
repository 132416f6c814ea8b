"""Simpler models, fitted: label rates, logistic regression, boosted trees.

scikit-learn takes seconds to import, so only the process that fits does so.
"""

import importlib.util
import logging
import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import signals
from data_prep.dataset.format import splitmix64
from data_prep.dataset.spelling import Bags
from extensions.baselines.rows import Baseline, Baselines, Rows

FOLDS, PRIOR_ROWS = 5, 10.0  # rows at the base rate that smooth each rate
DENSE_BINS = 32  # a number is counted by its quantile in train


@dataclass
class Rates:
    """Smoothed label rates of a column, float64: out-of-fold for train's rows [train], overall for others [others]."""

    train: NDArray[np.float64]
    others: NDArray[np.float64]


def folds_of(rows: int) -> NDArray[np.int64]:
    """Return the fold of each row, [rows], by a hash of its number."""
    return (splitmix64(np.arange(rows, dtype=np.uint64)) % np.uint64(FOLDS)).astype(np.int64)


def label_rates(
    train: Bags, labels: NDArray[np.bool_], others: Bags, weights: NDArray[np.float64] | None = None
) -> Rates:
    """Return rates by id; a bag has the mean of its ids' rates, an empty bag the base rate.

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
    return Rates(_bag_means(out_of_fold[ids, folds], train, base), _bag_means(overall[others.ids], others, base))


def dense_rates(
    train: NDArray[np.float32],
    labels: NDArray[np.bool_],
    others: NDArray[np.float32],
    weights: NDArray[np.float64] | None = None,
) -> Rates:
    """Return rates by quantile of a number: [train] and [others]; weights: as for `label_rates`."""
    edges = np.unique(np.quantile(train, np.arange(1, DENSE_BINS) / DENSE_BINS, method="lower"))
    bags = [Bags(np.searchsorted(edges, numbers), np.arange(len(numbers) + 1)) for numbers in (train, others)]
    return label_rates(bags[0], labels, bags[1], weights)


def _bag_means(values: NDArray[np.float64], bags: Bags, empty: float) -> NDArray[np.float64]:
    """Return the mean of each bag, [n], of values [ids]; `empty` for an empty bag."""
    lengths = bags.lengths
    if (lengths == 1).all():
        return values
    rows = np.repeat(np.arange(len(lengths)), lengths)
    sums = np.bincount(rows, weights=values, minlength=len(lengths))
    return np.where(lengths > 0, sums / np.maximum(lengths, 1), empty)


log = logging.getLogger("clickwork")

Preds = NDArray[np.float64]
STRENGTHS = [0.01, 0.1, 1.0]  # values for logistic regression's C, the inverse weight of L2


BASELINES_BY_COST = ("base_rate", "columns", "trees", "lr")


class Fitted(NamedTuple):
    """A baseline, and its predictions [others] on the other rows."""

    name: str
    figures: Baseline
    preds: Preds


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
    for fitted in _fit_each(*rows) if seconds is None else _fit_in_time(seconds, *rows):
        setattr(baselines, fitted.name, fitted.figures)
        preds[fitted.name] = fitted.preds
    reasons = {
        name: f"not fitted within {seconds:g} s" if names else "no columns"
        for name in BASELINES_BY_COST
        if name not in preds
    }
    baselines.missing = reasons
    return baselines, preds


def _fit_in_time(seconds: float, train: Rows, others: Rows, names: Sequence[str]) -> Iterator[Fitted]:
    """Yield what a separate process fits in the given time, since libraries cannot be interrupted safely."""
    context = multiprocessing.get_context("spawn")  # a fork would lack the libraries' threads
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_fit_and_send, args=(writer, train, others, names), daemon=True)
    until = time.monotonic() + seconds
    process.start()
    # With this end open, the reader would not notice that the process has ended.
    writer.close()
    try:
        while reader.poll(max(0.0, until - time.monotonic())):
            yield reader.recv()
    except EOFError:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"fitting ended with exit status {process.exitcode}") from None
    else:
        log.warning("baselines: stopped after %g s; give more seconds", seconds)
    finally:
        process.kill()
        process.join()


def _fit_and_send(writer: Any, train: Rows, others: Rows, names: Sequence[str]) -> None:
    """Send each baseline through a pipe once it is fitted; ends with the parent process."""
    # A killed parent would leave a process behind that goes on fitting.
    signals.end_with_parent()
    for fitted in _fit_each(train, others, names):
        writer.send(fitted)


def _fit_each(train: Rows, others: Rows, names: Sequence[str]) -> Iterator[Fitted]:
    """Yield each baseline, in the order of BASELINES_BY_COST."""
    began = time.perf_counter()
    constant = np.full(len(others.labels), np.average(train.labels, weights=train.weights))
    yield Fitted("base_rate", score(constant, others, len(train.labels), began), constant)
    rates = all_rates(train, others)
    if rates:
        yield _best_column(rates, train, others, names, began)
    models = (("trees", _fit_trees, _trees_library()), ("lr", _fit_logistic_regression, "scikit-learn"))
    for name, fit, library in models:
        began = time.perf_counter()
        preds = fit(train, others, rates)
        figures = score(preds, others, len(train.labels), began)
        figures.rest = {"library": library}
        yield Fitted(name, figures, preds)


def score(preds: Preds, others: Rows, rows: int, began: float) -> Baseline:
    """Return AUC and NE of probabilities [n] for rows of both classes; began: time.perf_counter() at the start."""
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
    """Return the rates of each dense, then each sparse feature."""
    numbers = zip(train.dense.T, others.dense.T, strict=True)
    return [
        *(dense_rates(values, train.labels, other_values, train.weights) for values, other_values in numbers),
        *(
            label_rates(bags, train.labels, other_bags, train.weights)
            for bags, other_bags in zip(train.bags, others.bags, strict=True)
        ),
    ]


def _best_column(rates: list[Rates], train: Rows, others: Rows, names: Sequence[str], began: float) -> Fitted:
    """Score the column with the best out-of-fold rates in train, and add the AUC of each column on the other rows."""
    from sklearn.metrics import roc_auc_score

    # Rates of other folds choose the column; rates of a row's own fold would favour columns of rare ids.
    aucs = [roc_auc_score(train.labels, column.train, sample_weight=train.weights) for column in rates]
    best = int(np.argmax(aucs))
    figures = score(rates[best].others, others, len(train.labels), began)
    auc_of_each = {
        name: float(roc_auc_score(others.labels, column.others, sample_weight=others.weights))
        for name, column in zip(names, rates, strict=True)
    }
    figures.rest = {"column": names[best], "auc_of_each": auc_of_each}
    return Fitted("columns", figures, rates[best].others)


def _fit_trees(train: Rows, others: Rows, rates: list[Rates]) -> Preds:
    """Fit boosted trees on numbers and rates of ids, and return their probabilities [others]."""
    columns, scored = tree_inputs(train, others, rates)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="joblib")  # of a machine without lscpu
        model = _make_trees().fit(columns, train.labels, sample_weight=train.weights)
    return model.predict_proba(scored)[:, 1]


def tree_inputs(train: Rows, others: Rows, rates: list[Rates]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the columns of trees, [rows, features] of train and of the other rows: numbers, then rates of ids.

    rates: as from `all_rates`, dense features first; train's are out-of-fold, so that no row knows its own label.
    """
    # Ids have no order that a tree could split, so trees get their rates.
    num_dense = train.dense.shape[1]
    columns = np.column_stack([train.dense, *(column.train for column in rates[num_dense:])])
    return columns, np.column_stack([others.dense, *(column.others for column in rates[num_dense:])])


def _trees_library() -> str:
    """Return the name of the library whose trees `_make_trees` makes."""
    return "scikit-learn" if importlib.util.find_spec("lightgbm") is None else "lightgbm"


def _make_trees() -> Any:
    """Return LightGBM's trees if installed, else scikit-learn's; both default to 100 trees with 31 leaves."""
    if _trees_library() == "scikit-learn":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    from lightgbm import LGBMClassifier

    return LGBMClassifier(random_state=0, deterministic=True, force_row_wise=True, verbose=-1)


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
        values = np.unique(train_bags.ids)
        places = np.minimum(np.searchsorted(values, bags.ids), max(len(values) - 1, 0))
        is_known = values[places] == bags.ids if len(values) else np.zeros(len(bags.ids), bool)
        row = np.repeat(np.arange(len(rows.labels)), bags.lengths)[is_known]
        ones = np.ones(len(row), np.float32)
        parts.append(sparse.csr_array((ones, (row, places[is_known])), shape=(len(rows.labels), len(values))))
    return sparse.hstack(parts, format="csr")
