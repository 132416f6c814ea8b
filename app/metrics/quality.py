"""Quality of predictions over a whole split, and curves. Logloss and entropies are in nats."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.config.kinds import (
    ALL_ROWS,
    AUC,
    CALIBRATION,
    KEPT_ROWS,
    LABEL_DEVIATION,
    MAE,
    MEANS,
    OF_ROWS,
    RMSE,
    STANDARD_ERROR,
)
from app.metrics.documents import Best, Curves, EvaluationFigures
from common.extensions import load
from common.jit import jit
from data_prep.dataset.format import logit_correction

TOP = 10  # HR and NDCG count this many places of a group's ranking


def group_metrics(
    logits: NDArray[np.float32], labels: NDArray[np.float32], groups: NDArray[np.integer], rows: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Return metrics of logits [n] against labels [n] of 0 and 1, for rows in groups [n]; None if undefined.

    gauc, gauc_users: as in `grouped_auc`.
    hr_at_10: share of positives ranked among the first 10 of their group's negatives and themselves, as in Neural
        Collaborative Filtering, whose groups have one positive and 99 negatives. A tie counts against the positive.
    ndcg_at_10: mean over positives of log(2) / log(1 + rank), or 0 if the rank is beyond 10.

    rows: [n], equal where rows of a group have the same ids. Such rows are one candidate, which is positive if one of
        them is, so a negative that equals the positive does not count. Groups without negatives are left out.
    """
    metrics = grouped_auc(logits, labels, groups)
    is_negative = labels <= 0.5
    # Keep one row per candidate (a positive if there is one), then rank within groups: negatives first among ties.
    order = np.lexsort((is_negative, rows, groups))
    order = order[_differs(groups[order], rows[order])]
    order = order[np.lexsort((~is_negative[order], -logits[order], groups[order]))]
    is_negative, groups = is_negative[order], groups[order]
    starts = np.flatnonzero(_differs(groups))
    counts = np.diff(np.append(starts, len(groups)))
    before: NDArray[np.int64] = np.cumsum(is_negative) - is_negative  # negatives, over all groups
    negatives = np.add.reduceat(is_negative, starts, dtype=np.int64) if len(starts) else starts
    is_ranked = ~is_negative & (np.repeat(negatives, counts) > 0)
    # Of each ranked positive: the negatives of its group that are ahead of it.
    places: NDArray[np.int64] = (before - np.repeat(before[starts], counts))[is_ranked]
    is_hit = places < TOP
    has_places = len(places) > 0
    metrics["hr_at_10"] = float(is_hit.mean()) if has_places else None
    metrics["ndcg_at_10"] = float((is_hit / np.log2(places + 2)).mean()) if has_places else None
    return metrics


def grouped_auc(
    logits: NDArray[np.float32], labels: NDArray[np.float32], groups: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Return the mean AUC of groups (`gauc`) and how many it covers (`gauc_users`), for samples in groups [n].

    Ties count half, and each group counts once. Groups with one label only or one score only are left out.
    """
    metrics: dict[str, float | int | None] = {"gauc": None, "gauc_users": 0}
    if not len(labels):
        return metrics
    # One sort serves all groups, however many there are.
    order = np.lexsort((logits, groups))
    logits, is_positive, groups = logits[order], labels[order] > 0.5, groups[order]
    is_first = _differs(groups)
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.append(starts, len(groups)))
    ties = np.flatnonzero(is_first | _differs(logits))
    sizes = np.diff(np.append(ties, len(groups)))
    ranks = np.repeat(ties + (sizes + 1) / 2, sizes) - np.repeat(starts, counts)  # ranks within a group count from 1
    positives = np.add.reduceat(is_positive, starts, dtype=np.int64)
    pairs = positives * (counts - positives)
    # The ranks of the positives tell how many pairs are in the right order (Mann and Whitney 1947).
    areas = np.add.reduceat(ranks * is_positive, starts) - positives * (positives + 1) / 2
    is_counted = (pairs > 0) & (logits[starts] < logits[starts + counts - 1])
    if is_counted.any():
        metrics["gauc"] = float((areas[is_counted] / pairs[is_counted]).mean())
        metrics["gauc_users"] = int(is_counted.sum())
    return metrics


def _differs(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return whether each place [n] differs from the one before in any column; the first place does."""
    return np.append(True, np.any([column[1:] != column[:-1] for column in columns], axis=0))[: len(columns[0])]


MAX_SAMPLES = 1 << 22  # a larger split is sampled: every k-th of its samples
THRESHOLDS = 200  # at quantiles of either label's scores
SCORE_BINS = 50  # bins of equal width in the histogram of probabilities
EQUAL_MASS_BINS = 20  # bins of equally many samples in the reliability curve


def click_curves(logits: NDArray[np.float32], labels: NDArray[np.float32], evaluation: EvaluationFigures) -> Curves:
    """Return the curves of logits [n] against labels [n] of 0 and 1; some are None if only one class occurs.

    evaluation: the metrics of all samples; logits and labels may already be a part of those.

    samples, of: number of samples used, and of all samples.
    auc_standard_error: over all samples (`click_metrics`).
    roc: fpr, tpr; pr: recall, precision; exact at each threshold, of which there are at most 400.
    reliability: mean probability, share of positives and samples of bins with equally many samples.
    scores: counts of either label over bins of equal width from 0 to the highest probability.
    """
    stride = max(1, -(-len(labels) // MAX_SAMPLES))
    z, y = logits[::stride], labels[::stride] > 0.5
    # The exponential overflows beyond 709, where a probability is 0 or 1 anyway.
    preds = 1 / (1 + np.exp(-np.clip(z.astype(np.float64), -700, 700)))
    positives, negatives = np.sort(z[y]), np.sort(z[~y])
    thresholds = _threshold_curves(positives, negatives) if len(positives) and len(negatives) else (None, None)
    # Where clicks are few, most probabilities are small, and most bins of equal width would be almost empty.
    order = np.argsort(preds, kind="stable")
    bins = [rows for rows in np.array_split(order, min(EQUAL_MASS_BINS, len(order)) or 1) if len(rows)]
    means = [_round_to_six_digits([values[rows].mean() for rows in bins]) for values in (preds, y)]
    # Count the probabilities of either label in SCORE_BINS bins of equal width.
    edges = np.linspace(0, preds.max(initial=0.0) or 1.0, SCORE_BINS + 1)
    counts = [np.histogram(preds[label], edges)[0].tolist() for label in (y, ~y)]
    return Curves(
        samples=len(z),
        of=evaluation.samples or 0,
        auc_standard_error=evaluation.figure(STANDARD_ERROR),
        roc=thresholds[0],
        pr=thresholds[1],
        reliability=[
            {"preds": preds, "labels": labels, "samples": len(rows)}
            for preds, labels, rows in zip(*means, bins, strict=True)
        ],
        scores={"edges": _round_to_six_digits(edges), "positive": counts[0], "negative": counts[1]},
    )


def _threshold_curves(
    positives: NDArray[np.float32], negatives: NDArray[np.float32]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return `roc` and `pr` of Curves from the ascending scores of either label; neither may be missing."""
    # Quantiles of either label put thresholds where the curves move, however few positives there are.
    steps = np.linspace(0, 1, THRESHOLDS)
    quantiles = [scores[((len(scores) - 1) * steps).astype(np.int64)] for scores in (positives, negatives)]
    thresholds = np.unique(np.concatenate(quantiles))[::-1]  # descending: from (0, 0) to (1, 1)
    true = len(positives) - np.searchsorted(positives, thresholds, "left")
    false = len(negatives) - np.searchsorted(negatives, thresholds, "left")
    false_rates, recall, precision = map(
        _round_to_six_digits, (false / len(negatives), true / len(positives), true / (true + false))
    )
    return {"fpr": [0.0, *false_rates], "tpr": [0.0, *recall]}, {"recall": recall, "precision": precision}


def _round_to_six_digits(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


Total = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # sums over all processes


def number_metrics(
    preds: NDArray[np.float32],
    labels: NDArray[np.float32],
    total: Total = lambda sums: sums,
    weights: NDArray[np.float32] | None = None,
) -> dict[str, float | None]:
    """Return metrics of predicted numbers [n] against labels [n]; metrics of clicks are None, and all without samples.

    rmse: root of the mean squared error. mae: mean absolute error. label_deviation: the labels' standard deviation,
    which is the RMSE of their mean. Sums are in float64. total: adds up sums of several processes.
    weights: sample weights [n], by which means are weighted.
    """
    metrics: dict[str, float | None] = {**dict.fromkeys(OF_ROWS), **dict.fromkeys((RMSE, MAE, LABEL_DEVIATION))}
    truth = labels.astype(np.float64)
    errors = preds.astype(np.float64) - truth
    weight = np.float64(1) if weights is None else weights.astype(np.float64)
    weighted = (weight * values for values in (np.square(errors), np.abs(errors), truth))
    count = len(truth) if weights is None else weight.sum()
    samples, squares, absolute, label_sum = total(np.array([count, *(values.sum() for values in weighted)])).tolist()
    if not samples:
        return metrics
    # Deviations need a second pass: squares minus the mean's square would lose digits.
    [deviations] = total(np.array([(weight * np.square(truth - label_sum / samples)).sum()])).tolist()
    metrics[RMSE], metrics[MAE] = math.sqrt(squares / samples), absolute / samples
    metrics[LABEL_DEVIATION] = math.sqrt(deviations / samples)
    return metrics


CALIBRATION_BINS = 15  # bins of equal width, over which the calibration error (ece) is taken
# Sign, exponent and 13 bits of the fraction: scores that share a bin differ by 1/8,192 of their value at most.
HISTOGRAM_BITS = 22
OF_RANKS = (AUC, STANDARD_ERROR, "pr_auc")  # metrics that need a ranking, not only sums over samples
BLOCK_ROWS = 1 << 20  # rows whose intermediate values are in memory at a time
RANDOM_LABELS = "random"  # encoding of data that are generated to measure speed alone
OVERFIT = 0.002  # the last AUC must be this far, and two standard errors, below the best
MIN_EVALUATIONS = 4  # with fewer evaluations, a lower last one shows no trend
AGAINST_OVERFITTING = (
    "train.early_stop_patience ends a run sooner, and model.dropout, optimizer.weight_decay and "
    "optimizer.sparse_weight_decay restrain the model"
)


def click_metrics(
    logits: NDArray[np.float32],
    labels: NDArray[np.float32],
    negative_weight: float = 1.0,
    weights: NDArray[np.float32] | None = None,
) -> dict[str, float | None]:
    """Return metrics of logits [n] against labels [n] of 0 and 1; None if undefined.

    Takes about 16 bytes per row besides its inputs. negative_weight: number of rows that each row of label 0 counts for
    in pr_auc. weights: sample weights [n]; a row counts for as many rows, and auc_standard_error is None.

    auc: exact area under the ROC curve; ties count half.
    logloss: mean binary cross-entropy, nats.
    ne: logloss over the entropy of the base rate (He et al. 2014); below 1 beats the constant predictor.
    accuracy: share on the right side of probability 0.5.
    auc_standard_error: DeLong's (1988), of the AUC as an estimate from these rows; None with fewer than two of a label.
    pr_auc: average precision.
    ece: expected calibration error over 15 equal-width bins (Guo et al. 2017).
    calibration: sum of probabilities over sum of labels.
    base_rate: share of positives.
    The others are means of values of samples (`MEANS`).
    """
    if len(labels) == 0:
        return dict.fromkeys(OF_ROWS)
    if weights is not None:
        areas = _weighted_areas(logits, labels, weights)
        return {**_metrics_of_sums(click_sums(logits, labels, weights)), "auc": areas[0], "pr_auc": areas[1]}
    is_positive = labels > 0.5
    positives, negatives = np.sort(logits[is_positive]), np.sort(logits[~is_positive])
    auc = pr_auc = error = None
    if len(positives) and len(negatives):
        twice_area, precision = _areas(positives, negatives, negative_weight)
        auc, pr_auc = twice_area / 2 / (len(positives) * len(negatives)), precision / len(positives)
        error = _standard_error(*_sums_of_squares(positives, negatives, auc), len(positives), len(negatives))
    # The sorted copies are as large as the scores, so they go before the sums need memory.
    del positives, negatives
    return {**_metrics_of_sums(click_sums(logits, labels)), "auc": auc, "auc_standard_error": error, "pr_auc": pr_auc}


def histogram_metrics(
    counts: NDArray[np.int64] | NDArray[np.float64], sums: NDArray[np.float64]
) -> dict[str, float | str | None]:
    """Return the metrics of `click_metrics` from `score_counts` and `click_sums`, each summed over any number of parts.

    auc_error: a certified bound of the AUC's error, from the pairs of either label that share a bin. pr_auc is None,
    and the standard error is that of the bins; counts that are sums of weights (float64) have none.
    """
    num_negative, num_positive = counts.sum(axis=1).tolist()
    auc = error = standard_error = None
    if num_negative and num_positive:
        negatives, positives = counts.astype(np.float64)
        # Pairs that share a bin count half, like ties, so the error is at most half of their share.
        pairs, num_below = num_positive * num_negative, np.cumsum(negatives) - negatives / 2
        auc, error = float(positives @ num_below / pairs), float(positives @ negatives / 2 / pairs)
        # As in `_sums_of_squares`, by bins: the share of negatives below each bin, and of positives above it.
        below, above = num_below / num_negative, 1 - (np.cumsum(positives) - positives / 2) / num_positive
        squares = float(positives @ (below - auc) ** 2), float(negatives @ (above - auc) ** 2)
        if counts.dtype == np.int64:
            standard_error = _standard_error(*squares, num_positive, num_negative)
    return {
        **_metrics_of_sums(sums),
        "auc": auc,
        "auc_standard_error": standard_error,
        "pr_auc": None,
        "auc_method": "histogram",
        "auc_error": error,
    }


def score_counts(
    logits: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> NDArray[Any]:
    """Count samples of label 0 and 1 in bins of logits, [2, 2^22] int64; a bin is the upper 22 bits of the float.

    With weights [n], add those up instead, float64.
    """
    counts = np.zeros((2, 1 << HISTOGRAM_BITS), np.int64 if weights is None else np.float64)
    for start in range(0, len(labels), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        bits = (logits[block] + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0
        keys = np.where(bits >> 31, ~bits, bits | 0x80000000) >> (32 - HISTOGRAM_BITS)  # ordered like the floats
        for label in (0, 1):
            is_label = (labels[block] > 0.5) == label
            label_weights = None if weights is None else weights[block][is_label]
            counts[label] += np.bincount(keys[is_label], label_weights, counts.shape[1])
    return counts


def click_sums(
    logits: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """Return sums over samples, [20 + number of MEANS] float64; with weights [n], each sample counts as its weight.

    In order: samples, positives, loss, right guesses and predictions; predictions - labels in each bin of predictions;
    the values of each of `MEANS`.
    """
    # One array serves one sum after the other, since a split may have hundreds of millions of rows.
    values, gaps, right = np.empty(len(labels)), np.zeros(CALIBRATION_BINS), 0.0
    weight = np.broadcast_to(np.float64(1), len(labels)) if weights is None else weights.astype(np.float64)
    starts = range(0, len(labels), BLOCK_ROWS)
    blocks = [slice(start, start + BLOCK_ROWS) for start in starts]
    for block in blocks:
        z, y = logits[block].astype(np.float64), labels[block]
        right += float(weight[block] @ ((z > 0) == (y > 0.5)))
        values[block] = (np.logaddexp(0, z) - y * z) * weight[block]
    loss = values.sum()  # sum all at once: numpy adds in pairs, so that rounding does not grow
    for block in blocks:
        preds = 1 / (1 + np.exp(-np.clip(logits[block].astype(np.float64), -700, 700)))
        # A probability of 1 belongs to the last bin.
        bins = np.minimum((preds * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        gaps += np.bincount(bins, (preds - labels[block]) * weight[block], CALIBRATION_BINS)
        values[block] = preds * weight[block]
    preds_sum, mean_sums = values.sum(), []
    for value_of in map(load, MEANS.values()):
        for block in blocks:
            values[block] = value_of(logits[block].astype(np.float64), labels[block]) * weight[block]
        mean_sums.append(values.sum())
    return np.array([weight.sum(), weight[labels > 0.5].sum(), loss, right, preds_sum, *gaps, *mean_sums])


def all_rows_sums(
    logits: NDArray[np.float32],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32] | None = None,
    *,
    kept: float,
    class_weights: Sequence[float] | None = None,
) -> NDArray[np.float64]:
    """Return `click_sums` of corrected logits over all rows, given the positives and a share of the negatives.

    kept: that share. Each negative counts for 1 / kept rows. class_weights: of the training loss.
    """
    corrected, is_positive = logits + np.float32(logit_correction(kept, class_weights)), labels > 0.5
    positives, negatives = (
        click_sums(corrected[mask], labels[mask], None if weights is None else weights[mask])
        for mask in (is_positive, ~is_positive)
    )
    return positives + negatives / kept


def of_all_rows(
    figures: Mapping[str, float | str | None], sums: NDArray[np.float64], corrected: bool
) -> dict[str, float | str | None]:
    """Return metrics of shifted probabilities with the calibration over all rows, from `all_rows_sums`.

    corrected: take all metrics of probabilities from corrected probabilities over all rows. Ranks are the same.
    """
    if not sums[0]:
        return {**figures, ALL_ROWS: None}
    all_rows = _metrics_of_sums(sums)
    if not corrected:
        return {**figures, ALL_ROWS: all_rows[CALIBRATION]}
    without_ranks = {name: value for name, value in all_rows.items() if name not in OF_RANKS}
    return {**figures, **without_ranks, KEPT_ROWS: figures[CALIBRATION], ALL_ROWS: all_rows[CALIBRATION]}


def _metrics_of_sums(sums: NDArray[np.float64]) -> dict[str, float | None]:
    """Return metrics by name from `click_sums`; None for those that need a ranking, or are undefined."""
    samples, positives, loss, right, preds, *rest = sums.tolist()
    if not samples:  # all weights are 0
        return dict.fromkeys(OF_ROWS)
    gaps, mean_sums = rest[:CALIBRATION_BINS], rest[CALIBRATION_BINS:]
    base_rate, logloss = positives / samples, loss / samples
    entropy = -sum(p * float(np.log(p)) for p in (base_rate, 1 - base_rate) if p > 0)
    return {
        "auc": None,
        "auc_standard_error": None,
        "logloss": logloss,
        "ne": logloss / entropy if entropy > 0 else None,
        "accuracy": right / samples,
        "pr_auc": None,
        "ece": float(np.abs(gaps).sum()) / samples,
        "calibration": preds / positives if positives else None,
        "base_rate": base_rate,
        **{name: total / samples for name, total in zip(MEANS, mean_sums, strict=True)},
    }


def _weighted_areas(
    logits: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32]
) -> tuple[float | None, float | None]:
    """Return AUC and average precision with sample weights; None without weight on either label."""
    order = np.argsort(logits, kind="stable")
    ties = np.flatnonzero(np.diff(logits[order], prepend=-np.inf))  # the first place of each score, ascending
    is_positive, ordered = labels[order] > 0.5, weights[order].astype(np.float64)
    # Weights of either label at each score. All counts from here on are sums of weights.
    positives, negatives = (np.add.reduceat(ordered * mask, ties) for mask in (is_positive, ~is_positive))
    below, num_positive, num_negative = np.cumsum(negatives) - negatives, positives.sum(), negatives.sum()
    if not (num_positive > 0 and num_negative > 0):
        return None, None
    true, false = np.cumsum(positives[::-1])[::-1], np.cumsum(negatives[::-1])[::-1]
    precision = np.divide(true, true + false, out=np.zeros_like(true), where=true > 0)
    area = positives @ (below + negatives / 2) / (num_positive * num_negative)
    return float(area), float(positives @ precision / num_positive)


@jit
def _areas(positives: NDArray[np.float32], negatives: NDArray[np.float32], negative_weight: float) -> tuple[int, float]:
    """Return twice the number of pairs in the right order (ties: half) and the sum of precisions; scores ascend."""
    p, n = len(positives), len(negatives)
    # Each pair counts twice, so that ties, which count half, leave an exact integer.
    twice_area, total, compensation = 0, 0.0, 0.0
    # Both arrays are sorted, so merging them from the top needs neither a sort of all scores nor a copy.
    while p > 0 or n > 0:
        from_positives = n == 0 or (p > 0 and positives[p - 1] >= negatives[n - 1])
        score = positives[p - 1] if from_positives else negatives[n - 1]
        before = p, n
        p, n = (p - 1, n) if from_positives else (p, n - 1)
        while p > 0 and positives[p - 1] == score:
            p -= 1
        while n > 0 and negatives[n - 1] == score:
            n -= 1
        new, true = before[0] - p, len(positives) - p
        twice_area += (before[1] - n) * (2 * true - new)
        if new:  # summed with Kahan's correction
            term = new * (true / (true + negative_weight * (len(negatives) - n))) - compensation
            following = total + term
            compensation = (following - total) - term
            total = following
    return twice_area, total


@jit
def _sums_of_squares(positives: NDArray[np.float32], negatives: NDArray[np.float32], auc: float) -> tuple[float, float]:
    """Return two sums of (share - auc)^2, for ascending scores.

    Over positives, the share is of negatives below; over negatives, of positives above. A tie counts half.
    """
    p, n, of_positives, of_negatives = 0, 0, 0.0, 0.0
    num_positives, num_negatives = len(positives), len(negatives)
    while p < num_positives or n < num_negatives:
        from_positives = n == num_negatives or (p < num_positives and positives[p] <= negatives[n])
        score = positives[p] if from_positives else negatives[n]
        first_p, first_n = p, n
        while p < num_positives and positives[p] == score:
            p += 1
        while n < num_negatives and negatives[n] == score:
            n += 1
        below = (first_n + n) / 2 / num_negatives - auc
        above = 1 - (first_p + p) / 2 / num_positives - auc
        of_positives += (p - first_p) * below * below
        of_negatives += (n - first_n) * above * above
    return of_positives, of_negatives


def _standard_error(of_positives: float, of_negatives: float, num_positives: int, num_negatives: int) -> float | None:
    """Return DeLong's standard error from `_sums_of_squares`; None with fewer than two of a label."""
    if min(num_positives, num_negatives) < 2:
        return None
    pairs = ((of_positives, num_positives), (of_negatives, num_negatives))
    return float(np.sqrt(sum(squares / (number - 1) / number for squares, number in pairs)))


def shortcomings(
    last: EvaluationFigures, best: Best | None, evaluations: int, keeps_best: bool, encoding: str | None = None
) -> list[str]:
    """Return sentences, without a full stop, on evaluations below the run's own best or no better than chance.

    evaluations: how many there were; from MIN_EVALUATIONS on, a last one below the best is called overfitting.
    keeps_best: whether the checkpoint of the best evaluation is kept (checkpoint.keep_best), and so is served.
    """
    if encoding == RANDOM_LABELS:
        return ["Labels are drawn by chance (data.source=random), so no model can do better than an AUC of 0.5"]
    auc, remarks = last.auc, []
    # By another monitor than the AUC, the best evaluation need not have the highest AUC.
    best_auc = None if best is None or best.monitor else best.auc
    is_trend = evaluations >= MIN_EVALUATIONS
    noise = max(OVERFIT, 2 * (last.figure(STANDARD_ERROR) or 0.0))
    if is_trend and auc is not None and best is not None and best_auc is not None and best_auc - auc > noise:
        remedy = "keep that one by checkpoint.keep_best=true"
        if keeps_best:
            remedy = "evaluate, recommend and export take that one (checkpoint=best)"
        remarks.append(
            f"Overfitted: the best AUC was {best_auc:.5f} at step {best.step:,}, and the last is "
            f"{best_auc - auc:.5f} lower, {auc:.5f}; {remedy}; {AGAINST_OVERFITTING}"
        )
    served = best.auc if keeps_best and best is not None else auc
    if served is not None and served <= 0.5:
        remarks.append(
            f"Learned nothing: AUC {served:.5f} is no better than chance, 0.5; train on more rows, for more steps "
            "(train.max_steps, train.epochs) or with another optimizer.lr; data.scale=tiny only shows that a recipe "
            "runs, recipe=quickstart learns"
        )
    return remarks
