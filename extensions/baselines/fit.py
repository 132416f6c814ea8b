"""Fit each baseline on the rows of train and score it on those of another split."""

import importlib.util
import logging
import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score
from threadpoolctl import threadpool_limits

from common import signals
from extensions.baselines.documents import Baseline, Baselines
from extensions.baselines.rates import Rates, dense_rates, folds_of, label_rates
from extensions.baselines.rows import Rows

log = logging.getLogger("clickwork")

Preds = NDArray[np.float64]
STRENGTHS = [0.01, 0.1, 1.0]  # of logistic regression: scikit-learn's C, the inverse of L2's weight


NAMES = ("base_rate", "columns", "trees", "lr")  # in the order of their cost


class Fitted(NamedTuple):
    """A baseline, and its predictions on the other rows, [others]."""

    name: str
    figures: Baseline
    preds: Preds


def fit_baselines(
    train: Rows, others: Rows, names: Sequence[str], seconds: float | None
) -> tuple[Baselines, dict[str, Preds]]:
    """All baselines, with their predictions on the other rows by name.

    Those that the time did not suffice for are None, and have their reason in `missing`.

    names: of the dense and of the sparse features. seconds: for all of them; None: no limit.
    """
    baselines = Baselines(
        rows=len(train.labels), of_rows=train.of, eval_rows=len(others.labels), of_eval_rows=others.of
    )
    preds = {}
    rows = (train, others, names)
    for fitted in _fitted(*rows) if seconds is None else _within(seconds, *rows):
        setattr(baselines, fitted.name, fitted.figures)
        preds[fitted.name] = fitted.preds
    reasons = {
        name: f"not fitted within {seconds:g} s" if names else "no columns" for name in NAMES if name not in preds
    }
    baselines.missing = reasons
    return baselines, preds


def _within(seconds: float, train: Rows, others: Rows, names: Sequence[str]) -> Iterator[Fitted]:
    """What a process of its own comes to in so much time: a library that is interrupted would have to expect it."""
    context = multiprocessing.get_context("spawn")  # a fork has none of the threads that libraries count on
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(writer, train, others, names), daemon=True)
    until = time.monotonic() + seconds
    process.start()
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


def _send(writer: Any, train: Rows, others: Rows, names: Sequence[str]) -> None:
    signals.end_with_parent()
    for fitted in _fitted(train, others, names):
        writer.send(fitted)


def _fitted(train: Rows, others: Rows, names: Sequence[str]) -> Iterator[Fitted]:
    """Each baseline, in the order of NAMES."""
    began = time.perf_counter()
    constant = np.full(len(others.labels), train.labels.mean())
    yield Fitted("base_rate", score(constant, others.labels, len(train.labels), began), constant)
    rates = _all_rates(train, others)
    if rates:
        yield _best_column(rates, train, others, names, began)
    models = (("trees", _trees, _trees_library()), ("lr", _logistic_regression, "scikit-learn"))
    for name, fit, library in models:
        began = time.perf_counter()
        preds = fit(train, others, rates)
        figures = score(preds, others.labels, len(train.labels), began)
        figures.rest = {"library": library}
        yield Fitted(name, figures, preds)


def score(preds: Preds, labels: NDArray[np.bool_], rows: int, began: float) -> Baseline:
    """AUC and NE of probabilities [n] on labels of both classes; rows: learned from; began: time.perf_counter()."""
    base = labels.mean()
    entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)
    return Baseline(
        auc=float(roc_auc_score(labels, preds)),
        ne=float(log_loss(labels, preds) / entropy),
        seconds=round(time.perf_counter() - began, 3),
        rows=rows,
    )


def _all_rates(train: Rows, others: Rows) -> list[Rates]:
    """The rates of each dense, then of each sparse feature."""
    numbers = zip(train.dense.T, others.dense.T, strict=True)
    return [
        *(dense_rates(one, train.labels, other) for one, other in numbers),
        *(label_rates(one, train.labels, other) for one, other in zip(train.bags, others.bags, strict=True)),
    ]


def _best_column(rates: list[Rates], train: Rows, others: Rows, names: Sequence[str], began: float) -> Fitted:
    """The column whose out-of-fold rates are best in train, scored on the other rows; and the AUC of each there."""
    best = int(np.argmax([roc_auc_score(train.labels, one.train) for one in rates]))
    figures = score(rates[best].others, others.labels, len(train.labels), began)
    each = {name: float(roc_auc_score(others.labels, one.others)) for name, one in zip(names, rates, strict=True)}
    figures.rest = {"column": names[best], "auc_of_each": each}
    return Fitted("columns", figures, rates[best].others)


def _trees(train: Rows, others: Rows, rates: list[Rates]) -> Preds:
    """Boosted trees on numbers and on out-of-fold rates of ids."""
    num_dense = train.dense.shape[1]
    columns = np.column_stack([train.dense, *(one.train for one in rates[num_dense:])])
    scored = np.column_stack([others.dense, *(one.others for one in rates[num_dense:])])
    model = _make_trees().fit(columns, train.labels)
    return model.predict_proba(scored)[:, 1]


def _trees_library() -> str:
    return "scikit-learn" if importlib.util.find_spec("lightgbm") is None else "lightgbm"


def _make_trees() -> Any:
    """LightGBM's where it is installed, else scikit-learn's; 100 trees of 31 leaves, their defaults."""
    if _trees_library() == "scikit-learn":
        return HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    from lightgbm import LGBMClassifier

    return LGBMClassifier(random_state=0, deterministic=True, force_row_wise=True, verbose=-1)


def _logistic_regression(train: Rows, others: Rows, rates: list[Rates]) -> Preds:
    """Logistic regression (L-BFGS) on one-hot ids of train and standardised numbers.

    The weight of L2 is the best of STRENGTHS by the logloss of a fold of train, with which it is fitted again then.
    """
    mean, deviation = train.dense.mean(axis=0), np.maximum(train.dense.std(axis=0), 1e-6)
    columns, scored = (_one_hot(train, rows, (rows.dense - mean) / deviation) for rows in (train, others))
    folds = folds_of(len(train.labels))
    parts = np.flatnonzero(folds != 0), np.flatnonzero(folds == 0)
    has_both = all(0 < train.labels[part].sum() < len(part) for part in parts)
    settings = {"max_iter": 100}  # the bound in time
    model = LogisticRegression(**settings)
    if has_both:
        model = LogisticRegressionCV(Cs=STRENGTHS, cv=[parts], scoring="neg_log_loss", **settings)
    # Threads of BLAS wait for each other longer than these vectors take.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")  # of convergence, and of arguments that releases call differently
        return model.fit(columns, train.labels).predict_proba(scored)[:, 1]


def _one_hot(train: Rows, rows: Rows, dense: NDArray[np.float32]) -> Any:
    """A sparse matrix [rows, N + ids of train]: numbers, and how often each id is in the row's bag."""
    from scipy import sparse

    parts = [sparse.csr_array(dense)]
    for train_bags, bags in zip(train.bags, rows.bags, strict=True):
        values = np.unique(train_bags.ids)
        places = np.minimum(np.searchsorted(values, bags.ids), max(len(values) - 1, 0))
        is_known = values[places] == bags.ids if len(values) else np.zeros(len(bags.ids), bool)
        row = np.repeat(np.arange(len(rows.labels)), bags.lengths)[is_known]
        ones = np.ones(len(row), np.float32)
        parts.append(sparse.csr_array((ones, (row, places[is_known])), shape=(len(rows.labels), len(values))))
    return sparse.hstack(parts, format="csr")
