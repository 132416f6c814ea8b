"""Figures of a table's columns in one pass: all are of all rows unless they say otherwise."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.format import splitmix64
from data_prep.dataset.spelling import NUMBER, TRUTHS, text_of, text_values, whole_number
from data_prep.parsing.convert import distinct, is_list_type, is_text, plain, significand_bits, to_list, without_nan
from data_prep.parsing.dates import EPOCHS, is_plausible, read_time
from data_prep.parsing.formats import Column, FileLayout, Format, Size, format_of
from data_prep.parsing.labels import NULL_MARKS
from data_prep.parsing.readers import decode_text
from data_prep.parsing.table_yaml import DELIMITERS
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks

MAX_EXACT = 1 << 16  # different values up to this are counted; more are estimated
MAX_COUNTED = 1 << 12  # different texts whose rows are counted
PATTERNS = (
    *(day + time for day in ("%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y") for time in ("", " %H:%M", " %H:%M:%S")),
    "%d %b %Y",
    "%a %b %d %H:%M:%S %Y",
)
ISO = None
DAY = "%Y%m%d"  # of numbers such as 20240131
INTEGER = r"^-?[0-9]+(\.0)?$"  # 12.0 as pandas writes columns with gaps, 00042 as postcodes are written
TRUTH_WORDS = [word for lower in TRUTHS for word in (lower, lower.upper(), lower.title())]
MAX_EXAMPLES = 5  # texts shown of a column
MIN_EPOCH, MAX_EPOCH = 631_152_000, 4_102_444_800  # 1990 to 2100, in seconds: earlier numbers are rarely times


class DistinctValues:
    """Number of different 64-bit values: exact up to MAX_EXACT, then estimated by the smallest hashes."""

    def __init__(self) -> None:
        self._values = np.zeros(0, np.uint64)
        self._limit: int | None = None  # hashes up to it are kept

    def add(self, values: NDArray[np.uint64]) -> None:
        """Add values [n], of which some may be equal, to each other or to those added before."""
        hashes = splitmix64(values)
        if self._limit is not None:
            hashes = hashes[hashes <= np.uint64(self._limit)]
        merged = np.union1d(self._values, hashes)
        if len(merged) > MAX_EXACT:
            # The smallest hashes are a fair sample: their density tells the number of all values.
            merged = merged[: MAX_EXACT // 2]
            self._limit = int(merged[-1])
        self._values = merged

    @property
    def is_exact(self) -> bool:
        """Return whether the number is counted, not estimated."""
        return self._limit is None

    def __len__(self) -> int:
        """Return the number of different values: counted, or estimated from the density of the smallest hashes."""
        return len(self._values) if self._limit is None else int(len(self._values) * 2.0**64 / (self._limit + 1))


@dataclass
class ColumnFigures:
    """Figures of a column.

    Attributes:
        name, kind: as the file says.
        rows, missing: rows, and those with an empty field or list. lists: rows with a list, and empty ones beside them.
        others: rows, and members of lists, that hold something else.
        numbers, integers, truths: rows whose text is a number, a whole one, true or false.
        marks: rows of each text that means no value, such as NA; it counts as filled.
        low, high: range of the numbers. examples: first texts.
        is_finite: whether all numbers are. has_fractions: whether a typed value is a number that is not whole.
        has_nan: whether a typed value is NaN, which data_prep does not take for an empty field.
        formats: of those tried, the formats of times that all texts have; empty for a column that is no time.
        counts: rows of each text while there are few different ones; then None.
        runs: stretches of equal values. descents: rows whose number or time is below that of the row before.
        first_empty: number of the first row with an empty field, from 0.
    """

    name: str
    kind: str
    rows: int = 0
    missing: int = 0
    lists: int = 0
    others: int = 0
    numbers: int = 0
    integers: int = 0
    truths: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    low: float = np.inf
    high: float = -np.inf
    is_finite: bool = True
    has_fractions: bool = False
    has_nan: bool = False
    examples: list[str] = field(default_factory=list)
    formats: list[str | None] | None = None
    distinct: DistinctValues = field(default_factory=DistinctValues)
    counts: Counter[str] | None = field(default_factory=Counter)
    runs: int = 0
    descents: int = 0
    first_empty: int | None = None
    _last_key: int | None = None
    _last_number: float | None = None

    def add(self, values: Any) -> list[str] | list[list[str]]:
        """Count a batch of rows, an Arrow array or a list, and return their texts, or lists of texts."""
        if isinstance(values, list):
            self.has_nan |= any(isinstance(value, float) and value != value for value in values)
        elif pa.types.is_floating(values.type):
            self.has_nan |= bool(pc.any(pc.is_nan(values)).as_py())
        values = plain(without_nan(values))
        if not isinstance(values, list) and values.type in (pa.float16(), pa.float32()):
            # A float of so many digits may stand for several whole numbers: data_prep refuses it as an id and a time.
            is_rounded = pc.greater_equal(pc.abs(values.cast(pa.float64())), 2.0 ** significand_bits(values.type))
            if pc.any(is_rounded).as_py():
                self.has_fractions, self.formats = True, []
        if any(isinstance(value, list) for value in values) if isinstance(values, list) else is_list_type(values.type):
            return self._add_lists(to_list(values))
        texts, codes, others, has_fractions = _distinct_texts(values)
        self.others += int(others[codes].sum())
        self.has_fractions |= has_fractions
        counts = np.bincount(codes, minlength=len(texts))
        is_empty = np.array([text == "" for text in texts], np.bool_)
        if is_empty.any() and self.first_empty is None:
            self.first_empty = self.rows + int(is_empty[codes].argmax())
        self.rows += len(codes)
        self.missing += int(counts[is_empty].sum())
        numbers = self._add_texts(texts, counts, is_empty)
        keys = text_values(pa.array(texts, pa.string()))
        self.distinct.add(keys[~is_empty])
        self._note_order(keys[codes], numbers[codes])
        return [texts[code] for code in codes.tolist()]

    def _add_lists(self, rows: list[Any]) -> list[list[str]]:
        """Count rows of which some hold lists, and return each row's members as texts; none for another value."""
        bags = [value if isinstance(value, list) else [] if value is None else None for value in rows]
        self.others += sum(bag is None for bag in bags)
        self.rows += len(rows)
        self.missing += sum(not bag for bag in bags)
        self.lists += sum(value is not None for value in bags)
        members = [[member for member in bag or () if member is not None] for bag in bags]
        flat = [member for bag in members for member in bag]
        self.others += sum(not isinstance(member, str | int) for member in flat)
        texts = sorted({str(member) for member in flat})
        self.distinct.add(text_values(pa.array(texts, pa.string())))
        self.counts, self.formats = None, []
        return [[str(member) for member in bag] for bag in members]

    def _add_texts(
        self, texts: Sequence[str], counts: NDArray[np.int64], is_empty: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Add distinct texts to the figures.

        Return what `_note_order` compares: each text's time in microseconds if the column is of times, else its number;
        NaN: neither.

        Args:
            counts: rows of each text. is_empty: which text is "".
        """
        array = pa.array(texts, pa.string())
        is_number = pc.match_substring_regex(array, f"^({NUMBER})$").to_numpy(zero_copy_only=False)
        is_integer = pc.match_substring_regex(array, INTEGER).to_numpy(zero_copy_only=False)
        is_truth = pc.is_in(array, value_set=pa.array(TRUTH_WORDS)).to_numpy(zero_copy_only=False)
        numbers = np.full(len(texts), np.nan)
        trimmed = pc.utf8_trim(array.filter(pa.array(is_number)), " \t")
        numbers[is_number] = trimmed.cast(pa.float64()).to_numpy()
        self.numbers += int(counts[is_number].sum())
        self.integers += int(counts[is_integer].sum())
        self.truths += int(counts[is_truth].sum())
        if is_number.any():
            values = numbers[is_number]
            self.is_finite = self.is_finite and bool(np.isfinite(values).all())
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        for index in np.flatnonzero(~(is_number | is_truth | is_empty)).tolist():
            if texts[index].strip() in NULL_MARKS:
                self.marks[texts[index]] += int(counts[index])
        filled = [text for text, empty in zip(texts, is_empty.tolist(), strict=True) if not empty]
        self.examples = (self.examples + filled)[:MAX_EXAMPLES]
        if self.counts is not None:
            self.counts.update(dict(zip(texts, counts.tolist(), strict=True)))
            if len(self.counts) > MAX_COUNTED:
                self.counts = None
        times = self._keep_formats(texts, is_empty, numbers)
        return numbers if times is None else times

    def _keep_formats(
        self, texts: Sequence[str], is_empty: NDArray[np.bool_], numbers: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Drop from `formats` those that a text does not have, and return each text's microseconds by the first left.

        None if no format is left, or no text is there; NaN for a text that means no value.

        Args:
            is_empty: [texts]. numbers: [texts] the number of each; NaN: it is none.
        """
        filled = np.flatnonzero(~is_empty).tolist()
        if self.marks:
            filled = [index for index in filled if texts[index].strip() not in NULL_MARKS]
        if self.formats == [] or not filled:
            return None
        if self.formats is None:
            self.formats = [*EPOCHS, DAY] if np.isfinite(numbers[filled]).all() else [ISO, *PATTERNS]
        times_of: dict[str | None, NDArray[np.float64]] = {}
        for form in self.formats:
            if form in EPOCHS:
                seconds = numbers[filled] / 10.0 ** EPOCHS[form].digits
                is_time = is_plausible(numbers[filled], form) & (seconds >= MIN_EPOCH) & (seconds < MAX_EPOCH)
                if is_time.all():
                    times_of[form] = seconds * 1e6
            elif (moments := _parse_times([texts[index] for index in filled], form)) is not None:
                times_of[form] = moments
        self.formats = list(times_of)
        if not times_of:
            return None
        times = np.full(len(texts), np.nan)
        times[filled] = times_of[self.formats[0]]
        return times

    def _note_order(self, keys: NDArray[np.uint64], numbers: NDArray[np.float64]) -> None:
        """Count stretches of equal keys [rows], and numbers [rows] below that of the row before; NaN: no number."""
        if not len(keys):
            return
        self.runs += int((keys[1:] != keys[:-1]).sum()) + (self._last_key is None or self._last_key != int(keys[0]))
        last = numbers[0] if self._last_number is None else self._last_number
        self.descents += int((numbers[1:] < numbers[:-1]).sum()) + bool(numbers[0] < last)
        self._last_key, self._last_number = int(keys[-1]), float(numbers[-1])

    @property
    def filled(self) -> int:
        """Return the number of rows whose field is not empty."""
        return self.rows - self.missing

    @property
    def is_time(self) -> bool:
        """Return whether every text is a time, but for texts that mean no value."""
        return self.kind == "time" or bool(self.formats)

    @property
    def time_format(self) -> str | None:
        """Return the format of the times; None: ISO 8601, or a type of the file."""
        return self.formats[0] if self.kind != "time" and self.formats else ISO

    @property
    def are_numbers(self) -> bool:
        """Return whether every value is a finite number or truth value."""
        return 0 < self.filled == self.numbers + self.truths and self.is_finite and not self.lists

    @property
    def marked_numbers(self) -> bool:
        """Return whether every value is a finite number, but for texts that mean no value."""
        return self.numbers > 0 and self.filled == self.numbers + self.marks.total() and self.is_finite


def _parse_times(texts: Sequence[str], form: str | None) -> NDArray[np.float64] | None:
    """Return the microseconds of texts in a format; None if one is no time."""
    if form == DAY and not all(re.fullmatch(r"(199|20\d)\d{5}", text) for text in texts):
        return None
    moments = np.empty(len(texts))
    for index, text in enumerate(texts):
        moment = read_time(text.strip(), form)
        if moment is None:
            return None
        moments[index] = moment
    return moments


def _distinct_texts(values: Any) -> tuple[list[str], NDArray[np.int64], NDArray[np.bool_], bool]:
    """Return the distinct texts of a column after `plain` and `without_nan`, without lists; "" for an empty field.

    Typed values are as `text_of` has them (True and 1.0 are "1"), times in ISO 8601. Then the code [rows] of each row's
    text; which texts [texts] stand for an object, not a value; and whether a typed number is not whole, which data_prep
    refuses as an id.
    """
    column, has_fractions = distinct(values), False
    if is_text(values):
        texts = ["" if value is None else value for value in column.values]
        others = np.zeros(len(texts), np.bool_)
    else:
        plain_types = str | bool | int | float | Decimal | datetime | date | None
        others = np.array([not isinstance(value, plain_types) for value in column.values], np.bool_)
        texts = []
        for value in column.values:
            has_fractions |= isinstance(value, float | Decimal) and whole_number(value) is None
            is_simple = isinstance(value, str | int | float | Decimal | None)
            texts.append(value.isoformat() if isinstance(value, date) else text_of(value) if is_simple else str(value))
    # Different typed values, such as 1 and 1.0, may have equal texts, which get one code.
    code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    if len(code_of) == len(texts):
        return texts, column.codes, others, has_fractions
    renumbered = np.array([code_of[text] for text in texts], np.int64)
    merged = np.zeros(len(code_of), np.bool_)
    np.logical_or.at(merged, renumbered, others)
    return list(code_of), renumbered[column.codes], merged, has_fractions


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case: userId and user_id have user and id."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", name)]


LINES = 50  # lines that show the delimiter
FIRST_BYTES = 1 << 20


class Files(NamedTuple):
    """The files of a table: their form, layout and columns."""

    sources: tuple[Source, ...]
    form: Format
    layout: FileLayout
    columns: tuple[Column, ...]

    @property
    def has_text(self) -> bool:
        """Return whether the files are delimited text, for which delimiter and header apply."""
        return self.form.has_layout


def read_layout(sources: Sequence[Source]) -> Files:
    """Return the files with the layout and columns that all share, found in the first. Raise UserError for others."""
    forms = {form.name: form for form in map(format_of, sources)}
    if len(forms) > 1:
        raise UserError(f"data.raw: {' and '.join(sorted(forms))} files together; give files of one kind")
    [form] = forms.values()
    delimiter, header = _find_layout(sources[0]) if form.has_layout else (",", True)
    layout = FileLayout((), delimiter, header)
    columns = form.columns(sources[0], layout)
    for source in sources[1:]:
        other_columns = form.columns(source, layout)
        if form.merges_columns:
            names = [column.name for column in columns]
            columns += [column for column in other_columns if column.name not in names]
        elif other_columns != columns:
            raise UserError(f"{source.path}: other columns than in {sources[0].path}; give like files")
    names = [column.name for column in columns]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise UserError(f"{sources[0].path}: row 1: two columns {twice}; rename one of them")
    if len(names) < 2:
        columns_read = f"one column alone ({names[0]})" if names else "no column"
        raise UserError(f"{sources[0].path}: {columns_read}; a table has a label and another column")
    lists = tuple(column.name for column in columns if column.kind == "list")
    return Files(tuple(sources), form, FileLayout(tuple(names), delimiter, header, lists), tuple(columns))


def _find_layout(source: Source) -> tuple[str, bool]:
    """Return the delimiter that divides the first lines into most columns, all alike, and whether row 1 has names."""
    lines: list[str] = []
    with LineBlocks(source) as blocks:
        for block in blocks.read_until(FIRST_BYTES):
            content = bytes(block.buffer[block.start : block.end])[:FIRST_BYTES]
            whole = content[: content.rfind(b"\n") + 1] or content
            # splitlines() would also cut at U+2028.
            cut = re.split(r"\r\n?|\n", decode_text(whole, source.path, 1))
            lines = [line for line in cut if line.strip()][: LINES + 1]
            if lines:
                break
    if not lines:
        raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
    widths = {}
    for delimiter in DELIMITERS:
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        widths[delimiter] = (len(set(counts)) == 1, max(counts, default=0))
    # Of equally good delimiters the first counts, which is the comma.
    order = [",", *(delimiter for delimiter in DELIMITERS if delimiter != ",")]
    # One that divides the lines at all comes first, then one that gives equal widths, then the one of most columns.
    delimiter = max(order, key=lambda candidate: (widths[candidate][1] > 1, *widths[candidate]))
    first, *rows = csv.reader(lines, delimiter=delimiter)
    # Two columns may lack a name: the index that pandas writes, and an empty one if a delimiter ends each line.
    has_index = not first[0] and all(row[0] for row in rows)
    has_empty_end = not first[-1] and not any(row[-1] for row in rows)
    names = first[has_index : len(first) - has_empty_end]
    return delimiter, names != [] and all(names) and not any(re.fullmatch(NUMBER, name) for name in names)


CHUNK_BYTES = 8 << 20  # of a file, read at once
SAMPLE_ROWS, SAMPLE_VALUES = 50_000, 2_000_000  # most rows and fields of the sample
ROW_BYTES = 41  # least memory of a row, as MIN_ROW_BYTES of data_prep/parsing/formats.py


@dataclass
class Sample:
    """Some of the rows, chosen by a hash of their number: all rows of a small table, in their order.

    limit: most rows. share: rows whose hash is below this share of all hashes are kept. numbers: row numbers from 0.
    columns: the texts of each column, or lists of texts.
    """

    limit: int
    share: float = 1.0
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, begin: int, columns: dict[str, list[Any]], rows: int) -> None:
        """Add a batch of rows, the first of which has the number `begin`; halve the sample until it is small enough."""
        numbers = np.arange(begin, begin + rows)
        self.columns = self.columns or {name: [] for name in columns}
        is_kept = self._is_kept(numbers)
        self.numbers = np.concatenate([self.numbers, numbers[is_kept]])
        for name, values in columns.items():
            self.columns[name] += [values[index] for index in np.flatnonzero(is_kept).tolist()]
        # Halving by the hash of a row's number gives the same sample for any batches.
        while len(self.numbers) > self.limit:
            self.share /= 2
            kept = np.flatnonzero(self._is_kept(self.numbers)).tolist()
            self.numbers = self.numbers[kept]
            self.columns = {name: [values[index] for index in kept] for name, values in self.columns.items()}

    def _is_kept(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the row numbers whose hash is below `share` of all hashes, as all are with 1."""
        if self.share == 1:
            return np.ones(len(numbers), np.bool_)
        return splitmix64(numbers.astype(np.uint64)) < np.uint64(int(self.share * 2**64))


@dataclass
class TableProfile:
    """Figures of a table.

    rows: number of rows. columns: figures of each column, by name, in file order.
    """

    files: Files
    rows: int
    columns: dict[str, ColumnFigures]
    sample: Sample

    def scope(self) -> str:
        """Return a phrase for a heading: the number of all rows, and of the sample's rows if they are fewer."""
        sampled = len(self.sample.numbers)
        more = "" if sampled == self.rows else f"; rates and distributions of {sampled:,} of them, drawn by a hash"
        return f"all {self.rows:,} rows{more}"


def read_profile(files: Files) -> TableProfile:
    """Return the figures of all rows of the files, and a sample of the rows; the files are read once."""
    names = [column.name for column in files.columns]
    figures = {column.name: ColumnFigures(column.name, column.kind) for column in files.columns}
    sample = Sample(min(SAMPLE_ROWS, max(1000, SAMPLE_VALUES // len(names))))
    rows = 0
    for source in files.sources:
        size = Size(max(ROW_BYTES, 8 * len(names)), files.layout.lists)
        for chunk in files.form.chunks(source, size, CHUNK_BYTES):
            for batch, _ in files.form.batches(source, chunk, names, files.layout):
                texts: dict[str, list[Any]] = {name: list(figures[name].add(batch.columns[name])) for name in names}
                sample.add(rows, texts, batch.rows)
                rows += batch.rows
    if not rows:
        path = files.sources[0].path
        raise UserError(f"{path}: no rows in it; get it again, or leave it out of {files.sources[0].key}")
    return TableProfile(files, rows, figures, sample)
