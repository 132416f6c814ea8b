"""Stages that sort a log of events by (user, time, place in the input) in bounded memory.

`SortTask` writes sorted runs of consecutive events. `MergeTask` takes some users from all runs, in the order of the
runs, and sorts their events by a stable sort. The input and `chunk_bytes` alone decide the events of a run and the
users of a task.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import Crc32, FileDigest
from common.jit import Int, jit
from data_prep.engine.executor import Worker
from data_prep.engine.job import CHUNKS_DIRECTORY, LoggedTask
from data_prep.io.arrays import open_array, write_array
from data_prep.parsing.dates import SECOND
from data_prep.parsing.formats import Chunk
from data_prep.sources.discover import Source
from extensions.sequences.event_arrays import EVENT_DTYPES
from extensions.sequences.event_parsing import EVENT_BYTES, EventBlock, event_batches, parse_events
from extensions.sequences.event_schema import ANCHOR_BIT, EventSchema

MIN_EVENTS = 1 << 20  # events of one user that fit any memory budget
REPEATS_WITHIN = 100  # earlier events of a user and time that are searched for an equal one


@dataclass
class SortRecord:
    """Runs of a chunk: files N.{users,starts,items,times,flags}.npy, and N.distinct.npy with its sorted items.

    unsorted: events of a run after a later one of their user. last_time: latest time of its events in microseconds, -1
    without any.
    """

    rows: int
    runs: int
    unsorted: int
    last_time: int
    largest_user: int
    largest_item: int
    files: dict[str, FileDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class SortTask(LoggedTask[SortRecord]):
    """Parses a chunk and writes its events in sorted runs of at most `run_events`."""

    work: Path
    source: int
    number: int
    file: Source
    chunk: Chunk
    schema: EventSchema
    run_events: int
    stage = "sorted"
    record_type = SortRecord

    @property
    def stem(self) -> Path:
        """Return the common prefix of its files' paths."""
        return self.work / CHUNKS_DIRECTORY / f"{self.source:05d}-{self.number:05d}"

    @property
    def size(self) -> tuple[int, int]:
        """Return the bytes and rows to count as done."""
        return self.chunk.bytes_of(self.file), 0

    def do(self, worker: Worker) -> SortRecord:
        """Write the runs."""
        record = SortRecord(0, 0, 0, -1, 0, 0)
        run_blocks: list[EventBlock] = []
        for batch, num_bytes in event_batches(self.file, self.chunk, self.schema.columns, self.schema.delimiter):
            block = parse_events(batch, self.schema)
            worker.count(num_bytes, len(block.users))
            if not len(block.users):
                continue
            record.last_time = max(record.last_time, int(block.times.max()))
            record.largest_user = max(record.largest_user, int(block.users.max()))
            record.largest_item = max(record.largest_item, int(block.items.max()))
            if run_blocks and sum(len(each.users) for each in run_blocks) + len(block.users) > self.run_events:
                self._write(run_blocks, record)
                run_blocks = []
            for start in range(0, len(block.users), self.run_events):
                run_blocks.append(block.take(slice(start, start + self.run_events)))
                if sum(len(each.users) for each in run_blocks) >= self.run_events:
                    self._write(run_blocks, record)
                    run_blocks = []
        if run_blocks:
            self._write(run_blocks, record)
        return record

    def _write(self, blocks: list[EventBlock], record: SortRecord) -> None:
        columns = EventBlock(*(np.concatenate(column) for column in zip(*blocks, strict=True)))
        order = np.lexsort((columns.times, columns.users))
        users, starts, numbers = np.unique(columns.users[order], return_index=True, return_inverse=True)
        places = (numbers * len(order) + order)[::-1]  # the latest event of each user comes first
        record.unsorted += int((places > np.minimum.accumulate(places)).sum())
        arrays = {
            "users": users,
            "starts": np.append(starts, len(order)),
            "items": columns.items[order],
            "times": columns.times[order],
            "flags": columns.flags[order],
            "distinct": np.unique(columns.items),
        }
        for kind, array in arrays.items():
            suffix = f"{record.runs}.{kind}.npy"
            record.files[suffix] = write_array(Path(f"{self.stem}.{suffix}"), array, Crc32)
        record.rows += len(order)
        record.runs += 1

    def run_stems(self, record: SortRecord) -> list[str]:
        """Return the prefixes of its runs' paths."""
        return [f"{self.stem}.{run}" for run in range(record.runs)]


class UserCounts(NamedTuple):
    """Keys of all users [U], ascending, and the number of events of each."""

    users: NDArray[np.int64]
    counts: NDArray[np.int64]


def count_users(runs: Iterable[str], limit: int) -> UserCounts:
    """Count the users of all runs."""
    total = UserCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for run in runs:
        users, counts = np.load(f"{run}.users.npy"), np.diff(np.load(f"{run}.starts.npy"))
        all_users = np.union1d(total.users, users)
        sums = np.zeros(len(all_users), np.int64)
        sums[np.searchsorted(all_users, total.users)] += total.counts
        sums[np.searchsorted(all_users, users)] += counts
        total = UserCounts(all_users, sums)
        refuse_too_many(len(all_users), limit, "users")
    return total


def distinct_items(runs: Iterable[str], limit: int) -> NDArray[np.int64]:
    """Return the keys of all items of all runs, ascending. Raise UserError for more than `limit`."""
    items = np.zeros(0, np.int64)
    for run in runs:
        items = np.union1d(items, np.load(f"{run}.distinct.npy"))
        refuse_too_many(len(items), limit, "items")
    return items


def refuse_too_many(count: int, limit: int, entities: str) -> None:
    """Raise UserError for more users or items than fit the memory budget."""
    if count > limit:
        raise UserError(f"data.memory_budget: too little for more than {limit:,} {entities}; give more, e.g. 8GiB")


@dataclass
class MergeRecord:
    """Events of some users: files {users,offsets,items,times,flags}.npy, with offsets from 0.

    dropped: events outside the period to keep. repeated: events equal to another of their user and time.
    out_of_table: ids beyond their table, which become 0. candidates: events that can be samples; positives: those with
    the label; anchors: those with a long enough history. short_users: users without an event that has a long enough
    history.
    """

    rows: int
    users: int
    dropped: int
    repeated: int
    out_of_table: int
    anchors: int
    candidates: int
    positives: int
    short_users: int
    longest: int
    files: dict[str, FileDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeTask(LoggedTask[MergeRecord]):
    """Takes the users with keys from `first` to `last` from the runs.

    Attributes:
        begin, end: period to keep, in microseconds; `end` is excluded.
        items: path of the items' keys; key i has the id i + 1. None: an item's key is its id.
        table_rows: larger ids become 0.
    """

    work: Path
    number: int
    first: int
    last: int
    runs: tuple[str, ...]
    schema: EventSchema
    begin: int
    end: int
    items: Path | None
    table_rows: int
    events: int
    stage = "merged"
    record_type = MergeRecord

    @property
    def stem(self) -> Path:
        """Return the common prefix of its files' paths."""
        return self.work / CHUNKS_DIRECTORY / f"users-{self.number:05d}"

    @property
    def size(self) -> tuple[int, int]:
        """Return the bytes and rows to count as done."""
        return self.events * EVENT_BYTES, self.events

    def do(self, worker: Worker) -> MergeRecord:
        """Write the events."""
        keys, columns = self._read()
        worker.count(0)
        is_in_period = (columns.times >= self.begin) & (columns.times < self.end)
        dropped = len(is_in_period) - int(is_in_period.sum())
        if dropped:
            columns = columns.take(is_in_period)
        order = np.lexsort((columns.times, columns.users))
        users, items, times, flags = columns.take(order)
        del columns, order, is_in_period
        if self.items is not None:
            items = np.searchsorted(np.load(self.items), items) + 1
        outside = items >= self.table_rows
        ids = np.where(outside, 0, items).astype(np.int32)
        counts = np.bincount(users, minlength=len(keys))
        alive = counts > 0  # a user with no event in the period is left out
        offsets = np.append(0, np.cumsum(counts[alive]))
        ranks = np.arange(len(users)) - np.repeat(offsets[:-1], counts[alive])
        is_candidate = flags & ANCHOR_BIT != 0
        anchors = is_candidate & (ranks >= self.schema.min_history)
        repeated = int(_count_repeated(users, ids, times, flags))
        arrays = {"users": keys[alive], "offsets": offsets, "items": ids, "times": times // SECOND, "flags": flags}
        record = MergeRecord(
            len(users),
            int(alive.sum()),
            dropped,
            repeated,
            int(outside.sum()),
            int(anchors.sum()),
            int(is_candidate.sum()),
            int((flags[is_candidate] & self.schema.label_bit != 0).sum()),
            int((counts[alive] <= self.schema.min_history).sum()),
            int(counts.max(initial=0)),
        )
        for kind, array in arrays.items():
            path = Path(f"{self.stem}.{kind}.npy")
            record.files[f"{kind}.npy"] = write_array(path, array.astype(EVENT_DTYPES[kind], copy=False), Crc32)
        worker.count(*self.size)
        return record

    def _read(self) -> tuple[NDArray[np.int64], EventBlock]:
        """Read the keys of the users, and their events run by run, with numbers for users in place of keys."""
        spans, key_parts = [], [np.zeros(0, np.int64)]
        for run in self.runs:
            users = open_array(Path(f"{run}.users.npy"))
            low, high = np.searchsorted(users, self.first), np.searchsorted(users, self.last, "right")
            if low < high:
                starts = np.array(open_array(Path(f"{run}.starts.npy"))[low : high + 1])
                spans.append((run, np.array(users[low:high]), starts))
                key_parts.append(spans[-1][1])
        keys = np.unique(np.concatenate(key_parts))
        size = self.events
        columns = EventBlock(
            np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.uint8)
        )
        position = 0
        for run, users, starts in spans:
            rows = slice(position, position := position + int(starts[-1] - starts[0]))
            columns.users[rows] = np.repeat(np.searchsorted(keys, users), np.diff(starts))
            for kind, column in (("items", columns.items), ("times", columns.times), ("flags", columns.flags)):
                column[rows] = open_array(Path(f"{run}.{kind}.npy"))[starts[0] : starts[-1]]
        return keys, columns


def plan_merge(users: UserCounts, events: int) -> list[tuple[int, int, int]]:
    """Return first key, last key and events of each task: consecutive users, at most `events` if there are several."""
    if len(users.users) and (most := int(users.counts.max())) > max(events, MIN_EVENTS):
        key = int(users.users[users.counts.argmax()])
        raise UserError(
            f"data.memory_budget: user {key} alone has {most:,} events, which do not fit; give more, e.g. 8GiB, or "
            "leave this user out"
        )
    bounds: list[tuple[int, int, int]] = []
    ends, start = np.cumsum(users.counts), 0
    while start < len(users.users):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + events, "right")))
        bounds.append((int(users.users[start]), int(users.users[stop - 1]), int(ends[stop - 1]) - before))
        start = stop
    return bounds


@jit
def _count_repeated(
    users: NDArray[np.int64], items: NDArray[np.int32], times: NDArray[np.int64], flags: NDArray[np.uint8]
) -> Int:
    repeated = 0
    for event in range(1, len(users)):
        for other in range(event - 1, max(-1, event - 1 - REPEATS_WITHIN), -1):
            if users[other] != users[event] or times[other] != times[event]:
                break
            if items[other] == items[event] and flags[other] == flags[event]:
                repeated += 1
                break
    return repeated
