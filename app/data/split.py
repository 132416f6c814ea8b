"""A dataset's split as batches, in an order that is a pure function of (seed, epoch, rows, global batch).

Each row is followed by `per_positive` copies of itself with label 0 and another item, which the user has in no row of
train. A draw is a function of the seed, the epoch and the row's number alone, so it does not depend on processes, on
batches or on where a run was resumed. Every row of the item's table can be drawn, even one whose value the split lacks.

Blocks of consecutive rows are permuted, so that files are read in long pieces; rows are permuted within windows of a
few blocks. Global batch k is rows [k * G, (k + 1) * G) of that order, whatever the number of processes; process r takes
the r-th equal part of it, and reads no other rows. The rows left over at the end of an epoch are dropped, or
(train.drop_last=false) they form its last batch: process r takes the r-th part of them, with all parts as long as the
first, rounded up.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.config.data import DataConfig, NegativesConfig, VerifyData, part_size
from app.data.batch import Batch, BatchBuilder, RowArrays, background_thread, join_rows
from common.command import log
from common.errors import OwnError, UserError
from common.jit import Int, jit, prefetch
from data_prep.codec.values import Bags, join
from data_prep.dataset.format import INCREMENT, Manifest, ShardArrays, open_shard, shard_path, splitmix64, verify_shard
from data_prep.dataset.format import Split as SplitEntry
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, MultiHotTables, verify_tables
from data_prep.dataset.options import LabelKind

TRAIN = "train"
VERIFY_AUTO_BYTES = 4 << 30  # with data.verify=auto, larger files are not compared with their digests
OPEN_SHARDS = 64  # open at once; a dataset may have more shards than a process may have open files
LINE_VALUES, PREFETCHED_ROWS = 16, 12  # 4-byte values in a cache line; rows to prefetch ahead
ANY = (1 << 32) - 1  # the largest bits of a label, where labels are numbers


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
        self._tables = {feature: f"{feature}, a table of {rows} rows" for feature, rows in self._features.items()}
        self._starts = np.cumsum([0] + [shard.rows for shard in split.shards])
        # Stamps are cheap enough for every read. Checksums are compared only once, at the start.
        self._stamps = [
            {path: file_stamp(path) for path in (shard_path(root, name, shard.name, kind) for kind in shard.files)}
            for shard in split.shards
        ]
        self._open = lru_cache(OPEN_SHARDS)(lambda index: open_shard(root, name, split.shards[index], manifest))
        for index in range(len(split.shards)):
            self._open(index)

    def read(self, ranges: list[tuple[int, int]], order: NDArray[np.int64]) -> RowArrays:
        """Return the rows with the numbers `order` [n], counted over the joined `ranges` [start, stop); read no others.

        Raises OwnError for a value that is not valid, or a file that has changed.
        """
        # Reading beyond the end of a file that was cut short would kill the process.
        self._require_unchanged(ranges)
        count = len(order)
        # Labels are copied as bits, so that one kernel serves clicks and numbers.
        bits, dense = np.empty(count, np.int32), np.empty((count, len(self._dense)), np.float32)
        sparse = np.empty((count, len(self._one_hot)), np.int32)
        weights = np.empty(count, np.float32) if self._weight else None
        # A read of no rows has no pieces, so each list begins with empty bags.
        no_bags = Bags(np.empty(0, np.int32), np.zeros(1, np.int64))
        bags = [[no_bags] for _ in self._ragged]
        places, first, valid = [np.empty(0, np.int64)], 0, True
        # gather_rows only reports whether any value is bad. The checks that find the value run only then.
        for piece in (piece for start, stop in ranges for piece in self._pieces(start, stop)):
            labels_in_and_out = piece.labels.view(np.int32), self._label_limit, bits
            valid &= gather_rows(
                *labels_in_and_out, piece.dense, piece.sparse, first, order, self._limits, dense, sparse
            )
            if self._ragged or weights is not None:
                places.append(np.flatnonzero((order >= first) & (order < first + len(piece.labels))))
                ordered = order[places[-1]]
                for feature, parts, bags_of_piece in zip(self._ragged, bags, piece.bags, strict=False):
                    starts, stops = (bags_of_piece.offsets[ordered - first + end] for end in (0, 1))
                    # A wrong offset would read the ids of another bag, or memory beyond the file.
                    good = (starts >= 0) & (starts <= stops) & (stops <= len(bags_of_piece.values))
                    self._check(good[:, None], [feature], "its bag's offsets are not in order", ranges, ordered)
                    parts.append(bags_of_piece.take(ordered - first))
            if weights is not None and piece.weights is not None:
                weights[places[-1]] = piece.weights[order[places[-1]] - first, 0]
            first += len(piece.labels)
        # The files may have changed while they were read, so the stamps are compared once more.
        self._require_unchanged(ranges)
        labels: NDArray[Any] = bits.view(self._manifest.label_kind.dtype)
        if self._label_limit == ANY:
            self._check(np.isfinite(labels)[:, None], ["label"], "is not a finite number", ranges, order)
        if weights is not None:
            good = np.isfinite(weights) & (weights >= 0)
            self._check(good[:, None], [self._weight], "is not a weight, finite and at least 0", ranges, order)
        if not valid:
            names = [self._tables[feature] for feature in self._one_hot]
            self._check(bits.view(np.uint32)[:, None] <= self._label_limit, ["label"], "is not 0 or 1", ranges, order)
            self._check(np.isfinite(dense), self._dense, "is not a finite number", ranges, order)
            self._check(sparse.view(np.uint32) < self._limits, names, "the id is not in it", ranges, order)
        # Bags were collected piece by piece, so they return to the places of `order`.
        to_order = np.argsort(np.concatenate(places)) if self._ragged else order
        joined = [join(parts).take(to_order) for parts in bags]
        for feature, feature_bags in zip(self._ragged, joined, strict=True):
            is_outside = feature_bags.ids.view(np.uint32) >= self._features[feature]
            if is_outside.any():
                bad_bags = np.searchsorted(feature_bags.offsets, np.flatnonzero(is_outside), side="right") - 1
                good = ~np.isin(np.arange(len(order)), bad_bags)
                self._check(good[:, None], [self._tables[feature]], "an id of its bag is not in it", ranges, order)
        return RowArrays(labels.astype(np.float32, copy=False), dense, sparse, tuple(joined), weights)

    def _require_unchanged(self, ranges: list[tuple[int, int]]) -> None:
        """Raise OwnError if a file with rows of these ranges changed since it was opened."""
        for start, stop in ranges:
            first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
            for path, stamp in [item for stamps in self._stamps[first : last + 1] for item in stamps.items()]:
                require_unchanged(path, stamp)

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
    """Copy the rows of `order` [n] that are in a piece to their places in labels [n], dense and sparse [n, columns].

    first: number of the piece's first row, as `order` counts.
    Return whether the labels (or their bits, where labels are numbers) are at most `label_limit`, the dense features
    finite and the ids below `limits`.
    """
    rows, num_dense, num_sparse = len(piece_labels), dense.shape[1], sparse.shape[1]
    flat_labels, flat_dense, flat_sparse = piece_labels.reshape(-1), piece_dense.reshape(-1), piece_sparse.reshape(-1)
    invalid: Int = 0
    for place in range(len(order)):
        # Shuffled rows miss the processor's cache, and prefetching hides the wait for memory.
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
    """Return a split's entry. Raises UserError without one, or if given files or a held-out share left it no rows."""
    if name not in manifest.splits:
        raise UserError(f"{root}: no split {name!r}; it has {', '.join(manifest.splits)}")
    held_out = manifest.encoding.get("held_out")
    if not manifest.splits[name].rows and (manifest.has_given_splits or held_out):
        other = next(split for split in ("test", "val", "train") if manifest.splits[split].rows)
        reason = f"made without data.{name}, so there are no rows of {name} to evaluate on"
        more = f"data.{name}=FILES"
        if not manifest.has_given_splits:
            method = f"data.split.method={manifest.encoding['split']}"
            reason = f"{name} has no rows, as {method} left none of {manifest.rows} for it"
            more = "more rows or a larger data.split.held_out"
        raise UserError(
            f"{root}: {reason}; give eval.split={other} for training, split={other} for python -m app.evaluate, or "
            f"make it again with {more}"
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
    if _must_verify(root, policy, size):
        for name, shard in shards:
            verify_shard(root, name, shard)
    rows = list(manifest.num_embeddings.values())
    if (bags := config.multi_hot.bags(len(rows))) is not None:
        directory = bags_directory(root, config)
        if _must_verify(directory, policy, bags.table_bytes(rows)):
            verify_tables(directory, rows, bags)


def bags_directory(root: Path, config: DataConfig) -> Path:
    """Return the directory of the bags that replace ids."""
    return Path(config.multi_hot.directory or root / TABLES_DIRECTORY)


def _must_verify(path: Path, policy: VerifyData, size: int) -> bool:
    """Return whether files of `size` bytes are to be compared with their digests; log it if not."""
    if policy == "never" or (policy == "auto" and size > VERIFY_AUTO_BYTES):
        log.info("data: %s not compared with its digests (data.verify=%s, %.1f GiB)", path, policy, size / 2**30)
        return False
    return True


READ_ROWS = 1 << 18  # rows read in one piece while users' items are collected
# Third word of the key of drawn negatives, which a hash takes. The streams of `Order`, of another generator, have 0 for
# blocks, and 1 and more for windows.
DRAWS = 3


class DrawnNegatives:
    """The rows of a split with their negatives; the numbers of row r begin at r * (1 + per_positive)."""

    def __init__(self, shards: SplitShards, manifest: Manifest, config: NegativesConfig) -> None:
        """Collect users' items, in 8 bytes per positive. Raises UserError for a label 0, or a user with all items."""
        assert config.user is not None  # validate_data requires it beside per_positive
        assert config.item is not None
        one_hot = [name for name in manifest.num_embeddings if name not in manifest.ragged]
        self._shards, self._user, self._item = shards, one_hot.index(config.user), one_hot.index(config.item)
        self._per_row, self.rows = config.rows_per_positive, shards.rows * config.rows_per_positive
        num_users, self._num_items = (manifest.num_embeddings[name] for name in (config.user, config.item))
        # A pair is one number, so that a single sort gives each user's items in order.
        pairs = np.unique(np.concatenate([np.empty(0, np.int64), *self._read_pairs()]))  # user * items + item
        users, items = pairs // self._num_items, pairs % self._num_items
        self._counts = np.bincount(users, minlength=num_users)
        self._starts = np.cumsum(self._counts) - self._counts
        # With these keys `_draw` counts a user's items below a place by one binary search.
        below = items - (np.arange(len(pairs)) - self._starts[users])  # how many lower items the user does not have
        self._keys = users * (self._num_items + 1) + below
        if (full := np.flatnonzero(self._counts == self._num_items)).size:
            raise UserError(
                f"data.negatives.item={config.item}: the user with id {full[0]} of {config.user} has all "
                f"{self._num_items} rows of its table, so there is no negative to draw; give "
                "data.negatives.per_positive=null data.negatives.user=null data.negatives.item=null"
            )
        copied_columns = [
            name for name in (*manifest.schema["dense"], *manifest.num_embeddings) if name not in vars(config).values()
        ]
        if copied_columns:
            log.warning("data.negatives: drawn rows have their positive's values of %s", ", ".join(copied_columns))

    def _read_pairs(self) -> list[NDArray[np.int64]]:
        """Return user * items + item of all rows, in blocks. Raise UserError for a row with label 0."""
        pairs = []
        for start in range(0, self._shards.rows, READ_ROWS):
            stop = min(start + READ_ROWS, self._shards.rows)
            rows = self._shards.read([(start, stop)], np.arange(stop - start))
            if not rows.labels.all():
                raise UserError(
                    f"data.negatives.per_positive={self._per_row - 1}: row {start + int(rows.labels.argmin())} of the "
                    "train split has label 0, and negatives are drawn for positives alone; leave out the rows of label "
                    "0, or give data.negatives.per_positive=null data.negatives.user=null data.negatives.item=null"
                )
            ids = rows.sparse.astype(np.int64)
            pairs.append(ids[:, self._user] * self._num_items + ids[:, self._item])
        return pairs

    def read(self, ranges: list[tuple[int, int]], order: NDArray[np.int64], seed: int, epoch: int) -> RowArrays:
        """Return the rows of an epoch with the numbers `order`, counted over ranges of rows and negatives.

        Raises as `SplitShards.read`.
        """
        numbers = np.concatenate([np.arange(start, stop) for start, stop in ranges])[order]
        # A range may begin or end among the negatives of a row, so the rows to read are rounded outwards.
        on_disk = [(start // self._per_row, -(-stop // self._per_row)) for start, stop in ranges]
        sizes = [stop - start for start, stop in on_disk]
        firsts = np.cumsum(sizes) - sizes  # number of each range's first row among the rows read
        shifts: NDArray[np.int64] = np.repeat(
            firsts - [start for start, _ in on_disk], [stop - start for start, stop in ranges]
        )
        rows = self._shards.read(on_disk, numbers // self._per_row + shifts[order])
        negatives = np.flatnonzero(numbers % self._per_row)
        rows.labels[negatives] = 0
        users = rows.sparse[negatives, self._user]
        rows.sparse[negatives, self._item] = self._draw(users, numbers[negatives], seed, epoch)
        return rows

    def _draw(self, users: NDArray[np.int32], numbers: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """Draw for each row [n] an item that its user has no row with.

        The hash chooses the user's k-th free item. An item of the user lies below it if at most k free items lie below
        that item; the search in `_keys` counts those items of the user.
        """
        [state] = np.random.SeedSequence([seed, epoch, DRAWS]).generate_state(1, np.uint64)
        free = self._num_items - self._counts[users]
        place = (splitmix64(state + numbers.astype(np.uint64) * INCREMENT) % free.astype(np.uint64)).astype(np.int64)
        key = users.astype(np.int64) * (self._num_items + 1) + place
        return place + np.searchsorted(self._keys, key, side="right") - self._starts[users]


class EvaluatedSplit(Protocol):
    """Rows that are evaluated, as one process reads them; rows: samples of all processes together."""

    @property
    def rows(self) -> int: ...

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield every sample once; the last batch is padded to the size of the others."""


class Split(EvaluatedSplit, Protocol):
    """A split of a dataset as one process reads it; dense_names: of its dense features."""

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
    """Consecutive rows: the number of the first one, their ranges [start, stop) on disk, and a seed."""

    first: int
    ranges: list[tuple[int, int]]
    seed: int

    @property
    def size(self) -> int:
        """Number of rows."""
        return sum(stop - start for start, stop in self.ranges)


# The order of a split's rows in one epoch: seed, epoch, and whether rows are permuted; if not, it is the order on disk.
Order: TypeAlias = tuple[int, int, bool]


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
        self._make_builder = batch_builders(root, manifest, config)

    def num_batches(self, global_batch_size: int) -> int:
        """Return the number of global batches in an epoch, including one of left-over rows unless it is dropped."""
        return self.rows // global_batch_size if self._drop_last else -(-self.rows // global_batch_size)

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's parts of the epoch's global batches from number `first` on."""
        order = seed, epoch, self._config.shuffle
        num_whole = self.rows // global_batch_size
        _, _, valid = self._part(global_batch_size)
        for batch in self._batches(global_batch_size, range(first, num_whole), order):
            yield replace(batch, num_valid=valid, num_global=global_batch_size)
        if max(first, num_whole) < self.num_batches(global_batch_size):
            yield self._last_batch(global_batch_size, order)

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield this process's parts of global batches that have every row once, in the order on disk.

        The last batch is padded to the size of the others.
        """
        batches = range(-(-self.rows // global_batch_size))
        return self._batches(global_batch_size, batches, (0, 0, False))

    def _windows(self, order: Order) -> Iterator[Window]:
        """Yield the windows of the rows, drawn negatives included."""
        seed, epoch, is_shuffled = order
        block_rows, window_blocks = self._config.shuffle_block_rows, self._config.shuffle_window_blocks
        starts = np.arange(0, self.rows, block_rows)
        if is_shuffled:
            # The stream of blocks ends with 0, those of windows with 1 and more, so that no two are equal.
            np.random.default_rng([seed, epoch, 0]).shuffle(starts)
        stops, first = np.minimum(starts + block_rows, self.rows), 0
        for number, block in enumerate(range(0, len(starts), window_blocks)):
            blocks = slice(block, block + window_blocks)
            window = Window(first, [*zip(starts[blocks].tolist(), stops[blocks].tolist(), strict=True)], 1 + number)
            yield window
            first += window.size

    def _last_batch(self, global_batch_size: int, order: Order) -> Batch:
        """Return this process's part of the rows that fill no whole batch; they come last.

        Parts are equally long, as sharded tables require. Copies of the batch's last row fill a part that is too short.
        They touch only table rows that the batch touches anyway, and have no share in the loss.
        """
        num_whole, remainder = divmod(self.rows, global_batch_size)
        _, local, valid = self._part(remainder)
        begin, parts = self._rank * local, []
        numbers = np.minimum(np.arange(begin, begin + local), remainder - 1) + num_whole * global_batch_size
        for window in self._windows(order):
            rows = numbers[(numbers >= window.first) & (numbers < window.first + window.size)] - window.first
            if len(rows):
                parts.append(self._load(order, window, rows))
        batch = self._make_builder(local).batch(join_rows(parts))
        return replace(batch, num_valid=valid, share=valid * self._world_size / remainder, num_global=remainder)

    def _part(self, rows: int) -> tuple[range, int, int]:
        """Return this process's part of a global batch of `rows`: its rows, size with padding, and rows without it.

        A part without rows of its own is padded with the batch's last row.
        """
        local = part_size(rows, self._world_size, self._micro_batch)
        begin = self._rank * local
        return range(min(begin, rows - 1), min(begin + local, rows)), local, min(max(rows - begin, 0), local)

    def _batches(self, global_batch_size: int, batches: range, order: Order) -> Iterator[Batch]:
        """Yield this process's parts of these global batches, padded to equal size."""
        local_rows, local, _ = self._part(global_batch_size)
        builder = self._make_builder(local)
        copies = np.minimum(np.arange(local), len(local_rows) - 1)  # repeats the last row if there are too few
        with background_thread("read") as pool:
            rows = self._read(pool, order, global_batch_size, local_rows, batches)
            for parts in self._cut(rows, len(local_rows), len(batches)):
                rows_of_batch = join_rows(parts)
                yield builder.batch(rows_of_batch.take(copies) if len(local_rows) < local else rows_of_batch)

    def _read(self, pool: Executor, order: Order, size: int, part: range, batches: range) -> Iterator[RowArrays]:
        """Yield this process's rows, window by window and in order; the next is read while one is in use.

        size: rows of a global batch. part: the rows among them that this process takes.
        """
        previous = None
        for window in self._windows(order):
            end = window.first + window.size
            numbers = np.arange(max(batches.start, window.first // size), min(batches.stop, -(-end // size)))
            rows = (numbers[:, None] * size + np.arange(part.start, part.stop)).reshape(-1) - window.first
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
        places, (seed, epoch, is_shuffled) = np.arange(window.size), order
        # Each window has a stream of its own, so a process that leaves windows out draws the others unchanged.
        if is_shuffled:
            np.random.default_rng([seed, epoch, window.seed]).shuffle(places)
        places = places[rows]
        if self._negatives is not None:
            return self._negatives.read(window.ranges, places, seed, epoch)
        return self._shards.read(window.ranges, places)

    def _cut(self, windows: Iterator[RowArrays], size: int, count: int) -> Iterator[list[RowArrays]]:
        """Yield `count` pieces of `size` rows, fewer where rows run out; a piece is a list of parts of windows."""
        # A read of no rows gives arrays of the right columns and types.
        rows, offset = self._shards.read([], np.empty(0, np.int64)), 0
        for _ in range(count):
            parts = [rows.part(offset, offset + size)]
            offset += len(parts[0].labels)
            while (missing := size - sum(len(part.labels) for part in parts)) and (following := next(windows, None)):
                rows, offset = following, min(missing, len(following.labels))
                parts.append(rows.part(0, offset))
            yield parts


def batch_builders(root: Path, manifest: Manifest, config: DataConfig) -> Callable[[int], BatchBuilder]:
    """Return a function from a batch size to the builder of such batches, padded at the end.

    Rows have one id per bag, bags of their own, or bags that replace ids. Raise UserError for bags of both kinds.
    """
    rows, tables = list(manifest.num_embeddings.values()), None
    if (bags := config.multi_hot.bags(len(rows))) is not None:
        if manifest.ragged:
            raise UserError(f"data.multi_hot.sizes: {root} has multi-hot columns of its own; leave it out")
        tables = MultiHotTables.open(bags_directory(root, config), rows, bags)
    return lambda size: BatchBuilder(list(manifest.num_embeddings), size, manifest.ragged, tables)
