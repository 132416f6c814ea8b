"""Preparation of a dataset of events: sorted by (user, time, place in the input) in bounded memory.

`SortTask` writes sorted runs of consecutive events. `MergeTask` takes some users from all runs, in the order of the
runs, and sorts their events by a stable sort. The input and `chunk_bytes` alone decide the events of a run and the
users of a task.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.command import load
from common.documents import VERSION
from common.errors import UserError
from common.files import Crc32, FileDigest, Need, require_room
from common.jit import Int, jit
from common.keys import refuse, shown
from common.machine import keep_freed_memory, usable_cpus
from data_prep.config.keys import DataConfig, chunk_size, may_use_processes, parse_size
from data_prep.config.presets import USED_BY_GENERATORS, unused_key_faults
from data_prep.dataset.format import Manifest, Shard, Split, shard_path
from data_prep.dataset.spelling import text_of
from data_prep.engine.executor import Executor, Worker, open_executor, start_fork_server
from data_prep.engine.job import (
    CHUNKS_DIRECTORY,
    WORKER_BYTES,
    LoggedTask,
    claim_work,
    find_finished,
    keep_or_discard_work,
    limit_workers,
    publish,
    refuse_foreign_files,
)
from data_prep.io.arrays import ArrayWriter, open_array, write_array
from data_prep.job_setup import find_sources
from data_prep.parsing.convert import distinct, excerpt, to_list
from data_prep.parsing.dates import SECOND
from data_prep.parsing.formats import Chunk
from data_prep.parsing.raw_rows import RawRows
from data_prep.parsing.table_yaml import schema_path
from data_prep.sources.discover import Source, refuse_other_sum, resolve_sources
from data_prep.sources.download import find_or_download, note_read_sums, note_times, raw_directory, source_sums
from data_prep.stages.parse import DigestTask, refuse_changed, refuse_same, refuse_same_rows
from extensions.sequences.events import (
    ANCHOR_BIT,
    EVENT_BYTES,
    EVENT_DTYPES,
    EVENTS,
    ITEM,
    SHARD_NAME,
    USER,
    EventBlock,
    EventSchema,
    attribute_path,
    check_columns,
    check_log,
    event_batches,
    keys_of,
    load_event_schema,
    parse_events,
    plan_event_chunks,
)

USED_BY_EVENTS = USED_BY_GENERATORS | {
    "raw",
    "schema",
    "scheduler",
    "memory_budget",
    "chunk_bytes",
    "allow_degenerate",
}


def refuse_keys_without_events(data: DataConfig) -> None:
    """Raise UserError for a key of rows, or of another source, without effect on events."""
    if data.train is not None:
        raise UserError("data.train: a log of events is split by time, not by files; name its files in data.raw")
    refuse(unused_key_faults(data, USED_BY_EVENTS, "on a log of events"))
    if data.source_kind.figures and data.raw is not None:
        raise UserError(
            f"data.raw: has no effect with data.source={shown(data.source)}, which makes the log; leave it out"
        )


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
    """Parses a chunk and writes its events in sorted runs of at most `events_per_run`."""

    work: Path
    source: int
    number: int
    file: Source
    chunk: Chunk
    schema: EventSchema
    events_per_run: int
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
            if run_blocks and sum(len(held.users) for held in run_blocks) + len(block.users) > self.events_per_run:
                self._write_run(run_blocks, record)
                run_blocks = []
            for start in range(0, len(block.users), self.events_per_run):
                run_blocks.append(block.take(slice(start, start + self.events_per_run)))
                if sum(len(held.users) for held in run_blocks) >= self.events_per_run:
                    self._write_run(run_blocks, record)
                    run_blocks = []
        if run_blocks:
            self._write_run(run_blocks, record)
        return record

    def _write_run(self, blocks: list[EventBlock], record: SortRecord) -> None:
        """Sort the events of these blocks by user and time, write them as the next run, and add it to the record."""
        columns = EventBlock(*(np.concatenate(column) for column in zip(*blocks, strict=True)))
        # The sort is stable, so events of one user and time keep the order of the input.
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
        # The keys of all users stay in memory, so too many end the job before memory is short.
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
        keys, columns = self._read_runs()
        worker.count(0)
        is_in_period = (columns.times >= self.begin) & (columns.times < self.end)
        dropped = len(is_in_period) - int(is_in_period.sum())
        if dropped:
            columns = columns.take(is_in_period)
        # Runs lie in the order of the input, and the sort is stable, so ties keep that order.
        order = np.lexsort((columns.times, columns.users))
        users, items, times, flags = columns.take(order)
        # Otherwise memory would hold the events of the task twice.
        del columns, order, is_in_period
        if self.items is not None:
            # Id 0 means an unknown item.
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
        # Microseconds decided the order; windows, ages and hours are counted in seconds.
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

    def _read_runs(self) -> tuple[NDArray[np.int64], EventBlock]:
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
        # The plan tells the number of events, so each column is allocated once.
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
        # A user is never divided between tasks, as a history needs all of the user's events.
        stop = max(start + 1, int(np.searchsorted(ends, before + events, "right")))
        bounds.append((int(users.users[start]), int(users.users[stop - 1]), int(ends[stop - 1]) - before))
        start = stop
    return bounds


@jit
def _count_repeated(
    users: NDArray[np.int64], items: NDArray[np.int32], times: NDArray[np.int64], flags: NDArray[np.uint8]
) -> Int:
    """Return how many events equal one of the REPEATS_WITHIN events before it, of the same user and time."""
    repeated = 0
    for event in range(1, len(users)):
        for other in range(event - 1, max(-1, event - 1 - REPEATS_WITHIN), -1):
            if users[other] != users[event] or times[other] != times[event]:
                break
            if items[other] == items[event] and flags[other] == flags[event]:
                repeated += 1
                break
    return repeated


SORT_BYTES = 128  # memory of an event while its run is sorted or merged
KEY_BYTES = 64  # memory of a user or item while all are counted, or an attribute's table is read
KEYS_PER_BUDGET = 4
COUNTED_VALUES, SHOWN_VALUES = 1000, 8  # values of a column in an error
RUN_BYTES, PIECE_BYTES = 20, 9  # disk space of an event during preparation, in a run (keys, items) and sorted
ORDER = "user, time, place in the input"


@dataclass
class EventJob:
    """A job and its results.

    Attributes:
        sources: the log's files, then the attributes' tables; `tables` has their index by attribute.
        counts: figures for the manifest; attribute_masks: for each attribute, a mask of the items in its table.
    """

    work: Path
    schema: EventSchema
    sources: tuple[Source, ...]
    num_logs: int
    tables: dict[str, int]
    chunk_bytes: int
    key_limit: int
    counts: dict[str, Any] = field(default_factory=dict)
    attribute_masks: list[NDArray[np.bool_]] = field(default_factory=list)
    vocabulary: dict[str, dict[str, Any]] = field(default_factory=dict)
    num_embeddings: dict[str, int] = field(default_factory=dict)

    @property
    def events_per_run(self) -> int:
        """Return the most events of a sorted run: a chunk's budget over the bytes of an event."""
        return max(1, self.chunk_bytes // EVENT_BYTES)


def prepare_events(data: DataConfig, root: Path) -> Manifest:
    """Make the dataset, resume an unfinished job, or return the finished dataset."""
    refuse_keys_without_events(data)
    path = schema_path(str(data.schema))
    schema = load_event_schema(path)
    with claim_work(root) as work:
        sources = find_sources(data, root, work)
        # The user's files are all of the log; of a source that makes or downloads files, the first is the log.
        logs, others = (sources, []) if data.source_kind.makes is None else (sources[:1], sources[1:])
        tables = [_attribute_source(path, logs[0], others, attribute.file) for attribute in schema.attributes.values()]
        all_sources = tuple({source.path: source for source in (*logs, *tables)}.values())
        parameters = {"name": EVENTS, "chunk_bytes": chunk_size(data), "order": ORDER, "bits": list(schema.actions)}
        # Chunks of another size give the same dataset.
        compared = {key: value for key, value in parameters.items() if key != "chunk_bytes"}
        finished = find_finished(root, compared, schema.to_manifest(), all_sources, data)
        if finished is not None:
            return finished
        refuse_foreign_files(root, work, [Path(source.path) for source in all_sources])
        check_log(logs, schema, str(path))
        for table, attribute in zip(tables, schema.attributes.values(), strict=True):
            check_columns(table, (attribute.item, attribute.column), schema.delimiter, str(path))
        keep_or_discard_work(work, parameters | {"raw_schema": schema.to_manifest()}, all_sources)
        paths = [source.path for source in all_sources]
        indices = {name: paths.index(table.path) for name, table in zip(schema.attributes, tables, strict=True)}
        limit = parse_size(data.memory_budget, "data.memory_budget") // KEYS_PER_BUDGET // KEY_BYTES
        job = EventJob(work, schema, all_sources, len(logs), indices, chunk_size(data), limit)
        manifest, moves = _run_stages(data, root, job, parameters)
        if data.source_kind.figures:
            manifest.extra |= load(data.source_kind.figures)(data, root)
        manifest = publish(work, root, manifest, moves)
    for line in _summary_lines(manifest):
        print(f"{root}: {line}", file=sys.stderr)
    return manifest


def fetch_log(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Download a log from mirrors, and the tables of its items' attributes."""
    return find_or_download(data, root, lambda rows: int(rows * (RUN_BYTES + 2 * PIECE_BYTES)))


def _attribute_source(schema: Path, log: Source, fetched: list[Source], file: str) -> Source:
    """Return the table of this file name: the downloaded one, or else the one beside the schema or the log."""
    if fetched_table := next((source for source in fetched if source.name == file), None):
        return fetched_table
    beside = [schema.parent / file, Path(log.path).parent / file]
    return resolve_sources(str(next((path for path in beside if path.exists()), beside[0])))[0]


def _run_stages(data: DataConfig, root: Path, job: EventJob, parameters: dict[str, Any]) -> tuple[Manifest, list[Any]]:
    """Run all stages, and return the manifest and the moves of files to the dataset."""
    if may_use_processes(data):
        start_fork_server(has_schema=True)
    keep_freed_memory()
    begin = time.monotonic()
    sort_tasks = [
        SortTask(job.work, index, number, source, chunk, job.schema, job.events_per_run)
        for index, source in enumerate(job.sources[: job.num_logs])
        for number, chunk in enumerate(plan_event_chunks(source, job.chunk_bytes))
    ]
    need = WORKER_BYTES + (16 << 20) + SORT_BYTES * job.events_per_run
    workers = limit_workers(data, min(data.workers or usable_cpus(), len(sort_tasks)), need)
    with open_executor(data.scheduler, workers) as executor:
        with executor.stage("sort", sum(task.size[0] for task in sort_tasks)):
            records = list(executor.map(sort_tasks))
            digests = [reading.digest for reading in executor.map(DigestTask(source) for source in job.sources)]
        _refuse_unreadable(data, root, job, records, digests)
        pairs = zip(sort_tasks, records, strict=True)
        chunks = ((task.source, record.rows, record.files) for task, record in pairs)
        refuse_same_rows(job.sources[: job.num_logs], chunks)
        executor.release(workers)
        runs = tuple(run for task, record in zip(sort_tasks, records, strict=True) for run in task.run_stems(record))
        events = sum(record.rows for record in records)
        require_room([Need(root, events * 2 * PIECE_BYTES, "for the dataset", about=True)])
        with executor.stage("ids", 0):
            users = count_users(runs, job.key_limit)
            moves = _fit_ids(job, records, runs)
        executor.release()
        merge_tasks = _merge_tasks(job, records, runs, plan_merge(users, job.events_per_run))
        with executor.stage("merge", sum(task.size[0] for task in merge_tasks)):
            merge_records = list(executor.map(merge_tasks))
        executor.release(1)
        _refuse_useless(job, merge_records, data.allow_degenerate)
        with executor.stage("join", sum(record.rows for record in merge_records) * PIECE_BYTES):
            shard = _write_shard(job, merge_tasks, merge_records, executor)
        peak = executor.peak_bytes
    moves += [(f"{kind}.npy", str(shard_path(Path(), EVENTS, SHARD_NAME, kind))) for kind in shard.files]
    _note_figures(job, records, merge_records)
    job.counts |= {
        "peak_memory_bytes": peak,
        "workers": workers,
        "seconds": round(time.monotonic() - begin, 3),
        "stage_seconds": executor.seconds,
        **note_times(job.sources),
    }
    return _build_manifest(job, parameters, shard, records, sort_tasks, digests), moves


def _refuse_unreadable(
    data: DataConfig, root: Path, job: EventJob, records: list[SortRecord], digests: list[FileDigest | None]
) -> None:
    """Refuse files that changed or differ from the published ones; record the checksums of downloaded files."""
    refuse_changed(job.sources)
    if not sum(record.rows for record in records):
        raise UserError(f"{job.sources[0].path}: no events in it; get it again, or leave it out of data.raw")
    readable = [digest for digest in digests if digest is not None]
    refuse_same(job.sources[: job.num_logs], [digest.sha256 for digest in readable[: job.num_logs]])
    if data.remote.name:
        for source, expected, digest in zip(job.sources, source_sums(data, root, job.sources), readable, strict=True):
            refuse_other_sum(Path(source.path), expected, digest)
        raw_directory(data, root).mkdir(parents=True, exist_ok=True)
        note_read_sums(data, root, job.sources, readable)


def _fit_ids(job: EventJob, records: list[SortRecord], runs: tuple[str, ...]) -> list[tuple[str, str]]:
    """Write the items' keys, if renumbered, and each item's attributes; return the moves of these files."""
    schema, moves = job.schema, []
    if schema.renumber:
        keys = distinct_items(runs, job.key_limit)
        rows = {ITEM: len(keys) + 1}
        digest = write_array(job.work / "item.npy", keys)
        job.vocabulary[ITEM] = asdict(digest) | {"values": len(keys)}
        moves.append(("item.npy", str(attribute_path(Path(), ITEM))))
    else:
        keys = None
        sizes = {USER: "largest_user", ITEM: "largest_item"}
        rows = {
            name: schema.rows.get(name, max(getattr(record, key) for record in records) + 1)
            for name, key in sizes.items()
        }
    job.attribute_masks = []
    for name in schema.attributes:
        ids, has_attribute, size = _load_attribute(job, name, keys, rows[ITEM])
        rows[name] = size
        job.attribute_masks.append(has_attribute)
        job.vocabulary[name] = asdict(write_array(job.work / f"{name}.npy", ids)) | {"values": size}
        moves.append((f"{name}.npy", str(attribute_path(Path(), name))))
    crosses = {name: cross.rows for name, cross in schema.crosses.items()}
    job.num_embeddings = {name: (rows | crosses).get(name, 1) for name in schema.tables}
    return moves


def _load_attribute(
    job: EventJob, name: str, items: NDArray[np.int64] | None, num_items: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_], int]:
    """Return an attribute's ids [num_items] by item id, a mask of the items that have it, and the rows of its table.

    Args:
        items: keys of the items with ids from 1 on, ascending; None: an item's key is its id.
        num_items: rows of the items' table.
    """
    schema, attribute = job.schema, job.schema.attributes[name]
    columns = (attribute.item, attribute.column)
    values: NDArray[Any] = np.zeros(num_items, np.int32 if items is None else np.int64)
    has_attribute = np.zeros(num_items, np.bool_)
    for batch in _attribute_batches(job, name):
        keys, block_values = (keys_of(batch, column, schema.renumber) for column in columns)
        ids, is_in_table = keys, keys < num_items
        if items is not None:
            # The table may have items that the log lacks.
            places = np.searchsorted(items, keys)
            is_in_table = (places < len(items)) & (items[np.minimum(places, len(items) - 1)] == keys)
            ids = places + 1
        ids, block_values = ids[is_in_table], block_values[is_in_table]
        is_other = has_attribute[ids] & (values[ids] != block_values)
        values[ids], has_attribute[ids] = block_values, True
        is_other |= values[ids] != block_values  # two rows of this batch
        if is_other.any():
            raise _contradiction_error(job, name, int(keys[is_in_table][is_other.argmax()]))
    if items is None:
        size = schema.rows.get(name, int(values.max(initial=0)) + 1)
        values[values >= size] = 0
        return values.astype(np.int32, copy=False), has_attribute, size
    distinct_values = np.unique(values[has_attribute])
    return (
        np.where(has_attribute, np.searchsorted(distinct_values, values) + 1, 0).astype(np.int32),
        has_attribute,
        len(distinct_values) + 1,
    )


def _attribute_batches(job: EventJob, name: str) -> Iterator[RawRows]:
    """Yield the batches of an attribute's table."""
    source, attribute = job.sources[job.tables[name]], job.schema.attributes[name]
    for chunk in plan_event_chunks(source, job.chunk_bytes):
        for batch, _ in event_batches(source, chunk, (attribute.item, attribute.column), job.schema.delimiter):
            yield batch


def _contradiction_error(job: EventJob, name: str, key: int) -> UserError:
    """Return the error for two rows that give the item of a key different values."""
    attribute = job.schema.attributes[name]
    columns, places = (attribute.item, attribute.column), dict[int, tuple[RawRows, int]]()
    for batch in _attribute_batches(job, name):
        keys, values = (keys_of(batch, column, job.schema.renumber) for column in columns)
        for row in np.flatnonzero(keys == key).tolist():
            places.setdefault(int(values[row]), (batch, row))
        if len(places) > 1:
            break
    (first_batch, first_row), (batch, row) = list(places.values())[:2]
    item, value = (excerpt(to_list(batch.columns[column])[row]) for column in columns)
    first_value = excerpt(to_list(first_batch.columns[attribute.column])[first_row])
    return UserError(
        f"{batch.locator_of(attribute.column)(row)}: {attribute.item} {item} has {value}, but {first_value} in "
        f"{first_batch.locator(first_row)}; keep one of these rows"
    )


def _merge_tasks(
    job: EventJob, records: list[SortRecord], runs: tuple[str, ...], bounds: list[tuple[int, int, int]]
) -> list[MergeTask]:
    """Return a task for each of the bounds of `plan_merge`; all keep the schema's period."""
    schema = job.schema
    end = max(record.last_time for record in records) + 1
    if schema.drop_last_seconds:
        end -= 1 + schema.drop_last_seconds * SECOND
    begin = 0 if schema.keep_seconds is None else max(0, end - schema.keep_seconds * SECOND)
    items = job.work / "item.npy" if schema.renumber else None
    return [
        MergeTask(job.work, number, first, last, runs, schema, begin, end, items, job.num_embeddings[ITEM], events)
        for number, (first, last, events) in enumerate(bounds)
    ]


def _refuse_useless(job: EventJob, records: list[MergeRecord], allows_one_class: bool) -> None:
    """Refuse a log from which nothing can be learned."""
    events, path, schema = sum(record.rows for record in records), job.sources[0].path, job.schema
    if not events:
        limits = {key: getattr(schema, key) for key in ("keep_seconds", "drop_last_seconds")}
        limits_text = " and ".join(f"`{key}: {seconds}`" for key, seconds in limits.items() if seconds)
        raise UserError(f"{path}: {limits_text} of data.schema leave none of its events; correct them there")
    candidates = sum(record.candidates for record in records)
    if not candidates:
        raise UserError(f"{path}: none of {events:,} events meets `anchors`; correct it in data.schema")
    positives = sum(record.positives for record in records)
    if positives in (0, candidates) and not allows_one_class:
        share = "none" if not positives else "each"
        raise UserError(
            f"{path}: {share} of the {candidates:,} events that meet `anchors` is {schema.label}, the label, so "
            f"nothing can be learned; {_sample_values_text(job)}; correct `actions`, `label` or `anchors` in "
            "data.schema, or set data.allow_degenerate=true"
        )


def _sample_values_text(job: EventJob) -> str:
    """Return the values and counts of the label's columns, among events that meet `anchors`."""
    schema = job.schema
    counts: dict[str, Counter[str]] = {column: Counter() for column in schema.actions[schema.label]}
    for source in job.sources[: job.num_logs]:
        for chunk in plan_event_chunks(source, job.chunk_bytes):
            for batch, _ in event_batches(source, chunk, schema.columns, schema.delimiter):
                is_sample = parse_events(batch, schema).flags & ANCHOR_BIT != 0
                for column in counts:
                    codes, values = distinct(batch.columns[column])
                    numbers = np.bincount(codes[is_sample], minlength=len(values)).tolist()
                    counts[column].update(dict(zip(map(text_of, values), numbers, strict=True)))
                    counts[column] = Counter(dict(counts[column].most_common(COUNTED_VALUES)))
    shown = {column: counter.most_common(SHOWN_VALUES + 1) for column, counter in counts.items()}
    return "; ".join(
        f"their values of {column}: "
        + ", ".join(f"{excerpt(value)} ({count:,})" for value, count in pairs[:SHOWN_VALUES] if count)
        + (", …" if len(pairs) > SHOWN_VALUES else "")
        for column, pairs in shown.items()
    )


def _write_shard(job: EventJob, tasks: list[MergeTask], records: list[MergeRecord], executor: Executor) -> Shard:
    """Write the merged events one after another, and return the dataset's shard."""
    events, users = sum(record.rows for record in records), sum(record.users for record in records)
    if job.schema.renumber:
        job.num_embeddings[USER] = users + 1
    rows = {"users": users, "offsets": users + 1, "items": events, "times": events, "flags": events}
    writers = {
        kind: ArrayWriter(job.work / f"{kind}.npy", EVENT_DTYPES[kind], None, count) for kind, count in rows.items()
    }
    missing, offset = np.zeros(len(job.attribute_masks), np.int64), 0
    try:
        writers["offsets"].append(np.zeros(1, np.int64))
        for task in tasks:
            arrays = {kind: open_array(Path(f"{task.stem}.{kind}.npy")) for kind in rows}
            for kind, array in arrays.items():
                writers[kind].append(array[1:] + offset if kind == "offsets" else array)
            missing += np.array([(~mask[arrays["items"]]).sum() for mask in job.attribute_masks], np.int64)
            offset += len(arrays["items"])
            executor.counters.add(len(arrays["items"]) * PIECE_BYTES, len(arrays["items"]))
        job.counts["without_attribute"] = dict(zip(job.schema.attributes, missing.tolist(), strict=True))
        return Shard(SHARD_NAME, events, {kind: writer.close() for kind, writer in writers.items()})
    finally:
        for writer in writers.values():
            writer.abandon()


def _note_figures(job: EventJob, records: list[SortRecord], merge_records: list[MergeRecord]) -> None:
    """Add figures of the events for the manifest's `extra`."""
    keys = ("users", "dropped", "repeated", "out_of_table", "anchors", "candidates", "positives", "short_users")
    job.counts |= {key: sum(getattr(record, key) for record in merge_records) for key in keys}
    job.counts |= {
        "unsorted": sum(record.unsorted for record in records),
        "longest_history": max(record.longest for record in merge_records),
    }


def _build_manifest(
    job: EventJob,
    parameters: dict[str, Any],
    shard: Shard,
    records: list[SortRecord],
    tasks: list[SortTask],
    digests: list[FileDigest | None],
) -> Manifest:
    """Return the manifest of the dataset with this shard; digests: of job.sources, None for a table read before."""
    rate = job.counts["positives"] / job.counts["candidates"]
    rows = [0] * len(job.sources)
    for task, record in zip(tasks, records, strict=True):
        rows[task.source] += record.rows
    sources = [
        {"name": source.name, **asdict(digest), "rows": count}
        for source, digest, count in zip(job.sources, digests, rows, strict=True)
        if digest
    ]
    return Manifest(
        schema={"label": job.schema.label, "dense": [], "sparse": list(job.schema.tables)},
        encoding=parameters | {"raw_schema": job.schema.to_manifest(), "vocabulary": job.vocabulary},
        num_embeddings=job.num_embeddings,
        splits={EVENTS: Split(shard.rows, rate, [shard])},
        sources=sources,
        rows=shard.rows,
        label_rate=rate,
        tool_version=f"clickwork {VERSION}",
        extra=job.counts,
    )


def _summary_lines(manifest: Manifest) -> Iterator[str]:
    """Yield what to print of a prepared log: its size, then what was sorted, left out or set to 0, if any."""
    figures, history = manifest.extra, manifest.encoding["raw_schema"].get("min_history", 1)
    yield (
        f"{manifest.rows:,} events of {figures['users']:,} users, {figures['anchors']:,} samples "
        f"(min_history: {history}), label rate {manifest.label_rate or 0.0:.4f}, "
        f"peak memory {figures['peak_memory_bytes'] / 2**20:.0f} MiB"
    )
    notes = {
        "users have too short histories for a sample": figures["short_users"],
        "events equal another of their user and time; they are kept": figures["repeated"],
        "events stood after a later one of their user; they are sorted now": figures["unsorted"],
        "events are outside the times that the schema keeps; they are left out": figures["dropped"],
        "events have ids beyond their table (`rows`); they are 0 now": figures["out_of_table"],
    }
    for name, count in figures["without_attribute"].items():
        notes[f"events have an item that {name}'s table does not have; their {name} is 0"] = count
    yield from (f"{count:,} {note}" for note, count in notes.items() if count)
