"""The runs of a unit's features on disk, counted from its values."""

import mmap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.choices import VocabularyOrder
from data_prep.columns import unit_bags
from data_prep.files import FileDigest
from data_prep.held import HeldFile
from data_prep.mapped import unload
from data_prep.parts import Part, read_at_once, room_bytes
from data_prep.vocabulary import Coding, Run, count_in_order, count_values
from data_prep.work import Job, UnitRecord, sum_of

RUN_ENTRY_BYTES = 12  # value, count, first row: uint32, as no unit has more rows


def write_runs(
    job: Job,
    unit: tuple[int, int],
    suffix: str,
    read_column: Callable[[int], NDArray[np.uint32]],
    rows: NDArray[np.int64],
) -> tuple[list[int], FileDigest, list[Coding | None]]:
    """Count the values of a unit, feature by feature; first appearances are rows of the unit, from 0.

    Args:
        unit: its source and chunk.
        read_column: the values of a single-valued feature, by its number; they are overwritten.
        rows: which rows of the unit to count, rising.

    Returns:
        the number of distinct values of each feature, the size and sum of the file, and of each single-valued
        feature its coding, where it has one.
    """
    in_order = job.rules.order is VocabularyOrder.first_appearance
    bags = dict(zip(job.schema.ragged, unit_bags(job, *unit), strict=True)) if job.schema.ragged else {}
    lengths: list[int] = []
    codings: list[Coding | None] = []
    runs = HeldFile(job.unit_path(*unit, suffix))
    for feature in job.schema.sparse:
        if feature in bags:
            chosen = bags[feature].take(rows)
            column, mine = np.array(chosen.ids), np.repeat(rows, chosen.lengths)
        else:
            column, mine = read_column(len(codings)), rows
            column = column if len(rows) == len(column) else column[rows]
        counted = count_in_order(column, mine) if in_order else count_values(column)
        if feature not in bags:
            codings.append(counted.coding)
        for array in counted.run:
            runs.append(array.astype(np.uint32, copy=False))
        lengths.append(len(counted.run.values))
    return lengths, runs.close(sum_of(job, suffix)), codings


class LoadedRuns(NamedTuple):
    """The runs of one feature; after `let_go` those that are mapped take no memory until they are used again."""

    runs: list[Run]
    let_go: Callable[[], None]


def load_runs(job: Job, units: Sequence[tuple[UnitRecord, str]], feature: int, most_bytes: int) -> LoadedRuns:
    """The runs of one feature of units, each with the suffix of its file; counts and rows are uint32, rows the unit's.

    They are read, to memory of this thread that the next call writes to, if `most_bytes` are enough; else mapped.
    """
    parts = [_run_part(job, record, feature, suffix) for record, suffix in units]
    mapped: list[mmap.mmap] = []
    if sum(map(room_bytes, parts)) <= most_bytes:
        contents = read_at_once(parts, "runs")
    else:
        contents = [_map_part(part, mapped) for part in parts]
    runs = [Run(*content.view(np.uint32).reshape(len(Run._fields), -1)) for content in contents]

    def let_all_go() -> None:
        for one in mapped:
            unload(one)

    return LoadedRuns(runs, let_all_go)


def _run_part(job: Job, record: UnitRecord, feature: int, suffix: str) -> Part:
    lengths = record.run_lengths
    path = job.unit_path(record.source, record.chunk, suffix)
    return Part(path, RUN_ENTRY_BYTES * sum(lengths[:feature]), RUN_ENTRY_BYTES * lengths[feature])


def _map_part(part: Part, mapped: list[mmap.mmap]) -> NDArray[np.uint8]:
    if not part.num_bytes:
        return np.zeros(0, np.uint8)
    before = part.offset % mmap.ALLOCATIONGRANULARITY
    with open(part.path, "rb") as file:
        size, begin = before + part.num_bytes, part.offset - before
        mapped.append(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=begin))
    return np.frombuffer(mapped[-1], np.uint8, part.num_bytes, before)
