"""Look for what would mislead in a dataset's finished shards: leaks, shared rows, opposed rates, drift, jumps.

All rows are looked at up to MAX_ROWS, MAX_VALUES, or what half the memory budget holds, beyond that blocks of rows by a
hash of their number. COLUMNS columns are read at a time, so that memory does not grow with their number.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.bags import Bags, unpack
from data_prep.dataset.misleading import ColumnFigures, Misleading, Part
from data_prep.dataset.options import LabelKind
from data_prep.dataset.sample import mix, rows_of_blocks, sampled_blocks
from data_prep.engine.job import ChunkRecord, Job
from data_prep.io.arrays import open_array, read_rows
from data_prep.stages.split import BuiltShard

MAX_ROWS, MAX_VALUES = 1_000_000, 20_000_000
THINNING = 4  # every fourth of a sample's rows counts for a column's figures; equal rows are searched among all
ROW_BYTES = 464  # of memory at most for a row looked at, where each has an id of its own
COLUMNS = 16  # read at once, and that times more of a sample: a row's values stand together
BLOCK_ROWS, BLOCK_VALUES = 1 << 12, 1 << 20  # at most, of the blocks that are read, and that a sample is of
BLOCK_IDS = 1 << 18  # of bags, that are hashed at once
IDS_PER_ROW = 16  # up to which the ids that occur are found by marking them, not by sorting
FOLDS, PRIOR_ROWS = 2, 10.0  # of out-of-fold rates; rows at the base rate that smooth each
MIN_LABELS = 50  # of each class, for an AUC that says anything
AUC_LEVELS = 1 << 16  # of the roots of rates, so that low rates have finer ones; equal within a level
SHARED_ERRORS = 4.0  # of the number of equal rows in a sample, beyond what chance gives
DENSE_BINS, TOP_VALUES = 32, 20  # of a number's quantiles; the most frequent ids, the others are one bin
QUANTILE_ROWS = 1 << 14  # that quantiles, and the number of distinct values, are of
PARTS, PART_ROWS = 20, 500  # of the raw rows, at most; rows of each, at least


class _Rows:
    """The rows looked at of some shards, read some columns at a time, in the order of the schema.

    Attributes:
        count: of the rows.
        labels: of them, [count].
        halves: hashes of the rows by each half of the columns read so far, which alternate, two of [count].
    """

    def __init__(self, job: Job, shards: Sequence[BuiltShard], share: float, step: int) -> None:
        """share: of the shards' rows, that are read; step: every step-th of these counts for a column's figures."""
        self._step = step
        block_rows = max(1, min(BLOCK_ROWS, BLOCK_VALUES // len(job.schema.columns)))
        self._parts = [
            (
                {target.rsplit(".", 2)[-2]: job.work / source for source, target in shard.moves},
                sampled_blocks(shard.shard.rows, share, number, block_rows),
            )
            for number, shard in enumerate(shards)
        ]
        self.count = sum(stop - start for _, blocks in self._parts for start, stop in blocks)
        labels = [rows[:, 0] for rows in self._blocks("labels")]
        self.labels = np.concatenate(labels) if labels else np.zeros(0, np.float32)
        self.halves = [np.zeros(self.count, np.uint64) for _ in range(2)]
        self._number = 0  # of columns in the hashes
        self._factors = mix(np.arange(len(job.schema.columns), dtype=np.uint64)) | np.uint64(1)

    def _blocks(self, kind: str) -> Iterator[NDArray[Any]]:
        """The rows [rows, width] of one kind of file, a block at a time."""
        if self._parts:
            array = open_array(self._parts[0][0][kind])
            blocks = [(paths[kind], *block) for paths, blocks in self._parts for block in blocks]
            yield from read_rows(blocks, array.shape[1], array.dtype)

    def columns(self, kind: str, width: int) -> Iterator[NDArray[Any]]:
        """The values of each of `width` columns that count for its figures."""
        at_once = COLUMNS * self._step
        dtype = open_array(self._parts[0][0][kind]).dtype if self._parts else np.dtype(np.int32)
        for first in range(0, width, at_once):
            values = np.empty((min(at_once, width - first), -(-self.count // self._step)), dtype)
            begin = 0
            for rows in self._blocks(kind):
                block = rows[:, first : first + at_once]
                self._hash(block.view(np.uint32), begin)
                counted = block[-begin % self._step :: self._step].T
                values[:, -(-begin // self._step) :][:, : counted.shape[1]] = counted
                begin += len(rows)
            self._number += len(values)
            yield from values

    def bags(self, width: int) -> Iterator[NDArray[np.uint64]]:
        """A hash of each row's bag, of its ids in their order, of each of `width` columns."""
        for column in range(width):
            hashes = np.zeros(0, np.uint64)
            if self._parts:
                hashes = np.concatenate([self._bag_hashes(*part, column, width) for part in self._parts])
            self._hash(hashes[:, None], 0)
            self._number += 1
            yield hashes[:: self._step]

    @staticmethod
    def _bag_hashes(
        paths: Mapping[str, Path], blocks: Sequence[tuple[int, int]], column: int, width: int
    ) -> NDArray[np.uint64]:
        bags = unpack(open_array(paths["values"]), open_array(paths["offsets"]), width)[column]
        return hashes_of_rows(bags, rows_of_blocks(blocks))

    def _hash(self, values: NDArray[np.unsignedinteger], begin: int) -> None:
        """Add values [rows, columns] to the hashes of their columns' halves: sums of products with odd constants."""
        values, factors = values.astype(np.uint64), self._factors[self._number :]
        for half in range(2):
            columns = slice((half - self._number) % 2, values.shape[1], 2)
            products = np.einsum("rc,c->r", values[:, columns], factors[columns])
            self.halves[half][begin : begin + len(values)] += products


def hashes_of_rows(bags: Bags, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hash of the bag of each of the rows, in memory for fewer than BLOCK_IDS ids and one bag at once."""
    blocks = (np.cumsum(bags.offsets[rows + 1] - bags.offsets[rows]) - 1) // BLOCK_IDS
    bounds = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1), len(rows)]
    return np.concatenate([bag_hashes(bags.take(rows[a:b])) for a, b in pairwise(bounds)])


def bag_hashes(bags: Bags) -> NDArray[np.uint64]:
    """A hash of each bag, [n] uint64, of the ids and their places in it."""
    places = np.arange(len(bags.ids)) - np.repeat(bags.offsets[:-1] - bags.offsets[0], bags.lengths)
    mixed = mix(mix(places.astype(np.uint64)) ^ bags.ids.astype(np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    bounds = bags.offsets - bags.offsets[0]
    return sums[bounds[1:]] - sums[bounds[:-1]]


def find_misleading(
    job: Job, records: Sequence[ChunkRecord], built: Sequence[BuiltShard], features: Sequence[str], budget: int
) -> Misleading:
    """The figures of a job's finished shards, still in its work's directory with the chunks' labels.

    budget: bytes of memory.
    """
    ragged = [name for name in features if name in job.schema.ragged]
    if job.bags is not None:
        ragged = [name for name, size in zip(features, job.bags.sizes, strict=True) if size > 1]
    shards = [[shard for shard in built if (shard.split == "train") == of_train] for of_train in (True, False)]
    rows, other_rows = (sum(shard.shard.rows for shard in each) for each in shards)
    limit = min(MAX_ROWS, MAX_VALUES // len(job.schema.columns), budget // 2 // ROW_BYTES)
    share, other_share = sample_shares(rows, other_rows, limit)
    is_sample = min(share, other_share) < 1
    step = THINNING if is_sample else 1
    train, held_out = _Rows(job, shards[0], share, step), _Rows(job, shards[1], other_share, step)

    # Figures of each column, and the hashes of whole rows.
    has_rates = job.schema.label_kind is LabelKind.click
    labels = (train.labels[::step], held_out.labels[::step])
    comparison, columns = _Comparison(*labels, is_sample=is_sample, has_rates=has_rates), {}
    for name, values, is_dense in _columns(job, train, held_out, features, ragged):
        columns[name] = comparison.figures(*values, is_dense)

    # A held-out row's equal in train is read with the probability that any train row is.
    share_read = train.count / max(1, rows)
    shared, chance = _shared_rows(train, held_out)
    if is_sample and shared is not None and chance is not None:
        error = math.sqrt((shared + chance) / held_out.count)
        if shared - chance <= SHARED_ERRORS * error:
            shared = chance = None
    return Misleading(
        rows=train.count + held_out.count,
        of=rows + other_rows,
        columns=columns,
        shared_rows=None if shared is None else min(1.0, shared / share_read),
        shared_by_chance=None if chance is None else min(1.0, chance / share_read),
        parts=label_parts(job, records, rows + other_rows) if has_rates else [],
    )


def sample_shares(rows: int, other_rows: int, limit: int) -> tuple[float, float]:
    """The shares of train's and of the held-out rows that are looked at, `limit` of both.

    Of a sample half are held-out rows, where there are as many, since the most pairs of equal rows are in such a one.
    """
    if rows + other_rows <= limit:
        return 1.0, 1.0
    held_out = min(other_rows, max(limit // 2, limit - rows))
    return (limit - held_out) / max(1, rows), held_out / max(1, other_rows)


def _columns(
    job: Job, train: _Rows, held_out: _Rows, features: Sequence[str], ragged: Sequence[str]
) -> Iterator[tuple[str, tuple[NDArray[Any], NDArray[Any]], bool]]:
    """Each column's name, its values in train and in the held-out rows, and whether they are numbers."""
    single = [name for name in features if name not in ragged]
    for kind, names in (("dense", job.schema.dense), ("sparse", single)):
        width = len(names)
        columns = zip(names, train.columns(kind, width), held_out.columns(kind, width), strict=True)
        yield from ((name, (values, others), kind == "dense") for name, values, others in columns)
    columns = zip(ragged, train.bags(len(ragged)), held_out.bags(len(ragged)), strict=True)
    yield from ((name, (values, others), False) for name, values, others in columns)


def _share_in(values: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> float:
    """Share of the values that are among others, in ascending order; faster than np.isin."""
    values = np.sort(values)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return float((ordered[places] == values).mean())


def _shared_rows(train: _Rows, held_out: _Rows) -> tuple[float | None, float | None]:
    """Share of the held-out rows that are in train, with their label, and what chance gives.

    That is the share of them in train, without labels, once one half of the columns is shuffled against the other.
    """
    if not train.count or not held_out.count:
        return None, None
    hashes, other_hashes = (rows.halves[0] + rows.halves[1] for rows in (train, held_out))
    labels, other_labels = (
        mix((rows.labels + rows.labels.dtype.type(0)).view(np.uint32).astype(np.uint64)) for rows in (train, held_out)
    )
    shared = _share_in(other_hashes + other_labels, np.sort(hashes + labels))
    first, second = held_out.halves
    return shared, _share_in(first + np.random.default_rng(0).permutation(second), np.sort(hashes))


class _Comparison:
    """The columns of train beside those of the held-out rows."""

    def __init__(self, labels: NDArray[Any], other_labels: NDArray[Any], is_sample: bool, has_rates: bool) -> None:
        """has_rates: whether labels are 0 and 1, so that values have label rates."""
        self._is_sample, self._has_rates = is_sample, has_rates
        self._is_positive, self._is_held_out_positive = labels > 0, other_labels > 0
        self._folds = (mix(np.arange(len(labels), dtype=np.uint64)) % np.uint64(FOLDS)).astype(np.int64)

    def figures(self, train: NDArray[Any], held_out: NDArray[Any], is_dense: bool) -> ColumnFigures:
        """The figures of a column by its values [rows] in train and in the held-out rows."""
        if not len(train):
            return ColumnFigures()
        codes, other_codes, size = _quantiles(train, held_out) if is_dense else _ids(train, held_out)
        cells = codes * FOLDS + self._folds
        rows = np.bincount(cells, minlength=size * FOLDS).reshape(size, FOLDS)
        positives = np.bincount(cells[self._is_positive], minlength=size * FOLDS).reshape(size, FOLDS)
        figures = ColumnFigures(auc=out_of_fold_auc(rows, positives) if self._has_rates else None)
        if len(other_codes):
            counts, other_rows = _over_folds(rows), np.bincount(other_codes, minlength=size)
            other_positives = np.bincount(other_codes[self._is_held_out_positive], minlength=size)
            figures.stability_index = stability_index(counts, other_rows, is_dense)
            # Of a value with a fixed number of negatives, a sample has any number.
            if not is_dense and not self._is_sample and self._has_rates:
                rates = (counts, _over_folds(positives), other_rows, other_positives)
                figures.rate_correlation, figures.rated_values = rate_correlation(*rates)
        return figures


Codes = tuple[NDArray[np.integer], NDArray[np.integer], int]  # of train's and of the held-out rows, below the third


def _quantiles(train: NDArray[Any], held_out: NDArray[Any]) -> Codes:
    """Numbers as the number of their quantile in train."""
    some = np.sort(train[:: len(train) // QUANTILE_ROWS + 1])
    edges = np.unique(some[np.arange(1, DENSE_BINS) * len(some) // DENSE_BINS])
    return np.searchsorted(edges, train), np.searchsorted(edges, held_out), len(edges) + 1


def _ids(train: NDArray[Any], held_out: NDArray[Any]) -> Codes:
    """Ids as their places among those that occur, in ascending order."""
    train, held_out = (each.view(f"u{each.itemsize}") for each in (train, held_out))
    limit = int(max(train.max(initial=0), held_out.max(initial=0))) + 1
    if limit > IDS_PER_ROW * (len(train) + len(held_out)):
        ids, codes = np.unique(np.concatenate([train, held_out]), return_inverse=True)
        return codes[: len(train)], codes[len(train) :], len(ids)
    occurs = np.zeros(limit, np.bool_)
    occurs[train] = occurs[held_out] = True
    places = np.cumsum(occurs, dtype=np.int32) - 1
    return places[train], places[held_out], int(places[-1]) + 1


def out_of_fold_auc(rows: NDArray[np.int64], positives: NDArray[np.int64]) -> float | None:
    """AUC of smoothed out-of-fold label rates by value.

    Args:
        rows, positives: of each value and fold, [values, FOLDS].

    Returns:
        None with fewer than MIN_LABELS rows of a class.
    """
    all_positives, all_rows = int(positives.sum()), int(rows.sum())
    if min(all_positives, all_rows - all_positives) < MIN_LABELS:
        return None
    of_values = [_over_folds(each) for each in (rows, positives)]
    cells = np.flatnonzero(rows.ravel())  # most others are of ids with few rows
    rows, positives = rows.ravel()[cells], positives.ravel()[cells]
    other_rows, other_positives = of_values[0][cells // FOLDS] - rows, of_values[1][cells // FOLDS] - positives
    rates = (other_positives + PRIOR_ROWS * all_positives / all_rows) / (other_rows + PRIOR_ROWS)
    levels = (np.sqrt(rates) * (AUC_LEVELS - 1)).astype(np.int64)
    level_positives = np.bincount(levels, weights=positives, minlength=AUC_LEVELS)
    negatives = np.bincount(levels, weights=rows - positives, minlength=AUC_LEVELS)
    below = np.cumsum(negatives) - negatives / 2  # an equal rate counts half
    below *= level_positives  # no product of matrices, for which threads of BLAS would wake
    return float(below.sum() / (all_positives * (all_rows - all_positives)))


def stability_index(rows: NDArray[np.int64], other_rows: NDArray[np.int64], is_dense: bool) -> float | None:
    """Population stability index of two counts by value, less its mean where both are of one distribution.

    The most frequent ids are a bin each, the others one; None of ids that are mostly new, which `unseen_shares` counts.
    """
    if not is_dense:
        if other_rows[rows == 0].sum() > other_rows.sum() / 2:
            return None
        top = _largest(rows)
        rows, other_rows = (np.append(each[top], each.sum() - each[top].sum()) for each in (rows, other_rows))
    share, other = ((each + 0.5) / (each.sum() + len(each) / 2) for each in (rows, other_rows))
    chance = (len(rows) - 1) * (1 / rows.sum() + 1 / other_rows.sum())
    return float(((share - other) * np.log(share / other)).sum() - chance)


def _largest(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of the most rows, TOP_VALUES of them, the first of equal ones."""
    place = max(0, len(rows) - TOP_VALUES)
    candidates = np.flatnonzero(rows >= np.partition(rows, place)[place])
    return candidates[np.argsort(-rows[candidates], kind="stable")[:TOP_VALUES]]


def _over_folds(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of [values, FOLDS]; NumPy's along so short an axis takes ten times as long."""
    first, second = counts.T
    return first + second


def rate_correlation(
    rows: NDArray[np.int64],
    positives: NDArray[np.int64],
    other_rows: NDArray[np.int64],
    other_positives: NDArray[np.int64],
) -> tuple[float | None, float | None]:
    """Correlation of label rates by value in two sets of rows, weighted by harmonic counts; effective values."""
    both = (rows > 0) & (other_rows > 0)
    rows, positives, other_rows, other_positives = (
        each[both] for each in (rows, positives, other_rows, other_positives)
    )
    if len(rows) < 2:
        return None, None
    weights = rows * other_rows / (rows + other_rows)
    rates = np.stack([positives / rows, other_positives / other_rows])
    centred = rates - np.average(rates, axis=1, weights=weights)[:, None]
    spread = np.sqrt(np.prod((weights * centred**2).sum(axis=1)))
    if not spread > 0:
        return None, None
    return float((weights * centred[0] * centred[1]).sum() / spread), float(weights.sum() ** 2 / (weights**2).sum())


def label_parts(job: Job, records: Sequence[ChunkRecord], total: int) -> list[Part]:
    """Label rates along the raw rows: of each source and of parts of it, at least PART_ROWS rows each.

    Beyond MAX_ROWS parts are of whole chunks, whose positives are known.
    """
    size = max(PART_ROWS, -(-total // PARTS))
    parts: list[Part] = []
    source, first, rows, positives = -1, 0, 0, 0
    for number, count, more in [*_pieces(job, records, total), (-1, 0, 0)]:
        if rows and (number != source or rows >= size):
            name = f"rows {first + 1:,} to {first + rows:,} of {job.sources[source].name}"
            parts.append(Part(name, rows, positives))
            first, rows, positives = first + rows, 0, 0
        if number != source:
            source, first = number, 0
        rows, positives = rows + count, positives + more
    return parts


def _pieces(job: Job, records: Sequence[ChunkRecord], total: int) -> Iterator[tuple[int, int, int]]:
    """Source, rows and positives of consecutive raw rows: chunks, or PART_ROWS of one."""
    for record in records:
        if not record.rows:
            continue
        if total > MAX_ROWS:
            yield record.source, record.rows, record.positives
            continue
        labels = open_array(job.chunk_path(record.source, record.chunk, "labels.npy"))[:, 0]
        for begin in range(0, len(labels), PART_ROWS):
            piece = labels[begin : begin + PART_ROWS]
            yield record.source, len(piece), int(np.count_nonzero(piece))
