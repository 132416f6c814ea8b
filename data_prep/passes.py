"""Vocabularies larger than the memory budget: ids looked up in several passes, each with tables that fit.

A *slice* is a feature's vocabulary, or the part of it whose values fall to one number under a second hash. A pass
looks up some slices for all units and leaves the ids on disk, -1 where a value is in none of them; the last step
puts the passes together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.columns import raw_blocks
from data_prep.lookup import LookupTable, vocabulary_path
from data_prep.npy import NpyWriter
from data_prep.pool import counters
from data_prep.work import Job, UnitRecord, digest_unit_files, load_record, save_record

NOT_FOUND = -1
BUILD_OVERHEAD = 2  # while a table is built its values and their numbers are there as well
SLICE_MARGIN = 1.2  # parts of a vocabulary are not quite equal
MAX_BITS = 12
READ_VALUES = 1 << 20
ASSEMBLE_ROWS = 1 << 16
PART_MULTIPLIER = np.uint32(0x85EBCA6B)


@dataclass(frozen=True)
class Slice:
    """The values of a feature whose part number of `bits` bits is `part`; with no bits, all."""

    feature: str
    part: int
    bits: int


@dataclass(frozen=True)
class PassTask:
    """One pass over one parsed unit; `sums` are those of the vocabularies' files."""

    job: Job
    record: UnitRecord
    number: int
    slices: tuple[Slice, ...]
    sums: tuple[str, ...]


def plan_passes(values: Mapping[str, int], allowance: int) -> list[tuple[Slice, ...]]:
    """Slices in passes whose tables need at most `allowance` bytes each.

    Raises:
        UserError: the allowance is too small for any sensible number of parts.
    """
    room = int(allowance / BUILD_OVERHEAD)
    passes: list[list[Slice]] = []
    left = 0
    for feature, count in values.items():
        bits = 0
        while _slice_bytes(count, bits) > room:
            bits += 1
            if bits > MAX_BITS:
                raise UserError(
                    f"data.memory_budget: too small for the {count:,} values of column {feature}; raise it, "
                    "or set data.frequency_threshold or data.max_ind_range"
                )
        size = _slice_bytes(count, bits)
        for part in range(1 << bits):
            if size > left:
                passes.append([])
                left = room
            passes[-1].append(Slice(feature, part, bits))
            left -= size
    return [tuple(slices) for slices in passes]


def _slice_bytes(count: int, bits: int) -> int:
    return LookupTable.bytes_for(count if bits == 0 else int(count / (1 << bits) * SLICE_MARGIN) + 1)


def part_numbers(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """Which part each value belongs to; another hash than that of the tables, whose slots would else collide."""
    if bits == 0:
        return np.zeros(len(values), np.uint32)
    mixed = (values ^ (values >> np.uint32(16))) * PART_MULTIPLIER
    return (mixed ^ (mixed >> np.uint32(13))) & np.uint32((1 << bits) - 1)


def load_slice(root: Path, wanted: Slice, first_id: int) -> LookupTable:
    """The lookup table of one slice; what it does not hold becomes NOT_FOUND."""
    vocabulary = np.load(vocabulary_path(root, wanted.feature), mmap_mode="r")
    values, numbers = [], []
    for start in range(0, max(1, len(vocabulary)), READ_VALUES):
        block = np.array(vocabulary[start : start + READ_VALUES])
        mine = np.flatnonzero(part_numbers(block, wanted.bits) == wanted.part)
        values.append(block[mine])
        numbers.append((mine + start).astype(np.uint32))
    return LookupTable.build(np.concatenate(values), first_id, NOT_FOUND, np.concatenate(numbers))


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
        counters().add(record.files["raw"].bytes, record.rows)
        return done
    tables = _tables(task)
    columns = [job.schema.sparse.index(wanted.feature) for wanted in task.slices]
    suffix = pass_suffix(task.number)
    writer = NpyWriter(job.unit_path(record.source, record.chunk, suffix), np.int32, len(tables))
    for values in raw_blocks(job, record):
        ids = np.empty((len(tables), values.shape[1]), np.int32)
        for i, (column, table) in enumerate(zip(columns, tables, strict=True)):
            table.look_up(values[column], ids[i])
        writer.append(ids.T)
        counters().add(values.nbytes, values.shape[1])
    writer.close()
    files = digest_unit_files(job, record.source, record.chunk, [suffix])
    done = UnitRecord(record.source, record.chunk, record.rows, 0, files)
    save_record(job, stage, done)
    return done


def assemble(
    job: Job, record: UnitRecord, features: tuple[str, ...], passes: tuple[tuple[Slice, ...], ...]
) -> NDArray[np.int64]:
    """Write a unit's sparse.npy from its passes; how many values of each feature have no id of their own."""
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
    return unknown
