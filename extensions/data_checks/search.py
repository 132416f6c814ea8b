"""Search for misleading data in a dataset's finished shards: columns that hold the label, rows in train and held out.

Reads all rows up to MAX_ROWS, MAX_VALUES, or what half the memory budget holds; of larger datasets it reads blocks of
rows chosen by a hash of their number. It reads COLUMNS columns at a time, so memory does not grow with their number.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from common.documents import Json, convert, plain_object
from common.errors import UserError
from data_prep.codec.values import Bags, unpack
from data_prep.dataset.format import rows_of_blocks, sampled_blocks, splitmix64
from data_prep.dataset.options import LabelKind
from data_prep.io import open_array, read_rows
from data_prep.job import Job
from data_prep.stages.write import BuiltShard

LEAK_AUC = 0.95  # A column may hold the label if the AUC of its out-of-fold rates is higher.
SHARED_SHARE = 0.01  # share of the held-out rows, beyond chance
SHOWN_COLUMNS = 4


class Misleading(Struct, kw_only=True):
    """Figures of a dataset's rows.

    Attributes:
        rows: rows that were read; of: rows of all splits.
        columns: by name, the `auc` of a column's smoothed out-of-fold label rates in train; None with few labels of a
            class.
        shared_rows: share of val's and test's rows that are in train with features and label. None without such rows,
            and for a sample in which chance may explain the number.
        shared_by_chance: expected share if rows with so few values are equal by chance.
    """

    rows: int
    of: int
    columns: dict[str, dict[str, float | None]]
    shared_rows: float | None = None
    shared_by_chance: float | None = None


def misleading_sentences(recorded: object) -> list[str]:
    """Return a sentence for each kind of fault. Raise ValueError, which names the key, for damaged figures."""
    figures = convert(recorded, Misleading, "extra.misleading")
    sentences = []
    aucs = {name: auc for name, column in figures.columns.items() if (auc := column.get("auc") or 0.0) > LEAK_AUC}
    if aucs:
        names = sorted(aucs, key=lambda name: -aucs[name])
        columns = ", ".join(f"{name} ({aucs[name]:.4f})" for name in names[:SHOWN_COLUMNS])
        more = f" and {len(names) - SHOWN_COLUMNS} more" if len(names) > SHOWN_COLUMNS else ""
        sentences.append(
            f"one column alone predicts the label, AUC by out-of-fold rates: {columns}{more}; if it is not known "
            "before the label is, leave it out of data.schema"
        )
    shared, chance = figures.shared_rows or 0.0, figures.shared_by_chance or 0.0
    if shared > chance + SHARED_SHARE:
        sentences.append(
            f"{shared:.1%} of the rows of val and test are in train, whole ({chance:.1%} may be by chance), so their "
            "score is of memory; remove duplicates from the raw rows"
        )
    sampled = "" if figures.rows == figures.of else f" (by a sample of {figures.rows:,} of {figures.of:,} rows)"
    return [f"{sentence}{sampled}" for sentence in sentences]


MAX_ROWS, MAX_VALUES = 1_000_000, 20_000_000  # read of all splits together
ROW_BYTES = 464  # maximum memory per row, if each row has its own id
COLUMNS = 16  # columns read at once
BLOCK_ROWS, BLOCK_VALUES = 1 << 12, 1 << 20  # maximum size of blocks that are read and sampled
BLOCK_IDS = 1 << 18  # ids of bags hashed at once
IDS_PER_ROW = 16  # up to this, marking finds the ids that occur; above it, sorting does
FOLDS = 2  # of train; a row's rate comes from the other one
PRIOR_ROWS = 10.0  # rows at the base rate that smooth each rate
MIN_LABELS = 50  # per class, for a meaningful AUC
AUC_LEVELS = 1 << 16  # levels of the rates' square roots, which resolve low rates; equal within a level
SHARED_ERRORS = 4.0  # standard errors of the number of equal rows in a sample, above what chance gives
DENSE_BINS = 32  # quantiles of a number
QUANTILE_ROWS = 1 << 14  # rows that quantiles are computed from


class _Rows:
    """Rows of some shards, sampled if needed, and read some columns at a time in the schema's order.

    Attributes:
        count: number of rows.
        labels: labels of the rows, [count].
        halves: two hashes of each row, [count] each; columns read so far are assigned to them in turn, so that
            `_shared_shares` can shuffle one half against the other.
    """

    def __init__(self, job: Job, shards: Sequence[BuiltShard], share: float) -> None:
        """share: share of the shards' rows to read. Each part is a shard's paths by kind, and its blocks of rows."""
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
        self._number = 0  # columns in the hashes
        # Salts keep equal values of two columns apart.
        self._salts = splitmix64(np.arange(len(job.schema.columns), dtype=np.uint64))

    def _blocks(self, kind: str) -> Iterator[NDArray[Any]]:
        """Yield the rows to read, [rows, width], of one kind of a shard's arrays, shard by shard in blocks."""
        if self._parts:
            array = open_array(self._parts[0][0][kind])
            blocks = [(paths[kind], *block) for paths, blocks in self._parts for block in blocks]
            yield from read_rows(blocks, array.shape[1], array.dtype)

    def columns(self, kind: str, width: int) -> Iterator[NDArray[Any]]:
        """Yield the values of each of `width` columns, and add them to the hashes."""
        dtype = open_array(self._parts[0][0][kind]).dtype if self._parts else np.dtype(np.int32)
        for first in range(0, width, COLUMNS):
            values = np.empty((min(COLUMNS, width - first), self.count), dtype)
            begin = 0
            for rows in self._blocks(kind):
                block = rows[:, first : first + COLUMNS]
                self._add_hashes(block.view(np.uint32), begin)
                values[:, begin : begin + len(rows)] = block.T
                begin += len(rows)
            self._number += len(values)
            yield from values

    def bags(self, width: int) -> Iterator[NDArray[np.uint64]]:
        """Yield, for each of `width` columns, a hash of each row's bag that depends on the ids and their order."""
        for column in range(width):
            hashes = [np.zeros(0, np.uint64)]
            for paths, blocks in self._parts:
                bags = unpack(open_array(paths["values"]), open_array(paths["offsets"]), width)[column]
                rows = rows_of_blocks(blocks)
                # Memory holds at most BLOCK_IDS ids and those of one bag at once.
                pieces = (np.cumsum(bags.offsets[rows + 1] - bags.offsets[rows]) - 1) // BLOCK_IDS
                bounds = [0, *(np.flatnonzero(pieces[1:] != pieces[:-1]) + 1), len(rows)]
                hashes += [bag_hashes(bags.take(rows[start:stop])) for start, stop in pairwise(bounds)]
            joined = np.concatenate(hashes)
            self._add_hashes(joined[:, None], 0)
            self._number += 1
            yield joined

    def _add_hashes(self, values: NDArray[np.unsignedinteger], begin: int) -> None:
        """Add values [rows, columns], each mixed with its column's number, to the hashes of their columns' halves."""
        mixed = splitmix64(values ^ self._salts[self._number : self._number + values.shape[1]])
        # Column c is in half c % 2, wherever the columns that are read together begin.
        for half in range(2):
            columns = slice((half - self._number) % 2, values.shape[1], 2)
            self.halves[half][begin : begin + len(values)] += mixed[:, columns].sum(axis=1, dtype=np.uint64)


def bag_hashes(bags: Bags) -> NDArray[np.uint64]:
    """Return a hash of each bag, [n] uint64, from the ids and their places in it."""
    places = np.arange(len(bags.ids)) - np.repeat(bags.offsets[:-1] - bags.offsets[0], bags.lengths)
    mixed = splitmix64(splitmix64(places.astype(np.uint64)) ^ bags.ids.astype(np.uint64))
    # Unsigned sums wrap around, so differences of running sums are exact.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    bounds = bags.offsets - bags.offsets[0]
    return sums[bounds[1:]] - sums[bounds[:-1]]


def find_misleading(job: Job, built: Sequence[BuiltShard], features: Sequence[str], budget: int) -> Json:
    """Compute the figures of a job's finished shards in its work's directory; budget: bytes of memory."""
    shards = [[shard for shard in built if (shard.split == "train") == is_train] for is_train in (True, False)]
    rows, other_rows = (sum(shard.shard.rows for shard in shards_of_part) for shards_of_part in shards)
    limit = min(MAX_ROWS, MAX_VALUES // len(job.schema.columns), budget // 2 // ROW_BYTES)
    share = other_share = 1.0
    if rows + other_rows > limit:
        # Half of a sample are held-out rows, if there are enough: this maximises the number of pairs of equal rows.
        num_held_out = min(other_rows, max(limit // 2, limit - rows))
        share, other_share = (limit - num_held_out) / max(1, rows), num_held_out / max(1, other_rows)
    train, held_out = _Rows(job, shards[0], share), _Rows(job, shards[1], other_share)

    # Reading a column adds it to the hashes of whole rows, which the held-out rows need, too.
    has_rates = job.schema.label_kind is LabelKind.click
    columns = {
        name: {"auc": leak_auc(values, train.labels > 0, is_dense) if has_rates else None}
        for name, values, is_dense in _read_columns(job, train, features)
    }
    copies = [name for name, column in columns.items() if column["auc"] == 1]
    # Only a user's own schema can leave the column out.
    if copies and job.table is not None:
        raise UserError(
            f"data.schema: {', '.join(copies)} tells the label of each of {train.count:,} rows by itself, so it is the "
            "label under another name, or known only after it; leave it out"
        )
    for _ in _read_columns(job, held_out, features):
        pass

    # Train holds the equal of a held-out row in the sample only with the probability share_read.
    share_read = train.count / max(1, rows)
    shared, chance = _shared_shares(train, held_out)
    if min(share, other_share) < 1 and shared is not None and chance is not None:
        error = math.sqrt((shared + chance) / held_out.count)
        if shared - chance <= SHARED_ERRORS * error:
            shared = chance = None
    figures = Misleading(
        rows=train.count + held_out.count,
        of=rows + other_rows,
        columns=columns,
        shared_rows=None if shared is None else min(1.0, shared / share_read),
        shared_by_chance=None if chance is None else min(1.0, chance / share_read),
    )
    return plain_object(figures)


def _read_columns(job: Job, rows: _Rows, features: Sequence[str]) -> Iterator[tuple[str, NDArray[Any], bool]]:
    """Yield each column's name, its values, and whether they are numbers; bags come last."""
    ragged = [name for name in features if name in job.schema.ragged]
    single = [name for name in features if name not in ragged]
    for kind, names in (("dense", job.schema.dense), ("sparse", single)):
        columns = zip(names, rows.columns(kind, len(names)), strict=True)
        yield from ((name, values, kind == "dense") for name, values in columns)
    yield from ((name, values, False) for name, values in zip(ragged, rows.bags(len(ragged)), strict=True))


def _shared_shares(train: _Rows, held_out: _Rows) -> tuple[float | None, float | None]:
    """Return the share of the held-out rows that are in train with their label, and the share that chance gives.

    The latter is the share in train, without labels, after shuffling one half of the columns against the other: such
    rows have each column's values, but nothing to do with a row of train. None without rows.
    """
    if not train.count or not held_out.count:
        return None, None
    hashes, other_hashes = (rows.halves[0] + rows.halves[1] for rows in (train, held_out))
    # Adding 0 turns -0 into 0, whose bits differ.
    labels, other_labels = (
        splitmix64((rows.labels + rows.labels.dtype.type(0)).view(np.uint32).astype(np.uint64))
        for rows in (train, held_out)
    )
    shared = _share_in(other_hashes + other_labels, np.sort(hashes + labels))
    first, second = held_out.halves
    return shared, _share_in(first + np.random.default_rng(0).permutation(second), np.sort(hashes))


def _share_in(values: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> float:
    """Return the share of the values that occur in `ordered`, which ascends; faster than np.isin."""
    # Searching sorted values goes through memory in order.
    values = np.sort(values)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return float((ordered[places] == values).mean())


def leak_auc(values: NDArray[Any], is_positive: NDArray[np.bool_], is_dense: bool) -> float | None:
    """Return the AUC of a column's smoothed out-of-fold label rates by value, or with is_dense by quantile.

    The rates are those of `label_rates` of extensions/baselines, here of single values without weights. None with fewer
    than MIN_LABELS rows of a class.
    """
    all_rows, all_positives = len(is_positive), int(is_positive.sum())
    if min(all_positives, all_rows - all_positives) < MIN_LABELS:
        return None
    # The code of a row, below `size`: the number of its quantile, or the place of its id among those that occur.
    if is_dense:
        sample = np.sort(values[:: len(values) // QUANTILE_ROWS + 1])
        edges = np.unique(sample[np.arange(1, DENSE_BINS) * len(sample) // DENSE_BINS])
        codes, size = np.searchsorted(edges, values), len(edges) + 1
    else:
        ids = values.view(f"u{values.itemsize}")
        limit = int(ids.max()) + 1
        if limit > IDS_PER_ROW * len(ids):
            occurring, codes = np.unique(ids, return_inverse=True)
            size = len(occurring)
        else:
            occurs = np.zeros(limit, np.bool_)
            occurs[ids] = True
            code_of = np.cumsum(occurs, dtype=np.int32) - 1
            codes, size = code_of[ids], int(code_of[-1]) + 1
    folds = (splitmix64(np.arange(all_rows, dtype=np.uint64)) % np.uint64(FOLDS)).astype(np.int64)
    cells = codes * FOLDS + folds
    rows = np.bincount(cells, minlength=size * FOLDS).reshape(size, FOLDS)
    positives = np.bincount(cells[is_positive], minlength=size * FOLDS).reshape(size, FOLDS)
    other_rows, other_positives = rows[:, ::-1], positives[:, ::-1]  # the other fold's
    rates = (other_positives + PRIOR_ROWS * all_positives / all_rows) / (other_rows + PRIOR_ROWS)
    levels = (np.sqrt(rates) * (AUC_LEVELS - 1)).astype(np.int64).ravel()
    level_positives = np.bincount(levels, weights=positives.ravel(), minlength=AUC_LEVELS)
    negatives = np.bincount(levels, weights=(rows - positives).ravel(), minlength=AUC_LEVELS)
    below = np.cumsum(negatives) - negatives / 2  # an equal rate counts half
    below *= level_positives  # not a matrix product, which would wake BLAS threads
    return float(below.sum() / (all_positives * (all_rows - all_positives)))
