"""Scores of the best possible model of a generated dataset, overall and by split."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.documents import Json
from data_prep.config.keys import DataConfig
from data_prep.dataset.format import SPLITS
from data_prep.engine.job import ChunkRecord, Job
from data_prep.io.arrays import open_array
from data_prep.stages.parse import TRUTH_SUFFIX
from data_prep.stages.shuffle_order import chunk_positions
from data_prep.synthetic.bayes_scores import PROBABILITY_STEPS, bayes_scores, truth_path
from data_prep.synthetic.days import described


def figures(data: DataConfig, job: Job, records: list[ChunkRecord], rows: dict[str, int]) -> Json:
    """Return the manifest's `extra` for generated rows: their settings, and scores overall and by split.

    Args:
        records: all chunks in row order; their labels and truth must still be on disk.
        rows: number of rows of each split.
    """
    histograms = {split: np.zeros((2, PROBABILITY_STEPS), np.int64) for split in SPLITS if rows[split]}
    bounds = np.cumsum([rows[split] for split in SPLITS])
    for positions, probability, labels in _chunks(job, records):
        steps = _steps(probability, job.rules.negative_drop_rate)
        split_of = np.searchsorted(bounds, positions, side="right")
        for number, split in enumerate(SPLITS):
            in_split = (split_of == number) & (positions >= 0)
            if in_split.any():
                for label in (0, 1):
                    of_label = steps[in_split & (labels == label)]
                    histograms[split][label] += np.bincount(of_label, minlength=PROBABILITY_STEPS)
    total = np.sum(list(histograms.values()), axis=0)
    splits = {split: asdict(bayes_scores(counts.sum(axis=0), counts[1])) for split, counts in histograms.items()}
    bayes = {**asdict(bayes_scores(total.sum(axis=0), total[1])), "splits": splits}
    return {"bayes": bayes, data.source_kind.group: described(data.synthetic)}


def _steps(probability: NDArray[np.float32], negative_drop_rate: float) -> NDArray[np.int64]:
    """Return probabilities in steps, corrected for the share of negatives that was left out."""
    p = probability.astype(np.float64)
    p = p / (p + (1 - p) * (1 - negative_drop_rate))
    return np.clip(np.rint(p * PROBABILITY_STEPS), 1, PROBABILITY_STEPS - 1).astype(np.int64)


def _chunks(
    job: Job, records: list[ChunkRecord]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32]]]:
    """Yield each chunk's positions in the dataset (-1: left out), probabilities and labels."""
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
