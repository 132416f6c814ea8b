"""What a worker does with a parsed unit: values to ids, integers to what the model reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.dataset.bags import Bags
from data_prep.dataset.format import ROW_KINDS
from data_prep.encoding.dense import DenseRange, transform_dense
from data_prep.encoding.lookup import LookupTable, load_tables, table_of_codes
from data_prep.encoding.passes import Slice
from data_prep.engine.job import SHARD_SUFFIXES, Job, UnitRecord, digest_unit_files, load_record, save_record, sum_of
from data_prep.engine.processes import counters
from data_prep.io.atomic import FileDigest
from data_prep.io.buffered_file import HeldArray
from data_prep.io.buffers import scratch_array
from data_prep.io.direct_io import read_rows
from data_prep.io.npy import NpyWriter
from data_prep.stages.column_store import column_blocks, read_dictionaries, row_blocks, unit_bags
from data_prep.stages.encode_in_passes import assemble

BAG_VALUES = 1 << 20


@dataclass(frozen=True)
class EncodeTask:
    """A parsed unit; what its parsing left undone is to be done.

    features: those that are kept; vocabulary: the sums of their files in `job.work`; known: the range of the
    integers, where their transform needs it; passes: those whose ids are on disk, if one was not enough.
    """

    job: Job
    record: UnitRecord
    features: tuple[str, ...]
    vocabulary: tuple[str, ...]
    known: DenseRange | None
    passes: tuple[tuple[Slice, ...], ...] = ()

    @property
    def single(self) -> tuple[str, ...]:
        """The features with one value a row."""
        return tuple(feature for feature in self.features if feature not in self.job.schema.ragged)


def _as_read(job: Job) -> np.dtype[Any]:
    """Of integers before their transform."""
    return np.dtype(np.int32 if job.table is None else np.float64)


def _task_tables(task: EncodeTask) -> list[LookupTable]:
    """The lookup tables of a task's features, built once per process."""
    rules = task.job.rules
    return _tables(task.job.work, task.features, task.vocabulary, rules.first_id, rules.unknown_id)


def release_tables() -> None:
    """Let this process hold no lookup tables any more."""
    _tables.cache_clear()


@lru_cache(maxsize=1)
def _tables(
    work: Path,
    features: tuple[str, ...],
    sums: tuple[str, ...],  # tell one job's vocabularies from another's at the same place
    first_id: int,
    unknown_id: int,
) -> list[LookupTable]:
    return load_tables(work, features, first_id, unknown_id)


def run_encode_task(task: EncodeTask) -> UnitRecord:
    """Write a unit's ids and transformed integers, if that was not done already; its record then names them."""
    job, parsed = task.job, task.record
    encoded = load_record(job, "encoded", parsed.source, parsed.chunk)
    if encoded is not None:
        counters().add(parsed.encoded_bytes, parsed.rows)
        return encoded
    kept = {suffix: digest for suffix, digest in parsed.files.items() if suffix in SHARD_SUFFIXES}
    encoded = UnitRecord(parsed.source, parsed.chunk, parsed.rows, parsed.positives, kept, unknown=parsed.unknown)
    if job.rules.order is not None:
        encoded.unknown, files = _encode_sparse(task)
        encoded.files |= files
    if job.rules.needs_statistics:
        dense = HeldArray(job.unit_path(parsed.source, parsed.chunk, "dense.npy"), np.float32, len(job.schema.dense))
        for _, rows in dense_rows(task):
            dense.append(rows)
            counters().add(rows.size * _as_read(job).itemsize, 0)
        encoded.files["dense.npy"] = dense.close(sum_of(job, "dense.npy"))
    save_record(job, "encoded", encoded)
    return encoded


def _encode_sparse(task: EncodeTask) -> tuple[list[int], dict[str, FileDigest]]:
    """Values to ids; how many of each feature have none of their own, and the files written."""
    job, unit = task.job, (task.record.source, task.record.chunk)
    if task.passes:
        unknown = assemble(job, task.record, task.features, task.passes)
        suffixes = ["sparse.npy", "values.npy"] if job.schema.ragged else ["sparse.npy"]
        return unknown.tolist(), digest_unit_files(job, *unit, suffixes)
    sparse = HeldArray(job.unit_path(*unit, "sparse.npy"), np.int32, len(task.single))
    unknown = np.zeros(len(task.features), np.int64)
    for _, ids in sparse_rows(task, unknown):
        sparse.append(ids)
        counters().add(ids.nbytes, len(ids))
    files = {"sparse.npy": sparse.close(sum_of(job, "sparse.npy"))}
    if job.schema.ragged:
        several = [task.features.index(feature) for feature in job.schema.ragged]
        tables = _task_tables(task)
        unknown[several] = _encode_bags(job, task.record, [tables[i] for i in several])
        files |= digest_unit_files(job, *unit, ["values.npy"])
    return unknown.tolist(), files


def sparse_rows(
    task: EncodeTask, unknown: NDArray[np.int64], start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """The ids of a unit's rows start..stop (by default all), block by block: the number of its first row, [rows, F].

    Values without an id of their own are counted in `unknown`, one number a feature.
    """
    job, features = task.job, task.features
    tables = _task_tables(task)
    mine = [features.index(feature) for feature in task.single]
    numbers = [job.schema.single.index(features[i]) for i in mine]
    dictionaries = read_dictionaries(job, task.record)
    to_ids = [table_of_codes(tables[i], dictionaries[number]) for i, number in zip(mine, numbers, strict=True)]
    begin = start
    for rows, columns in column_blocks(job, task.record, start, stop):
        ids = scratch_array("ids", (len(mine), rows), np.int32)
        for place, (i, number) in enumerate(zip(mine, numbers, strict=True)):
            unknown[i] += to_ids[place].look_up(columns[number], ids[place])
        yield begin, ids.T
        begin += rows


def dense_rows(task: EncodeTask, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """A unit's integers as their transform makes them; as `sparse_rows`, [rows, N]."""
    job, record, rules = task.job, task.record, task.job.rules
    path = job.unit_path(record.source, record.chunk, "integers.npy")
    stop = record.rows if stop is None else stop
    blocks = row_blocks(start, stop, job.block_rows)
    read = read_rows(path, blocks, len(job.schema.dense), _as_read(job), "integers")
    for (begin, _), block in zip(blocks, read, strict=True):
        yield begin, transform_dense(block, rules.dense, task.known, wraps=rules.rounds_ids)


def unit_rows(task: EncodeTask, kind: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """A unit's rows start..stop of one kind, in its blocks, each with the number of its first row.

    They are as on disk, or else encoded from what was parsed.
    """
    suffix = f"{kind}.npy"
    if suffix in task.record.files:
        path = task.job.unit_path(task.record.source, task.record.chunk, suffix)
        widths = {"labels": 1, "dense": len(task.job.schema.dense), "sparse": len(task.single)}
        blocks = row_blocks(start, stop, task.job.block_rows)
        read = read_rows(path, blocks, widths[kind], task.job.dtypes[kind], kind)
        for (begin, _), rows in zip(blocks, read, strict=True):
            yield begin, rows
    elif kind == "dense":
        yield from dense_rows(task, start, stop)
    else:
        yield from sparse_rows(task, np.zeros(len(task.features), np.int64), start, stop)


def unit_blocks(task: EncodeTask, start: int, stop: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """As `unit_rows`, of all kinds."""
    for blocks in zip(*(unit_rows(task, kind, start, stop) for kind in ROW_KINDS), strict=True):
        yield blocks[0][0], {kind: rows for kind, (_, rows) in zip(ROW_KINDS, blocks, strict=True)}


def _encode_bags(job: Job, record: UnitRecord, tables: list[LookupTable]) -> list[int]:
    """A unit's values.npy from its bags as read; how many values of each feature have no id of their own."""
    writer = NpyWriter(job.unit_path(record.source, record.chunk, "values.npy"), np.int32, None)
    unknown = [0] * len(tables)
    for feature, bags in enumerate(unit_bags(job, record.source, record.chunk)):
        for start in range(0, len(bags.ids), BAG_VALUES):
            values = np.array(bags.ids[start : start + BAG_VALUES])
            ids = np.empty(len(values), np.int32)
            unknown[feature] += tables[feature].look_up(values, ids)
            writer.append(ids)
            counters().add(values.nbytes, 0)
    writer.close()
    return unknown


@jit
def count_equal(rows, value, counts):  # type: ignore[no-untyped-def]
    """Add to counts[c] how often the value is in column c."""
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            counts[column] += rows[row, column] == value


def count_unknown(job: Job, ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Of each single-valued feature the values without an id of their own, in [rows, F] ids."""
    counts = np.zeros(ids.shape[1], np.int64)
    if _reserves_id(job):
        count_equal(np.asarray(ids), job.rules.unknown_id, counts)
    return counts


def _reserves_id(job: Job) -> bool:
    """Whether an id is kept for unknown values and for nothing else."""
    rules = job.rules
    is_reserved = rules.order is not None and rules.first_id > rules.unknown_id
    return is_reserved and not (rules.wraps and rules.max_ind_range is not None)


def unknown_of_all(job: Job, single: NDArray[np.int64], bags: Sequence[Bags]) -> list[int]:
    """As `count_unknown`, of all features, from the single-valued ones' counts and the others' bags."""
    if not bags:
        return single.tolist()
    is_reserved = _reserves_id(job)
    several = iter([int((feature.ids == job.rules.unknown_id).sum()) if is_reserved else 0 for feature in bags])
    one = iter(single.tolist())
    return [next(several if name in job.schema.ragged else one) for name in job.schema.sparse]
