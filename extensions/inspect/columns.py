"""A table read once: figures of its columns over all rows, and a sample of its rows."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.convert import distinct, plain, refuse_rounded, to_list
from data_prep.codec.files import decode_text
from data_prep.codec.values import (
    EPOCHS,
    NUMBER,
    NUMBERS,
    TRUTHS,
    RawRows,
    number_of,
    read_time,
    text_of,
    text_values,
    whole_number,
)
from data_prep.dataset.format import splitmix64
from data_prep.parsing.readers import NULL_MARKS
from data_prep.parsing.table import DELIMITERS, MIN_ROW_BYTES, FileLayout, Format, common_format, read_columns
from data_prep.sources.files import LineBlocks, Source

MAX_EXACT = 1 << 16  # fewer different values are counted; more are estimated
INTEGER = re.compile(r"-?[0-9]+(\.0)?")  # 12.0 as pandas writes columns with gaps, 00042 as postcodes are written


@dataclass
class ColumnFigures:
    """Figures of a column over all rows, and its fields in the sample.

    Attributes:
        name, kind: as the file says.
        counts: rows by what their text is: empty (or a list without members), mark, truth, integer, fraction, text.
        marks: rows of each text that means no value, such as NA; it counts as filled.
        has_others: whether a row, or a member of a list, is neither text, number, truth value nor time.
        has_fractions: whether a typed number is not whole, or so large that its type rounds whole numbers.
        low, high: range of the numbers.
        hashes: the smallest hashes of the different values, at most MAX_EXACT.
        sample: texts of the sampled rows, or lists of texts.
    """

    name: str
    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    has_others: bool = False
    has_fractions: bool = False
    low: float = np.inf
    high: float = -np.inf
    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    sample: list[Any] = field(default_factory=list)

    def add(self, values: Any, sampled: NDArray[np.int64]) -> None:
        """Count a batch of rows, an Arrow array or a list, and keep those with the numbers `sampled`."""
        values = plain(values)
        if self.kind == "list":
            bags = [self._members(row) for row in to_list(values)]
            self.counts.update("text" if bag else "empty" for bag in bags)
            self.sample += [bags[row] for row in sampled.tolist()]
            texts = sorted({text for bag in bags for text in bag})
        else:
            try:
                refuse_rounded(values, str)
            except UserError:
                self.has_fractions = True
            column = distinct(values)
            texts = list(map(self._text, column.values))
            for text, rows in zip(texts, np.bincount(column.codes).tolist(), strict=True):
                self._count(text, rows)
            self.sample += [texts[code] for code in column.codes[sampled].tolist()]
            texts = list(filter(None, texts))
        self.add_values(text_values(pa.array(texts, pa.string())))

    def _members(self, row: Any) -> list[str]:
        """Return the members of a list as texts; none for null and for another value."""
        members = [member for member in row if member is not None] if isinstance(row, list) else []
        is_other = row is not None and not isinstance(row, list)
        self.has_others |= is_other or not all(isinstance(member, str | int) for member in members)
        return [str(member) for member in members]

    def _text(self, value: Any) -> str:
        """Return a value's text as `text_of` has it (True and 1.0 are "1"), but a time in ISO 8601; "" for None."""
        if isinstance(value, date):  # as a datetime is, too
            return value.isoformat()
        self.has_fractions |= isinstance(value, float | Decimal) and whole_number(value) is None
        self.has_others |= not isinstance(value, str | int | float | Decimal | None)
        return text_of(value)

    def _count(self, text: str, rows: int) -> None:
        """Count a text that stands in some rows."""
        number, kind = number_of(text, NUMBERS), "text"
        if text == "":
            kind = "empty"
        elif text.strip() in NULL_MARKS:
            kind = "mark"
            self.marks[text] += rows
        elif text.strip().lower() in TRUTHS:
            kind = "truth"
        elif not np.isnan(number):
            kind = "integer" if INTEGER.fullmatch(text) else "fraction"
            self.low, self.high = min(self.low, number), max(self.high, number)
        self.counts[kind] += rows

    def add_values(self, values: NDArray[np.uint64]) -> None:
        """Add values [n], of which some may be equal, to each other or to those added before."""
        hashes = splitmix64(values)
        if not self.has_exact_number:
            hashes = hashes[hashes < self.hashes[-1]]
        self.hashes = np.union1d(self.hashes, hashes)[:MAX_EXACT]

    @property
    def has_exact_number(self) -> bool:
        """Return whether the number of different values is counted, not estimated."""
        return len(self.hashes) < MAX_EXACT

    @property
    def num_values(self) -> int:
        """Return the number of different values: counted, or estimated from the density of the smallest hashes."""
        if self.has_exact_number:
            return len(self.hashes)
        return int(MAX_EXACT * 2.0**64 / (int(self.hashes[-1]) + 1))

    @property
    def filled(self) -> int:
        """Return the number of rows whose field is not empty."""
        return self.counts.total() - self.counts["empty"]

    def are_numbers(self, with_marks: bool) -> bool:
        """Return whether every value is a finite number or truth value or, with marks, a number or no value."""
        numbers, others = self.counts["integer"] + self.counts["fraction"], self.counts["truth"]
        if with_marks and numbers and self.marks:
            others = self.counts["mark"]
        return 0 < self.filled == numbers + others and max(-self.low, self.high) < np.inf

    @property
    def has_value(self) -> NDArray[np.bool_]:
        """Return a mask of the sampled rows, [rows], whose text means a value."""
        return np.array([text.strip() not in NULL_MARKS for text in self.sample], np.bool_)

    @property
    def sampled_numbers(self) -> NDArray[np.float64]:
        """Return the numbers of the sampled rows that have a value."""
        return np.array([number_of(text, NUMBERS) for text in self.sample if text.strip() not in NULL_MARKS])


PATTERNS = (
    *(day + time for day in ("%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y") for time in ("", " %H:%M", " %H:%M:%S")),
    "%d %b %Y",
    "%a %b %d %H:%M:%S %Y",
)
ISO = None
DAY = "%Y%m%d"  # of numbers such as 20240131
MIN_EPOCH, MAX_EPOCH = 631_152_000, 4_102_444_800  # 1990 to 2100, in seconds: earlier numbers are rarely times


def time_formats(figures: ColumnFigures) -> list[str | None]:
    """Return the formats of times that all sampled texts of a column have; None for ISO 8601 or a type."""
    if figures.kind == "time":
        return [ISO]
    if figures.kind == "list" or figures.has_others or figures.has_fractions:
        return []
    filled, are_numbers = {text.strip() for text in figures.sample} - NULL_MARKS, figures.are_numbers(with_marks=True)

    def is_time(text: str, form: str | None) -> bool:
        moment = read_time(text, form)
        if moment is None or not are_numbers:
            return moment is not None
        return MIN_EPOCH * 1e6 <= moment < MAX_EPOCH * 1e6 and (form != DAY or len(text) == len("20240131"))

    forms = (*EPOCHS, DAY) if are_numbers else (ISO, *PATTERNS)
    return [form for form in forms if filled and all(is_time(text, form) for text in filled)]


CHUNK_BYTES = 8 << 20  # of a file, read at once
FIRST_BYTES, LINES = 1 << 20, 50  # of a file, which show the delimiter
SAMPLE_ROWS, SAMPLE_FIELDS = 50_000, 2_000_000  # most rows and fields of the sample


@dataclass
class TableProfile:
    """Figures of a table's columns, by name, in file order; and a sample of the rows.

    The sample has the rows whose numbers have the smallest hashes, in their order: all rows of a small table.

    form, layout: of all files. sampled: numbers of the sampled rows. largest: rows with larger hashes are left out.
    """

    sources: Sequence[Source]
    form: Format
    layout: FileLayout
    columns: dict[str, ColumnFigures]
    rows: int = 0
    sampled: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    largest: int = 2**64 - 1

    def add(self, batch: RawRows) -> None:
        """Add a batch of rows, which follow those before."""
        numbers = np.arange(self.rows, self.rows + batch.rows)
        kept = np.flatnonzero(splitmix64(numbers.astype(np.uint64)) <= np.uint64(self.largest))
        self.sampled = np.concatenate([self.sampled, numbers[kept]])
        self.rows += batch.rows
        for name, figures in self.columns.items():
            figures.add(batch.columns[name], kept)

    def shrink(self, slack: int) -> None:
        """Drop the sampled rows of the largest hashes if there are more than `slack` times as many as wanted."""
        limit = min(SAMPLE_ROWS, max(1000, SAMPLE_FIELDS // max(1, len(self.columns))))
        if len(self.sampled) > slack * limit:
            hashes = splitmix64(self.sampled.astype(np.uint64))
            kept = np.sort(np.argpartition(hashes, limit)[:limit])
            self.largest, self.sampled = int(hashes[kept].max()), self.sampled[kept]
            for figures in self.columns.values():
                figures.sample = [figures.sample[index] for index in kept.tolist()]

    def scope(self) -> str:
        """Return a phrase for a heading: the number of all rows, and of the sample's rows if they are fewer."""
        sampled = len(self.sampled)
        more = "" if sampled == self.rows else f"; rates and distributions of {sampled:,} of them, drawn by a hash"
        return f"all {self.rows:,} rows{more}"


def read_profile(sources: Sequence[Source]) -> TableProfile:
    """Return the figures of all rows of some files, and a sample of the rows; the files are read once."""
    form = common_format(sources)
    delimiter, header = _find_layout(sources[0]) if form.has_layout else (",", True)
    columns = read_columns(form, sources, FileLayout((), delimiter, header))
    names = [name for name, _ in columns[0]]
    # Two columns may lack a name: the index that pandas writes, and an empty one if a delimiter ends each line.
    if twice := next((name for name, count in Counter(names).items() if name and count > 1), None):
        raise UserError(f"{sources[0].path}: row 1: two columns {twice}; rename one of them")
    if other := next((each for each, found in zip(sources, columns, strict=True) if found != columns[0]), None):
        raise UserError(f"{other.path}: other columns than in {sources[0].path}; give like files")
    figures = {name: ColumnFigures(name, kind) for name, kind in columns[0]}
    lists = tuple(name for name, column in figures.items() if column.kind == "list")
    profile = TableProfile(sources, form, FileLayout(tuple(names), delimiter, header, lists), figures)
    for source in sources:
        for chunk in form.chunks(source, profile.layout, max(MIN_ROW_BYTES, 8 * len(figures)), CHUNK_BYTES):
            for batch, _ in form.batches(source, chunk, list(figures), profile.layout):
                profile.add(batch)
                profile.shrink(slack=2)  # each time takes a pass over the sample, so rows are dropped many at a time
    profile.shrink(slack=1)
    if not profile.rows:
        raise UserError(f"{sources[0].path}: no rows in it; get it again, or leave it out of {sources[0].key}")
    return profile


def _find_layout(source: Source) -> tuple[str, bool]:
    """Return the delimiter that divides the first lines into most columns, all alike, and whether row 1 has names."""
    lines: list[str] = []
    with LineBlocks(source) as blocks:
        if (block := next(blocks.read_until(FIRST_BYTES), None)) is not None:
            content = bytes(block.buffer[block.start : block.end])[:FIRST_BYTES]
            text = decode_text(content[: content.rfind(b"\n") + 1] or content, source.path, 1)
            # splitlines() would also cut at U+2028.
            lines = [line for line in re.split(r"\r\n?|\n", text) if line.strip()][: LINES + 1]
    if not lines:
        raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
    merits = {}
    for delimiter in (",", *DELIMITERS):  # of equally good ones the first counts
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter)}
        # One that divides the lines at all comes first, then one that gives equal widths, then the one of most columns.
        merits[delimiter] = (max(widths, default=0) > 1, len(widths) == 1, max(widths, default=0))
    delimiter = max(merits, key=lambda candidate: merits[candidate])
    names = next(csv.reader(lines, delimiter=delimiter))
    return delimiter, any(names) and not any(re.fullmatch(NUMBER, name) for name in names)
