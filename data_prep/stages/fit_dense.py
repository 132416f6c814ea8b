"""Fits of the transforms of single dense columns, from the rows of train alone.

Sums are exact integers and quantiles are values of rows, so a fit depends on train's rows alone, not on their order,
chunks or workers. Each chunk's values of a column with quantiles are sorted on disk; the quantiles are found by
bisection over all chunks, so memory does not grow with the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from data_prep.dataset.transforms import FITS
from data_prep.engine.executor import Executor, Worker
from data_prep.engine.job import ChunkRecord, Job, LoggedTask
from data_prep.io.arrays import open_array, write_array
from data_prep.stages.shuffle_order import rows_below

NUM_QUANTILES = FITS["quantile"]
SORTED = "sorted.npy"  # suffix of a chunk's file: sorted values of each column with quantiles, [columns, rows] float64
UNIT_EXPONENT = 1126  # every float64 is a multiple of 2^-1126 as `_mantissas` divides it
MANTISSA_BITS = 53
SUMMED_ROWS = 1 << 14  # so that sums of products of 36 bits are exact in float64
LIMB = 18  # bits of a third of a mantissa


@dataclass
class DenseRecord:
    """Statistics of a chunk's train rows, by fitted column; sums and squares are exact integers as hexadecimal text.

    sums are in units of 2^-UNIT_EXPONENT, squares in units of its square.
    """

    rows: int
    files: dict[str, FileDigest] = field(default_factory=dict)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)
    squares: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DenseTask(LoggedTask[DenseRecord]):
    """Computes the statistics of a chunk's rows at positions below `limit`; the chunk begins with row `begin`."""

    stage: ClassVar[str] = "dense"
    record_type: ClassVar[type[DenseRecord]] = DenseRecord

    job: Job
    record: ChunkRecord
    begin: int
    limit: int

    @property
    def stem(self) -> Path:
        return self.job.chunk_stem(self.record.source, self.record.chunk)

    @property
    def size(self) -> tuple[int, int]:
        return self.record.files["integers.npy"].bytes, self.record.rows

    @property
    def path(self) -> Path:
        """Return the path of the sorted values."""
        return self.job.chunk_path(self.record.source, self.record.chunk, SORTED)

    def do(self, worker: Worker) -> DenseRecord:
        path = self.job.chunk_path(self.record.source, self.record.chunk, "integers.npy")
        dense = open_array(path)[rows_below(self.job, self.record, self.begin, self.limit)]
        result, sorted_columns = DenseRecord(len(dense)), []
        for index, name in _fitted(self.job):
            values = dense[:, index] + 0.0  # a copy, in which -0 is 0
            result.low.append(float(values.min(initial=np.inf)))
            result.high.append(float(values.max(initial=-np.inf)))
            if name == "standard":
                total, square = exact_sums(values)
                result.sums.append(hex(total))
                result.squares.append(hex(square))
            elif name == "quantile":
                sorted_columns.append(np.sort(values))
        if sorted_columns:
            result.files[SORTED] = write_array(self.path, np.stack(sorted_columns), self.job.checksum(SORTED))
        worker.count(*self.size)
        return result


def fit_dense(job: Job, records: Sequence[ChunkRecord], limit: int, executor: Executor) -> dict[str, list[float]]:
    """Return the fit of each dense column whose transform has one, from the rows at positions below `limit`."""
    fitted = _fitted(job)
    if not fitted:
        return {}
    begins = [0, *accumulate(record.rows for record in records)]
    pairs = zip(records, begins, strict=False)
    tasks = [
        DenseTask(job, record, begin, limit)
        for record, begin in pairs
        if record.rows and (job.rules.is_arranged or begin < limit)
    ]
    with executor.stage("fit numbers", sum(task.size[0] for task in tasks)):
        results = list(executor.map(tasks))
    filled = [(task, result) for task, result in zip(tasks, results, strict=True) if result.rows]
    fits: dict[str, list[float]] = {}
    num_standard = num_quantile = 0
    for place, (index, name) in enumerate(fitted):
        low, high = min(result.low[place] for _, result in filled), max(result.high[place] for _, result in filled)
        if name == "minmax":
            fit = [low, high]
        elif name == "standard":
            sums = [(result.rows, result.sums[num_standard], result.squares[num_standard]) for _, result in filled]
            fit = _mean_and_deviation([(rows, int(total, 16), int(square, 16)) for rows, total, square in sums])
            num_standard += 1
        else:
            fit = _quantiles([open_array(task.path)[num_quantile] for task, _ in filled], low, high)
            num_quantile += 1
        fits[job.schema.dense[index]] = fit
    return fits


def _fitted(job: Job) -> list[tuple[int, str]]:
    assert job.table is not None
    return [(index, name) for index, name in job.table.indexed_transforms if name in FITS]


def exact_sums(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return the sum in units of 2^-UNIT_EXPONENT and the sum of squares in units of its square."""
    total = square = 0
    for start in range(0, len(values), SUMMED_ROWS):
        fractions, exponents = np.frexp(values[start : start + SUMMED_ROWS])
        mantissas = np.ldexp(fractions, MANTISSA_BITS).astype(np.int64)
        distinct, codes = np.unique(exponents, return_inverse=True)
        shifts = (distinct.astype(np.int64) - MANTISSA_BITS + UNIT_EXPONENT).tolist()
        total += _shifted(mantissas >> LIMB, codes, shifts, LIMB) + _shifted(mantissas % (1 << LIMB), codes, shifts, 0)
        magnitudes = np.abs(mantissas)
        low, middle, high = (magnitudes >> bits & (1 << LIMB) - 1 for bits in (0, LIMB, 2 * LIMB))
        products = (low * low, 2 * low * middle, 2 * low * high + middle * middle, 2 * middle * high, high * high)
        doubled = [2 * shift for shift in shifts]
        square += sum(_shifted(product, codes, doubled, LIMB * place) for place, product in enumerate(products))
    return total, square


def _shifted(numbers: NDArray[np.int64], codes: NDArray[np.intp], shifts: list[int], more: int) -> int:
    """Return the sum of numbers, each shifted by the shift of its code and by `more` bits."""
    sums = np.bincount(codes, weights=numbers, minlength=len(shifts))
    return sum(int(each) << shift + more for each, shift in zip(sums.tolist(), shifts, strict=True))


def _mean_and_deviation(sums: Sequence[tuple[int, int, int]]) -> list[float]:
    """Return mean and standard deviation (of the population) from rows, sums and sums of squares, rounded once."""
    rows, total, square = map(sum, zip(*sums, strict=True))
    variance = rows * square - total * total  # times rows^2
    return [total / (rows << UNIT_EXPONENT), isqrt(variance << 128) / (rows << UNIT_EXPONENT + 64)]


def _quantiles(columns: Sequence[NDArray[np.float64]], low: float, high: float) -> list[float]:
    """Return the values at NUM_QUANTILES evenly spaced ranks of sorted columns, by bisection of the numbers' bits."""
    rows = sum(map(len, columns))
    ranks = np.arange(NUM_QUANTILES) * (rows - 1) // (NUM_QUANTILES - 1)
    lowest, highest = (np.full(NUM_QUANTILES, _to_key(np.array(bound)), np.uint64) for bound in (low, high))
    while (lowest < highest).any():
        middle = lowest + (highest - lowest) // np.uint64(2)
        counts = sum(np.searchsorted(column, _from_key(middle), "right") for column in columns)
        is_above = counts > ranks
        lowest, highest = np.where(is_above, lowest, middle + np.uint64(1)), np.where(is_above, middle, highest)
    return (_from_key(lowest) + 0.0).tolist()


def _to_key(numbers: NDArray[np.float64]) -> Any:
    bits = numbers.view(np.uint64)
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def _from_key(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    return np.where(keys >> np.uint64(63), keys & np.uint64((1 << 63) - 1), ~keys).view(np.float64)
