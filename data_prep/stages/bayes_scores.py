"""What the best possible model would reach on rows whose click probabilities are known.

A probability is a multiple of 2^-20, so a histogram of them is exact and all scores follow from it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.format import SPLITS
from data_prep.engine.job import ChunkRecord, Job
from data_prep.io.arrays import open_array
from data_prep.stages.shuffle_order import chunk_positions

PROBABILITY_BITS = 20
PROBABILITY_STEPS = 1 << PROBABILITY_BITS
TRUTH_SUFFIX = "truth.npy"


@dataclass(frozen=True)
class BayesScores:
    """Scores of the model that knows every click's probability.

    auc, logloss, ne: against labels drawn from the probabilities, in expectation; logloss in nats per sample, ne is
    it over the entropy of base_rate. base_rate: mean probability; rows: how many. sampled_auc, sampled_logloss:
    against the labels that were drawn; None where they are of one kind.
    """

    auc: float
    logloss: float
    ne: float
    base_rate: float
    rows: int
    sampled_auc: float | None = None
    sampled_logloss: float | None = None


def bayes_scores(histogram: NDArray[np.int64], positives: NDArray[np.int64] | None = None) -> BayesScores:
    """Scores from counts of rows.

    Args:
        histogram: [PROBABILITY_STEPS], rows with click probability i / PROBABILITY_STEPS.
        positives: those of them that have label 1, if labels were drawn.
    """
    steps = np.flatnonzero(histogram)
    rows = histogram[steps].astype(np.float64)
    probability = steps / PROBABILITY_STEPS
    expected = rows * probability
    logloss = _logloss(rows, expected, probability)
    base_rate = float(expected.sum() / rows.sum())
    base_entropy = -(base_rate * np.log(base_rate) + (1 - base_rate) * np.log1p(-base_rate))
    scores = BayesScores(_auc(rows, expected), logloss, float(logloss / base_entropy), base_rate, int(rows.sum()))
    if positives is None or not 0 < positives.sum() < rows.sum():
        return scores
    drawn = positives[steps].astype(np.float64)
    sampled = {"sampled_auc": _auc(rows, drawn), "sampled_logloss": _logloss(rows, drawn, probability)}
    return BayesScores(**(asdict(scores) | sampled))


def _auc(rows: NDArray[np.float64], positives: NDArray[np.float64]) -> float:
    """AUC of scores in rising order, each with its number of rows and of positives."""
    negatives = rows - positives
    below = np.cumsum(negatives) - negatives
    return float(np.sum(positives * (below + negatives / 2)) / (positives.sum() * negatives.sum()))


def _logloss(rows: NDArray[np.float64], positives: NDArray[np.float64], probability: NDArray[np.float64]) -> float:
    entropy = -(positives * np.log(probability) + (rows - positives) * np.log1p(-probability))
    return float(entropy.sum() / rows.sum())


def truth_path(day: Path) -> Path:
    """Where the click probabilities of a generated day lie: [rows] float32."""
    return day.with_name(f"truth_{day.stem.removeprefix('day_')}.npy")


def dataset_scores(job: Job, records: list[ChunkRecord], rows: dict[str, int]) -> dict[str, Any]:
    """The manifest's `extra.bayes`: scores over all rows of a generated dataset, and over each of its `splits`.

    Args:
        records: all chunks, in the order of the rows, with labels.npy and truth of their rows still in place.
        rows: of every split.
    """
    histograms = {split: np.zeros((2, PROBABILITY_STEPS), np.int64) for split in SPLITS if rows[split]}
    bounds = np.cumsum([rows[split] for split in SPLITS])
    for positions, probability, labels in _chunks(job, records):
        steps = _steps(probability, job.rules.negative_drop_rate)
        split_of = np.searchsorted(bounds, positions, side="right")
        for number, split in enumerate(SPLITS):
            mine = (split_of == number) & (positions >= 0)
            if mine.any():
                for label in (0, 1):
                    chosen = steps[mine & (labels == label)]
                    histograms[split][label] += np.bincount(chosen, minlength=PROBABILITY_STEPS)
    total = np.sum(list(histograms.values()), axis=0)
    splits = {split: asdict(bayes_scores(counts.sum(axis=0), counts[1])) for split, counts in histograms.items()}
    return {**asdict(bayes_scores(total.sum(axis=0), total[1])), "splits": splits}


def _steps(probability: NDArray[np.float32], negative_drop_rate: float) -> NDArray[np.int64]:
    """Probabilities in steps, as they are after a share of the negatives was left out."""
    p = probability.astype(np.float64)
    p = p / (p + (1 - p) * (1 - negative_drop_rate))
    return np.clip(np.rint(p * PROBABILITY_STEPS), 1, PROBABILITY_STEPS - 1).astype(np.int64)


def _chunks(
    job: Job, records: list[ChunkRecord]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32]]]:
    """Of each chunk's rows: position in the dataset (-1: left out), probability, label."""
    begin = begin_in_source = 0
    source = -1
    for record in records:
        if record.source != source:
            source, begin_in_source = record.source, 0
        labels = open_array(job.chunk_path(record.source, record.chunk, "labels.npy"))[:, 0]
        if job.sources[record.source].generator is not None:
            probability = open_array(job.chunk_path(record.source, record.chunk, TRUTH_SUFFIX))[:, 0]
        else:
            day = open_array(truth_path(Path(job.sources[record.source].path)))
            probability = day[begin_in_source : begin_in_source + record.rows, 0]
        if job.rules.is_arranged:
            positions = chunk_positions(job, begin, record.rows)
        else:
            positions = np.arange(begin, begin + record.rows)
        yield positions, probability, labels
        begin += record.rows
        begin_in_source += record.rows
