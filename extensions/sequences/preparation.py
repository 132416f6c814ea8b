"""Preparation of a dataset of events: sorted by (user, time, place in the input) in bounded memory.

`sort_chunk` writes sorted runs of consecutive events. `merge_users` takes some users from all runs, in the order of the
runs, and sorts their events by a stable sort. The input and `chunk_bytes` alone decide the events of a run and the
users of a task.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.documents import VERSION
from common.errors import UserError
from common.extensions import load
from common.files import Crc32, FileDigest, Need, require_room
from common.keys import refuse
from common.machine import keep_freed_memory, usable_cpus
from data_prep import job as jobs
from data_prep.codec.convert import excerpt, to_list
from data_prep.codec.values import SECOND, offsets_of
from data_prep.config import (
    USED_BY_GENERATORS,
    DataConfig,
    chunk_size,
    may_use_processes,
    parse_size,
    unused_key_faults,
)
from data_prep.dataset.format import Manifest, Shard, Split, shard_path
from data_prep.dataset.options import to_json
from data_prep.executor import Counters, Executor, open_executor, start_fork_server
from data_prep.io import ArrayWriter, open_array, write_array
from data_prep.job import CHUNKS_DIRECTORY, WORKER_BYTES, ResumableTask, begin_or_resume, path_of
from data_prep.parsing.table import Chunk, schema_path
from data_prep.sources.download import find_or_download, source_sums
from data_prep.sources.files import PUBLISHED, Source, note_times, refuse_same, resolve_sources
from data_prep.stages.parse import digest_source, refuse_changed, refuse_same_rows
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
    event_batches,
    keys_of,
    load_event_schema,
    parse_events,
    plan_event_chunks,
)

USED_BY_EVENTS = USED_BY_GENERATORS | {"raw", "schema", "scheduler", "memory_budget", "chunk_bytes", "allow_degenerate"}
MIN_EVENTS = 1 << 20  # events of one user that fit any memory budget
SORT_BYTES = 128  # memory of an event while its run is sorted or merged
ITEM_KEYS = f"{ITEM}.npy"  # file of the items' keys, if they are renumbered
RUN_BYTES, PIECE_BYTES = 20, 9  # disk space of an event during preparation, in a run (keys, items) and sorted


@dataclass(frozen=True)
class EventJob:
    """A log to prepare; sent to every worker.

    Attributes:
        work: directory of unfinished files. logs: files of the log. tables: file with the table of each attribute.
        sources: the files of both, each once, logs first.
        key_limit: the most users or items that fit the memory budget.
    """

    work: Path
    schema: EventSchema
    logs: Sequence[Source]
    tables: dict[str, Source]
    sources: tuple[Source, ...]
    chunk_bytes: int
    key_limit: int

    @property
    def events_per_run(self) -> int:
        """Return the most events that a process sorts at once."""
        return max(1, self.chunk_bytes // EVENT_BYTES)

    def chunk_stem(self, source: int, chunk: int) -> Path:
        """Return the common prefix of the paths of a chunk's runs; source, chunk: number of the log, of the chunk."""
        return self.work / CHUNKS_DIRECTORY / f"{source:05d}-{chunk:05d}"


@dataclass
class SortRecord:
    """Runs of a chunk: files N.{users,starts,items,times,flags}.npy, and N.distinct.npy with its sorted items.

    source, chunk: numbers of the log and of the chunk in it. rows: events of all its runs. last_time: latest time of
    its events in microseconds, -1 without any.
    """

    source: int
    chunk: int
    rows: int = 0
    runs: int = 0
    last_time: int = -1
    files: dict[str, FileDigest] = field(default_factory=dict)


def sort_chunk(job: EventJob, source: int, number: int, chunk: Chunk, counters: Counters) -> SortRecord:
    """Parse a chunk, and write its events in sorted runs of whole batches; memory holds one run and one batch.

    source, number: as in `SortRecord`.
    """
    record, held, schema = SortRecord(source, number), list[EventBlock](), job.schema
    for batch, num_bytes in event_batches(job.logs[source], chunk, schema.columns, schema.delimiter):
        block = parse_events(batch, schema)
        counters.add(num_bytes, batch.rows)
        if held and sum(len(each.users) for each in [*held, block]) > job.events_per_run:
            _write_run(job, held, record)
            held = []
        if batch.rows:
            held.append(block)
    if held:
        _write_run(job, held, record)
    return record


def _write_run(job: EventJob, blocks: list[EventBlock], record: SortRecord) -> None:
    """Sort the events of these blocks by user and time, write them as the next run, and add it to the record."""
    columns = EventBlock(*map(np.concatenate, zip(*blocks, strict=True)))
    # The sort is stable, so events of one user and time keep the order of the input.
    order = np.lexsort((columns.times, columns.users))
    users, starts = np.unique(columns.users[order], return_index=True)
    arrays = {"users": users, "starts": np.append(starts, len(order)), "distinct": np.unique(columns.items)}
    arrays |= {kind: getattr(columns, kind)[order] for kind in ("items", "times", "flags")}
    for kind, array in arrays.items():
        suffix = f"{record.runs}.{kind}.npy"
        record.files[suffix] = write_array(path_of(job.chunk_stem(record.source, record.chunk), suffix), array, Crc32)
    record.rows += len(order)
    record.runs += 1
    record.last_time = max(record.last_time, int(columns.times.max()))


@dataclass
class MergeRecord:
    """Events of some users: files {users,offsets,items,times,flags}.npy, with offsets from 0.

    rows: events that are kept. counts: figures for the manifest's `extra`.
    """

    rows: int
    counts: dict[str, int]
    files: dict[str, FileDigest] = field(default_factory=dict)


def merge_users(
    job: EventJob,
    runs: tuple[str, ...],
    period: tuple[int, int],
    table_rows: int,
    stem: Path,
    first: int,
    last: int,
    counters: Counters,
) -> MergeRecord:
    """Write the events of the users with keys from `first` to `last`, both included, out of all runs.

    runs: paths of the sorted runs, without their endings, in the order of the input. period: begin and end (excluded)
    of the events to keep, in microseconds. table_rows: rows of the items' table; an id from there on becomes 0. stem:
    common prefix of the paths of the files.
    """
    columns, schema = _read_runs(runs, first, last), job.schema
    # Counting nothing lets a job that was asked to stop end before the sort.
    counters.add(0)
    # Runs lie in the order of the input, and the sort is stable, so ties keep that order.
    order, total = np.lexsort((columns.times, columns.users)), len(columns.users)
    order = order[(columns.times[order] >= period[0]) & (columns.times[order] < period[1])]
    users, items, times, flags = (column[order] for column in columns)
    # Otherwise memory would hold the events of the task twice.
    del columns, order
    if schema.renumber:
        # Key i has the id i + 1; id 0 means an unknown item.
        items = np.searchsorted(np.load(job.work / ITEM_KEYS), items) + 1
    outside = items >= table_rows
    ids = np.where(outside, 0, items).astype(np.int32)
    keys, counts = np.unique(users, return_counts=True)  # without users that have no event in the period
    offsets = offsets_of(counts)
    ranks = np.arange(len(users)) - np.repeat(offsets[:-1], counts)
    is_candidate = flags & ANCHOR_BIT != 0
    figures = {
        "users": len(keys),
        "dropped": total - len(users),  # events outside the period to keep
        "out_of_table": int(outside.sum()),  # ids beyond their table, which become 0
        "candidates": int(is_candidate.sum()),  # events that can be samples
        "anchors": int((is_candidate & (ranks >= schema.min_history)).sum()),  # with a long enough history
        "positives": int((flags[is_candidate] & schema.bit(schema.label) != 0).sum()),
        "short_users": int((counts <= schema.min_history).sum()),  # no event has a long enough history
    }
    record = MergeRecord(len(users), figures)
    # Microseconds decided the order; windows, ages and hours are counted in seconds.
    arrays: list[NDArray[Any]] = [keys, offsets, ids, times // SECOND, flags]
    for (kind, dtype), array in zip(EVENT_DTYPES.items(), arrays, strict=True):
        suffix = f"{kind}.npy"
        record.files[suffix] = write_array(path_of(stem, suffix), array.astype(dtype, copy=False), Crc32)
    counters.add(total * EVENT_BYTES, total)
    return record


def _read_runs(runs: Sequence[str], first: int, last: int) -> EventBlock:
    """Return the events of the users with keys from `first` to `last`, run by run."""
    parts = []
    for run in runs:
        users = open_array(Path(f"{run}.users.npy"))
        low, high = np.searchsorted(users, first), np.searchsorted(users, last, "right")
        if low < high:
            starts = open_array(Path(f"{run}.starts.npy"))[low : high + 1]
            others = (open_array(Path(f"{run}.{kind}.npy")) for kind in ("items", "times", "flags"))
            keys = np.repeat(users[low:high], np.diff(starts))
            parts.append(EventBlock(keys, *(column[starts[0] : starts[-1]] for column in others)))
    return EventBlock(*map(np.concatenate, zip(*parts, strict=True)))


def count_keys(
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], limit: int, entities: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all keys of users or items, ascending, and for each the sum of its counts in the parts.

    parts: distinct keys, ascending, and the count of each. limit: the most keys that fit the memory budget. entities:
    "users" or "items", for the error above the limit.
    """
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for part_keys, part_counts in parts:
        all_keys = np.union1d(keys, part_keys)
        sums = np.zeros(len(all_keys), np.int64)
        sums[np.searchsorted(all_keys, keys)] += counts
        sums[np.searchsorted(all_keys, part_keys)] += part_counts
        keys, counts = all_keys, sums
        # All keys stay in memory, so too many end the job before memory is short.
        if len(keys) > limit:
            raise UserError(f"data.memory_budget: too little for more than {limit:,} {entities}; give more, e.g. 8GiB")
    return keys, counts


def prepare_events(data: DataConfig, root: Path) -> Manifest:
    """Make the dataset, resume an unfinished job, or return the finished dataset."""
    used = USED_BY_EVENTS - ({"raw"} if data.source_kind.figures else set())  # such a source makes the log itself
    refuse(unused_key_faults(data, used, "on a log of events, or beside data.source"))
    path = schema_path(str(data.schema))
    schema = load_event_schema(path)
    with jobs.claim_work(root) as work:
        sources = jobs.find_sources(data, root, work)
        # The user's files are all of the log; of a source that makes or downloads files, the first is the log.
        logs, others = (sources, []) if data.source_kind.makes is None else (sources[:1], sources[1:])
        downloads, tables = {source.name: source for source in others}, dict[str, Source]()
        for name, attribute in schema.attributes.items():
            beside = [path.parent / attribute.file, Path(logs[0].path).parent / attribute.file]
            existing = next((file for file in beside if file.exists()), beside[0])
            tables[name] = downloads.get(attribute.file) or resolve_sources(str(existing))[0]
        all_sources = tuple({source.path: source for source in (*logs, *tables.values())}.values())
        order = "user, time, place in the input"
        parameters = {"name": EVENTS, "chunk_bytes": chunk_size(data), "order": order, "bits": list(schema.actions)}
        # Chunks of another size give the same dataset.
        compared = {key: value for key, value in parameters.items() if key != "chunk_bytes"}
        finished = jobs.find_finished(root, compared, to_json(schema), all_sources, data)
        if finished is not None:
            return finished
        jobs.refuse_foreign_files(root, work, [Path(source.path) for source in all_sources])
        for source in logs:
            check_columns(source, schema.columns, schema.delimiter, str(path))
        for name, attribute in schema.attributes.items():
            check_columns(tables[name], (attribute.item, attribute.column), schema.delimiter, str(path))
        parameters |= {"raw_schema": to_json(schema)}
        directory = jobs.job_directory(work, parameters, all_sources)
        begin_or_resume(directory)
        # A quarter of the budget may hold keys; one takes 64 bytes while all are counted or an attribute is read.
        limit = parse_size(data.memory_budget, "data.memory_budget") // 4 // 64
        job = EventJob(directory, schema, logs, tables, all_sources, chunk_size(data), limit)
        manifest, moves = _run_stages(data, root, job, parameters)
        if data.source_kind.figures:
            manifest.extra |= load(data.source_kind.figures)(data, root)
        manifest = jobs.publish(directory, root, manifest, moves)
    for line in _summary_lines(manifest, schema):
        print(f"{root}: {line}", file=sys.stderr)
    return manifest


def fetch_log(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Download a log from mirrors, and the tables of its items' attributes."""
    # Room is required for the runs, the merged pieces, and the dataset that joins these.
    return find_or_download(data, root, lambda rows: int(rows * (RUN_BYTES + 2 * PIECE_BYTES)))


def _run_stages(
    data: DataConfig, root: Path, job: EventJob, parameters: dict[str, Any]
) -> tuple[Manifest, list[tuple[str, str]]]:
    """Run all stages, and return the manifest and the moves of files: (name in the work, path in the dataset)."""
    if may_use_processes(data):
        start_fork_server(has_schema=True)
    keep_freed_memory()
    begin, schema = time.monotonic(), job.schema
    sort_tasks = [
        ResumableTask(
            "sorted",
            job.chunk_stem(source, number),
            SortRecord,
            (chunk.bytes_of(file), 0),
            partial(sort_chunk, job, source, number, chunk),
        )
        for source, file in enumerate(job.logs)
        for number, chunk in enumerate(plan_event_chunks(file, job.chunk_bytes))
    ]
    need = WORKER_BYTES + (16 << 20) + SORT_BYTES * job.events_per_run
    workers = jobs.limit_workers(data, min(data.workers or usable_cpus(), len(sort_tasks)), need)
    with open_executor(data.scheduler, workers) as executor:
        with executor.stage("sort", sum(task.size[0] for task in sort_tasks)):
            records = list(executor.map(sort_tasks))
            sources = _digest_sources(data, root, job, executor, records)
        executor.release(workers)
        events = sum(record.rows for record in records)
        require_room([Need(root, events * 2 * PIECE_BYTES, "for the dataset", about=True)])
        runs = tuple(
            f"{job.chunk_stem(record.source, record.chunk)}.{run}" for record in records for run in range(record.runs)
        )
        with executor.stage("ids", 0):
            of_users = ((np.load(f"{run}.users.npy"), np.diff(np.load(f"{run}.starts.npy"))) for run in runs)
            users, counts = count_keys(of_users, job.key_limit, "users")
            num_embeddings, vocabulary, masks = _fit_ids(job, runs, int(users[-1]))
        executor.release()
        last_time = max(record.last_time for record in records)
        merge_tasks = _plan_merge(job, users, counts, runs, last_time, num_embeddings[ITEM])
        with executor.stage("merge", sum(task.size[0] for task in merge_tasks)):
            merged = list(executor.map(merge_tasks))
        executor.release(1)
        events = sum(record.rows for record in merged)
        figures: dict[str, Any] = {key: sum(each.counts[key] for each in merged) for key in merged[0].counts}
        _refuse_useless(job, events, figures, data.allow_degenerate)
        with executor.stage("join", events * PIECE_BYTES):
            shard, missing = _join(job, [task.stem for task in merge_tasks], events, masks, executor)
        figures["peak_memory_bytes"] = executor.peak_bytes
    if schema.renumber:
        num_embeddings[USER] = figures["users"] + 1
    figures |= {
        "without_attribute": dict(zip(schema.attributes, missing, strict=True)),
        "workers": workers,
        "seconds": round(time.monotonic() - begin, 3),
        "stage_seconds": executor.seconds,
        **note_times(job.sources),
    }
    rate = figures["positives"] / figures["candidates"]
    manifest = Manifest(
        schema={"label": schema.label, "dense": [], "sparse": list(schema.tables)},
        encoding=parameters | {"vocabulary": vocabulary},
        num_embeddings=num_embeddings,
        splits={EVENTS: Split(events, rate, [shard])},
        sources=sources,
        rows=events,
        label_rate=rate,
        tool_version=f"clickwork {VERSION}",
        extra=figures,
    )
    moves = [(f"{name}.npy", str(attribute_path(Path(), name))) for name in vocabulary]
    moves += [(f"{kind}.npy", str(shard_path(Path(), EVENTS, SHARD_NAME, kind))) for kind in shard.files]
    return manifest, moves


def _digest_sources(
    data: DataConfig, root: Path, job: EventJob, executor: Executor, records: list[SortRecord]
) -> list[dict[str, Any]]:
    """Return the manifest's entries of the files; refuse files that changed, are alike, or are not as published."""
    readings = executor.map(partial(digest_source, source) for source in job.sources)
    digests = [digest for _, digest in readings if digest is not None]
    refuse_changed(job.sources)
    rows = [0] * len(job.sources)
    for record in records:
        rows[record.source] += record.rows
    if not any(rows):
        raise UserError(f"{job.logs[0].path}: no events in it; get it again, or leave it out of data.raw")
    sums = [digest.sha256 for digest in digests]
    refuse_same(job.logs, sums[: len(job.logs)])
    if data.remote.name:
        PUBLISHED.refuse_other((source.path for source in job.sources), source_sums(data, job.sources), sums)
    refuse_same_rows(job.logs, ((record.source, record.rows, record.files) for record in records))
    entries = zip(job.sources, digests, rows, strict=True)
    return [{"name": source.name, **asdict(digest), "rows": count} for source, digest, count in entries]


def _fit_ids(
    job: EventJob, runs: tuple[str, ...], largest_user: int
) -> tuple[dict[str, int], dict[str, dict[str, Any]], list[NDArray[np.bool_]]]:
    """Write the items' keys, if renumbered, and each item's attributes. largest_user: the largest key of a user.

    Returns rows of each table (of users only without renumbering), the manifest's entries of the written files by name,
    and for each attribute a mask [items] of the items in its table.
    """
    schema, vocabulary = job.schema, dict[str, dict[str, Any]]()
    keys: NDArray[np.int64] | None = None
    if schema.renumber:
        # An item's count is of no use here; only the keys are kept.
        of_items = ((items := np.load(f"{run}.distinct.npy"), np.ones_like(items)) for run in runs)
        keys, _ = count_keys(of_items, job.key_limit, "items")
        rows = {ITEM: len(keys) + 1}
        vocabulary[ITEM] = asdict(write_array(job.work / ITEM_KEYS, keys)) | {"values": len(keys)}
    else:
        largest = {USER: largest_user, ITEM: max(int(np.load(f"{run}.distinct.npy")[-1]) for run in runs)}
        rows = {name: schema.rows.get(name, number + 1) for name, number in largest.items()}
    masks = []
    for name in schema.attributes:
        ids, has_attribute, rows[name] = _load_attribute(job, name, keys, rows[ITEM])
        masks.append(has_attribute)
        vocabulary[name] = asdict(write_array(job.work / f"{name}.npy", ids)) | {"values": rows[name]}
    rows |= {name: cross.rows for name, cross in schema.crosses.items()}
    # With renumbering, the users' table has no rows yet: the merge may leave out users, and its caller then sets them.
    return {name: rows.get(name, 1) for name in schema.tables}, vocabulary, masks


def _load_attribute(
    job: EventJob, name: str, items: NDArray[np.int64] | None, num_items: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_], int]:
    """Return an attribute's ids [num_items] by item id, a mask of the items that have it, and the rows of its table.

    items: keys of the items with ids from 1 on, ascending; None: an item's key is its id. num_items: rows of the items'
    table.
    """
    schema, attribute = job.schema, job.schema.attributes[name]
    values, has_attribute = np.zeros(num_items, np.int64), np.zeros(num_items, np.bool_)
    columns = (attribute.item, attribute.column)
    for chunk in plan_event_chunks(job.tables[name], job.chunk_bytes):
        for batch, _ in event_batches(job.tables[name], chunk, columns, schema.delimiter):
            keys, new_values = (keys_of(batch, column, schema.renumber) for column in columns)
            ids, is_in_table = keys, keys < num_items
            if items is not None:
                # The table may have items that the log lacks.
                places = np.searchsorted(items, keys)
                is_in_table = (places < len(items)) & (items[np.minimum(places, len(items) - 1)] == keys)
                ids = places + 1
            ids, new_values, rows = ids[is_in_table], new_values[is_in_table], np.flatnonzero(is_in_table)
            is_other = has_attribute[ids] & (values[ids] != new_values)
            values[ids], has_attribute[ids] = new_values, True
            is_other |= values[ids] != new_values  # two rows of this batch
            if is_other.any():
                row = int(rows[is_other.argmax()])
                item, value = (excerpt(to_list(batch.columns[column])[row]) for column in columns)
                raise UserError(
                    f"{batch.locator_of(attribute.column)(row)}: {attribute.item} {item} has {value}, and another "
                    "value in another row; keep one of these rows"
                )
    if items is None:
        # Without renumbering a value is its id, and 0 where the schema's `rows` make the table too small.
        size = schema.rows.get(name, int(values.max(initial=0)) + 1)
        return np.where(values < size, values, 0).astype(np.int32), has_attribute, size
    distinct_values = np.unique(values[has_attribute])
    ids = np.where(has_attribute, np.searchsorted(distinct_values, values) + 1, 0)
    return ids.astype(np.int32), has_attribute, len(distinct_values) + 1


def _plan_merge(
    job: EventJob,
    users: NDArray[np.int64],
    counts: NDArray[np.int64],
    runs: tuple[str, ...],
    last_time: int,
    table_rows: int,
) -> list[ResumableTask[MergeRecord]]:
    """Return tasks for consecutive users, with the events of a run at most if there are several.

    users, counts: all keys, ascending, and the number of events of each. runs: paths of the sorted runs, without their
    endings. last_time: time of the log's last event in microseconds. table_rows: of the items' table.
    """
    if (most := int(counts.max())) > max(job.events_per_run, MIN_EVENTS):
        raise UserError(
            f"data.memory_budget: user {users[counts.argmax()]} alone has {most:,} events, which do not fit; give "
            "more, e.g. 8GiB, or leave this user out"
        )
    # The period to keep ends with the last event, or some seconds before it.
    schema, end = job.schema, last_time + 1
    if schema.drop_last_seconds:
        end = last_time - schema.drop_last_seconds * SECOND
    begin = 0 if schema.keep_seconds is None else max(0, end - schema.keep_seconds * SECOND)
    merge, tasks = partial(merge_users, job, runs, (begin, end), table_rows), list[ResumableTask[MergeRecord]]()
    offsets, start = offsets_of(counts), 0
    while start < len(users):
        # A user is never divided between tasks, as a history needs all of the user's events.
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + job.events_per_run, "right")) - 1)
        stem, events = job.work / CHUNKS_DIRECTORY / f"users-{len(tasks):05d}", int(offsets[stop] - offsets[start])
        do = partial(merge, stem, int(users[start]), int(users[stop - 1]))
        tasks.append(ResumableTask("merged", stem, MergeRecord, (events * EVENT_BYTES, events), do))
        start = stop
    return tasks


def _refuse_useless(job: EventJob, events: int, figures: dict[str, int], allows_one_class: bool) -> None:
    """Refuse a log from which nothing can be learned.

    events: number of events that are kept. figures: sums of `MergeRecord.counts`.
    """
    path, schema = job.logs[0].path, job.schema
    if not events:
        limits = {key: getattr(schema, key) for key in ("keep_seconds", "drop_last_seconds")}
        limits_text = " and ".join(f"`{key}: {seconds}`" for key, seconds in limits.items() if seconds)
        raise UserError(f"{path}: {limits_text} of data.schema leave none of its events; correct them there")
    candidates, positives = figures["candidates"], figures["positives"]
    if not candidates:
        raise UserError(f"{path}: none of {events:,} events meets `anchors`; correct it in data.schema")
    if allows_one_class or positives not in (0, candidates):
        return
    share = "each" if positives else "none"
    raise UserError(
        f"{path}: {share} of the {candidates:,} events that meet `anchors` is {schema.label}, the label, so nothing "
        "can be learned; correct `actions`, `label` or `anchors` in data.schema, or set data.allow_degenerate=true"
    )


def _join(
    job: EventJob, stems: list[Path], events: int, masks: list[NDArray[np.bool_]], executor: Executor
) -> tuple[Shard, list[int]]:
    """Write the merged events one after another; return the shard, and how many events lack each attribute.

    events: number over all tasks. masks: for each attribute [items], whether an item has it.
    """
    # Offsets count over all users, so they are made anew from the users' numbers of events.
    offsets = offsets_of(np.concatenate([np.diff(open_array(path_of(stem, "offsets.npy"))) for stem in stems]))
    files, missing = {}, [0] * len(masks)
    rows = {"users": len(offsets) - 1, "offsets": len(offsets)}
    for kind, dtype in EVENT_DTYPES.items():
        # Each piece is mapped when it is copied, so that memory holds one at a time.
        pieces = (open_array(path_of(stem, f"{kind}.npy")) for stem in stems)
        with ArrayWriter(job.work / f"{kind}.npy", dtype, None, rows.get(kind, events)) as writer:
            for array in pieces if kind != "offsets" else [offsets]:
                writer.append(array)
                executor.counters.add(array.nbytes)
                if kind == "items":
                    missing = [count + int((~mask[array]).sum()) for count, mask in zip(missing, masks, strict=True)]
            files[kind] = writer.close()
    return Shard(SHARD_NAME, events, files), missing


def _summary_lines(manifest: Manifest, schema: EventSchema) -> Iterator[str]:
    """Yield what to print of a prepared log: its size, then what was sorted, left out or set to 0, if any."""
    figures = manifest.extra
    yield (
        f"{manifest.rows:,} events of {figures['users']:,} users, {figures['anchors']:,} samples "
        f"(min_history: {schema.min_history}), label rate {manifest.label_rate or 0.0:.4f}, "
        f"peak memory {figures['peak_memory_bytes'] / 2**20:.0f} MiB"
    )
    notes = {
        "users have too short histories for a sample": figures["short_users"],
        "events are outside the times that the schema keeps; they are left out": figures["dropped"],
        "events have ids beyond their table (`rows`); they are 0 now": figures["out_of_table"],
    }
    for name, count in figures["without_attribute"].items():
        notes[f"events have an item that {name}'s table does not have; their {name} is 0"] = count
    yield from (f"{count:,} {note}" for note, count in notes.items() if count)
