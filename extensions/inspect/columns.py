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
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.convert import distinct, plain, refuse_rounded, to_list
from data_prep.codec.dates import EPOCHS, read_time
from data_prep.codec.files import decode_text
from data_prep.codec.values import NUMBER, TRUTHS, text_of, text_values, whole_number
from data_prep.dataset.format import splitmix64
from data_prep.parsing.formats import MIN_ROW_BYTES, FileLayout, Format, Size, format_of
from data_prep.parsing.labels import NULL_MARKS
from data_prep.parsing.table_yaml import DELIMITERS
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks

MAX_EXACT = 1 << 16  # fewer different values are counted; more are estimated
INTEGER = r"^-?[0-9]+(\.0)?$"  # 12.0 as pandas writes columns with gaps, 00042 as postcodes are written


class DistinctValues:
    """Number of different 64-bit values: exact below MAX_EXACT, then estimated by the smallest hashes."""

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)

    def add(self, values: NDArray[np.uint64]) -> None:
        """Add values [n], of which some may be equal, to each other or to those added before."""
        hashes = splitmix64(values)
        if not self.is_exact:
            hashes = hashes[hashes < self._hashes[-1]]
        self._hashes = np.union1d(self._hashes, hashes)[:MAX_EXACT]

    @property
    def is_exact(self) -> bool:
        """Return whether the number is counted, not estimated."""
        return len(self._hashes) < MAX_EXACT

    def __len__(self) -> int:
        """Return the number of different values: counted, or estimated from the density of the smallest hashes."""
        return len(self._hashes) if self.is_exact else int(MAX_EXACT * 2.0**64 / (int(self._hashes[-1]) + 1))


@dataclass
class ColumnFigures:
    """Figures of a column over all rows.

    Attributes:
        name, kind: as the file says.
        rows, missing: rows, and those with an empty field or list.
        has_others: whether a row, or a member of a list, is neither text, number, truth value nor time.
        has_fractions: whether a typed number is not whole, or so large that its type rounds whole numbers.
        numbers, integers, truths: rows whose text is a number, a whole one, true or false.
        marks: rows of each text that means no value, such as NA; it counts as filled.
        low, high: range of the numbers.
    """

    name: str
    kind: str
    rows: int = 0
    missing: int = 0
    has_others: bool = False
    has_fractions: bool = False
    numbers: int = 0
    integers: int = 0
    truths: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    low: float = np.inf
    high: float = -np.inf
    distinct: DistinctValues = field(default_factory=DistinctValues)

    def add(self, values: Any) -> list[Any]:
        """Count a batch of rows, an Arrow array or a list, and return their texts, or lists of texts."""
        values = plain(values)
        if self.kind == "list":
            return self._add_lists(to_list(values))
        try:
            refuse_rounded(values, str)
        except UserError:
            self.has_fractions = True
        column = distinct(values)
        texts, counts = list(map(self._text, column.values)), np.bincount(column.codes, minlength=len(column.values))
        is_empty = np.array([text == "" for text in texts], np.bool_)
        self.rows += len(column.codes)
        self.missing += int(counts[is_empty].sum())
        self._add_texts(texts, counts)
        return [texts[code] for code in column.codes.tolist()]

    def _text(self, value: Any) -> str:
        """Return a value's text as `text_of` has it (True and 1.0 are "1"), but a time in ISO 8601; "" for None."""
        self.has_fractions |= isinstance(value, float | Decimal) and whole_number(value) is None
        if isinstance(value, date):  # as a datetime is, too
            return value.isoformat()
        if isinstance(value, str | int | float | Decimal | None):
            return text_of(value)
        self.has_others = True
        return str(value)

    def _add_lists(self, rows: list[Any]) -> list[list[str]]:
        """Count rows of lists, and return each row's members as texts; none for another value."""
        bags = [row if isinstance(row, list) else [] for row in rows]
        members = [[member for member in bag if member is not None] for bag in bags]
        is_other = [row is not None and not isinstance(row, list) for row in rows]
        is_other += [not isinstance(member, str | int) for bag in members for member in bag]
        self.has_others |= any(is_other)
        self.rows += len(rows)
        self.missing += sum(not bag for bag in bags)
        texts = [[str(member) for member in bag] for bag in members]
        self.distinct.add(text_values(pa.array(sorted({text for bag in texts for text in bag}), pa.string())))
        return texts

    def _add_texts(self, texts: Sequence[str], counts: NDArray[np.int64]) -> None:
        """Add texts, of which each stands in `counts` rows, to the figures of the values."""
        array = pa.array(texts, pa.string())
        is_number = pc.match_substring_regex(array, f"^({NUMBER})$").to_numpy(zero_copy_only=False)
        is_integer = pc.match_substring_regex(array, INTEGER).to_numpy(zero_copy_only=False)
        is_truth = pc.is_in(pc.utf8_lower(array), value_set=pa.array(list(TRUTHS))).to_numpy(zero_copy_only=False)
        self.numbers += int(counts[is_number].sum())
        self.integers += int(counts[is_integer].sum())
        self.truths += int(counts[is_truth].sum())
        numbers = pc.utf8_trim(array.filter(pa.array(is_number)), " \t").cast(pa.float64()).to_numpy()
        self.low, self.high = float(numbers.min(initial=self.low)), float(numbers.max(initial=self.high))
        for text, rows in zip(texts, counts.tolist(), strict=True):
            if text != "" and text.strip() in NULL_MARKS:
                self.marks[text] += rows
        self.distinct.add(text_values(array.filter(pc.not_equal(array, ""))))

    @property
    def filled(self) -> int:
        """Return the number of rows whose field is not empty."""
        return self.rows - self.missing

    @property
    def are_numbers(self) -> bool:
        """Return whether every value is a finite number or truth value."""
        is_finite = max(-self.low, self.high) < np.inf
        return 0 < self.filled == self.numbers + self.truths and is_finite and self.kind != "list"

    @property
    def are_marked_numbers(self) -> bool:
        """Return whether every value is a finite number, but for texts that mean no value."""
        is_finite = max(-self.low, self.high) < np.inf
        return self.numbers > 0 and self.filled == self.numbers + self.marks.total() and is_finite


PATTERNS = (
    *(day + time for day in ("%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y") for time in ("", " %H:%M", " %H:%M:%S")),
    "%d %b %Y",
    "%a %b %d %H:%M:%S %Y",
)
ISO = None
DAY = "%Y%m%d"  # of numbers such as 20240131
MIN_EPOCH, MAX_EPOCH = 631_152_000, 4_102_444_800  # 1990 to 2100, in seconds: earlier numbers are rarely times


def time_formats(figures: ColumnFigures, texts: Sequence[Any]) -> list[str | None]:
    """Return the formats of times that all texts [rows of the sample] of a column have; None for ISO 8601 or a type."""
    if figures.kind == "time":
        return [ISO]
    if figures.kind == "list" or figures.has_others or figures.has_fractions:
        return []
    filled = {text.strip() for text in texts} - NULL_MARKS

    def is_time(text: str, form: str | None) -> bool:
        moment = read_time(text, form)
        if moment is None or not are_numbers:
            return moment is not None
        return MIN_EPOCH * 1e6 <= moment < MAX_EPOCH * 1e6 and (form != DAY or len(text) == len("20240131"))

    are_numbers = figures.are_numbers or figures.are_marked_numbers
    forms = (*EPOCHS, DAY) if are_numbers else (ISO, *PATTERNS)
    return [form for form in forms if filled and all(is_time(text, form) for text in filled)]


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case: userId and user_id have user and id."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", name)]


CHUNK_BYTES = 8 << 20  # of a file, read at once
FIRST_BYTES, LINES = 1 << 20, 50  # of a file, which show the delimiter
SAMPLE_ROWS, SAMPLE_VALUES = 50_000, 2_000_000  # most rows and fields of the sample


@dataclass
class Sample:
    """The rows whose numbers have the smallest hashes, in their order: all rows of a small table.

    limit: most rows, after `shrink`. numbers: row numbers from 0. columns: the texts of each column, or lists of texts.
    largest: rows with larger hashes are left out.
    """

    limit: int
    columns: dict[str, list[Any]]
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    largest: int = 2**64 - 1

    def add(self, begin: int, columns: dict[str, list[Any]], rows: int) -> None:
        """Add a batch of rows, the first of which has the number `begin`."""
        numbers = np.arange(begin, begin + rows)
        kept = np.flatnonzero(splitmix64(numbers.astype(np.uint64)) <= np.uint64(self.largest))
        self.numbers = np.concatenate([self.numbers, numbers[kept]])
        for name, values in columns.items():
            self.columns[name] += [values[index] for index in kept.tolist()]
        # Rows are dropped many at a time, as each time takes a pass over the sample.
        if len(self.numbers) > 2 * self.limit:
            self.shrink()

    def shrink(self) -> None:
        """Drop the rows of the largest hashes beyond the limit."""
        if len(self.numbers) > self.limit:
            hashes = splitmix64(self.numbers.astype(np.uint64))
            kept = np.sort(np.argpartition(hashes, self.limit)[: self.limit])
            self.largest, self.numbers = int(hashes[kept].max()), self.numbers[kept]
            self.columns = {name: [values[index] for index in kept.tolist()] for name, values in self.columns.items()}


@dataclass
class TableProfile:
    """Figures of a table: its number of rows; its columns' figures, by name, in file order; and a sample of the rows.

    form, layout: of all files.
    """

    sources: tuple[Source, ...]
    form: Format
    layout: FileLayout
    rows: int
    columns: dict[str, ColumnFigures]
    sample: Sample

    def scope(self) -> str:
        """Return a phrase for a heading: the number of all rows, and of the sample's rows if they are fewer."""
        sampled = len(self.sample.numbers)
        more = "" if sampled == self.rows else f"; rates and distributions of {sampled:,} of them, drawn by a hash"
        return f"all {self.rows:,} rows{more}"


def read_profile(sources: Sequence[Source]) -> TableProfile:
    """Return the figures of all rows of some files, and a sample of the rows; the files are read once."""
    forms = {form.name: form for form in map(format_of, sources)}
    if len(forms) > 1:
        raise UserError(f"data.raw: {' and '.join(sorted(forms))} files together; give files of one kind")
    [form] = forms.values()
    delimiter, header = _find_layout(sources[0]) if form.has_layout else (",", True)
    columns = form.columns(sources[0], FileLayout((), delimiter, header))
    names = [column.name for column in columns]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise UserError(f"{sources[0].path}: row 1: two columns {twice}; rename one of them")
    kinds = dict(columns)
    for source in sources[1:]:
        others = form.columns(source, FileLayout((), delimiter, header))
        if not form.merges_columns and others != columns:
            raise UserError(f"{source.path}: other columns than in {sources[0].path}; give like files")
        for name, kind in others:
            kinds[name] = kind if kind == "list" else kinds.get(name, kind)
    lists = tuple(name for name, kind in kinds.items() if kind == "list")
    # Two columns may lack a name: the index that pandas writes, and an empty one if a delimiter ends each line.
    names += [name for name in kinds if name not in names]
    layout = FileLayout(tuple(names), delimiter, header, lists)
    figures = {name: ColumnFigures(name, kind) for name, kind in kinds.items()}
    sample = Sample(min(SAMPLE_ROWS, max(1000, SAMPLE_VALUES // max(1, len(kinds)))), {name: [] for name in kinds})
    rows = 0
    for source in sources:
        for chunk in form.chunks(source, Size(max(MIN_ROW_BYTES, 8 * len(kinds)), lists), CHUNK_BYTES):
            for batch, _ in form.batches(source, chunk, list(kinds), layout):
                sample.add(rows, {name: figures[name].add(batch.columns[name]) for name in kinds}, batch.rows)
                rows += batch.rows
    sample.shrink()
    if not rows:
        raise UserError(f"{sources[0].path}: no rows in it; get it again, or leave it out of {sources[0].key}")
    return TableProfile(tuple(sources), form, layout, rows, figures, sample)


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
