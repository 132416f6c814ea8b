"""Counts of values to vocabularies, and ranges of numbers to transforms.

A chunk's file `counts` has a run (see data_prep/vocabulary.py) of each feature, uint32: values, counts, first
rows in the chunk. For a user's own table, parsing counts the dictionaries' values (data_prep/stages/parse.py); if
only some of the rows count, `counts` has the counts and first rows of these values.

Sums are exact integers and quantiles are values of rows, so a fit depends on train's rows alone, not on their order,
chunks or workers.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.documents import Json
from common.errors import UserError
from common.files import FileDigest, digest_file
from data_prep.codec.values import FITS
from data_prep.dataset.format import Rules
from data_prep.dataset.options import DenseTransform
from data_prep.executor import Counters, Executor
from data_prep.io import FileRange, open_array, read_ranges
from data_prep.job import VALUE_BYTES, ChunkRecord, Job, ResumableTask, path_of
from data_prep.lookup import TEXT_KINDS, DenseRange, join_ranges, vocabulary_path
from data_prep.stages.parse import (
    DICTIONARIES,
    PARSED_COUNTS,
    StoredDictionary,
    read_column,
    write_code_counts,
    write_counts,
)
from data_prep.stages.place import rows_below
from data_prep.vocabulary import (
    NumberedValues,
    Run,
    merge_dictionaries,
    merge_in_parts,
    most_frequent,
    rank_values,
    spill_parts,
    write_ranked,
)

FITTED_COUNTS = "fitted-counts"  # suffix of the counts of the rows to fit on
ENTRY_BYTES = 12  # Criteo's rows: value, count and first row, all uint32


@dataclass(frozen=True)
class ChunkCounts:
    """Value counts of a chunk: the suffix of their file, and the chunk's first row in the dataset.

    record: of the task that wrote this file; its `distinct` tells how many values each feature has there.
    """

    record: ChunkRecord
    suffix: str
    begin: int

    def range(self, job: Job, feature: int) -> FileRange:
        """Return the range of the file that holds a feature's values, counts and first rows; feature: its number."""
        path = job.chunk_path(self.record.source, self.record.chunk, self.suffix)
        entries = self.record.distinct
        return FileRange(path, ENTRY_BYTES * sum(entries[:feature]), ENTRY_BYTES * entries[feature])


class StoredRun:
    """A run in a range of a chunk's file of counts: its values, counts and first rows, uint32 [entries] each.

    It is read in parts, so that memory and open files do not grow with the number of runs.
    """

    def __init__(self, file_range: FileRange) -> None:
        self._range = file_range
        self.entries = file_range.num_bytes // ENTRY_BYTES

    @property
    def values(self) -> NDArray[np.uint32]:
        """Read all values."""
        return np.fromfile(self._range.path, np.uint32, self.entries, offset=self._range.offset)

    def part(self, start: int, stop: int) -> Run:
        """Read the entries start..stop of the run; first rows count from 0 in the chunk."""
        columns: list[NDArray[Any]] = []
        with open(self._range.path, "rb", buffering=0) as file:
            # Three arrays of one run stand one after another, so a part of the run is three ranges of the file.
            for column in range(len(Run._fields)):
                file.seek(self._range.offset + VALUE_BYTES * (column * self.entries + start))
                columns.append(np.fromfile(file, np.uint32, stop - start))
        return Run(*columns)


def count_chunk(job: Job, record: ChunkRecord, begin: int, limit: int, counters: Counters) -> ChunkRecord:
    """Count the values of a chunk's rows at positions below `limit`; the chunk begins with row `begin`.

    Return a record with the number of these rows and of the distinct values, and the file of each feature's counts.
    """
    rows = rows_below(job, record, begin, limit)
    counted = ChunkRecord(record.source, record.chunk, len(rows), 0, {}, text_bytes=record.text_bytes)
    if job.table is not None:
        # The codes of the parsed dictionary are counted, so a value that no counted row has stays, with count 0.
        counted.distinct = record.distinct
        counted.files[FITTED_COUNTS] = write_code_counts(job, record, FITTED_COUNTS, rows)
    else:
        chunk, read_feature = (record.source, record.chunk), partial(read_column, job, record)
        counted.distinct, counted.files[FITTED_COUNTS], _ = write_counts(job, chunk, FITTED_COUNTS, read_feature, rows)
    counters.add(record.value_bytes, record.rows)
    return counted


@dataclass
class VocabularyRecord:
    """A feature's vocabulary: `values` have their own id; `files` by their suffix in vocab/<feature>.<suffix>."""

    values: int
    files: dict[str, FileDigest]

    def to_manifest(self) -> Json:
        """Convert to the manifest's form."""
        texts = {kind: asdict(self.files[f"{kind}.npy"]) for kind in TEXT_KINDS if f"{kind}.npy" in self.files}
        return {"values": self.values, **asdict(self.files["npy"]), **({"texts": texts} if texts else {})}


def fit_feature(
    job: Job, feature: int, counts: Sequence[ChunkCounts], max_bytes: int, counters: Counters
) -> VocabularyRecord:
    """Merge and rank a feature's values; write its vocabulary, and texts if kept, in the order of their ids.

    max_bytes: memory for the value counts, and as much again for merging and ranking.
    """
    name, threshold = job.schema.sparse[feature], job.rules.frequency_threshold
    path = vocabulary_path(job.work, name)
    scratch, begins = job.work / "fit" / name, [chunk.begin for chunk in counts]
    if job.table is None:
        ranges = [chunk.range(job, feature) for chunk in counts]
        # Runs that fit the memory are read whole, others in parts.
        runs: list[Run | StoredRun] = [StoredRun(part) for part in ranges]
        if sum(part.num_bytes for part in ranges) <= max_bytes:
            runs = [Run(*content.view(np.uint32).reshape(len(Run._fields), -1)) for content in read_ranges(ranges)]
        values = _rank(job.rules, merge_in_parts(runs, max_bytes, begins, threshold), path, scratch)
        # Ranking writes out of order, so the checksum takes a pass of its own.
        files = {"npy": digest_file(path)}
    else:
        dictionaries = [StoredDictionary(job, chunk.record, feature, chunk.suffix) for chunk in counts]
        numbered = NumberedValues(scratch / "numbered", job.keeps_texts)
        runs_of_numbers = numbered.runs(merge_dictionaries(name, dictionaries, max_bytes, begins, threshold))
        values = _rank(job.rules, runs_of_numbers, scratch / "order.npy", scratch)
        suffixes = ["npy", *(f"{kind}.npy" for kind in TEXT_KINDS if job.keeps_texts)]
        paths = [path_of(path.with_suffix(""), suffix) for suffix in suffixes]
        digests = write_ranked(numbered, scratch / "order.npy", paths, scratch / "ranks.npy")
        files = dict(zip(suffixes, digests, strict=True))
    shutil.rmtree(scratch, ignore_errors=True)  # exists if there were several parts
    counters.add(_counted_bytes(counts, feature))
    return VocabularyRecord(values, files)


def _counted_bytes(counts: Sequence[ChunkCounts], feature: int) -> int:
    """Return the bytes of a feature's counts in all chunks."""
    return ENTRY_BYTES * sum(chunk.record.distinct[feature] for chunk in counts)


def _rank(rules: Rules, runs: Iterator[Run], path: Path, scratch: Path) -> int:
    """Write the values of merged runs in the order of their ids; return the number of values with an id."""
    parts = spill_parts(runs, scratch / "all")
    # If ids wrap, all values have one. Otherwise the cap leaves room for the ids before the first.
    cap = None if rules.wraps or rules.max_ind_range is None else max(0, rules.max_ind_range - rules.first_id)
    if cap is not None and sum(len(part.values) for part in parts) > cap:
        parts = spill_parts(most_frequent(parts, cap), scratch / "kept")
    assert rules.order is not None
    return rank_values(parts, path, rules.order)


def fit_vocabularies(
    job: Job, records: list[ChunkRecord], limit: int, max_bytes: int, executor: Executor
) -> dict[str, VocabularyRecord]:
    """Count the values of the rows at positions below the limit, and write `job.work`/vocab/<feature>.npy for all.

    Return each feature's record, by name.

    records: all chunks, in row order. max_bytes: see `fit_feature`.
    """
    counts, tasks, begins, begin = list[ChunkCounts](), list[ResumableTask[ChunkRecord]](), list[int](), 0
    for record in records:
        if job.rules.counts_while_parsing and begin + record.rows <= limit:
            counts.append(ChunkCounts(record, PARSED_COUNTS if job.table is None else DICTIONARIES, begin))
        # Positions tell which rows count where rows are reordered, so no chunk can be left out beforehand there.
        elif job.rules.is_arranged or begin < limit:
            size, count = (record.value_bytes, record.rows), partial(count_chunk, job, record, begin, limit)
            stem = job.chunk_stem(record.source, record.chunk)
            tasks.append(ResumableTask("counted", stem, ChunkRecord, size, count))
            begins.append(begin)
        begin += record.rows
    with executor.stage("count", sum(task.size[0] for task in tasks)):
        counted = zip(executor.map(tasks), begins, strict=True)
        counts += [ChunkCounts(record, FITTED_COUNTS, begin) for record, begin in counted]
    counts = [chunk for chunk in counts if chunk.record.rows]
    with executor.stage("vocabulary", sum(chunk.record.files[chunk.suffix].bytes for chunk in counts)):
        fits = []
        for feature, name in enumerate(job.schema.sparse):
            stem, size = vocabulary_path(job.work, name).with_suffix(""), (_counted_bytes(counts, feature), 0)
            fit = partial(fit_feature, job, feature, counts, max_bytes)
            fits.append(ResumableTask("fitted", stem, VocabularyRecord, size, fit))
        return dict(zip(job.schema.sparse, executor.map(fits), strict=True))


def kept_values(job: Job, vocabularies: dict[str, VocabularyRecord]) -> dict[str, int | None]:
    """Return the number of values of each feature that the encoding keeps; refuse an encoding that keeps none."""
    most, counts = job.rules.max_categories, {name: entry.values for name, entry in vocabularies.items()}
    kept: dict[str, int | None] = {name: count for name, count in counts.items() if most is None or count <= most}
    if most is not None and not kept:
        raise UserError(
            f"data.encoding={job.rules.name.value}: every column has more than {most} values; use another encoding"
        )
    return kept


def fitted_records(job: Job, records: list[ChunkRecord]) -> list[ChunkRecord]:
    """Return the chunks used to fit statistics: train's if splits are given, else all."""
    return [record for record in records if job.sources[record.source].split in (None, "train")]


def dense_ranges(job: Job, records: list[ChunkRecord]) -> list[DenseRange]:
    """Return the integers' range of each source (torchrec), or of the fitted rows (minmax); empty if none is needed."""
    if not job.rules.needs_statistics:
        return []
    groups = [[record for record in records if record.source == number] for number in range(len(job.sources))]
    groups = [fitted_records(job, records)] if job.rules.dense_transform is DenseTransform.minmax else groups
    return [
        join_ranges([DenseRange(np.array(each.dense_low), np.array(each.dense_high)) for each in group if each.rows])
        for group in groups
    ]


NUM_QUANTILES = FITS["quantile"]
UNIT_EXPONENT = 1126  # every float64 is a multiple of 2^-1126, as `exact_sums` divides it
MANTISSA_BITS = 53
SUMMED_ROWS = 1 << 14  # so that sums of products of 36 bits are exact in float64
LIMB = 18  # bits of a third of a mantissa


@dataclass
class DenseRecord:
    """Statistics of a chunk's train rows, by fitted column; sums and squares are exact integers as hexadecimal text.

    sums are in units of 2^-UNIT_EXPONENT, squares in units of its square. low and high have an entry of each fitted
    column, sums and squares of those with `standard` alone. rows: number of train rows in the chunk.
    """

    rows: int
    files: dict[str, FileDigest] = field(default_factory=dict)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)
    squares: list[str] = field(default_factory=list)


def dense_below(job: Job, record: ChunkRecord, begin: int, limit: int) -> NDArray[np.float64]:
    """Return a chunk's dense values [rows, N] at positions below `limit`; the chunk begins with row `begin`."""
    dense = open_array(job.chunk_path(record.source, record.chunk, "integers.npy"))
    return dense[rows_below(job, record, begin, limit)]


def describe_dense(
    job: Job, record: ChunkRecord, begin: int, limit: int, fitted: Sequence[tuple[int, str]], counters: Counters
) -> DenseRecord:
    """Return the statistics of a chunk's rows at positions below `limit`; the chunk begins with row `begin`.

    They are range and exact sums of each fitted column, by its transform. fitted: index and transform of each column
    with a fit.
    """
    dense = dense_below(job, record, begin, limit)
    result = DenseRecord(len(dense))
    for index, name in fitted:
        values = dense[:, index] + 0.0  # a copy, in which -0 is 0
        result.low.append(float(values.min(initial=np.inf)))
        result.high.append(float(values.max(initial=-np.inf)))
        if name == "standard":
            total, square = exact_sums(values)
            result.sums.append(hex(total))
            result.squares.append(hex(square))
    counters.add(record.files["integers.npy"].bytes, record.rows)
    return result


def fit_dense(job: Job, records: Sequence[ChunkRecord], limit: int, executor: Executor) -> dict[str, list[float]]:
    """Return, by dense column, the fit of a transform that has one, from the rows at positions below `limit`.

    minmax: [low, high]; standard: [mean, deviation]; quantile: NUM_QUANTILES ascending values.
    """
    assert job.table is not None
    fitted = tuple((index, name) for index, name in job.table.indexed_transforms if name in FITS)
    if not fitted:
        return {}
    tasks, chunks, begin = list[ResumableTask[DenseRecord]](), list[tuple[ChunkRecord, int]](), 0
    for record in records:
        if record.rows and (job.rules.is_arranged or begin < limit):
            size, stem = (record.files["integers.npy"].bytes, record.rows), job.chunk_stem(record.source, record.chunk)
            describe = partial(describe_dense, job, record, begin, limit, fitted)
            tasks.append(ResumableTask("dense", stem, DenseRecord, size, describe))
            chunks.append((record, begin))
        begin += record.rows
    with executor.stage("fit numbers", sum(task.size[0] for task in tasks)):
        results = list(executor.map(tasks))
    filled = [result for result in results if result.rows]
    fits: dict[str, list[float]] = {}
    num_standard = 0  # Only standard columns have sums, so they are numbered by themselves.
    for place, (index, name) in enumerate(fitted):
        if name == "minmax":
            fit = [min(result.low[place] for result in filled), max(result.high[place] for result in filled)]
        elif name == "standard":
            sums = [(result.rows, result.sums[num_standard], result.squares[num_standard]) for result in filled]
            fit = _mean_and_deviation([(rows, int(total, 16), int(square, 16)) for rows, total, square in sums])
            num_standard += 1
        else:
            values, end = np.empty(sum(result.rows for result in filled)), 0
            for record, begin in chunks:
                part = dense_below(job, record, begin, limit)[:, index]
                values[end : end + len(part)] = part
                end += len(part)
            fit = quantiles(values)
        fits[job.schema.dense[index]] = fit
    return fits


def quantiles(values: NDArray[np.float64]) -> list[float]:
    """Return the values at NUM_QUANTILES evenly spaced ranks; sorts `values`."""
    values.sort()
    ranks = np.arange(NUM_QUANTILES) * (len(values) - 1) // (NUM_QUANTILES - 1)
    return (values[ranks] + 0.0).tolist()  # -0 is 0


def exact_sums(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the sum of values [n] in units of 2^-UNIT_EXPONENT, and the sum of squares in units of its square."""
    total = square = 0
    for start in range(0, len(values), SUMMED_ROWS):
        # A float64 is a mantissa of 53 bits times a power of 2. Numbers with one exponent are added as float64, which
        # is exact since limbs of 18 bits and few rows keep all sums below 2^53.
        fractions, exponents = np.frexp(values[start : start + SUMMED_ROWS])
        mantissas = np.ldexp(fractions, MANTISSA_BITS).astype(np.int64)
        distinct, codes = np.unique(exponents, return_inverse=True)
        shifts = (distinct.astype(np.int64) - MANTISSA_BITS + UNIT_EXPONENT).tolist()
        total += _sum_shifted(mantissas >> LIMB, codes, shifts, LIMB) + _sum_shifted(
            mantissas % (1 << LIMB), codes, shifts, 0
        )
        magnitudes = np.abs(mantissas)
        low, middle, high = (magnitudes >> bits & (1 << LIMB) - 1 for bits in (0, LIMB, 2 * LIMB))
        products = (low * low, 2 * low * middle, 2 * low * high + middle * middle, 2 * middle * high, high * high)
        doubled = [2 * shift for shift in shifts]
        square += sum(_sum_shifted(product, codes, doubled, LIMB * place) for place, product in enumerate(products))
    return total, square


def _sum_shifted(numbers: NDArray[np.int64], codes: NDArray[np.intp], shifts: list[int], more: int) -> int:
    """Return the sum of numbers [n], each times 2^(shifts[codes[i]] + more); sums of each code must stay below 2^53."""
    sums = np.bincount(codes, weights=numbers, minlength=len(shifts))
    return sum(int(each) << shift + more for each, shift in zip(sums.tolist(), shifts, strict=True))


def _mean_and_deviation(sums: Sequence[tuple[int, int, int]]) -> list[float]:
    """Return [mean, standard deviation of the population], rounded once.

    sums: each chunk's rows, sum and sum of squares, in the units of `exact_sums`.
    """
    rows, total, square = map(sum, zip(*sums, strict=True))
    # Integers of any size divide exactly and are rounded once.
    mean = total / (rows << UNIT_EXPONENT)
    # isqrt gets 64 further bits, so that its own rounding does not show.
    scaled_variance = rows * square - total * total  # variance * rows^2 * 2^(2 * UNIT_EXPONENT)
    return [mean, isqrt(scaled_variance << 128) / (rows << UNIT_EXPONENT + 64)]
