"""A dataset's split as batches, in an order that is a pure function of (seed, epoch, rows, global batch).

Blocks of consecutive rows are permuted, so that files are read in long pieces; rows are permuted within
windows of a few blocks, which are in memory. Global batch k is rows [k * G, (k + 1) * G) of that order
whatever the number of processes, and process r takes the r-th equal part of it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.config import DataConfig
from app.config.data import multi_hot_bags
from app.data.batch import Batch, BatchBuilder, RowArrays, join_rows
from app.data.shards import SplitShards
from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, MultiHotTables


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


class SplitReader:
    """One split of a dataset, opened for one process."""

    def __init__(
        self, root: Path, manifest: Manifest, name: str, config: DataConfig, rank: int, world_size: int
    ) -> None:
        """Open the shards of split `name`.

        Raises:
            UserError: there is no such split, or a file differs from the manifest.
        """
        self._shards = SplitShards(root, manifest, name)
        self.rows = self._shards.rows
        self.features = list(manifest.num_embeddings)
        self.dense_names = list(manifest.schema["dense"])
        self._config, self._rank, self._world_size = config, rank, world_size
        self._maker = BatchMaker(root, manifest, config)

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
        batches = self._maker.of_size(global_batch_size // self._world_size)
        window = self._shards.read([], np.empty(0, np.int64))
        stream, used = self._windows(order, global_batch_size, first, last), 0
        for count in counts:
            parts = [window.part(used, used + count)]
            used += len(parts[0].labels)
            while (missing := count - sum(len(part.labels) for part in parts)) > 0:
                window = next(stream)
                used = min(missing, len(window.labels))
                parts.append(window.part(0, used))
            yield batches.batch(join_rows(parts))

    def _windows(self, order: Order, global_batch_size: int, first: int, last: int) -> Iterator[RowArrays]:
        """This process's rows, window by window and in order; the next window is read while one is in use."""
        local = global_batch_size // self._world_size
        begin, end = first * global_batch_size, last * global_batch_size

        def load(start: int, number: int, ranges: list[tuple[int, int]]) -> RowArrays:
            permutation = order.permutation(number, sum(high - low for low, high in ranges))
            indices = np.arange(start, start + len(permutation))
            mine = (indices % global_batch_size // local == self._rank) & (indices >= begin) & (indices < end)
            return self._shards.read(ranges, permutation[mine])

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


class BatchMaker:
    """Makes batches of a dataset's rows: one id a bag, bags of the rows' own, or bags that ids are expanded to."""

    def __init__(self, root: Path, manifest: Manifest, config: DataConfig) -> None:
        """Raises UserError if the configuration asks for bags that these rows cannot have."""
        self._features, self._ragged = list(manifest.num_embeddings), manifest.ragged
        self._tables: MultiHotTables | None = None
        bags = multi_hot_bags(config)
        if bags is not None:
            if manifest.ragged:
                raise UserError(f"data.multi_hot.sizes: {root} has multi-hot columns of its own; leave it out")
            directory = Path(config.multi_hot.directory or root / TABLES_DIRECTORY)
            rows, key = list(manifest.num_embeddings.values()), "data.multi_hot.directory"
            self._tables = MultiHotTables.open(directory, rows, bags, key)

    def of_size(self, local_batch_size: int) -> BatchBuilder:
        """For batches of this size, padded at the end."""
        return BatchBuilder(self._features, local_batch_size, self._ragged, self._tables)
