"""A dataset of events as batches: training on windows of time in their order, evaluation on a later one, whole.

Global batch k is samples [k * G, (k + 1) * G) of the windows one after another, whatever the number of processes, and
process r takes the r-th equal part of it; so a place in the order is one integer. A batch's `sparse_features` have the
keys of `EventReader.features`: B bags of one id for each context table, B of the history's events for each sequence
table, and B of one id for each candidate's. A padded sample has ids 0 and an empty history.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec import KeyedJaggedTensor

from app.config import DataConfig
from app.config.data import AnchorOrder, HistoryKind, WindowRest
from app.data.anchors import Anchors
from app.data.batch import Batch, Sequences
from app.data.histories import gather_histories, hash_rows, wrong_item
from app.data.shards import file_stamp, require_unchanged
from common.errors import UserError
from data_prep.dataset.bags import offsets_of
from data_prep.dataset.event_schema import CANDIDATE, FLAG_BIT, HOUR, ITEM, USER
from data_prep.dataset.events import event_schema, open_events
from data_prep.dataset.format import Manifest, shard_path
from data_prep.dataset.manifest import EVENTS

log = logging.getLogger("clickwork")
OPEN_WINDOWS = 2  # whose anchors are in memory: a batch may have samples of several


class EventReader:
    """A dataset of events, opened for one process.

    Attributes:
        features: table of each key of `sparse_features`, in the order of the keys.
        anchors: see app/data/anchors.py. eval_window: number of the window that is evaluated.
        dense_names: none, as events have no dense features.
    """

    def __init__(self, root: Path, manifest: Manifest, config: DataConfig, rank: int, world_size: int) -> None:
        """Open the arrays and count the anchors.

        Raises:
            UserError: a file differs from the manifest, or there is nothing to train on or to evaluate.
        """
        self.schema = schema = event_schema(root, manifest)
        self._events, self._config = open_events(root, manifest), config.events
        self._rank, self._world_size, self._sizes = rank, world_size, manifest.num_embeddings
        shard = manifest.splits[EVENTS].shards[0]
        mapped = [shard_path(root, EVENTS, shard.name, kind) for kind in ("items", "times", "flags")]
        self._stamps = {path: file_stamp(path) for path in mapped}
        chosen = self._config
        min_history = schema.min_history if chosen.min_history is None else chosen.min_history
        self.anchors = Anchors(self._events, min_history, chosen.window_seconds or schema.window_seconds)
        windows = len(self.anchors.counts)
        self.eval_window = windows - 1 if chosen.eval_window is None else chosen.eval_window
        if not 0 < self.eval_window < windows or not self.anchors.counts[self.eval_window]:
            filled = np.flatnonzero(self.anchors.counts)
            few = "set a smaller data.events.window_seconds"
            raise UserError(
                f"data.events.eval_window={self.eval_window}: no samples in this window, or none before it; "
                f"{len(filled)} of {windows} windows have some; "
                + (f"choose one of {filled[1:][-3:].tolist()}" if len(filled) > 1 else few)
            )
        self.features = {name: name for name in (*schema.context_tables, *schema.sequence_tables)}
        self.features |= {CANDIDATE + name: name for name in schema.sequence_tables}
        self.dense_names: list[str] = []
        self._masks, self._quota = _kinds(chosen.history, len(schema.actions), chosen.history_length)
        self._positions = lru_cache(OPEN_WINDOWS)(self._window)
        train, users = self.anchors.counts[: self.eval_window], len(self._events.users)
        log.info(
            "data: %s samples to train on in %d windows (%d empty), %s to evaluate in window %d; %s of %s users have "
            "too short histories (data.events.min_history=%d)", f"{train.sum():,}", len(train), int((train == 0).sum()),
            f"{self.rows_evaluated:,}", self.eval_window, f"{users - self.anchors.users:,}", f"{users:,}", min_history,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Samples to train on."""
        return int(self.anchors.counts[: self.eval_window].sum())

    @property
    def rows_evaluated(self) -> int:
        """Samples to evaluate."""
        return int(self.anchors.counts[self.eval_window])

    def num_batches(self, global_batch_size: int) -> int:
        """Whole global batches in an epoch."""
        return int(self._starts(global_batch_size)[-1]) // global_batch_size

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """This process's parts of the epoch's global batches from number `first` on."""
        starts, local = self._starts(global_batch_size), global_batch_size // self._world_size
        key = (seed, epoch) if self._config.order is AnchorOrder.shuffled else None

        def make(number: int) -> Batch:
            begin = number * global_batch_size + self._rank * local
            low = int(np.searchsorted(starts, begin, "right")) - 1
            parts, done = [], begin
            while done < begin + local:
                stop = min(begin + local, int(starts[low + 1]))
                parts.append(self._positions(low, key)[done - starts[low] : stop - starts[low]])
                done, low = stop, low + 1
            return self._batch(np.concatenate(parts), local)

        yield from _ahead(make, range(first, self.num_batches(global_batch_size)))

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Every sample of the evaluated window once; the last batch is padded to the size of the others."""
        rows, local = self.rows_evaluated, global_batch_size // self._world_size

        def make(number: int) -> Batch:
            begin = number * global_batch_size + self._rank * local
            return self._batch(self._positions(self.eval_window, None)[begin : begin + local], local)

        yield from _ahead(make, range(-(-rows // global_batch_size)))

    def _starts(self, global_batch_size: int) -> NDArray[np.int64]:
        """Place of each window's first sample in the order, and of the end, [windows + 1]."""
        counts = self.anchors.counts[: self.eval_window]
        if self._config.rest is WindowRest.drop:
            counts = counts // global_batch_size * global_batch_size
        return np.concatenate([[0], np.cumsum(counts)])

    def _window(self, number: int, key: tuple[int, int] | None) -> NDArray[np.int64]:
        """Positions of a window's samples in their order, shuffled by a key of seed and epoch."""
        positions = self.anchors.window(number)
        return positions if key is None else np.random.default_rng([*key, number]).permutation(positions)

    def _batch(self, positions: NDArray[np.int64], size: int) -> Batch:
        """The samples at these positions, padded to `size`.

        Raises:
            UserError: an item that is not in its table, or a file was changed since it was opened.
        """
        for path, stamp in self._stamps.items():  # to read beyond the end of a file cut short would kill the process
            require_unchanged(path, stamp)
        events, schema, missing = self._events, self.schema, size - len(positions)
        users = self.anchors.users_of(positions)
        config, quota = self._config, self._quota
        found = gather_histories(
            events, positions, users, self._masks, quota, config.scan_events, config.max_history or config.scan_events
        )
        items, flags = np.asarray(events.items[positions]), np.asarray(events.flags[positions])
        if (outside := (items < 0) | (items >= self._sizes[ITEM])).any():
            raise wrong_item(int(positions[outside.argmax()]))
        times = np.asarray(events.times[positions]).astype(np.int64)
        candidates = [items, *(table[items] for table in events.attributes)]
        keys = users + 1 if schema.renumber else events.users[users]
        columns = {USER: keys, HOUR: times // 3600 % 24, **dict(zip(schema.sequence_tables, candidates, strict=True))}
        if schema.flag:
            columns[schema.flag] = (flags & FLAG_BIT != 0).astype(np.int64)
        contexts = [np.where(keys < self._sizes[USER], keys, 0)]
        for cross in schema.crosses.values():
            contexts.append(np.empty(len(positions), np.int32))
            hash_rows(np.stack([columns[name].astype(np.int64) for name in cross.of]), cross.rows, contexts[-1])
        single, per_sample = np.ones(size, np.int32), np.pad(found.lengths, (0, missing))
        values = [*(_padded(each, missing) for each in contexts), *found.ids,
                  *(_padded(each, missing) for each in candidates)]  # fmt: skip
        lengths = [*([single] * len(contexts)), *([per_sample] * len(found.ids)), *([single] * len(candidates))]
        ends = offsets_of(found.lengths)
        query = times.copy()
        query[found.lengths > 0] = found.times[ends[1:][found.lengths > 0] - 1]
        sequences = Sequences(
            *map(torch.from_numpy, (per_sample, found.times, found.actions, np.pad(times, (0, missing)),
                                    np.pad(query, (0, missing))))
        )  # fmt: skip
        labels = np.pad((flags & schema.label_bit != 0).astype(np.float32), (0, missing))
        return Batch(torch.empty((size, 0)), self._keyed(values, lengths), torch.from_numpy(labels),
                     len(positions), sequences)  # fmt: skip

    def _keyed(self, values: list[NDArray[np.int32]], lengths: list[NDArray[np.int32]]) -> KeyedJaggedTensor:
        per_key = [len(each) for each in values]
        flat = np.concatenate(lengths)
        return KeyedJaggedTensor(
            keys=list(self.features), values=torch.from_numpy(np.concatenate(values)), lengths=torch.from_numpy(flat),
            offsets=torch.from_numpy(offsets_of(flat.astype(np.int64)).astype(np.int32)), stride=len(lengths[0]),
            length_per_key=per_key, offset_per_key=offsets_of(np.array(per_key)).tolist(),
        )  # fmt: skip


def _kinds(history: HistoryKind, actions: int, length: int) -> tuple[NDArray[np.uint8], int]:
    """Masks of the kinds of events that a history is made of, and how many it has of each."""
    if history is HistoryKind.last_n:
        return np.array([(1 << actions) - 1], np.uint8), length
    return np.array([1 << bit for bit in range(actions)], np.uint8), max(1, length // actions)


def _padded(values: NDArray[np.integer], missing: int) -> NDArray[np.int32]:
    return np.pad(values, (0, missing)).astype(np.int32)


def _ahead(make: Callable[[int], Batch], numbers: range) -> Iterator[Batch]:
    """Batches by number; the next is made while one is in use."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read") as pool:
        pending = [pool.submit(make, number) for number in numbers[:1]]
        for number in numbers:
            batch = pending.pop().result()
            pending = [pool.submit(make, number + 1)] if number + 1 < numbers.stop else []
            yield batch
