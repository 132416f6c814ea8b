"""What a worker does with a parsed unit: values to ids, integers to what the model reads."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_prep.columns import raw_blocks, unit_bags
from data_prep.dense import DenseRange, transform_dense
from data_prep.lookup import LookupTable, encode_columns, load_tables
from data_prep.npy import NpyWriter
from data_prep.passes import Slice, assemble
from data_prep.pool import counters
from data_prep.work import SHARD_SUFFIXES, Job, UnitRecord, digest_unit_files, load_record, save_record

DENSE_ROWS = 1 << 16
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
    written = []
    unknown = parsed.unknown
    if job.rules.order is not None:
        unknown = _encode_sparse(task)
        written += ["sparse.npy", "values.npy"] if job.schema.ragged else ["sparse.npy"]
    if job.rules.needs_statistics:
        _encode_dense(task)
        written.append("dense.npy")
    kept = {suffix: digest for suffix, digest in parsed.files.items() if suffix in SHARD_SUFFIXES}
    files = kept | digest_unit_files(job, parsed.source, parsed.chunk, written)
    encoded = UnitRecord(parsed.source, parsed.chunk, parsed.rows, parsed.positives, files, unknown=unknown)
    save_record(job, "encoded", encoded)
    return encoded


def _encode_sparse(task: EncodeTask) -> list[int]:
    """Values to ids; how many of each feature have none of their own."""
    job, record, rules = task.job, task.record, task.job.rules
    if task.passes:
        return assemble(job, record, task.features, task.passes).tolist()
    features = task.features
    tables = _tables(job.work, features, task.vocabulary, rules.first_id, rules.unknown_id)
    single = [feature for feature in features if feature not in job.schema.ragged]
    columns = [job.schema.single.index(feature) for feature in single]
    mine = [features.index(feature) for feature in single]
    writer = NpyWriter(job.unit_path(record.source, record.chunk, "sparse.npy"), np.int32, len(single))
    unknown = np.zeros(len(tables), np.int64)
    for values in raw_blocks(job, record):
        picked = values if len(columns) == len(values) else values[columns]
        ids, misses = encode_columns(picked, [tables[i] for i in mine])
        writer.append(ids)
        unknown[mine] += misses
        counters().add(values.nbytes, values.shape[1])
    writer.close()
    if job.schema.ragged:
        several = [features.index(feature) for feature in job.schema.ragged]
        unknown[several] = _encode_bags(job, record, [tables[i] for i in several])
    return unknown.tolist()


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


def _encode_dense(task: EncodeTask) -> None:
    """Integers as read to what their transform makes of them."""
    job, record, rules = task.job, task.record, task.job.rules
    integers = np.load(job.unit_path(record.source, record.chunk, "integers.npy"), mmap_mode="r")
    writer = NpyWriter(job.unit_path(record.source, record.chunk, "dense.npy"), np.float32, integers.shape[1])
    for start in range(0, len(integers), DENSE_ROWS):
        block = np.array(integers[start : start + DENSE_ROWS])
        writer.append(transform_dense(block, rules.dense, task.known, wraps=rules.rounds_ids))
        counters().add(block.nbytes, 0)
    writer.close()
