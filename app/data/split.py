"""A dataset's split as batches, in an order that is a pure function of (seed, epoch, rows, global batch).

Blocks of consecutive rows are permuted, so that files are read in long pieces; rows are permuted within windows of a
few blocks. Global batch k is rows [k * G, (k + 1) * G) of that order, whatever the number of processes; process r takes
the r-th equal part of it, and reads no other rows. The rows left over at the end of an epoch are dropped, or
(train.drop_last=false) they form its last batch: process r takes the r-th part of them, with all parts as long as the
first, rounded up.

With several lanes, the order of blocks is cut into that many equal parts, each with its own windows, and each lane
gives its equal part of every global batch. A process then permutes the windows of its own lanes only.
"""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from app.config import DataConfig, TrainConfig
from app.config.train import part_size
from app.data.batch import Batch, BatchBuilder, RowArrays, join_rows
from app.data.negatives import DrawnNegatives
from app.data.shards import TRAIN, SplitShards, bags_directory
from app.runtime.background import background_thread
from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.multi_hot import MultiHotTables


class EvaluatedSplit(Protocol):
    """Rows that are evaluated, as one process reads them.

    Attributes:
        rows: samples of all processes together.
    """

    @property
    def rows(self) -> int: ...

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield every sample once; the last batch is padded to the size of the others."""


class Split(EvaluatedSplit, Protocol):
    """A split of a dataset as one process reads it.

    Attributes:
        dense_names: names of the dense features.
    """

    dense_names: list[str]

    def num_batches(self, global_batch_size: int) -> int:
        """Return the number of global batches in an epoch."""

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's parts of the epoch's global batches from number `first` on."""


class Splits(Protocol):
    """A dataset's splits."""

    def split(self, name: str, rank: int, world_size: int) -> Split:
        """Return a split as process `rank` of `world_size` reads it. Raises UserError if there is none of that name."""


class Window(NamedTuple):
    """Consecutive rows of a lane: the number of the first row, the rows' ranges [start, stop) on disk, and a seed."""

    first: int
    ranges: list[tuple[int, int]]
    seed: int

    @property
    def size(self) -> int:
        """Number of rows."""
        return sum(stop - start for start, stop in self.ranges)


class Part(NamedTuple):
    """A process's part of a global batch: its rows, its size with padding, and its number of rows that are not padding.

    A part without rows of its own is padded with the batch's last row.
    """

    rows: range
    size: int
    valid: int


@dataclass
class Order:
    """The order of a split's rows in one epoch; without `shuffle`, the order on disk."""

    rows: int
    block_rows: int
    window_blocks: int
    lanes: int
    seed: int
    epoch: int
    shuffle: bool

    def windows(self, lane: int, batch_rows: range, num_batches: int) -> Iterator[Window]:
        """Yield the windows of the lane that gives these rows of each global batch."""
        starts = np.arange(0, self.rows, self.block_rows)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch, 0]).shuffle(starts)
        stops = np.minimum(starts + self.block_rows, self.rows)
        ends = np.cumsum(stops - starts)  # end of each block, in this order
        low, high = batch_rows.start * num_batches, batch_rows.stop * num_batches
        if lane == self.lanes - 1:
            high = self.rows  # the last lane has the rows left over
        first_block, last_block = np.searchsorted(ends, [low, high - 1], side="right")
        first = low
        for number, block in enumerate(range(first_block, last_block + 1, self.window_blocks)):
            ranges = []
            for index in range(block, min(block + self.window_blocks, last_block + 1)):
                begin = ends[index] - (stops[index] - starts[index])
                skipped, beyond = max(low - begin, 0), max(ends[index] - high, 0)
                ranges.append((int(starts[index] + skipped), int(stops[index] - beyond)))
            window = Window(int(first - low), ranges, 1 + number * self.lanes + lane)
            yield window
            first += window.size

    def permutation(self, window: Window) -> NDArray[np.int64]:
        """Return the order of a window's rows, counted over its ranges."""
        order = np.arange(window.size)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch, window.seed]).shuffle(order)
        return order


class SplitReader:
    """One split of a dataset, opened for one process."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        name: str,
        config: DataConfig,
        rank: int,
        world_size: int,
        drop_last: bool = True,
        micro_batch: int | None = None,
    ) -> None:
        """Open the shards of split `name`.

        drop_last: as train.drop_last. micro_batch: rows of a micro-batch, where each process takes whole ones; None:
            each process takes an equal part of the rows.
        """
        self._shards = SplitShards(root, manifest, name)
        self._negatives = None
        if name == TRAIN and config.negatives.per_positive is not None:
            self._negatives = DrawnNegatives(self._shards, manifest, config.negatives)
        self.rows = (self._negatives or self._shards).rows
        self.features = list(manifest.num_embeddings)
        self.dense_names = list(manifest.schema["dense"])
        self._config, self._rank, self._world_size, self._drop_last = config, rank, world_size, drop_last
        self._micro_batch = micro_batch
        self._maker = BatchMaker(root, manifest, config)

    def num_batches(self, global_batch_size: int) -> int:
        """Return the number of global batches in an epoch, including one of left-over rows unless it is dropped."""
        return self.rows // global_batch_size if self._drop_last else -(-self.rows // global_batch_size)

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's parts of the epoch's global batches from number `first` on."""
        order = self._order(self._config.shuffle_lanes, seed, epoch, self._config.shuffle)
        whole = self.rows // global_batch_size
        valid = self._part(global_batch_size).valid
        for batch in self._batches(global_batch_size, range(first, whole), order):
            yield replace(batch, num_valid=valid, num_global=global_batch_size)
        if max(first, whole) < self.num_batches(global_batch_size):
            yield self._last_batch(global_batch_size, order)

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield every row once, in the order on disk; the last batch is padded to the size of the others."""
        return self._batches(
            global_batch_size, range(-(-self.rows // global_batch_size)), self._order(1, 0, 0, shuffle=False)
        )

    def _last_batch(self, global_batch_size: int, order: Order) -> Batch:
        """Return this process's part of the rows that fill no whole batch; they come last in the last lane.

        Parts are equally long, as sharded tables require. Copies of the batch's last row fill a part that is too short.
        They touch only table rows that the batch touches anyway, and have no share in the loss.
        """
        whole, remainder = divmod(self.rows, global_batch_size)
        local, valid, lane = *self._part(remainder)[1:], order.lanes - 1
        share = range(lane * global_batch_size // order.lanes, global_batch_size)
        begin = self._rank * local
        local_rows = np.minimum(np.arange(begin, begin + local), remainder - 1) + whole * len(share)
        parts = []
        for window in order.windows(lane, share, whole):
            rows = local_rows[(local_rows >= window.first) & (local_rows < window.first + window.size)] - window.first
            if len(rows):
                parts.append(self._load(order, window, rows))
        batch = self._maker.of_size(local).batch(join_rows(parts))
        return replace(batch, num_valid=valid, share=valid * self._world_size / remainder, num_global=remainder)

    def _part(self, rows: int) -> "Part":
        """Return this process's part of a global batch of this number of rows."""
        local = part_size(rows, self._world_size, self._micro_batch)
        begin = self._rank * local
        return Part(range(min(begin, rows - 1), min(begin + local, rows)), local, min(max(rows - begin, 0), local))

    def _order(self, lanes: int, seed: int, epoch: int, shuffle: bool) -> Order:
        config = self._config
        return Order(self.rows, config.shuffle_block_rows, config.shuffle_window_blocks, lanes, seed, epoch, shuffle)

    def _batches(self, global_batch_size: int, batches: range, order: Order) -> Iterator[Batch]:
        """Yield this process's parts of these global batches, padded to equal size."""
        local_rows, local, _ = self._part(global_batch_size)
        builder = self._maker.of_size(local)
        copies = np.minimum(np.arange(local), len(local_rows) - 1)  # repeats the last row if there are too few
        cuts = [lane * global_batch_size // order.lanes for lane in range(order.lanes + 1)]
        with background_thread("read") as pool:
            parts = []
            for lane, share in enumerate(map(range, cuts, cuts[1:])):
                if local_share := range(max(share.start, local_rows.start), min(share.stop, local_rows.stop)):
                    windows = order.windows(lane, share, self.rows // global_batch_size)
                    rows = self._read(pool, order, windows, share, local_share, batches)
                    parts.append(self._cut(rows, len(local_share), len(batches)))
            for part in zip(*parts, strict=True):
                rows_of_batch = join_rows(list(chain.from_iterable(part)))
                yield builder.batch(rows_of_batch.take(copies) if len(local_rows) < local else rows_of_batch)

    def _read(
        self, pool: Executor, order: Order, windows: Iterator[Window], share: range, part: range, batches: range
    ) -> Iterator[RowArrays]:
        """Yield this process's rows of a lane, window by window and in order; the next is read while one is in use.

        share, part: the rows of a global batch that the lane gives, and the rows among them that this process takes.
        """
        previous = None
        for window in windows:
            end, size = window.first + window.size, len(share)
            numbers = np.arange(max(batches.start, window.first // size), min(batches.stop, -(-end // size)))
            rows = (numbers[:, None] * size + np.arange(part.start, part.stop) - share.start).reshape(-1) - window.first
            rows = rows[(rows >= 0) & (rows < window.size)]
            if len(rows):
                pending = pool.submit(self._load, order, window, rows)
                if previous is not None:
                    yield previous.result()
                previous = pending
        if previous is not None:
            yield previous.result()

    def _load(self, order: Order, window: Window, rows: NDArray[np.int64]) -> RowArrays:
        """Return these rows of a window by their places in its order, negatives as drawn for this seed and epoch."""
        places = order.permutation(window)[rows]
        if self._negatives is not None:
            return self._negatives.read(window.ranges, places, order.seed, order.epoch)
        return self._shards.read(window.ranges, places)

    def _cut(self, windows: Iterator[RowArrays], size: int, count: int) -> Iterator[list[RowArrays]]:
        """Cut rows into `count` pieces of `size` rows, fewer at the end."""
        rows, offset = self._shards.read([], np.empty(0, np.int64)), 0
        for _ in range(count):
            parts = [rows.part(offset, offset + size)]
            offset += len(parts[0].labels)
            while (missing := size - sum(len(part.labels) for part in parts)) and (following := next(windows, None)):
                rows, offset = following, min(missing, len(following.labels))
                parts.append(rows.part(0, offset))
            yield parts


class BatchMaker:
    """Makes batches of a dataset's rows: with one id per bag, with bags in the rows, or with bags that replace ids."""

    def __init__(self, root: Path, manifest: Manifest, config: DataConfig) -> None:
        """Raise UserError if the configuration asks for bags that these rows cannot have."""
        self._features, self._ragged = list(manifest.num_embeddings), manifest.ragged
        self._tables: MultiHotTables | None = None
        bags = config.multi_hot.bags()
        if bags is not None:
            if manifest.ragged:
                raise UserError(f"data.multi_hot.sizes: {root} has multi-hot columns of its own; leave it out")
            directory = bags_directory(root, config)
            rows, key = list(manifest.num_embeddings.values()), "data.multi_hot.directory"
            self._tables = MultiHotTables.open(directory, rows, bags, key)

    def of_size(self, local_batch_size: int) -> BatchBuilder:
        """Return a builder of batches of this size, padded at the end."""
        return BatchBuilder(self._features, local_batch_size, self._ragged, self._tables)


class RowSplits:
    """A dataset of rows as a run reads it."""

    def __init__(self, root: Path, manifest: Manifest, data: DataConfig, train: TrainConfig) -> None:
        """Keep the settings; nothing is opened yet."""
        self._open = partial(
            SplitReader,
            root,
            manifest,
            config=data,
            drop_last=train.drop_last,
            micro_batch=train.micro_batch,
        )

    def split(self, name: str, rank: int, world_size: int) -> SplitReader:
        """Return a split as process `rank` of `world_size` reads it. Raises UserError as `SplitReader` does."""
        return self._open(name, rank=rank, world_size=world_size)
