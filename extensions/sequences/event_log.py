"""Batches from a dataset of events: training reads windows of time in order, evaluation one later window.

Global batch k has samples [k * G, (k + 1) * G) of the consecutive windows, for any number of processes; process r takes
its r-th equal part. So a place in the order is one integer. A batch's `sparse_features` have the keys of
`EventLog.features`: B bags of one id for each context table, B bags of the history's events for each sequence table,
and B bags of one id for each candidate table. A padded sample has ids 0 and an empty history.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from app.config import AppConfig
from app.data.batch import Batch, layout_of
from app.data.shards import TRAIN, file_stamp, require_unchanged, require_window
from app.runtime.background import background_thread
from common.errors import UserError
from common.extensions import keys_of_extension
from data_prep.dataset.bags import offsets_of
from data_prep.dataset.format import Manifest, shard_path
from extensions.sequences.anchors import Anchors
from extensions.sequences.event_arrays import event_schema, open_events
from extensions.sequences.event_schema import CANDIDATE, EVENTS, FLAG_BIT, HOUR, ITEM, USER
from extensions.sequences.histories import (
    Histories,
    HistoryRule,
    gather_histories,
    hash_rows,
    longest_history,
    wrong_item,
)
from extensions.sequences.keys import (
    AnchorOrder,
    AttentionScale,
    CandidateTime,
    HistoryKind,
    SequencesConfig,
    WindowRest,
)
from extensions.sequences.sequences import Sequences

log = logging.getLogger("clickwork")
OPEN_WINDOWS = 2  # with anchors in memory, since a batch may have samples of several windows
# Of a batch to rank; fixed, because sums over equal shapes have one order.
MOST_CANDIDATES, PIECE_POSITIONS = 256, 1 << 16


class Candidates(NamedTuple):
    """Possible next events: [M] ids of items, times in seconds, and flags, of which only FLAG_BIT matters."""

    items: NDArray[np.int32]
    times: NDArray[np.int64]
    flags: NDArray[np.uint8]

    def take(self, order: NDArray[np.int64]) -> "Candidates":
        """Return the candidates numbered `order`, in that order."""
        return Candidates(self.items[order], self.times[order], self.flags[order])


class EventLog:
    """A dataset of events: its arrays, its samples by windows of time, and the batches made of them.

    Attributes:
        config: settings of samples and histories.
        features: table of each key of `sparse_features`, in the order of the keys.
        anchors: see extensions/sequences/anchors.py. eval_window: number of the evaluated window.
        min_history: minimum events of a user before a sample.
        events: the arrays on disk.
    """

    def __init__(self, root: Path, manifest: Manifest, config: SequencesConfig) -> None:
        """Open the arrays and count the anchors."""
        self._manifest, self.schema = manifest, event_schema(root, manifest)
        schema = self.schema
        self.events, self.config, self._sizes = open_events(root, manifest), config, manifest.num_embeddings
        shard = manifest.splits[EVENTS].shards[0]
        mapped = [shard_path(root, EVENTS, shard.name, kind) for kind in ("items", "times", "flags")]
        self._stamps = {path: file_stamp(path) for path in mapped}
        settings, hstu = config, config.hstu
        self.min_history = schema.min_history if settings.min_history is None else settings.min_history
        self.anchors = Anchors(self.events, self.min_history, settings.window_seconds or schema.window_seconds)
        windows = len(self.anchors.counts)
        self.eval_window = windows - 1 if settings.eval_window is None else settings.eval_window
        if not 0 < self.eval_window < windows or not self.anchors.counts[self.eval_window]:
            filled = np.flatnonzero(self.anchors.counts)
            few = "set a smaller sequences.window_seconds"
            raise UserError(
                f"sequences.eval_window={self.eval_window}: no samples in this window, or none before it; "
                f"{len(filled)} of {windows} windows have some; "
                + (f"choose one of {filled[1:][-3:].tolist()}" if len(filled) > 1 else few)
            )
        self.features = {name: name for name in (*schema.context_tables, *schema.sequence_tables)}
        self._hstu, self._around = hstu, len(schema.context_tables) + 1
        room = hstu.max_seq_len - self._around
        if room < 1:
            raise UserError(
                f"sequences.hstu.max_seq_len={hstu.max_seq_len}: leaves no room for a history, as a sequence "
                f"has {self._around} other positions; set at least {self._around + 1}"
            )
        self._max_history = min(settings.max_history or settings.scan_events, room)
        self.features |= {CANDIDATE + name: name for name in schema.sequence_tables}
        self._masks, self._quota = _kinds(settings.history, len(schema.actions), settings.history_length)
        self.samples = lru_cache(OPEN_WINDOWS)(self._samples)
        tasks = [*settings.tasks]
        if any(task not in schema.actions or [schema.label, *tasks].count(task) > 1 for task in tasks):
            raise UserError(
                f"sequences.tasks={tasks}: must be actions of the log other than its label "
                f"{schema.label}, each once: {', '.join(schema.actions)}"
            )
        self._label_bits = [1 << list(schema.actions).index(name) for name in (schema.label, *tasks)]

    def split(self, name: str, rank: int, world_size: int) -> "EventSplit":
        """Return a split as process `rank` of `world_size` reads it."""
        require_window(self._manifest, name)
        end = self.eval_window
        if name == TRAIN:
            self._log_counts()
            return EventSplit(self, range(end), rank, world_size)
        return EventSplit(self, range(end, end + 1), rank, world_size)

    def _log_counts(self) -> None:
        train, users = self.anchors.counts[: self.eval_window], len(self.events.users)
        short = int((np.diff(self.events.offsets) <= self.min_history).sum())
        log.info(
            "data: %s samples to train on in %d windows (%d empty), %s to evaluate in window %d; %s of %s users have "
            "too short histories (sequences.min_history=%d)",
            f"{train.sum():,}",
            len(train),
            int((train == 0).sum()),
            f"{self.anchors.counts[self.eval_window]:,}",
            self.eval_window,
            f"{short:,}",
            f"{users:,}",
            self.min_history,
        )

    def _samples(self, number: int, key: tuple[int, int] | None) -> NDArray[np.int64]:
        """Return the positions of a window's samples in order, or shuffled by a key of seed and epoch."""
        positions = self.anchors.window(number)
        return positions if key is None else np.random.default_rng([*key, number]).permutation(positions)

    def batch(self, positions: NDArray[np.int64], global_positions: NDArray[np.int64], size: int) -> Batch:
        """Return the samples at these positions, padded to `size`. global_positions: those of the whole global batch.

        Raises:
            UserError: an item outside its table, or a file that changed since it was opened.
        """
        for path, stamp in self._stamps.items():  # reading past the end of a truncated file would kill the process
            require_unchanged(path, stamp)
        events, users = self.events, self.anchors.users_of(positions)
        histories = self._histories(positions, users)
        items, flags = np.asarray(events.items[positions]), np.asarray(events.flags[positions])
        if (outside := (items < 0) | (items >= self._sizes[ITEM])).any():
            raise wrong_item(int(positions[outside.argmax()]))
        times = np.asarray(events.times[positions]).astype(np.int64)
        divisor = self._divisor(histories.lengths, global_positions)
        return self._joined(histories, users, Candidates(items, times, flags), divisor, missing=size - len(positions))

    def candidates(self, user: int, end: int, candidate_set: Candidates) -> Iterator[Batch]:
        """Yield batches of candidates for a user's history before event `end`; each is scored as if it were alone.

        A batch has a fixed number of candidates, with padding. If no table depends on other columns of the candidate,
        they share one sequence; otherwise each has its own.
        """
        shared = all({*cross.of} <= {USER, HOUR} for cross in self.schema.crosses.values())
        positions, users = np.full(1, end), np.full(1, user)
        most = len(self._masks) * self._quota + self._around
        size = MOST_CANDIDATES if shared else max(1, min(MOST_CANDIDATES, PIECE_POSITIONS // most))
        copies, per = (1, size) if shared else (size, 1)
        histories = self._histories(positions.repeat(copies), users.repeat(copies))
        divisor = self._divisor(histories.lengths, positions)
        for start in range(0, len(candidate_set.items), size):
            piece = candidate_set.take(np.minimum(np.arange(start, start + size), len(candidate_set.items) - 1))
            batch = self._joined(histories, users.repeat(size), piece, divisor, per_history=per)
            yield replace(batch, num_valid=min(size, len(candidate_set.items) - start))

    def _histories(self, positions: NDArray[np.int64], users: NDArray[np.int64]) -> Histories:
        rule = HistoryRule(self._masks, self._quota, self.config.scan_events, self._max_history)
        return gather_histories(self.events, positions, users, rule)

    def _joined(
        self,
        histories: Histories,
        users: NDArray[np.int64],
        candidate_set: Candidates,
        divisor: float,
        missing: int = 0,
        per_history: int = 1,
    ) -> Batch:
        """Join histories, candidates with the index of their user, and samples of padding to a batch."""
        events, schema, size = self.events, self.schema, len(histories.lengths) + missing
        items, times, flags = candidate_set
        candidates = [items, *(table[items] for table in events.attributes)]
        keys = users + 1 if schema.renumber else events.users[users]
        columns = {USER: keys, HOUR: times // 3600 % 24, **dict(zip(schema.sequence_tables, candidates, strict=True))}
        if schema.flag:
            columns[schema.flag] = (flags & FLAG_BIT != 0).astype(np.int64)
        contexts = [np.where(keys < self._sizes[USER], keys, 0)]
        for cross in schema.crosses.values():
            contexts.append(np.empty(len(items), np.int32))
            hash_rows(np.stack([columns[name].astype(np.int64) for name in cross.of]), cross.rows, contexts[-1])
        single, per_sample = np.ones(size, np.int32), np.pad(histories.lengths, (0, missing))
        values = [
            *(_padded(each[::per_history], missing) for each in contexts),
            *histories.ids,
            *(_padded(each, missing) for each in candidates),
        ]
        lengths = [
            *([single] * len(contexts)),
            *([per_sample] * len(histories.ids)),
            *([single * per_history] * len(candidates)),
        ]
        query = times.copy()
        if self.config.candidate_time is CandidateTime.history:
            has_history, ends = histories.lengths > 0, offsets_of(histories.lengths)
            query[has_history.repeat(per_history)] = histories.times[ends[1:][has_history] - 1].repeat(per_history)
        sequences = Sequences(
            *map(torch.from_numpy, (histories.times, histories.actions, np.pad(query, (0, missing)))),
            per_sample.tolist(),
            [per_history] * size,
            divisor,
        )
        each = [np.pad((flags & bit != 0).astype(np.float32), (0, missing)) for bit in self._label_bits]
        labels = each[0] if len(each) == 1 else np.stack(each, axis=1)
        ids = layout_of(list(self.features), lengths).bags(torch.from_numpy(np.concatenate(values)))
        return Batch(torch.empty((size, 0)), ids, torch.from_numpy(labels), len(items), sequences)

    def _divisor(self, lengths: NDArray[np.int32], global_positions: NDArray[np.int64]) -> float:
        """Return N of the attention: the length of the longest sequence, of this process or of all processes."""
        scale, longest = self._hstu.attention_scale, int(lengths.max(initial=0))
        if scale is AttentionScale.max_seq_len:
            return float(self._hstu.max_seq_len)
        if scale is AttentionScale.global_batch and len(global_positions) > len(lengths):
            events = self.events
            longest = int(
                longest_history(
                    global_positions,
                    self.anchors.users_of(global_positions),
                    events.offsets,
                    events.flags,
                    self._masks,
                    self._quota,
                    self.config.scan_events,
                    self._max_history,
                    np.bitwise_or.reduce(self._masks),
                )
            )
        return float(longest + self._around)


class EventSplit:
    """Windows of a log as one process reads them, with the methods of the reader of rows.

    Attributes:
        log: the log of the windows.
        windows: numbers of the split's windows.
        dense_names: empty, as events have no dense features.
    """

    def __init__(self, log: EventLog, windows: range, rank: int, world_size: int) -> None:
        self.log, self.windows = log, windows
        self.dense_names: list[str] = []
        self._rank, self._world_size = rank, world_size

    @property
    def rows(self) -> int:
        """Return the number of samples in the split."""
        return int(self._counts.sum())

    @property
    def positives(self) -> dict[str, int]:
        """Return the number of samples with each action."""
        counts = self.log.anchors.positives[self.windows.start : self.windows.stop].sum(axis=0)
        return dict(zip(self.log.schema.actions, counts.tolist(), strict=False))

    @property
    def _counts(self) -> NDArray[np.int64]:
        return self.log.anchors.counts[self.windows.start : self.windows.stop]

    def num_batches(self, global_batch_size: int) -> int:
        """Return the whole global batches in an epoch."""
        return int(self._starts(global_batch_size)[-1]) // global_batch_size

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's parts of the epoch's global batches from number `first` on."""
        key = (seed, epoch) if self.log.config.order is AnchorOrder.shuffled else None
        numbers = range(first, self.num_batches(global_batch_size))
        return self._batches(global_batch_size, numbers, self._starts(global_batch_size), key)

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield each sample once, by user; the last batch is padded to the size of the others."""
        numbers = range(-(-self.rows // global_batch_size))
        return self._batches(global_batch_size, numbers, offsets_of(self._counts), None)

    def _batches(
        self, global_batch_size: int, numbers: range, starts: NDArray[np.int64], key: tuple[int, int] | None
    ) -> Iterator[Batch]:
        """Yield this process's parts of the global batches with these numbers."""

        def make(number: int) -> Batch:
            begin = number * global_batch_size
            low, parts = int(np.searchsorted(starts, begin, "right")) - 1, [np.empty(0, np.int64)]
            end = min(begin + global_batch_size, int(starts[-1]))
            while begin < end:
                stop = min(end, int(starts[low + 1]))
                window = self.log.samples(self.windows[low], key)
                parts.append(window[begin - starts[low] : stop - starts[low]])
                begin, low = stop, low + 1
            global_positions, size = np.concatenate(parts), global_batch_size // self._world_size
            return self.log.batch(global_positions[self._rank * size : (self._rank + 1) * size], global_positions, size)

        return _ahead(make, numbers)

    def _starts(self, global_batch_size: int) -> NDArray[np.int64]:
        """Return the place of each window's first sample in the order of training, and the end, [windows + 1]."""
        is_cut = self.log.config.rest is WindowRest.drop
        return offsets_of(self._counts // global_batch_size * global_batch_size if is_cut else self._counts)


def _kinds(history: HistoryKind, actions: int, length: int) -> tuple[NDArray[np.uint8], int]:
    """Return masks for the kinds of events in a history, and the number of each kind."""
    if history is HistoryKind.last_n:
        return np.array([(1 << actions) - 1], np.uint8), length
    return np.array([1 << bit for bit in range(actions)], np.uint8), max(1, length // actions)


def _padded(values: NDArray[np.integer], missing: int) -> NDArray[np.int32]:
    return np.pad(values, (0, missing)).astype(np.int32)


def _ahead(make: Callable[[int], Batch], numbers: range) -> Iterator[Batch]:
    """Yield batches by number; the next one is made while one is in use."""
    with background_thread("read") as pool:
        pending = [pool.submit(make, number) for number in numbers[:1]]
        for number in numbers:
            batch = pending.pop().result()
            pending = [pool.submit(make, number + 1)] if number + 1 < numbers.stop else []
            yield batch


def open_log(root: Path, manifest: Manifest, config: AppConfig) -> EventLog:
    """Open a dataset of events as a run reads it. Raise UserError as `EventLog` does."""
    return EventLog(root, manifest, keys_of_extension(config, SequencesConfig))
