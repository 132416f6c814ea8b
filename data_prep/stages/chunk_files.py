"""The files that a unit's rows go to while it is parsed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.dataset.bags import Bags, offsets_of
from data_prep.encoding.dense import DenseRange, join_ranges, range_of, transform_into
from data_prep.encoding.encoder import encode_hash
from data_prep.engine.job import Job, UnitRecord, digest_unit_files, save_record, sum_of
from data_prep.io.atomic import temporary_path
from data_prep.io.buffered_file import HeldArray
from data_prep.io.npy import NpyWriter
from data_prep.parsing.criteo import Block
from data_prep.stages.bayes_scores import TRUTH_SUFFIX
from data_prep.stages.column_store import HeldColumns, write_columns
from data_prep.stages.fit_vocabulary import PARSED_RUNS
from data_prep.stages.value_counts import write_runs
from data_prep.vocabulary.count import Coding

COPY_VALUES = 1 << 20


class BagFiles:
    """The bags of a unit's multi-valued columns: in memory their lengths, on disk, column by column, their values."""

    def __init__(self, job: Job, source: int, chunk: int) -> None:
        self._job, self._unit = job, (source, chunk)
        self._paths = [temporary_path(job.unit_path(source, chunk, f"bags-{i}")) for i in range(len(job.schema.ragged))]
        self._files = [open(path, "wb+") for path in self._paths]  # noqa: SIM115
        self._lengths: list[list[NDArray[np.int64]]] = [[] for _ in self._paths]

    def abandon(self) -> None:
        """Close the files that are open."""
        for file in self._files:
            file.close()

    def append(self, bags: Sequence[Bags]) -> None:
        """Write the bags of a block, one entry a column."""
        for file, lengths, column in zip(self._files, self._lengths, bags, strict=True):
            file.write(np.ascontiguousarray(column.ids, np.uint32).data)
            lengths.append(column.lengths)

    def finish(self) -> list[str]:
        """Put the columns one behind the other; the suffixes of the files that are there then."""
        job = self._job
        is_vocabulary = job.rules.order is not None
        suffix = "bags.npy" if is_vocabulary else "values.npy"
        values = NpyWriter(job.unit_path(*self._unit, suffix), np.uint32 if is_vocabulary else np.int32, None)
        for path, file in zip(self._paths, self._files, strict=True):
            file.seek(0)
            while len(read := np.fromfile(file, np.uint32, COPY_VALUES)):
                values.append(read if is_vocabulary else encode_hash(read, job.rules.max_ind_range or 0))
            file.close()
            path.unlink()
        values.close()
        lengths = [np.concatenate([np.zeros(0, np.int64), *column]) for column in self._lengths]
        offsets = NpyWriter(job.unit_path(*self._unit, "offsets.npy"), np.int64, None)
        offsets.append(offsets_of(np.concatenate(lengths)))
        offsets.close()
        return [suffix, "offsets.npy"]


class UnitFiles:
    """The files a unit's rows go to while it is parsed; as a context, it leaves none open if that fails."""

    def __init__(self, job: Job, source: int, chunk: int) -> None:
        self._job, self._source, self._chunk = job, source, chunk
        self._files: dict[str, HeldArray] = {}
        self._labels = self._array("labels.npy", np.int32, 1)
        self._is_raw = job.rules.needs_statistics
        as_read = np.int32 if job.table is None else np.float64
        suffix, dtype = ("integers.npy", as_read) if self._is_raw else ("dense.npy", job.dtypes["dense"])
        self._dense = self._array(suffix, dtype, len(job.schema.dense))
        self._ranges: list[DenseRange] = []
        self._positives = 0
        self._truth: HeldArray | None = None
        if job.sources[source].generator is not None:
            self._truth = self._array(TRUTH_SUFFIX, np.float32, 1)
        self._is_vocabulary = job.rules.order is not None
        if self._is_vocabulary:
            self._values = HeldColumns(job.unit_path(source, chunk, "values"), len(job.schema.single))
        else:
            self._sparse = self._array("sparse.npy", np.int32, len(job.schema.single))
        self._bags = BagFiles(job, source, chunk) if job.schema.ragged else None

    def __enter__(self) -> "UnitFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close the files that are open, and hold nothing any more."""
        for file in self._files.values():
            file.abandon()
        if self._is_vocabulary:
            self._values.abandon()
        if self._bags is not None:
            self._bags.abandon()

    def _array(self, suffix: str, dtype: DTypeLike, width: int) -> HeldArray:
        path = self._job.unit_path(self._source, self._chunk, suffix)
        array = self._files[suffix] = HeldArray(path, dtype, width)
        return array

    def append(self, block: Block, truth: NDArray[np.float32] | None = None) -> None:
        """Write the rows of a block, with their click probabilities if they were generated."""
        job, rows = self._job, len(block.labels)
        if self._truth is not None and truth is not None:
            self._truth.append(truth)
        self._positives += int(block.labels.sum(dtype=np.int64))
        self._labels.append(block.labels)
        if self._is_raw:
            self._dense.append(block.dense)
            self._ranges += [range_of(block.dense)] if rows else []
        else:
            self._dense.extend(rows, lambda dense: transform_into(block.dense, job.rules.dense, dense))
        if self._is_vocabulary:
            self._values.append(block.sparse)
        else:
            modulus = job.rules.max_ind_range
            assert modulus is not None
            self._sparse.extend(rows, lambda ids: encode_hash(block.sparse, modulus, ids))
        if self._bags is not None:
            self._bags.append(block.bags)

    def finish(self) -> UnitRecord:
        """Close the files, count the values for a vocabulary, record the unit."""
        job, unit = self._job, (self._source, self._chunk)
        record = UnitRecord(*unit, self._labels.rows, self._positives, {})
        if self._bags is not None:
            record.files |= digest_unit_files(job, *unit, self._bags.finish())
        codings: Sequence[Coding | None] = [None] * len(job.schema.single)
        if job.rules.counts_while_parsing:
            rows = np.arange(record.rows)
            record.run_lengths, digest, codings = write_runs(job, unit, PARSED_RUNS, self._values.column, rows)
            record.files[PARSED_RUNS] = digest
        if self._is_vocabulary:
            record.dictionaries, record.files["columns"] = write_columns(job, unit, self._values, codings)
        if self._ranges:
            known = join_ranges(self._ranges)
            record.dense_low, record.dense_high = known.low.tolist(), known.high.tolist()
        if job.rules.order is None:
            record.unknown = [0] * len(job.schema.sparse)
        for suffix, file in self._files.items():
            record.files[suffix] = file.close(sum_of(job, suffix))
        save_record(job, "parsed", record)
        return record
