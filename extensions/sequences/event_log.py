"""Anchors, histories and batches of a log of events; rankings of items for a user.

An anchor is an event with ANCHOR_BIT and at least `min_history` earlier events of its user. Window w holds the anchors
of `window_seconds` seconds that begin at the time of the first anchor + w * window_seconds. Anchors of
a window are ordered by user, then time, as on disk. All this is a pure function of the dataset, min_history and
window_seconds; nothing is stored.

An anchor's history is made of the `scan_events` previous events of its user: the last `quota` of each kind, merged by
time, and cut to the last that a sequence has room for. A kind is a mask of action bits.

Global batch k has samples [k * G, (k + 1) * G) of the consecutive windows, for any number of processes; process r takes
its r-th equal part. So a place in the order is one integer. A batch's `sparse_features` have the keys of
`EventLog.features`: B bags of one id for each context table, B bags of the history's events for each sequence table,
and B bags of one id for each candidate table. Copies of another sample pad a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.metrics.auc import compute_auc
from torchrec.streamable import Pipelineable

from app.config.app_config import AppConfig
from app.config.commands import RecommendConfig
from app.data.batch import Batch, background_thread, layout_of
from app.data.split import TRAIN, Split, file_stamp, require_unchanged, require_window
from app.metrics.quality import grouped_auc
from app.runtime.platform import Runtime
from app.scoring import ALL, NONE_SCORED, Scored, ignored_columns
from app.training import predictor
from app.training.checkpointer import TrainedRun
from common.command import log
from common.errors import OwnError, UserError
from common.extensions import keys_of_extension
from common.jit import Int, jit
from data_prep.codec.files import NewRows, Shape
from data_prep.codec.values import offsets_of, text_key
from data_prep.dataset.format import Manifest, shard_path
from data_prep.encoding import read_new_rows
from extensions.sequences.events import (
    ANCHOR_BIT,
    EVENTS,
    FLAG_BIT,
    HOUR,
    ITEM,
    USER,
    EventArrays,
    event_schema,
    known_items,
    open_events,
)
from extensions.sequences.keys import SequencesConfig


@dataclass(frozen=True)
class SequenceLayout:
    """Places of B sequences, one after another, among T positions; the last position of each is its candidate.

    lengths: [B] on the host. divisor: N of the attention.
    """

    lengths: Sequence[int]
    divisor: float
    products: dict[Any, Any] = field(default_factory=dict)  # what the first layer derives for the others, by key


@dataclass
class Sequences(Pipelineable):
    """Contents of a batch of B samples besides ids: E events of all histories, and a candidate of each.

    Attributes:
        times: [E] int64 seconds of the histories' events, sample by sample, oldest first.
        actions: [E] uint8, a bit for each action of the dataset's schema.
        candidate_times: [B] int64 seconds, of the history's last event or of the candidate itself
            (sequences.candidate_time).
        history_lengths: [B] on the host.
        divisor: N of the attention (extensions.sequences.keys.AttentionScale), on the host.
    """

    times: Tensor
    actions: Tensor
    candidate_times: Tensor
    history_lengths: list[int]
    divisor: float

    def to(self, device: torch.device, non_blocking: bool = False) -> "Sequences":
        """Return a copy whose tensors are on a device; the lists stay on the host."""
        return self._map_tensors(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Sequences":
        """Return a copy in page-locked memory, which `to` with non_blocking needs."""
        return self._map_tensors(Tensor.pin_memory)

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses these tensors, so that it does not reuse their memory too early."""
        for part in (self.times, self.actions, self.candidate_times):
            part.record_stream(stream)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Sequences":
        """Return a copy whose tensors are changed; lists on the host stay."""
        times, actions, candidate_times = map(change, (self.times, self.actions, self.candidate_times))
        return replace(self, times=times, actions=actions, candidate_times=candidate_times)


@jit
def _count_anchors(
    events: EventArrays, min_history: int, origin: int, seconds: int, counts: NDArray[np.int64]
) -> tuple[Int, Int]:
    """Return the times of the first and last anchor in seconds; the last is -1 without any.

    Add the anchors to `counts` [windows, 1 + actions], then those with each action's bit, unless there are no windows
    yet. origin: begin of the first window; seconds: length of a window.
    """
    first, last = np.int64(1) << 62, np.int64(-1)
    for user in range(len(events.offsets) - 1):
        for event in range(events.offsets[user] + min_history, events.offsets[user + 1]):
            if events.flags[event] & ANCHOR_BIT:
                time = np.int64(events.times[event])
                first, last = min(first, time), max(last, time)
                if len(counts):
                    window = (time - origin) // seconds
                    counts[window, 0] += 1
                    for bit in range(counts.shape[1] - 1):
                        counts[window, 1 + bit] += events.flags[event] >> bit & 1
    return first, last


@jit
def _collect_anchors(events: EventArrays, min_history: int, begin: int, end: int, positions: NDArray[np.int64]) -> Int:
    """Write the positions of the anchors with begin <= time < end, and return their number."""
    count = 0
    for user in range(len(events.offsets) - 1):
        start = events.offsets[user] + min_history
        times = events.times[start : events.offsets[user + 1]]
        # Two searches by time find a window's anchors, which saves 18 GB of stored anchors for Yambda-5b.
        for event in range(start + np.searchsorted(times, begin), start + np.searchsorted(times, end)):
            if events.flags[event] & ANCHOR_BIT:
                positions[count] = event
                count += 1
    return count


XXH_1, XXH_2, XXH_3, XXH_4, XXH_5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


@jit
def _search_backwards(
    flags: NDArray[np.uint8],
    anchors: NDArray[np.int64],
    bounds: NDArray[np.int64],
    masks: NDArray[np.uint8],
    quota: int,
    max_history: int,
    lengths: NDArray[np.int32],
    positions: NDArray[np.int64],
) -> Int:
    """Search from each anchor [B] back to its bound [B]; write `lengths` and `positions`, and return those in use.

    A history has the last `quota` events of each kind, a mask of `masks`, and at most the last `max_history` of all.
    """
    counts, total = np.zeros(len(masks), np.int64), 0
    for sample in range(len(anchors)):
        counts[:] = 0
        open_kinds, stop, event = len(masks), total, anchors[sample]
        # Going backwards, the search can end once each kind has its quota.
        while event > bounds[sample] and open_kinds and stop - total < max_history:
            event -= 1
            is_taken = False
            for k in range(len(masks)):
                if flags[event] & masks[k] and counts[k] < quota:
                    is_taken = True
                    counts[k] += 1
                    open_kinds -= counts[k] == quota
            if is_taken:
                positions[stop] = event
                stop += 1
        positions[total:stop] = positions[total:stop][::-1].copy()
        lengths[sample], total = stop - total, stop
    return total


def hash_rows(columns: Sequence[NDArray[np.int64]], rows: int) -> NDArray[np.int32]:
    """Return xxh64 (seed 0) of the i-th numbers of at most three columns [B], as little-endian int64s, modulo rows."""
    # From 32 bytes on, xxh64 takes four words at a time; below, each word takes the steps for its remaining words.
    state = np.full(len(columns[0]), XXH_5 + np.uint64(8 * len(columns)))
    for column in columns:
        word = column.view(np.uint64) * XXH_2
        state ^= (word << np.uint64(31) | word >> np.uint64(33)) * XXH_1
        state = (state << np.uint64(27) | state >> np.uint64(37)) * XXH_1 + XXH_4
    state = (state ^ state >> np.uint64(33)) * XXH_2
    state = (state ^ state >> np.uint64(29)) * XXH_3
    return ((state ^ state >> np.uint64(32)) % np.uint64(rows)).astype(np.int32)


# Candidates of a batch to rank, and positions of its sequences: fixed, because sums over equal shapes have one order.
MOST_CANDIDATES, PIECE_POSITIONS = 256, 1 << 16


class EventLog:
    """A dataset of events: its arrays, its samples by windows of time, and the batches made of them.

    Attributes:
        config: settings of samples and histories.
        features: keys of `sparse_features`, in order.
        counts: [windows] int64 anchors; the last window has some, others may have none.
        positives: [windows, actions] int64 anchors with each action's bit.
        eval_window: number of the evaluated window. min_history: minimum events of a user before a sample.
        events: the arrays on disk.
    """

    def __init__(self, root: Path, manifest: Manifest, config: SequencesConfig) -> None:
        """Open the arrays, and count the anchors: two passes over 5 bytes per event."""
        self._manifest, self.schema = manifest, event_schema(root, manifest)
        schema = self.schema
        self.events, self.config, self._sizes = open_events(root, manifest), config, manifest.num_embeddings
        shard = manifest.splits[EVENTS].shards[0]
        mapped = [shard_path(root, EVENTS, shard.name, kind) for kind in ("items", "times", "flags")]
        # A mapped file that somebody changes is noticed at each batch, as its checksum is not compared again.
        self._stamps = {path: file_stamp(path) for path in mapped}
        self.min_history = schema.min_history if config.min_history is None else config.min_history
        self._seconds = config.window_seconds or schema.window_seconds
        no_windows = np.zeros((0, 1 + len(schema.actions)), np.int64)
        first, last = _count_anchors(self.events, self.min_history, 0, 1, no_windows)
        if last < 0:
            longest = int(np.diff(self.events.offsets).max(initial=0))
            raise UserError(
                f"sequences.min_history={self.min_history}: no sample has that many events of its user before it; "
                f"no user has more than {longest}; set sequences.min_history={min(longest // 2, self.min_history - 1)}"
            )
        self._origin, windows = int(first), (int(last) - int(first)) // self._seconds + 1
        counts = np.zeros((windows, 1 + len(schema.actions)), np.int64)
        _count_anchors(self.events, self.min_history, self._origin, self._seconds, counts)
        self.counts, self.positives = counts[:, 0], counts[:, 1:]
        self.eval_window = windows - 1 if config.eval_window is None else config.eval_window
        if not 0 < self.eval_window < windows or not self.counts[self.eval_window]:
            filled = np.flatnonzero(self.counts)
            remedy = "set a smaller sequences.window_seconds"
            if len(filled) > 1:
                remedy = f"choose one of {filled[1:][-3:].tolist()}"
            raise UserError(
                f"sequences.eval_window={self.eval_window}: no samples in this window, or none before it; "
                f"{len(filled)} of {windows} windows have some; {remedy}"
            )
        self.features = [*schema.context_tables, *schema.sequence_tables, *schema.candidate_keys]
        # A sequence has the context before its history, and a candidate after it.
        self._other_positions = len(schema.context_tables) + 1
        room = config.hstu.max_seq_len - self._other_positions
        if room < 1:
            raise UserError(
                f"sequences.hstu.max_seq_len={config.hstu.max_seq_len}: leaves no room for a history, as a sequence "
                f"has {self._other_positions} other positions; set at least {self._other_positions + 1}"
            )
        actions, quota = len(schema.actions), config.history_length
        masks = [(1 << actions) - 1]
        if config.history == "interleaved":  # each action is a kind of its own
            masks, quota = [1 << bit for bit in range(actions)], max(1, quota // actions)
        self._masks, self._quota = np.array(masks, np.uint8), quota
        self._max_history = min(config.scan_events, room, quota * len(masks))
        # A batch may have samples of two windows, whose anchors then stay in memory.
        self.samples = lru_cache(2)(self._samples)
        names = [schema.label, *config.tasks]
        if any(name not in schema.actions or names.count(name) > 1 for name in names):
            raise UserError(
                f"sequences.tasks={names[1:]}: must be actions of the log other than its label "
                f"{schema.label}, each once: {', '.join(schema.actions)}"
            )
        self._label_bits = [schema.bit(name) for name in names]

    def split(self, name: str, rank: int, world_size: int) -> "EventSplit":
        """Return a split as process `rank` of `world_size` reads it."""
        require_window(self._manifest, name)
        end, counts = self.eval_window, self.counts
        if name != TRAIN:
            return EventSplit(self, range(end, end + 1), rank, world_size)
        short = int((np.diff(self.events.offsets) <= self.min_history).sum())
        users, empty = len(self.events.users), int((counts[:end] == 0).sum())
        log.info(
            f"data: {counts[:end].sum():,} samples to train on in {end} windows ({empty} empty), {counts[end]:,} to "
            f"evaluate in window {end}; {short:,} of {users:,} users have too short histories "
            f"(sequences.min_history={self.min_history})"
        )
        return EventSplit(self, range(end), rank, world_size)

    def window(self, number: int) -> NDArray[np.int64]:
        """Return the positions [counts[number]] of a window's anchors among all events, by user, then time."""
        positions = np.empty(int(self.counts[number]), np.int64)
        begin = self._origin + number * self._seconds
        count = _collect_anchors(self.events, self.min_history, begin, begin + self._seconds, positions)
        assert count == len(positions)
        return positions

    def users_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the user of each event at `positions`, which count over all users' events."""
        return np.searchsorted(self.events.offsets, positions, "right") - 1

    def _samples(self, number: int, key: tuple[int, int] | None) -> NDArray[np.int64]:
        """Return the positions of a window's samples by user and time, or shuffled by a key: seed and epoch."""
        positions = self.window(number)
        # The window's number is in the key, so a resumed run need not shuffle the windows before.
        return positions if key is None else np.random.default_rng([*key, number]).permutation(positions)

    def batch(self, positions: NDArray[np.int64], global_positions: NDArray[np.int64], size: int) -> Batch:
        """Return the samples at these positions among all events, padded to `size` by copies of a sample.

        Each event is the one candidate of its sample. global_positions: the samples of all processes, on whose longest
        history the attention may depend. Raises UserError for a file that changed since it was opened, and OwnError for
        an item outside its table.
        """
        for path, stamp in self._stamps.items():  # reading past the end of a truncated file would kill the process
            require_unchanged(path, stamp)
        # The last sample of all is this process's own, unless it has none.
        padded = np.append(positions, np.full(size - len(positions), global_positions[-1]))
        times, flags = self.events.times[padded].astype(np.int64), np.asarray(self.events.flags[padded])
        users = self.users_of(padded)
        batch = self._make_batch(padded, users, self._items(padded), times, flags, global_positions)
        return replace(batch, num_valid=len(positions))

    def candidates(
        self, user: int, end: int, time: int, items: NDArray[np.int32], flags: NDArray[np.uint8]
    ) -> Iterator[Batch]:
        """Yield batches of candidates at a time in seconds, for the history of a user, by index, before event `end`.

        Each candidate is scored as if it were alone: a batch has a fixed number of candidates, with padding.

        items, flags: [n] of the candidates; of the flags, FLAG_BIT alone matters.
        """
        size = max(1, min(MOST_CANDIDATES, PIECE_POSITIONS // (self._max_history + self._other_positions)))
        ends, users, times = np.full(size, end), np.full(size, user), np.full(size, time)
        for start in range(0, len(items), size):
            # Padding repeats a candidate: equal shapes add in one order, so a score does not depend on the number.
            rows = np.minimum(np.arange(start, start + size), len(items) - 1)
            batch = self._make_batch(ends, users, items[rows], times, flags[rows], ends)
            yield replace(batch, num_valid=min(size, len(items) - start))

    def _find_histories(
        self, anchors: NDArray[np.int64], users: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the numbers of events [B] in the histories of anchors [B], and the positions [L] of all their events.

        Positions count over all users' events, sample by sample, the oldest event first. users: [B] indices.
        """
        bounds = np.maximum(self.events.offsets[users], anchors - self.config.scan_events)
        # An upper bound for all histories together lets one allocation serve them.
        room = int(np.minimum(anchors - bounds, self._max_history).sum())
        lengths, positions = np.empty(len(anchors), np.int32), np.empty(room, np.int64)
        rule = self._masks, self._quota, self._max_history
        return lengths, positions[: _search_backwards(self.events.flags, anchors, bounds, *rule, lengths, positions)]

    def _items(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the items of the events at these positions. Raise OwnError for one that is outside its table."""
        items = np.asarray(self.events.items[positions])
        # Without the check a damaged file would have other items' attributes.
        if (outside := items.view(np.uint32) >= self._sizes[ITEM]).any():
            event = int(positions[outside.argmax()])
            raise OwnError(f"events/00000.items.npy: event {event}: the item is not in its table; preprocess again")
        return items

    def _make_batch(
        self,
        ends: NDArray[np.int64],
        users: NDArray[np.int64],
        items: NDArray[np.int32],
        times: NDArray[np.int64],
        flags: NDArray[np.uint8],
        global_positions: NDArray[np.int64],
    ) -> Batch:
        """Return a batch of B candidates, by items, times and flags, each after the history of its user before `ends`.

        users: [B] indices. The bits of actions in `flags` are the labels. global_positions: see `batch`.
        """
        events, schema = self.events, self.schema
        lengths, history = self._find_histories(ends, users)
        history_times = events.times[history].astype(np.int64)
        # `take` copies three times as fast as an index of both dimensions.
        history_ids, candidates = (
            [ids, *(table.take(ids) for table in events.attributes)] for ids in (self._items(history), items)
        )
        # With renumbering a user's id is its index + 1, otherwise its key; 0 stands for one beyond the table.
        keys = users + 1 if schema.renumber else events.users[users]
        columns = {USER: keys, HOUR: times // 3600 % 24, **dict(zip(schema.sequence_tables, candidates, strict=True))}
        if schema.flag:
            columns[schema.flag] = flags & FLAG_BIT != 0
        crosses = [([columns[name].astype(np.int64) for name in c.of], c.rows) for c in schema.crosses.values()]
        contexts = [np.where(keys < self._sizes[USER], keys, 0), *(hash_rows(*cross) for cross in crosses)]
        ids = np.concatenate([*contexts, *history_ids, *candidates], dtype=np.int32, casting="same_kind")
        single = np.ones(len(items), np.int32)
        bag_lengths = [*([single] * len(contexts)), *([lengths] * len(history_ids)), *([single] * len(candidates))]
        bags = layout_of(self.features, bag_lengths).bags(torch.from_numpy(ids))
        reference_times = times.copy()
        # MLPerf counts ages from the history's last event; without a history only the candidate has a time.
        if self.config.candidate_time == "history":
            has_history = lengths > 0
            reference_times[has_history] = history_times[lengths.cumsum()[has_history] - 1]
        actions = events.flags[history] & np.uint8((1 << len(schema.actions)) - 1)
        divisor = self._attention_divisor(lengths, global_positions)
        parts = map(torch.from_numpy, (history_times, actions, reference_times))
        sequences = Sequences(*parts, lengths.tolist(), divisor)
        targets = [(flags & bit != 0).astype(np.float32) for bit in self._label_bits]
        labels = torch.from_numpy(targets[0] if len(targets) == 1 else np.stack(targets, axis=1))
        return Batch(torch.empty((len(items), 0)), bags, labels, len(items), sequences)

    def _attention_divisor(self, lengths: NDArray[np.int32], global_positions: NDArray[np.int64]) -> float:
        """Return N of the attention: the length of the longest sequence, of this process or of all processes.

        lengths: of this process's histories. global_positions: the samples of all processes.
        """
        scale, longest = self.config.hstu.attention_scale, int(lengths.max(initial=0))
        if scale == "max_seq_len":
            return float(self.config.hstu.max_seq_len)
        # The longest history of all processes makes their numbers those of one process.
        if scale == "global_batch" and len(global_positions) > len(lengths):
            users = self.users_of(global_positions)
            most = np.minimum(global_positions - self.events.offsets[users], self._max_history)
            can_be_longer = most > longest
            lengths, _ = self._find_histories(global_positions[can_be_longer], users[can_be_longer])
            longest = int(lengths.max(initial=longest))
        return float(longest + self._other_positions)


class EventSplit:
    """Windows of a log as one process reads them, with the methods of the reader of rows.

    Attributes:
        log: the log of the windows.
        windows: numbers of the split's windows.
        rows, positives: number of samples in the split, and of those with each action.
        dense_names: empty, as events have no dense features.
    """

    def __init__(self, log: EventLog, windows: range, rank: int, world_size: int) -> None:
        """rank, world_size: number of this process, and number of all that share the split's samples."""
        self.log, self.windows = log, windows
        self.dense_names: list[str] = []
        self._rank, self._world_size = rank, world_size
        self._counts = log.counts[windows.start : windows.stop]  # samples in each window
        self.rows = int(self._counts.sum())
        counts = log.positives[windows.start : windows.stop].sum(axis=0)
        self.positives: dict[str, int] = dict(zip(log.schema.actions, counts.tolist(), strict=True))

    def num_batches(self, global_batch_size: int) -> int:
        """Return the number of whole global batches in an epoch; a last incomplete one is not trained on."""
        return int(self._starts(global_batch_size)[-1]) // global_batch_size

    def train_batches(self, global_batch_size: int, seed: int, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's parts of the epoch's global batches from number `first` on."""
        key = (seed, epoch) if self.log.config.order == "shuffled" else None
        numbers = range(first, self.num_batches(global_batch_size))
        return self._batches(global_batch_size, numbers, self._starts(global_batch_size), key)

    def eval_batches(self, global_batch_size: int) -> Iterator[Batch]:
        """Yield each sample once, by user; the last batch is padded to the size of the others."""
        numbers = range(-(-self.rows // global_batch_size))
        return self._batches(global_batch_size, numbers, offsets_of(self._counts), None)

    def _batches(
        self, global_batch_size: int, numbers: range, starts: NDArray[np.int64], key: tuple[int, int] | None
    ) -> Iterator[Batch]:
        """Yield this process's parts of the global batches with these numbers.

        starts: [windows + 1] place of each window's first sample in the order, and the end. key: seed and epoch that
        shuffle a window, or None.
        """

        def make(number: int) -> Batch:
            """Return this process's part of a global batch, which may have samples of several windows."""
            begin, size = number * global_batch_size, global_batch_size // self._world_size
            end = min(begin + global_batch_size, int(starts[-1]))
            parts = [
                self.log.samples(self.windows[window], key)[max(begin - start, 0) : min(end, stop) - start]
                for window, (start, stop) in enumerate(pairwise(starts.tolist()))
                if max(begin, start) < min(end, stop)
            ]
            global_positions = np.concatenate(parts)
            return self.log.batch(global_positions[self._rank * size : (self._rank + 1) * size], global_positions, size)

        with background_thread("read") as pool:
            # The next batch is made while one is in use.
            pending = [pool.submit(make, number) for number in numbers[:1]]
            for number in numbers:
                batch = pending.pop().result()
                pending = [pool.submit(make, number + 1)] if number + 1 < numbers.stop else []
                yield batch

    def _starts(self, global_batch_size: int) -> NDArray[np.int64]:
        """Return the place of each window's first sample in the order of training, and the end, [windows + 1].

        With sequences.rest=drop a window's samples beyond its last whole global batch have no place.
        """
        is_cut = self.log.config.rest == "drop"
        return offsets_of(self._counts // global_batch_size * global_batch_size if is_cut else self._counts)


def open_log(root: Path, manifest: Manifest, config: AppConfig) -> EventLog:
    """Open a dataset of events with the run's keys of sequences."""
    return EventLog(root, manifest, keys_of_extension(config, SequencesConfig))


def refuse_one_class(config: AppConfig, root: Path, split: Split) -> None:
    """Refuse to train on events if the samples' label, or a task's, has one class."""
    assert isinstance(split, EventSplit)
    if config.data.allow_degenerate:
        return
    rows, positives = split.rows, split.positives
    for action in (split.log.schema.label, *split.log.config.tasks):
        if positives[action] in (0, rows):
            share = "each" if positives[action] else "none"
            counts = ", ".join(f"{name} ({count:,})" for name, count in positives.items())
            raise UserError(
                f"data.path={root}: {share} of the {rows:,} samples to train on is {action}, so nothing can be learned "
                f"of it; samples of each action: {counts}; leave it out of sequences.tasks, correct the log's schema, "
                "sequences.min_history or .eval_window, or set data.allow_degenerate=true"
            )


def user_metrics(
    logits: NDArray[np.float32], labels: NDArray[np.float32], users: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Compute metrics of logits [n] and labels [n] of 0 and 1 for samples of the users [n]; None if undefined.

    gauc, gauc_users: from `grouped_auc`.
    auc_torchrec: AUC of probabilities that counts ties in the order that the sort leaves.
    """
    metrics = {**grouped_auc(logits, labels, users), "auc_torchrec": None}
    is_positive = labels > 0.5
    if is_positive.any() and not is_positive.all():
        # TorchRec counts ties in the order that its sort leaves, as MLPerf's reference does.
        scores, truth = (torch.from_numpy(values)[None].double() for values in (logits, labels))
        metrics["auc_torchrec"] = float(compute_auc(1, [scores.sigmoid()], [truth], [torch.ones_like(truth)]))
    return metrics


def score_items(config: RecommendConfig, trained: AppConfig, run: TrainedRun, runtime: Runtime) -> Scored:
    """Score items after the events of one user in a dataset of events."""
    event_log = open_log(run.root, run.manifest, trained)
    schema, arrays = event_log.schema, event_log.events
    keys, ids = known_items(run.root, run.manifest, arrays)
    if config.candidates == ALL:
        if (keys < 0).any():
            raise UserError(f"candidates={ALL}: {run.root} keeps no names of its items, which are texts; give a file")
        candidates = NewRows(ALL, {schema.item: [str(key) for key in keys.tolist()]}, range(1, len(keys) + 1))
    else:
        # A file without names of columns has the items alone.
        spare = (config.id_column, schema.flag or "", schema.user)
        shape = Shape((schema.item,), schema.delimiter, label="", required_columns=(schema.item, *spare))
        candidates = read_new_rows(Path(config.candidates), shape)
        if ignored := ignored_columns(candidates, [schema.item], spare):
            log.info("candidates: the model does not read %s", ", ".join(ignored))
        if not candidates.numbers:
            return NONE_SCORED
    names = candidates.texts(schema.item)
    item_keys = np.array([text_key(text) for text in names], np.int64)
    indices = np.minimum(np.searchsorted(keys, item_keys), len(keys) - 1)
    if (unknown := keys[indices] != item_keys).any():
        row = int(unknown.argmax())
        location = f"{candidates.name}: row {candidates.numbers[row]}"
        raise UserError(f"{location}: {schema.item} {names[row]} is not in the log of {run.root}; leave it out")
    items = ids[indices].astype(np.int32)
    user, end, time = _find_history(config, event_log, candidates)
    is_flagged = np.zeros(len(items), np.bool_)
    if schema.flag in candidates.columns:
        is_flagged = candidates.truths(schema.flag)
    flags = np.where(is_flagged, FLAG_BIT, 0).astype(np.uint8)
    # Batches of one order give a candidate one score, in whatever order the file has it.
    order = np.lexsort((is_flagged, items))
    logits = np.empty(len(items), np.float32)
    scorer = predictor.load(run.path, trained, runtime, run.root, run.manifest)
    logits[order] = scorer.score(event_log.candidates(user, end, time, items[order], flags[order])).logits
    if config.id_column in candidates.columns:
        names = candidates.texts(config.id_column)
    about = {"user": config.user, "time": time, "history": end - int(arrays.offsets[user])}
    return Scored(names, logits, order, np.zeros((len(items), 0), np.bool_), (), about)


def _find_history(config: RecommendConfig, event_log: EventLog, candidates: NewRows) -> tuple[int, int, int]:
    """Return the user's index, the number of the event that its history ends before, and the candidates' time.

    The user is that of user=ID or of the candidates' file. The time is that of time=SECONDS, else of the log's last
    event, as if each candidate were offered then; in the first case events from that time on are no history.
    """
    arrays, column = event_log.events, event_log.schema.user
    given_users = candidates.texts(column) if column in candidates.columns else []
    # Without the column no row gives a user, and the loop ends at once.
    for number, text in zip(candidates.numbers, given_users, strict=False):
        if config.user is not None and text not in ("", config.user):
            location = f"{candidates.name}: row {number}, column {column}"
            raise UserError(f"user={config.user}: {location} has {text}; leave the column or user=ID out")
    users = {config.user} if config.user is not None else set(given_users)
    if len(users) != 1:
        raise UserError(f"user: {len(users)} users are given in column {column}; give one, as in the log: user=ID")
    [user] = users
    assert user is not None
    indices = np.flatnonzero(arrays.users == text_key(user))
    if not len(indices):
        raise UserError(f"user={user}: not in the log; give one of its users, as in its column {column}")
    index = int(indices[0])
    start, stop = arrays.offsets[index : index + 2].tolist()
    time = int(arrays.times[arrays.offsets[1:] - 1].max()) if config.time is None else config.time
    end = stop if config.time is None else start + int(np.searchsorted(arrays.times[start:stop], time, "left"))
    if end - start < event_log.min_history:
        raise UserError(
            f"user={user}: {end - start} events before time={time}, and samples of the run have at least "
            f"{event_log.min_history} (sequences.min_history); give a user with more"
        )
    return index, end, time
