"""Vocabularies larger than the memory budget: ids looked up in several passes, each with tables that fit.

A *slice* is a feature's vocabulary, or the part of it whose values fall to one number under a second hash. A pass
looks up some slices for all units and leaves the ids on disk, -1 where a value is in none of them; the last step
puts the passes together.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.lookup import LookupTable, table_of_codes
from data_prep.encoding.passes import NOT_FOUND, READ_VALUES, Slice, load_slice
from data_prep.engine.job import VALUE_BYTES, Job, UnitRecord, digest_unit_files, load_record, save_record
from data_prep.engine.processes import counters
from data_prep.io.npy import NpyWriter
from data_prep.stages.column_store import column_blocks, read_dictionaries, unit_bags

ASSEMBLE_ROWS = 1 << 16


@dataclass(frozen=True)
class PassTask:
    """One pass over one parsed unit; `sums` are those of the vocabularies' files."""

    job: Job
    record: UnitRecord
    number: int
    slices: tuple[Slice, ...]
    sums: tuple[str, ...]


_loaded: dict[tuple[Path, tuple[Slice, ...], tuple[str, ...]], list[LookupTable]] = {}


def _tables(task: PassTask) -> list[LookupTable]:
    """Tables of a pass, built once per process; those of the pass before are dropped first."""
    key = (task.job.work, task.slices, task.sums)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = [load_slice(task.job.work, wanted, task.job.rules.first_id) for wanted in task.slices]
    return _loaded[key]


def pass_suffix(number: int) -> str:
    """Suffix of a unit's file with the ids of a pass, [rows, slices] int32."""
    return f"pass-{number}.npy"


def run_pass_task(task: PassTask) -> UnitRecord:
    """Look up one pass's slices for a unit, if that was not done already."""
    job, record = task.job, task.record
    stage = f"pass-{task.number}"
    done = load_record(job, stage, record.source, record.chunk)
    if done is not None:
        counters().add(record.value_bytes, record.rows)
        return done
    found = list(zip(task.slices, _tables(task), strict=True))
    dictionaries = dict(zip(job.schema.single, enumerate(read_dictionaries(job, record)), strict=True))
    single = []
    for wanted, table in found:
        if wanted.feature in dictionaries:
            column, dictionary = dictionaries[wanted.feature]
            single.append((column, table_of_codes(table, dictionary)))
    suffixes = [pass_suffix(task.number)]
    writer = NpyWriter(job.unit_path(record.source, record.chunk, suffixes[0]), np.int32, len(single))
    for rows, columns in column_blocks(job, record):
        ids = np.empty((len(single), rows), np.int32)
        for i, (column, codes_to_ids) in enumerate(single):
            codes_to_ids.look_up(columns[column], ids[i])
        writer.append(ids.T)
        counters().add(VALUE_BYTES * len(columns) * rows, rows)
    writer.close()
    for i, (wanted, table) in enumerate(found):
        if wanted.feature in job.schema.ragged:
            suffixes.append(bags_suffix(task.number, i))
            _look_up_bags(job, record, wanted.feature, table, suffixes[-1])
    files = digest_unit_files(job, record.source, record.chunk, suffixes)
    done = UnitRecord(record.source, record.chunk, record.rows, 0, files)
    save_record(job, stage, done)
    return done


def bags_suffix(number: int, index: int) -> str:
    """Suffix of a unit's file with the ids that a pass found for its slice `index`, of a multi-valued column."""
    return f"pass-{number}-{index}.npy"


def _look_up_bags(job: Job, record: UnitRecord, feature: str, table: LookupTable, suffix: str) -> None:
    """Look up the values of a unit's bags of one feature."""
    bags = unit_bags(job, record.source, record.chunk)[job.schema.ragged.index(feature)]
    writer = NpyWriter(job.unit_path(record.source, record.chunk, suffix), np.int32, None)
    for start in range(0, len(bags.ids), READ_VALUES):
        values = np.array(bags.ids[start : start + READ_VALUES])
        ids = np.empty(len(values), np.int32)
        table.look_up(values, ids)
        writer.append(ids)
        counters().add(values.nbytes, 0)
    writer.close()


def _assemble_bags(job: Job, record: UnitRecord, passes: tuple[tuple[Slice, ...], ...]) -> list[int]:
    """Write a unit's values.npy from its passes; how many values of each feature have no id of their own."""
    writer = NpyWriter(job.unit_path(record.source, record.chunk, "values.npy"), np.int32, None)
    unknown = []
    for feature in job.schema.ragged:
        suffixes = [bags_suffix(number, i) for number, slices in enumerate(passes)
                    for i, wanted in enumerate(slices) if wanted.feature == feature]  # fmt: skip
        found = [np.load(job.unit_path(record.source, record.chunk, suffix), mmap_mode="r") for suffix in suffixes]
        unknown.append(0)
        for start in range(0, len(found[0]), READ_VALUES):
            ids = np.max([part[start : start + READ_VALUES] for part in found], axis=0)
            unknown[-1] += int((ids == NOT_FOUND).sum())
            writer.append(np.where(ids == NOT_FOUND, np.int32(job.rules.unknown_id), ids))
    writer.close()
    return unknown


def assemble(
    job: Job, record: UnitRecord, features: tuple[str, ...], passes: tuple[tuple[Slice, ...], ...]
) -> NDArray[np.int64]:
    """Write a unit's ids from its passes; how many values of each feature have no id of their own."""
    all_features, features = features, tuple(feature for feature in features if feature not in job.schema.ragged)
    passes_of_all = passes
    passes = tuple(tuple(wanted for wanted in slices if wanted.feature not in job.schema.ragged) for slices in passes)
    paths = [job.unit_path(record.source, record.chunk, pass_suffix(i)) for i in range(len(passes))]
    found = [np.load(path, mmap_mode="r") for path in paths]
    writer = NpyWriter(job.unit_path(record.source, record.chunk, "sparse.npy"), np.int32, len(features))
    unknown = np.zeros(len(features), np.int64)
    for start in range(0, record.rows, ASSEMBLE_ROWS):
        stop = min(start + ASSEMBLE_ROWS, record.rows)
        ids = np.full((stop - start, len(features)), NOT_FOUND, np.int32)
        for array, slices in zip(found, passes, strict=True):
            block = array[start:stop]
            for i, wanted in enumerate(slices):
                if wanted.feature in features:
                    column = features.index(wanted.feature)
                    np.maximum(ids[:, column], block[:, i], out=ids[:, column])
        missing = ids == NOT_FOUND
        unknown += missing.sum(axis=0)
        writer.append(np.where(missing, np.int32(job.rules.unknown_id), ids))
    writer.close()
    counts = dict(zip(features, unknown.tolist(), strict=True))
    if job.schema.ragged:
        counts |= zip(job.schema.ragged, _assemble_bags(job, record, passes_of_all), strict=True)
    return np.array([counts[feature] for feature in all_features], np.int64)
