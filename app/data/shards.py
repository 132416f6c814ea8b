"""Reading ranges of a split's rows from its shards, with checks."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.config import VerifyData
from app.data.batch import RowArrays
from common.errors import UserError
from data_prep.dataset.bags import Bags, join
from data_prep.dataset.format import Manifest, ShardArrays, open_shard, shard_path, verify_shard
from data_prep.dataset.format import Split as SplitEntry

log = logging.getLogger("clickwork")

VERIFY_AUTO_BYTES = 4 << 30
OPEN_SHARDS = 64  # a dataset may have more of them than a process may have open files
NO_BAGS = Bags(np.empty(0, np.int32), np.zeros(1, np.int64))


class SplitShards:
    """The shards of one split."""

    def __init__(self, root: Path, manifest: Manifest, name: str) -> None:
        """Open each shard once, so that a missing file is reported now, not during an epoch.

        Raises:
            UserError: there is no such split, or a file differs from the manifest.
        """
        split = find_split(root, manifest, name)
        self.rows = split.rows
        self._root, self._name, self._shards, self._manifest = root, name, split.shards, manifest
        self._features, self._ragged = manifest.num_embeddings, manifest.ragged
        self._one_hot = [feature for feature in self._features if feature not in self._ragged]
        self._dense = list(manifest.schema["dense"])
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
        """Read ranges of rows, then pick those numbered `order`; ids are checked against their tables.

        Raises:
            UserError: a value is not one that data_prep writes, or a file was changed since it was opened.
        """
        self._require_unchanged(ranges)  # to read beyond the end of a file cut short would kill the process
        rows = sum(stop - start for start, stop in ranges)
        labels = np.empty((rows, 1), np.int32)
        dense, sparse = np.empty((rows, len(self._dense)), np.float32), np.empty((rows, len(self._one_hot)), np.int32)
        pieces: list[tuple[Bags, ...]] = []
        done = 0
        for piece in (piece for start, stop in ranges for piece in self._pieces(start, stop)):
            part = slice(done, done := done + len(piece.labels))
            labels[part], dense[part], sparse[part] = piece.labels, piece.dense, piece.sparse
            pieces.append(piece.bags)
        self._require_unchanged(ranges)
        # All processes check all rows, so that all raise the same error.
        self._check(labels.view(np.uint32) <= 1, ["label"], "is not 0 or 1", ranges)
        self._check(np.isfinite(dense), self._dense, "is not a finite number", ranges)
        if (sparse.view(np.uint32).max(axis=0, initial=0) >= self._limits).any():  # a negative id is a huge one
            names = [self._table_of(feature) for feature in self._one_hot]
            self._check(sparse.view(np.uint32) < self._limits, names, "the id is not in it", ranges)
        by_feature = zip(*(pieces or [(NO_BAGS,) * len(self._ragged)]), strict=True)
        bags = [self._checked(feature, join(parts), ranges).take(order)
                for feature, parts in zip(self._ragged, by_feature, strict=True)]  # fmt: skip
        dense, sparse = np.take(dense, order, axis=0), np.take(sparse, order, axis=0)
        return RowArrays(np.take(labels[:, 0], order).astype(np.float32), dense, sparse, tuple(bags))

    def _require_unchanged(self, ranges: list[tuple[int, int]]) -> None:
        for start, stop in ranges:
            first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
            for path, stamp in [item for stamps in self._stamps[first : last + 1] for item in stamps.items()]:
                require_unchanged(path, stamp)

    def _checked(self, feature: str, bags: Bags, ranges: list[tuple[int, int]]) -> Bags:
        """The bags of one feature's rows, after checking that their ids are in its table."""
        limit = self._features[feature]
        if bags.ids.view(np.uint32).max(initial=0) >= limit:
            index = np.flatnonzero(bags.ids.view(np.uint32) >= limit)[0] + bags.offsets[0]
            good = np.arange(1, len(bags.offsets)) != np.searchsorted(bags.offsets, index, side="right")
            self._check(good[:, None], [self._table_of(feature)], "an id of its bag is not in it", ranges)
        return bags

    def _table_of(self, feature: str) -> str:
        return f"{feature}, a table of {self._features[feature]} rows"

    def _check(self, good: NDArray[np.bool_], names: list[str], fault: str, ranges: list[tuple[int, int]]) -> None:
        """Name the first row and column where `good` [rows, columns] is false."""
        if good.all():
            return
        index, column = divmod(int(good.argmin()), good.shape[1])
        row = np.concatenate([np.arange(*rows) for rows in ranges])[index]
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        where = f"shard {self._shards[shard].name}, row {row - self._starts[shard]}, {names[column]}"
        raise UserError(f"{self._root / self._name}: {where}: {fault}; preprocess again")

    def _pieces(self, start: int, stop: int) -> Iterator[ShardArrays]:
        """Rows [start, stop) of the split, as views of the shards that hold them."""
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[index + 1]))
            rows = slice(start - int(self._starts[index]), end - int(self._starts[index]))
            shard = self._open(index)
            bags = tuple(self._copied(index, rows, *item) for item in zip(self._ragged, shard.bags, strict=True))
            yield ShardArrays(shard.labels[rows], shard.dense[rows], shard.sparse[rows], bags)
            start, index = end, index + 1

    def _copied(self, index: int, rows: slice, feature: str, bags: Bags) -> Bags:
        """Some rows' bags of one feature in memory.

        Raises:
            UserError: their offsets are not in order.
        """
        part = Bags(bags.values, np.array(bags.offsets[rows.start : rows.stop + 1]))
        good = (part.lengths >= 0) & (part.offsets[:-1] >= 0) & (part.offsets[1:] <= len(part.values))
        if not good.all():
            first = int(self._starts[index])
            where = [(first + rows.start, first + rows.stop)]
            self._check(good[:, None], [feature], "its bag's offsets are not in order", where)
        return Bags(np.array(part.ids), part.offsets - part.offsets[0])

    def _open_shard(self, index: int) -> ShardArrays:
        return open_shard(self._root, self._name, self._shards[index], self._manifest)


def find_split(root: Path, manifest: Manifest, name: str) -> SplitEntry:
    """The manifest's entry of a split.

    Raises:
        UserError: there is none.
    """
    if manifest.is_events:
        raise UserError(f"{root}: holds events, not rows, which this model does not learn from (docs/sequences.md)")
    if name not in manifest.splits:
        raise UserError(f"{root}: no split {name!r}; it has {', '.join(manifest.splits)}")
    return manifest.splits[name]


def require_unchanged(path: Path, stamp: tuple[int, int, int] | None) -> None:
    """Raises UserError for a file that has another stamp than when it was opened."""
    if file_stamp(path) != stamp:
        raise UserError(
            f"{path}: changed while the run was reading it; put the dataset back as it was (data_prep "
            "writes the same bytes again), then the same command resumes"
        )


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and modification time, to detect changes; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def verify_splits(root: Path, manifest: Manifest, names: list[str], when: VerifyData) -> None:
    """Compare the files of some splits with the manifest's digests.

    Raises:
        UserError: names the first file that differs.
    """
    shards = [(name, shard) for name in names for shard in find_split(root, manifest, name).shards]
    size = sum(file.bytes for _, shard in shards for file in shard.files.values())
    if when is VerifyData.never or (when is VerifyData.auto and size > VERIFY_AUTO_BYTES):
        log.info("data: %s not compared with its digests (data.verify=%s, %.1f GiB)", root, when.value, size / 2**30)
        return
    for name, shard in shards:
        verify_shard(root, name, shard)
