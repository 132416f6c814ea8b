"""Reading ranges of a split's rows from its shards, with checks."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.config import DataConfig, VerifyData
from app.data.batch import RowArrays
from common.errors import OwnError, UserError
from common.jit import Int, jit, prefetch
from data_prep.dataset.bags import Bags, join
from data_prep.dataset.format import Manifest, ShardArrays, open_shard, shard_path, verify_shard
from data_prep.dataset.format import Split as SplitEntry
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, verify_tables
from data_prep.dataset.options import LabelKind

log = logging.getLogger("clickwork")

TRAIN = "train"
VERIFY_AUTO_BYTES = 4 << 30
OPEN_SHARDS = 64  # open at once; a dataset may have more shards than a process may have open files
LINE_VALUES, PREFETCHED_ROWS = 16, 12  # 4-byte values in a cache line; rows to prefetch ahead
ANY = (1 << 32) - 1  # the largest bits of a label, where labels are numbers
NO_BAGS = Bags(np.empty(0, np.int32), np.zeros(1, np.int64))


class SplitShards:
    """The shards of one split."""

    def __init__(self, root: Path, manifest: Manifest, name: str) -> None:
        """Open each shard once, so that a missing file is reported now, not during an epoch."""
        split = find_split(root, manifest, name)
        self.rows = split.rows
        self._root, self._name, self._shards, self._manifest = root, name, split.shards, manifest
        self._features, self._ragged = manifest.num_embeddings, manifest.ragged
        self._one_hot = [feature for feature in self._features if feature not in self._ragged]
        self._dense = list(manifest.schema["dense"])
        self._weight = manifest.weight
        self._label_limit = 1 if manifest.label_kind is LabelKind.click else ANY
        self._limits = np.array([self._features[feature] for feature in self._one_hot], dtype=np.int64)
        self._starts = np.cumsum([0] + [shard.rows for shard in split.shards])
        self._stamps = [
            {path: file_stamp(path) for path in (shard_path(root, name, shard.name, kind) for kind in shard.files)}
            for shard in split.shards
        ]
        self._open = lru_cache(OPEN_SHARDS)(self._open_shard)
        for index in range(len(split.shards)):
            self._open(index)

    def read(self, ranges: list[tuple[int, int]], order: NDArray[np.int64]) -> RowArrays:
        """Return the rows with the numbers `order`, counted over ranges of rows; read no others. Ids are checked."""
        # Reading beyond the end of a file that was cut short would kill the process.
        self._require_unchanged(ranges)
        count = len(order)
        bits, dense = np.empty(count, np.int32), np.empty((count, len(self._dense)), np.float32)
        sparse = np.empty((count, len(self._one_hot)), np.int32)
        weights = np.empty(count, np.float32) if self._weight else None
        bags: list[list[Bags]] = [[NO_BAGS] for _ in self._ragged]
        places, first, valid = [np.empty(0, np.int64)], 0, True
        # gather_rows only tells whether any value is bad. The checks that find the value run only then.
        for piece in (piece for start, stop in ranges for piece in self._pieces(start, stop)):
            of_labels = piece.labels.view(np.int32), self._label_limit, bits
            valid &= gather_rows(*of_labels, piece.dense, piece.sparse, first, order, self._limits, dense, sparse)
            if self._ragged or weights is not None:
                places.append(np.flatnonzero((order >= first) & (order < first + len(piece.labels))))
                for index, one in enumerate(piece.bags):
                    bags[index].append(self._bags_of_rows(index, one, order, places[-1], first, ranges))
            if weights is not None and piece.weights is not None:
                weights[places[-1]] = piece.weights[order[places[-1]] - first, 0]
            first += len(piece.labels)
        self._require_unchanged(ranges)
        labels: NDArray[Any] = bits.view(self._manifest.label_kind.dtype)
        if self._label_limit == ANY:
            self._check(np.isfinite(labels)[:, None], ["label"], "is not a finite number", ranges, order)
        if weights is not None:
            good = np.isfinite(weights) & (weights >= 0)
            self._check(good[:, None], [self._weight], "is not a weight, finite and at least 0", ranges, order)
        if not valid:
            names = [self._table_of(feature) for feature in self._one_hot]
            self._check(bits.view(np.uint32)[:, None] <= self._label_limit, ["label"], "is not 0 or 1", ranges, order)
            self._check(np.isfinite(dense), self._dense, "is not a finite number", ranges, order)
            self._check(sparse.view(np.uint32) < self._limits, names, "the id is not in it", ranges, order)
        back = np.argsort(np.concatenate(places)) if self._ragged else order
        joined = [join(parts).take(back) for parts in bags]
        for feature, one in zip(self._ragged, joined, strict=True):
            self._check_ids(feature, one, ranges, order)
        return RowArrays(labels.astype(np.float32, copy=False), dense, sparse, tuple(joined), weights)

    def _require_unchanged(self, ranges: list[tuple[int, int]]) -> None:
        for start, stop in ranges:
            first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
            for path, stamp in [item for stamps in self._stamps[first : last + 1] for item in stamps.items()]:
                require_unchanged(path, stamp)

    def _bags_of_rows(
        self,
        index: int,
        bags: Bags,
        order: NDArray[np.int64],
        places: NDArray[np.int64],
        first: int,
        ranges: list[tuple[int, int]],
    ) -> Bags:
        """Return one feature's bags for the rows order[places] of a piece, whose first row has the number `first`."""
        rows = order[places] - first
        starts, stops = bags.offsets[rows], bags.offsets[rows + 1]
        good = (starts >= 0) & (starts <= stops) & (stops <= len(bags.values))
        self._check(good[:, None], [self._ragged[index]], "its bag's offsets are not in order", ranges, order[places])
        return bags.take(rows)

    def _check_ids(self, feature: str, bags: Bags, ranges: list[tuple[int, int]], order: NDArray[np.int64]) -> None:
        """Check that the ids of one feature's bags are in its table."""
        beyond = bags.ids.view(np.uint32) >= self._features[feature]
        if beyond.any():
            bag = np.searchsorted(bags.offsets, np.flatnonzero(beyond), side="right") - 1
            good = ~np.isin(np.arange(len(order)), bag)
            self._check(good[:, None], [self._table_of(feature)], "an id of its bag is not in it", ranges, order)

    def _table_of(self, feature: str) -> str:
        return f"{feature}, a table of {self._features[feature]} rows"

    def _check(
        self,
        good: NDArray[np.bool_],
        names: list[str],
        fault: str,
        ranges: list[tuple[int, int]],
        order: NDArray[np.int64],
    ) -> None:
        """Raise OwnError for the first row on disk, and its column, where `good` [rows, columns] is false."""
        if good.all():
            return
        bad = np.flatnonzero(~good.all(axis=1))
        numbers = np.concatenate([np.arange(*rows) for rows in ranges])[order[bad]]
        row, column = int(numbers.min()), int(good[bad[numbers.argmin()]].argmin())
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        place = f"shard {self._shards[shard].name}, row {row - self._starts[shard]}, {names[column]}"
        raise OwnError(f"{self._root / self._name}: {place}: {fault}; preprocess again")

    def _pieces(self, start: int, stop: int) -> Iterator[ShardArrays]:
        """Yield rows [start, stop) of the split, as views of the shards that hold them."""
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[index + 1]))
            yield self._open(index).part(start - int(self._starts[index]), end - int(self._starts[index]))
            start, index = end, index + 1

    def _open_shard(self, index: int) -> ShardArrays:
        return open_shard(self._root, self._name, self._shards[index], self._manifest)


@jit
def gather_rows(
    piece_labels: NDArray[np.int32],
    label_limit: Int,
    labels: NDArray[np.int32],
    piece_dense: NDArray[Any],
    piece_sparse: NDArray[np.int32],
    first: int,
    order: NDArray[np.int64],
    limits: NDArray[np.int64],
    dense: NDArray[np.float32],
    sparse: NDArray[np.int32],
) -> bool:
    """Copy the rows of `order` that are in a piece; the piece begins with row number `first`.

    Return whether the labels (or their bits, where labels are numbers) are at most `label_limit`, the dense features
    finite and the ids below `limits`.
    """
    rows, num_dense, num_sparse = len(piece_labels), dense.shape[1], sparse.shape[1]
    flat_labels, flat_dense, flat_sparse = piece_labels.reshape(-1), piece_dense.reshape(-1), piece_sparse.reshape(-1)
    invalid: Int = 0
    for place in range(len(order)):
        ahead = order[min(place + PREFETCHED_ROWS, len(order) - 1)] - first
        if 0 <= ahead < rows:
            prefetch(flat_labels, ahead)
            for column in range(0, num_dense, LINE_VALUES):
                prefetch(flat_dense, ahead * num_dense + column)
            for column in range(0, num_sparse, LINE_VALUES):
                prefetch(flat_sparse, ahead * num_sparse + column)
        row = order[place] - first
        if 0 <= row < rows:
            labels[place] = flat_labels[row]
            for column in range(num_dense):
                dense[place, column] = flat_dense[row * num_dense + column]
            for column in range(num_sparse):
                sparse[place, column] = flat_sparse[row * num_sparse + column]
            invalid += np.uint32(labels[place]) > label_limit
            for column in range(num_dense):
                invalid += not np.isfinite(dense[place, column])
            for column in range(num_sparse):
                invalid += np.uint32(sparse[place, column]) >= limits[column]  # negative ids are huge, unsigned
    return invalid == 0


def find_split(root: Path, manifest: Manifest, name: str) -> SplitEntry:
    """Return the manifest's entry of a split."""
    if name not in manifest.splits:
        raise UserError(f"{root}: no split {name!r}; it has {', '.join(manifest.splits)}")
    if manifest.has_given_splits and not manifest.splits[name].rows:
        other = next(each for each in ("test", "val", "train") if manifest.splits[each].rows)
        raise UserError(
            f"{root}: made without data.{name}, so there are no rows of {name} to evaluate on; give eval.split={other} "
            f"for training, split={other} for python -m app.evaluate, or make it again with data.{name}=FILES"
        )
    if manifest.encoding.get("held_out") and not manifest.splits[name].rows:
        other = next(each for each in ("test", "val", "train") if manifest.splits[each].rows)
        method = f"data.split.method={manifest.encoding['split']}"
        raise UserError(
            f"{root}: {name} has no rows, as {method} left none of {manifest.rows} for it; give eval.split={other} for "
            f"training, split={other} for python -m app.evaluate, or make it again with more rows or a larger "
            "data.split.held_out"
        )
    return manifest.splits[name]


def require_window(manifest: Manifest, name: str) -> None:
    """Raise UserError if a dataset of events, whose splits are windows of time, has none of this name."""
    if name not in manifest.kind.windows:
        raise UserError(
            f"no split {name!r}: a dataset of events has train and val, the window that sequences.eval_window chooses"
        )


def require_unchanged(path: Path, stamp: tuple[int, int, int] | None) -> None:
    """Raise OwnError if a file's stamp differs from the one at its opening."""
    if file_stamp(path) != stamp:
        raise OwnError(
            f"{path}: changed while the run was reading it; put the dataset back as it was (data_prep "
            "writes the same bytes again), then the same command resumes"
        )


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and modification time, to detect changes; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def verify_splits(root: Path, manifest: Manifest, names: list[str], config: DataConfig) -> None:
    """Compare the files of some splits, and the bags that replace ids, with their digests."""
    policy = config.verify
    if manifest.kind.windows:
        for name in names:
            require_window(manifest, name)
        names = [*manifest.splits]
    shards = [(name, shard) for name in names for shard in find_split(root, manifest, name).shards]
    size = sum(file.bytes for _, shard in shards for file in shard.files.values())
    if _is_verified(root, policy, size):
        for name, shard in shards:
            verify_shard(root, name, shard)
    bags, rows = config.multi_hot.bags(), list(manifest.num_embeddings.values())
    if bags is not None and len(bags.sizes) == len(rows):  # BatchMaker refuses other numbers of sizes
        directory = bags_directory(root, config)
        if _is_verified(directory, policy, bags.table_bytes(rows)) and not verify_tables(directory, rows, bags):
            log.info("data: %s has no checksums of these bags yet", directory)


def bags_directory(root: Path, config: DataConfig) -> Path:
    """Return the directory of the bags that replace ids."""
    return Path(config.multi_hot.directory or root / TABLES_DIRECTORY)


def _is_verified(path: Path, policy: VerifyData, size: int) -> bool:
    """Return whether files of `size` bytes are to be compared with their digests; log it if not."""
    if policy is VerifyData.never or (policy is VerifyData.auto and size > VERIFY_AUTO_BYTES):
        log.info("data: %s not compared with its digests (data.verify=%s, %.1f GiB)", path, policy.value, size / 2**30)
        return False
    return True
