"""A dataset's split as batches, in an order that is a pure function of (seed, epoch, rows, global batch).

Blocks of consecutive rows are permuted, so that files are read in long pieces; rows are permuted within
windows of a few blocks, which are held in memory. Global batch k is rows [k * G, (k + 1) * G) of that order
whatever the number of processes, and process r takes the r-th equal part of it.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.batch import Batch, OneHot, Rows
from app.config import DataConfig, VerifyData
from common.errors import UserError
from data_prep.format import Manifest, ShardArrays, open_shard, verify_shard
from data_prep.format import Split as SplitEntry

log = logging.getLogger("clickwork")

VERIFY_AUTO_BYTES = 4 << 30


@dataclass
class Order:
    """The order of a split's rows in one epoch; without `shuffle` it is the order on disk."""

    rows: int
    block_rows: int
    window_blocks: int
    seed: int
    epoch: int
    shuffle: bool

    def windows(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield each window's number and its ranges of rows [start, stop) on disk."""
        num_blocks = -(-self.rows // self.block_rows)
        blocks = np.arange(num_blocks)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch, 0]).shuffle(blocks)
        for number, first in enumerate(range(0, num_blocks, self.window_blocks)):
            starts = blocks[first : first + self.window_blocks] * self.block_rows
            yield number, [(int(start), min(int(start) + self.block_rows, self.rows)) for start in starts]

    def permutation(self, window: int, size: int) -> NDArray[np.int64]:
        """The order of a window's rows, [size], counted over its ranges."""
        order = np.arange(size)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch, 1 + window]).shuffle(order)
        return order


class Split:
    """One split of a dataset, opened for one process."""

    def __init__(
        self, root: Path, manifest: Manifest, name: str, config: DataConfig, rank: int, world_size: int
    ) -> None:
        """Open the shards of split `name`.

        Raises:
            UserError: there is no such split, or a file is not what the manifest says.
        """
        split = find_split(root, manifest, name)
        self.root, self.name, self.rows = root, name, split.rows
        self.features = list(manifest.num_embeddings)
        self.dense_names = list(manifest.schema["dense"])
        self._config, self._rank, self._world_size = config, rank, world_size
        self._limits = np.array(list(manifest.num_embeddings.values()), dtype=np.int64)
        self._shards = [
            open_shard(root, name, shard, len(self.dense_names), len(self.features)) for shard in split.shards
        ]
        self._names = [shard.name for shard in split.shards]
        self._starts = np.cumsum([0] + [shard.rows for shard in split.shards])

    def num_batches(self, global_batch_size: int) -> int:
        """Whole global batches in an epoch; the rows left over are dropped (others in each epoch)."""
        return self.rows // global_batch_size

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """This process's parts of the epoch's global batches from number `first` on."""
        config = self._config
        order = Order(self.rows, config.shuffle_block_rows, config.shuffle_window_blocks, seed, epoch, config.shuffle)
        last = self.num_batches(global_batch_size)
        local = global_batch_size // self._world_size
        yield from self._assemble(order, global_batch_size, first, last, [local] * (last - first))

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Every row once, in the order on disk; the last batch is padded to the size of the others."""
        config = self._config
        order = Order(self.rows, config.shuffle_block_rows, config.shuffle_window_blocks, 0, 0, shuffle=False)
        num_batches = -(-self.rows // global_batch_size)
        local = global_batch_size // self._world_size
        starts = np.arange(num_batches) * global_batch_size + self._rank * local
        counts = np.clip(self.rows - starts, 0, local)
        yield from self._assemble(order, global_batch_size, 0, num_batches, [int(count) for count in counts])

    def _assemble(
        self, order: Order, global_batch_size: int, first: int, last: int, counts: list[int]
    ) -> Iterator[Batch]:
        """Cut the stream of this process's rows into batches of `counts` rows, padded to equal size."""
        one_hot = OneHot(self.features, global_batch_size // self._world_size)
        window = Rows(np.empty(0, np.float32), np.empty((0, len(self.dense_names)), np.float32),
                      np.empty((0, len(self.features)), np.int32))  # fmt: skip
        stream, used = self._windows(order, global_batch_size, first, last), 0
        for count in counts:
            parts = [window.part(used, used + count)]
            used += len(parts[0].labels)
            while (missing := count - sum(len(part.labels) for part in parts)) > 0:
                window = next(stream)
                used = min(missing, len(window.labels))
                parts.append(window.part(0, used))
            yield one_hot.batch(parts[0] if len(parts) == 1 else _joined(parts))

    def _windows(self, order: Order, global_batch_size: int, first: int, last: int) -> Iterator[Rows]:
        """This process's rows, window by window and in order; the next window is read while one is in use."""
        local = global_batch_size // self._world_size
        begin, end = first * global_batch_size, last * global_batch_size

        def load(start: int, number: int, ranges: list[tuple[int, int]]) -> Rows:
            permutation = order.permutation(number, sum(high - low for low, high in ranges))
            places = np.arange(start, start + len(permutation))
            mine = (places % global_batch_size // local == self._rank) & (places >= begin) & (places < end)
            return self._read(ranges, permutation[mine])

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read") as pool:
            position, pending = 0, None
            for number, ranges in order.windows():
                start, position = position, position + sum(high - low for low, high in ranges)
                if position <= begin or start >= end:
                    continue
                previous, pending = pending, pool.submit(load, start, number, ranges)
                if previous is not None:
                    yield previous.result()
            if pending is not None:
                yield pending.result()

    def _read(self, ranges: list[tuple[int, int]], order: NDArray[np.int64]) -> Rows:
        """Read ranges of rows, then pick those numbered `order`; ids are checked against their tables.

        Raises:
            UserError: a value is not one that data_prep writes.
        """
        pieces = [piece for start, stop in ranges for piece in self._pieces(start, stop)]
        labels, dense, sparse = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        # All processes check all rows, so that all meet the same error.
        self._check(labels.view(np.uint32) <= 1, ["label"], "is not 0 or 1", ranges)
        self._check(np.isfinite(dense), self.dense_names, "is not a finite number", ranges)
        if (sparse.view(np.uint32).max(axis=0, initial=0) >= self._limits).any():  # a negative id is a huge one
            sizes = [f"{name}, a table of {rows} rows" for name, rows in zip(self.features, self._limits, strict=True)]
            self._check(sparse.view(np.uint32) < self._limits, sizes, "the id is not in it", ranges)
        labels, dense, sparse = (np.take(array, order, axis=0) for array in (labels, dense, sparse))
        return Rows(labels[:, 0].astype(np.float32), dense, sparse)

    def _check(self, good: NDArray[np.bool_], names: list[str], fault: str, ranges: list[tuple[int, int]]) -> None:
        """Name the first row and column where `good` [rows, columns] is false."""
        if good.all():
            return
        place, column = divmod(int(good.argmin()), good.shape[1])
        row = np.concatenate([np.arange(*rows) for rows in ranges])[place]
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        raise UserError(
            f"{self.root / self.name}: shard {self._names[shard]}, row {row - self._starts[shard]}, {names[column]}: "
            f"{fault}; preprocess again"
        )

    def _pieces(self, start: int, stop: int) -> Iterator[ShardArrays]:
        """Rows [start, stop) of the split, as views of the shards that hold them."""
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[index + 1]))
            rows = slice(start - int(self._starts[index]), end - int(self._starts[index]))
            shard = self._shards[index]
            yield ShardArrays(shard.labels[rows], shard.dense[rows], shard.sparse[rows])
            start, index = end, index + 1


def find_split(root: Path, manifest: Manifest, name: str) -> SplitEntry:
    """The manifest's entry of a split.

    Raises:
        UserError: there is none.
    """
    if name not in manifest.splits:
        raise UserError(f"{root}: no split {name!r}; it has {', '.join(manifest.splits)}")
    return manifest.splits[name]


def verify_splits(root: Path, manifest: Manifest, names: list[str], when: VerifyData) -> None:
    """Compare the files of some splits with the manifest's sums.

    Raises:
        UserError: names the first file that differs.
    """
    shards = [(name, shard) for name in names for shard in find_split(root, manifest, name).shards]
    size = sum(file.bytes for _, shard in shards for file in shard.files.values())
    if when is VerifyData.never or (when is VerifyData.auto and size > VERIFY_AUTO_BYTES):
        log.info("data: %s not compared with its sums (data.verify=%s, %.1f GiB)", root, when.value, size / 2**30)
        return
    for name, shard in shards:
        verify_shard(root, name, shard)


def _joined(parts: list[Rows]) -> Rows:
    labels, dense, sparse = zip(*parts, strict=True)
    return Rows(np.concatenate(labels), np.concatenate(dense), np.concatenate(sparse))
