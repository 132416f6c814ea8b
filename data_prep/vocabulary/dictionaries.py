"""Merging of the dictionaries of a user's own table into one vocabulary of 64-bit values and their texts.

Merging numbers the values in ascending order: `NumberedValues`. The 32-bit numbers are then counted, capped and ranked
(data_prep/vocabulary/merge.py and rank.py), which gives the number of each id. `write_ranked` brings values and texts
into that order. Memory does not grow with the number of values.
"""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest
from common.memory import share_allocator_with_arrow
from data_prep.encoding.texts import text_buffers
from data_prep.io.arrays import ArrayWriter, open_array, unload
from data_prep.vocabulary.count import Run
from data_prep.vocabulary.merge import value_cuts
from data_prep.vocabulary.rank import reserve

BYTES_PER_ENTRY = 160  # an entry without its text: merging, copies, ranking
COPIES_OF_TEXT = 4
MAX_BUCKETS = 256  # files open at once
ORDER_VALUES = 1 << 20  # ids read at once
SHOWN_CHARACTERS = 40


class Entries(NamedTuple):
    """Entries of a dictionary: values [n] uint64, counts and first rows [n] int64, and texts, an Arrow array [n]."""

    values: NDArray[np.uint64]
    counts: NDArray[np.int64]
    first: NDArray[np.int64]
    texts: Any


class Dictionary(Protocol):
    """Distinct values in ascending order, in memory or on disk."""

    @property
    def entries(self) -> int:
        """Return the number of distinct values."""

    @property
    def text_bytes(self) -> int:
        """Return the bytes of all texts."""

    @property
    def values(self) -> NDArray[np.uint64]:
        """Return all values."""

    def part(self, start: int, stop: int) -> Entries:
        """Return the entries start..stop."""


def refuse_collisions(column: str, texts: Any, is_new: NDArray[np.bool_]) -> None:
    """Refuse two texts with the same value.

    Args:
        texts: in the order of their values.
        is_new: whether each value differs from the one before.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    repeat_indices = np.flatnonzero(~is_new)
    before, after = texts.take(pa.array(repeat_indices - 1)), texts.take(pa.array(repeat_indices))
    differ = pc.not_equal(before, after).to_numpy(zero_copy_only=False)
    if differ.any():
        place = int(differ.argmax())
        first, second = (each[place].as_py()[:SHOWN_CHARACTERS] for each in (before, after))
        raise UserError(
            f"data.raw: column {column}: {first!a} and {second!a} have the same value of 64 bits, so they would share "
            "an id; write one of them differently in the raw files"
        )


def merge_dictionaries(
    column: str, dictionaries: Sequence[Dictionary], part_bytes: int, begins: Sequence[int], threshold: int
) -> Iterator[Entries]:
    """Merge any number of dictionaries into one, and yield it in consecutive ranges of values.

    Args:
        column: the column's name in errors.
        part_bytes: memory for merging and ranking a part.
        begins: number of the row at which each dictionary's `first` begins to count.
        threshold: values with a lower total count, or none, are left out.
    """
    total = sum(each.entries for each in dictionaries)
    num_bytes = BYTES_PER_ENTRY * total + COPIES_OF_TEXT * sum(each.text_bytes for each in dictionaries)
    cuts = value_cuts(dictionaries, -(-num_bytes // part_bytes))
    bounds = np.array([[0, *np.searchsorted(each.values, cuts), each.entries] for each in dictionaries], np.int64)
    for starts, stops in zip(bounds.T[:-1].tolist(), bounds.T[1:].tolist(), strict=True):
        parts = []
        for dictionary, start, stop, begin in zip(dictionaries, starts, stops, begins, strict=True):
            if start < stop:
                part = dictionary.part(start, stop)
                parts.append(part._replace(first=part.first + begin))
        if parts:
            yield _merge(column, parts, max(1, threshold))


def _merge(column: str, parts: Sequence[Entries], threshold: int) -> Entries:
    import pyarrow as pa

    values, counts, first = (np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:3])
    texts = pa.concat_arrays([part.texts for part in parts])
    occurs = np.flatnonzero(counts)
    order = occurs[np.argsort(values[occurs])]
    values = values[order]
    is_new = np.concatenate(([True], values[1:] != values[:-1]))[: len(values)]
    starts = np.flatnonzero(is_new)
    if not len(starts):
        return Entries(values, counts[:0], first[:0], texts[:0])
    if len(starts) < len(values):
        refuse_collisions(column, texts.take(pa.array(order)), is_new)
    totals = np.add.reduceat(counts[order], starts)
    is_frequent = totals >= threshold
    earliest = np.minimum.reduceat(first[order], starts)
    return Entries(
        values[starts][is_frequent],
        totals[is_frequent],
        earliest[is_frequent],
        texts.take(pa.array(order[starts][is_frequent])),
    )


class NumberedValues:
    """Merged values in a directory, numbered in ascending order, with their texts if these are kept."""

    def __init__(self, directory: Path, with_texts: bool) -> None:
        share_allocator_with_arrow()
        self._directory, self._with_texts = directory, with_texts
        self.sizes: list[int] = []  # rows of each part
        self.num_bytes = 0
        directory.mkdir(parents=True, exist_ok=True)

    def runs(self, parts: Iterator[Entries]) -> Iterator[Run]:
        """Store parts; yield each with numbers in place of the values."""
        number = 0
        for part in parts:
            if not len(part.values):
                continue
            self._store(part)
            numbers = np.arange(number, number + len(part.values), dtype=np.uint32)
            number += len(numbers)
            yield Run(numbers, part.counts, part.first)

    def _store(self, part: Entries) -> None:
        import pyarrow as pa

        columns = {"value": part.values, **({"text": part.texts} if self._with_texts else {})}
        batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
        with _stream(self._directory / f"{len(self.sizes)}.arrow", batch.schema) as writer:
            writer.write_batch(batch)
        self.sizes.append(len(batch))
        self.num_bytes += batch.nbytes

    def parts(self) -> Iterator[Any]:
        """Yield each part as a table with the columns `value` and, if texts are kept, `text`."""
        for index in range(len(self.sizes)):
            yield _read_stream(self._directory / f"{index}.arrow")

    @property
    def size(self) -> int:
        """Return the number of values."""
        return sum(self.sizes)


def write_ranked(
    numbered: NumberedValues, order: Path, paths: Sequence[Path], directory: Path, part_bytes: int
) -> list[FileDigest]:
    """Write the values, and texts, in the order of their ids.

    Args:
        order: file with the number of each id's value, from `rank_values`.
        paths: files to write: values and, if texts are kept, texts and their offsets.
        directory: directory for temporary files.
        part_bytes: memory to use.

    Returns:
        The digests of `paths`.
    """
    numbers = open_array(order)
    buckets, text_bytes = _distribute(numbered, numbers, directory, part_bytes)
    values = ArrayWriter(paths[0], np.uint64, None, len(numbers))
    texts = []
    if len(paths) > 1:
        texts = [
            ArrayWriter(paths[1], np.uint8, None, text_bytes),
            ArrayWriter(paths[2], np.int64, None, 1 + len(numbers)),
        ]
        texts[1].append(np.zeros(1, np.int64))
    try:
        for bucket in buckets:
            table = _read_stream(bucket).sort_by("id")
            values.append(table.column("value").to_numpy())
            if texts:
                offsets, content = text_buffers(table.column("text").combine_chunks())
                texts[1].append(offsets[1:] + texts[0].rows)
                texts[0].append(content)
        return [writer.close() for writer in (values, *texts)]
    finally:
        for writer in (values, *texts):
            writer.abandon()


def _distribute(
    numbered: NumberedValues, order: NDArray[np.uint32], directory: Path, part_bytes: int
) -> tuple[list[Path], int]:
    """Write files of consecutive ids, small enough to sort in memory; return their paths and the bytes of all texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    num_buckets = min(MAX_BUCKETS, 1 + COPIES_OF_TEXT * numbered.num_bytes // part_bytes)
    ids_each = max(1, -(-len(order) // num_buckets))
    paths = [directory / f"ids-{i}.arrow" for i in range(-(-len(order) // ids_each))]
    text_bytes = 0
    with ExitStack() as stack:
        writers: list[Any] = []
        for ids, table in zip(_ids_by_part(numbered, order, directory / "ids"), numbered.parts(), strict=True):
            if not writers:
                schema = table.schema.append(pa.field("id", pa.uint32()))
                writers = [stack.enter_context(_stream(path, schema)) for path in paths]
            id_positions = np.flatnonzero(ids)
            bucket = (ids[id_positions] - 1) // ids_each
            by_bucket = np.argsort(bucket, kind="stable")
            entries = id_positions[by_bucket]
            rows = table.take(pa.array(entries)).append_column("id", pa.array(ids[entries] - 1))
            if "text" in rows.column_names:
                text_bytes += pc.sum(pc.binary_length(rows.column("text"))).as_py() or 0
            cuts = np.searchsorted(bucket[by_bucket], np.arange(len(paths) + 1)).tolist()
            for writer, (start, stop) in zip(writers, pairwise(cuts), strict=True):
                if start < stop:
                    writer.write_table(rows.slice(start, stop - start))
    return paths, text_bytes


def _ids_by_part(numbered: NumberedValues, order: NDArray[np.uint32], path: Path) -> Iterator[NDArray[np.uint32]]:
    """Yield for each part the id plus one of each value, or 0 for a value without an id."""
    if not numbered.size:
        return
    with open(path, "wb+") as file:
        reserve(file.fileno(), numbered.size * order.itemsize)
        mapped = mmap.mmap(file.fileno(), 0)
    ids = np.frombuffer(mapped, np.uint32)
    for start in range(0, len(order), ORDER_VALUES):
        numbers = np.array(order[start : start + ORDER_VALUES])
        ids[numbers] = np.arange(start + 1, start + 1 + len(numbers), dtype=np.uint32)
        unload(mapped)
    begin = 0
    for size in numbered.sizes:
        yield np.array(ids[begin : begin + size])
        begin += size


def _stream(path: Path, schema: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.new_stream(str(path), schema)


def _read_stream(path: Path) -> Any:
    import pyarrow as pa

    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all()
