"""Values as texts, numbers, times and bags: charsets, spellings, rows with their places; transforms of numbers.

A shard with R multi-hot features and n rows has two arrays. `values` [L] int32 holds the ids of the first feature's
bags row by row, then those of the next. `offsets` [R * n + 1] int64 divides them: the bag of row r of feature f is
values[offsets[f * n + r] : offsets[f * n + r + 1]]. A batch holds bags in the same order (feature-major, as TorchRec's
KeyedJaggedTensor).
"""

import codecs
import csv
import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import IntFlag
from functools import reduce
from operator import or_
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

BAG_KINDS = ("values", "offsets")


class Bags(NamedTuple):
    """The bags of one feature in n rows: row r has values[offsets[r] : offsets[r + 1]].

    offsets [n + 1] int64 need not begin at 0, so that slices are views.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def ids(self) -> NDArray[Any]:
        """Return the ids of all bags, one bag after the other."""
        return self.values[self.offsets[0] : self.offsets[-1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of ids in each bag, [n]."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> "Bags":
        """Return the bags of rows [start, stop) as views."""
        return Bags(self.values, self.offsets[start : stop + 1])

    def copy(self) -> "Bags":
        """Copy these bags alone, with offsets from 0; a view keeps the whole array, or the mapped file, in use."""
        return Bags(np.array(self.ids), self.offsets - self.offsets[0])

    def take(self, rows: NDArray[np.integer]) -> "Bags":
        """Return copies of the bags of the numbered rows, in the order of `rows`."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        size = int(lengths[0]) if len(lengths) else 0
        first = starts[0] % size if size else 0
        # Bags of one size are rows of a matrix, which NumPy takes faster. The first may begin anywhere (offsets of a
        # part do not begin at 0), and all must begin at the same place modulo the size.
        if size and (lengths == size).all() and (starts % size == first).all():
            matrix = self.values[first : first + (len(self.values) - first) // size * size].reshape(-1, size)
            ids = np.take(matrix, starts // size, axis=0)
            return Bags(ids.reshape(-1), np.arange(len(rows) + 1, dtype=np.int64) * size)
        offsets = offsets_of(lengths)
        # The place in `values` of each id: where its bag begins there, and its place in the bag.
        indices = np.repeat(starts - offsets[:-1], lengths)
        indices += np.arange(offsets[-1])
        return Bags(self.values[indices], offsets)


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where each bag of these lengths [n] begins, and where the last one ends: [n + 1] int64."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def join(parts: Sequence[Bags]) -> Bags:
    """Return the bags of one feature in several parts, one part after another; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.ids for part in parts])
    return Bags(values, offsets_of(np.concatenate([part.lengths for part in parts])))


def pack(features: Sequence[Bags]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return a shard's `values` and `offsets` from the bags of its features."""
    values = np.concatenate([bags.ids for bags in features])
    return values, offsets_of(np.concatenate([bags.lengths for bags in features]))


def unpack(values: NDArray[Any], offsets: NDArray[np.int64], num_features: int) -> tuple[Bags, ...]:
    """Return each feature's bags, as views of a shard's arrays."""
    rows = (len(offsets) - 1) // num_features if num_features else 0
    return tuple(Bags(values, offsets[f * rows : (f + 1) * rows + 1]) for f in range(num_features))


UTF_8 = "utf-8"
# Python's escapes, all of ASCII, and what UTF-7, HZ, ISO 2022 and IDNA read otherwise.
ASCII_SAMPLES = (rb"\u0041", bytes(range(128)), b"+AGE-~{", b"\x1b$B", b"xn--bcher-kva")


class Dialect(NamedTuple):
    """Form of fields in text files.

    quoting: csv (a field may be in quotes) or none (quotes are ordinary characters). escape: character that takes the
    next one literally; "": none. charset: name of a codec of Python's.
    """

    quoting: str = "csv"
    escape: str = ""
    charset: str = UTF_8

    def reader(self, lines: Iterable[str], delimiter: str, strict: bool = False) -> Any:
        """Return a csv.reader of lines with their ends; a strict one refuses text after a closing quote."""
        lines, escape = self._with_null_marks(lines, delimiter) if self.escape else lines, self.escape or None
        if self.quoting == "none":
            return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, escapechar=escape, strict=strict)
        return csv.reader(lines, delimiter=delimiter, escapechar=escape, strict=strict)

    def _with_null_marks(self, lines: Iterable[str], delimiter: str) -> Iterator[str]:
        r"""Yield lines whose fields \N, by which MySQL marks a missing value, are read as \N, not as the letter N."""
        escape, end = re.escape(self.escape), re.escape(delimiter)
        pattern = re.compile(rf"(^|{end}){escape}N(?={end}|\r?\n?\Z)|{escape}.", re.DOTALL)
        mark, doubled = f"{self.escape}N", f"{self.escape}{self.escape}N"
        for line in lines:
            # Any other escape stays as it is.
            yield pattern.sub(lambda m: m[0] if m[1] is None else m[1] + doubled, line) if mark in line else line

    @property
    def encoding(self) -> str:
        """Return the codec of a file's beginning, which may have a byte-order mark."""
        return "utf-8-sig" if self.charset == UTF_8 else self.charset


STANDARD = Dialect()


def charset_named(name: str) -> str | None:
    """Return Python's name of a charset; None if it is unknown or does not write ASCII characters as ASCII bytes."""
    try:
        charset = codecs.lookup(name).name
        # The parser finds delimiters and line ends as ASCII bytes, so a charset must write them so.
        is_ascii = all(sample.decode(charset) == sample.decode("ascii") for sample in ASCII_SAMPLES)
    except (LookupError, ValueError):  # LookupError also for codecs that do not decode to text
        return None
    # A manifest leaves out a default by its identity.
    return (UTF_8 if charset in (UTF_8, "utf-8-sig") else charset) if is_ascii else None


EXACT_INTEGERS = 1 << 53  # whole float64 values below this are exact
NUMBER = r"[ \t]*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*"
PLAIN = r"0|-?[1-9][0-9]*"
TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}  # words in any case, and their numbers
WORDS = {"title": ("False", "True"), "lower": ("false", "true"), "upper": ("FALSE", "TRUE")}


class Form(IntFlag):
    """Spellings that occur in a column. TEXT: some values came as text, not typed."""

    TITLE = 1  # False, True
    LOWER = 2  # false, true
    UPPER = 4  # FALSE, TRUE
    PLAIN = 8  # 3
    POINT = 16  # 3.0
    OTHER_INTEGER = 32  # 03, +3, 3.00, 3e0
    NOT_BINARY = 64  # an integer other than 0 and 1
    SHORTEST = 128  # 0.5, as Python writes it
    OTHER_FRACTION = 256  # .5, 0.50
    TEXT = 512
    UNJOINABLE = 1024  # a list holds an empty value or a value with LIST_SEPARATOR


LIST_SEPARATOR = "|"  # joins a list's values to one text
WORD_FORMS = {
    word: form
    for form, words in zip((Form.TITLE, Form.LOWER, Form.UPPER), WORDS.values(), strict=True)
    for word in words
}
ANY_WORD_FORM = Form.TITLE | Form.LOWER | Form.UPPER


def form_of(text: str) -> Form:
    """Return the spelling of one text; TEXT alone if it is neither a boolean nor a number."""
    if text in WORD_FORMS:
        return Form.TEXT | WORD_FORMS[text]
    if not re.fullmatch(NUMBER, text):
        return Form.TEXT
    is_plain, value = re.fullmatch(PLAIN, text) is not None, float(text)
    if not is_plain and not value.is_integer():
        return Form.TEXT | (Form.SHORTEST if repr(value) == text else Form.OTHER_FRACTION)
    binary = Form(0) if value in (0, 1) else Form.NOT_BINARY
    if is_plain:
        return Form.TEXT | Form.PLAIN | binary
    is_point = text.endswith(".0") and re.fullmatch(PLAIN, text[:-2])
    return Form.TEXT | (Form.POINT if is_point else Form.OTHER_INTEGER) | binary


def forms_of_texts(texts: Any) -> Form:
    """Return the spellings (`form_of`) that occur in an Arrow array of distinct texts, joined to one Form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Few texts are judged one by one: integers have three forms at most, and most other texts are no numbers.
    rest, examples = texts, list(texts[:1].to_pylist())
    for is_plain in (are_digits, lambda part: pc.match_substring_regex(part, f"^({PLAIN})$")):
        mask = is_plain(rest)
        # Of three different integers, one is neither 0 nor 1.
        examples += rest.filter(mask)[:3].to_pylist()
        rest = rest.filter(pc.invert(mask))
    words = pc.is_in(rest, value_set=pa.array(list(WORD_FORMS), pa.string()))
    examples += rest.filter(pc.or_(words, pc.match_substring_regex(rest, f"^({NUMBER})$"))).to_pylist()
    return reduce(or_, map(form_of, examples), Form(0))


def are_digits(texts: Any) -> Any:
    """Return a mask of the texts in an Arrow array that are integers without sign or leading zeros."""
    import pyarrow.compute as pc

    begins_plainly = pc.or_(pc.invert(pc.starts_with(texts, "0")), pc.equal(pc.binary_length(texts), 1))
    return pc.and_(pc.ascii_is_decimal(texts), begins_plainly)


def form_of_typed(value: Any) -> Form:
    """Return the spelling of a boolean or integer in a column with typed rows; 0 for other values."""
    whole = whole_number(value)
    if whole is None:
        return Form(0)
    return Form.PLAIN if whole in (0, 1) else Form.PLAIN | Form.NOT_BINARY


def whole_number(value: Any) -> int | None:
    """Return the integer that equals a typed value (boolean, integer or fraction); None if no integer does."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else None
    # From 2^53 on, a float64 may stand for another whole number that was rounded.
    if isinstance(value, float) and abs(value) < EXACT_INTEGERS and value.is_integer():
        return int(value)
    return None


def text_of(value: Any) -> str:
    """Return the text of an id or a time: "" for None, digits for each typed value that is a whole number.

    True, 1 and 1.0 give "1", as a reader may type integers as fractions where a column has gaps. Texts stay.
    """
    whole = None if isinstance(value, str) else whole_number(value)
    return "" if value is None else str(value if whole is None else whole)


def has_plain_integers(forms: Form | None) -> bool:
    """Return whether a column has integers, all spelled as Python does: digits, as Arrow casts them to text.

    True of `forms` None, which a dataset's own rows have: their spelling is that of Python.
    """
    return forms is None or forms & (Form.PLAIN | Form.POINT | Form.OTHER_INTEGER) == Form.PLAIN


def compared_text(value: Any) -> str:
    """Return the text that conditions compare. Truth values, typed or as words in any case, become 1 or 0."""
    text = text_of(value)
    truth = TRUTHS.get(text.strip().lower())
    return text if truth is None else str(int(truth))


def spell(value: Any, forms: Form) -> str | None:
    """Return the text of a typed value in a column with these spellings; None if it has none, or more than one."""
    if isinstance(value, bool):
        words = forms & ANY_WORD_FORM
        if words:
            name = (words.name or "").lower()
            return WORDS[name][value] if name in WORDS else None
        is_binary = forms & Form.PLAIN and not forms & (Form.POINT | Form.OTHER_INTEGER | Form.NOT_BINARY)
        return str(int(value)) if is_binary else None
    whole = whole_number(value)
    if whole is not None:
        integers = forms & (Form.PLAIN | Form.POINT | Form.OTHER_INTEGER)
        return {Form.PLAIN: str(whole), Form.POINT: f"{whole}.0"}.get(integers)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return repr(float(value)) if forms & (Form.SHORTEST | Form.OTHER_FRACTION) == Form.SHORTEST else None
    return None


def reads_as_untyped(text: str) -> bool:
    """Return whether a text is a boolean or number in a form other than a plain integer, such as 3."""
    # A column of typed values holds plain integers alone; true and false are 1 and 0 there.
    return bool(form_of(text) & ~(Form.TEXT | Form.NOT_BINARY | Form.PLAIN))


def to_text(forms: Form) -> str:
    """Return the spellings' names for the manifest, such as "plain+text"."""
    return "+".join(form.name.lower() for form in Form if form & forms and form.name)


def from_text(text: str) -> Form:
    """Parse the form of `to_text`. Raise KeyError for an unknown name."""
    forms = Form(0)
    for name in text.split("+") if text else ():
        forms |= Form[name.upper()]
    return forms


HASHED = np.uint64(1 << 63)  # set in values of texts that are no whole numbers
HASHED_AT_ONCE = 1 << 14  # texts that are Python objects at a time
MAX_DIGITS = 19  # every whole number below 2^63 has at most as many


def text_values(texts: Any) -> NDArray[np.uint64]:
    """Return the 64-bit value of each text of an Arrow array, [n] uint64.

    A whole number below 2^63 has itself, and any other text a hash with the highest bit set.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Whole numbers represent themselves, so that ids stay readable without the texts; the highest bit marks hashes.
    is_decimal = pc.and_(are_digits(texts), pc.less_equal(pc.binary_length(texts), MAX_DIGITS))
    is_number = np.array(is_decimal.to_numpy(zero_copy_only=False))
    numbers = texts.filter(is_decimal).cast(pa.uint64()).to_numpy()
    values = np.empty(len(texts), np.uint64)
    values[is_number] = numbers
    is_number[is_number] = numbers < HASHED
    rest = texts.filter(pa.array(~is_number)).cast(pa.binary())
    hashes = np.empty(len(rest), np.uint64)
    # Python objects take much memory, so only some texts are such at a time.
    for start in range(0, len(rest), HASHED_AT_ONCE):
        part = rest.slice(start, HASHED_AT_ONCE).to_pylist()
        hashes[start : start + len(part)] = np.frombuffer(b"".join(map(text_hash, part)), "<u8")
    values[~is_number] = hashes | HASHED
    return values


def remainders(values: NDArray[Any], modulus: int) -> NDArray[np.int32]:
    """Return the ids [n] int32 of the encoding `hash`: values [n] modulo `modulus`, the rows of a table."""
    return (values % values.dtype.type(modulus)).astype(np.int32)


def text_key(text: str) -> int:
    """Return the key of a user or item: a whole number below 2^63 itself, or a negative hash of any other text.

    It has the bits of the text's value by `text_values`, as a signed number.
    """
    if text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0") and len(text) < 20:
        number = int(text)
        if number < 1 << 63:
            return number
    # A hash with its highest bit set, as a signed number: keys of other texts are negative, those of numbers are not.
    return int.from_bytes(text_hash(text.encode()), "little") - (1 << 64) | -(1 << 63)


def text_hash(text: bytes) -> bytes:
    """Return eight bytes of BLAKE2b, which identify a user, item or category that is not a whole number."""
    return hashlib.blake2b(text, digest_size=8).digest()


CORRECT = "correct or remove this row"
Locator = Callable[[int], str]  # returns the file and row of a row, or of a field, for an error


class RawRows(NamedTuple):
    """Rows as read: each column is an Arrow array or, for mixed types, a list of Python values, [rows].

    The locator counts the lines before a row; it raises UserError if they are not rows.
    """

    columns: Mapping[str, Any]
    rows: int
    locator: Locator

    def locator_of(self, column: str) -> Locator:
        """Return a function that names a column's field for an error, by the index of its row in the batch."""
        return lambda index: f"{self.locator(index)}, column {column}"


def numbered_rows(name: str, numbers: Sequence[int]) -> Locator:
    """Return a function that names a row for an error, by its index in `numbers`: row numbers in the file `name`."""
    return lambda index: f"{name}: row {numbers[index]}"


class TextColumn(NamedTuple):
    """The categories of a sparse column; an empty field is "".

    values: a dictionary-encoded Arrow array (int32 indices, no nulls, no unused entries) of all texts in row order.
    form: spellings of the texts.
    offsets: [rows + 1] int64 from 0 for a multi-hot column: row r has values[offsets[r] : offsets[r + 1]]; otherwise
        None.
    """

    values: Any
    form: Form
    offsets: NDArray[np.int64] | None = None


class TableBlock(NamedTuple):
    """Parsed rows of a dataset's files or of new rows.

    labels [rows] int32, or float32 if they are numbers; dense [rows, N] float64, 0 for an empty field; categories: one
    entry per sparse column; positive_rows: number of rows with each of the table's `positive` labels; weights [rows]
    float32: sample weights of labelled rows, if the table has them.
    """

    labels: NDArray[Any]
    dense: NDArray[np.float64]
    categories: tuple[TextColumn, ...]
    positive_rows: tuple[int, ...] = ()
    weights: NDArray[np.float32] | None = None


# How many numbers the fit of a column's own transform has, which is made from train's rows alone: mean and standard
# deviation; lowest and highest; values at 257 evenly spaced ranks, ascending. The others need none.
FITS = {"standard": 2, "minmax": 2, "quantile": 257}
LARGEST, LARGEST_FLOAT32 = float(np.finfo(np.float64).max), float(np.finfo(np.float32).max)


class ColumnTransform(NamedTuple):
    """Transform of one dense column, given by its number; the fit is empty for transforms that need none."""

    column: int
    name: str
    fit: Sequence[float] = ()


def transform_numbers(
    dense: NDArray[Any], name: str, low: NDArray[Any], high: NDArray[Any], wraps: bool = False
) -> NDArray[Any]:
    """Transform numbers [rows, N] of all dense columns by data.dense_transform; return float32, of `raw` float64.

    low, high: lowest and highest numbers [N] of train, for torchrec and minmax. wraps: with torchrec, differences
    beyond int32 wrap around, as TorchRec's do.
    """
    if name == "log1p":
        return np.log1p(np.maximum(dense, 0)).astype(np.float32)
    if name == "signed_log1p":
        return np.copysign(np.log1p(np.abs(dense.astype(np.float64))), dense).astype(np.float32)
    if name == "log_float32":
        return np.log(np.maximum(dense, 0).astype(np.float32) + np.float32(1))
    if name == "torchrec":
        shifted = dense.astype(np.int64) - (low.min() - 2)
        # TorchRec subtracts in int32, whose overflow then gives NaN.
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log((shifted.astype(np.int32) if wraps else shifted).astype(np.float32))
    if name == "minmax":
        # These are the operations of scikit-learn's MinMaxScaler, in the same order.
        span = (high - low).astype(np.float64)
        scale = 1.0 / np.where(span < np.finfo(np.float64).tiny, 1.0, span)  # 1 / a smaller span would be infinite
        return (dense * scale + (0.0 - low * scale)).astype(np.float32)
    return dense  # raw, integers


def largest_input(name: str) -> float:
    """Return the largest absolute value of a number whose transform is finite."""
    if name == "raw":
        return LARGEST_FLOAT32
    return LARGEST / 2 if name in FITS else LARGEST  # differences of two values must be finite, too


def transform_columns(dense: NDArray[Any], transforms: Sequence[ColumnTransform], result: NDArray[np.float32]) -> None:
    """Overwrite the transformed columns of `result` [rows, N] by those of `dense` [rows, N] float64."""
    for column, name, fit in transforms:
        result[:, column] = transform_column(dense[:, column], name, fit)


def transform_column(numbers: NDArray[np.float64], name: str, fit: Sequence[float] = ()) -> NDArray[np.float32]:
    """Transform numbers [rows]; fit: as FITS says.

    A result beyond float32, which values of val and new rows may have, becomes float32's largest number.
    """
    with np.errstate(over="ignore"):
        result = numbers  # raw
        if name == "log1p":
            result = np.log1p(np.maximum(numbers, 0))
        elif name == "signed_log1p":
            result = np.copysign(np.log1p(np.abs(numbers)), numbers)
        elif name == "standard":
            mean, deviation = fit
            # A column of one value has no deviation; it becomes 0 instead of NaN.
            result = (numbers - mean) / (deviation or 1.0)
        elif name == "minmax":
            low, high = fit
            result = (numbers - low) / ((high - low) or 1.0)
        elif name == "quantile":
            result = _quantile_ranks(numbers, np.array(fit))
    return np.clip(result, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)


def _quantile_ranks(numbers: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each number's rank among train's, from 0 to 1, interpolated between quantiles.

    A number that is several quantiles has their mean rank.
    """
    values, first, counts = np.unique(quantiles, return_index=True, return_counts=True)
    ranks = (first + (counts - 1) / 2) / (len(quantiles) - 1)
    # Train has no ranks beyond its ends.
    numbers = np.clip(numbers, values[0], values[-1])
    lower = np.searchsorted(values, numbers, "right") - 1  # index of the quantile at or below each number
    # A share of the gap, unlike the slope of np.interp, is finite for two values that differ by less than 1e-310.
    share = (numbers - values[lower]) / np.diff(values, append=np.inf)[lower]
    result: NDArray[np.float64] = ranks[lower] + share * np.diff(ranks, append=1)[lower]
    return result


# Characters in numbers: `decimal`, the point, and `thousands`, what separates these ("": nothing). A table has them.
NumberForm: TypeAlias = Any
NUMBERS: NumberForm = SimpleNamespace(decimal=".", thousands="")  # 1.5, not 1.000,5


def number_of(value: Any, form: NumberForm) -> float:
    """Return a number or truth value, given as text or typed; NaN if it is neither."""
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if not isinstance(value, str):
        return math.nan
    if _number_pattern(form.decimal, form.thousands).fullmatch(value):
        return float(value.replace(form.thousands, "").replace(form.decimal, "."))
    return TRUTHS.get(value.strip().lower(), math.nan)


def exact_number_of(value: Any, form: NumberForm) -> int | float | Decimal:
    """Return the number of `number_of`, but exactly where a float64 does not tell it from its neighbours."""
    number = number_of(value, form)
    if not abs(number) >= EXACT_INTEGERS:  # small, or NaN
        return number
    if isinstance(value, str):
        return Decimal(value.replace(form.thousands, "").replace(form.decimal, "."))
    exact: int | float | Decimal = value
    return exact


@functools.cache
def _number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Compile the pattern of a number. Python's float also accepts 1_000, inf, nan and digits of other scripts."""
    point = re.escape(decimal)
    whole = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
    return re.compile(rf"[ \t]*[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?[ \t]*", re.ASCII)


EPOCH = "epoch"
# Formats of numbers that count from 1970-01-01, coarse units first: the unit, and its decimal places in a second.
EPOCHS = {
    EPOCH: ("seconds", 0),
    "epoch_ms": ("milliseconds", 3),
    "epoch_us": ("microseconds", 6),
    "epoch_ns": ("nanoseconds", 9),
}
SECOND = 1_000_000  # microseconds
# Times lie between the years 1900 and 2100, in seconds since 1970. From CERTAIN (1973) on, units cannot be confused.
EARLIEST, CERTAIN, LATEST = -2_208_988_800, 10**8, 4_102_444_800
# Formats of dates written as whole numbers, by number of digits.
DATE_NUMBERS = {
    8: ("%Y%m%d", "%d%m%Y", "%m%d%Y", "%y%m%d%H"),
    10: ("%Y%m%d%H",),
    12: ("%Y%m%d%H%M",),
    14: ("%Y%m%d%H%M%S",),
}
NO_TIME = np.datetime64("NaT", "us")
_1970 = datetime(1970, 1, 1)


# How each part is computed from times in UTC, [rows] datetime64[us]; all results are whole numbers.
PARTS: dict[str, Callable[[NDArray[np.datetime64]], Any]] = {
    "year": lambda times: times.astype("M8[Y]").astype(np.int64) + 1970,
    "month": lambda times: times.astype("M8[M]").astype(np.int64) % 12 + 1,
    "day": lambda times: (times.astype("M8[D]") - times.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1,
    "weekday": lambda times: (times.astype("M8[D]").astype(np.int64) + 3) % 7,  # 1970-01-01 was a Thursday; Monday is 0
    "hour": lambda times: times.astype("M8[h]").astype(np.int64) % 24,
    "minute": lambda times: times.astype("M8[m]").astype(np.int64) % 60,
    "second": lambda times: times.astype("M8[s]").astype(np.int64) % 60,
    "date": lambda times: times.astype("M8[D]").astype(np.int64),
    "timestamp": lambda times: times.astype("M8[s]").astype(np.int64),
}


def is_plausible(numbers: Any, form: str, is_implied: bool = False) -> Any:
    """Return whether numbers (one, or an array of float64) are times in an epoch's format.

    Times lie between 1900 and 2100. A number before 1973 (10^8 seconds) must not be a later one in another unit.

    is_implied: whether the schema gives no format; then eight digits, which may be a date, are not a time.
    """
    # Milliseconds read as seconds lie in the future and seconds read as milliseconds in January 1970, so a number that
    # is certain in another unit is refused.
    seconds = numbers / 10.0 ** EPOCHS[form][1]
    is_elsewhere = np.zeros(np.shape(numbers), np.bool_)
    for name in EPOCHS:
        is_elsewhere = is_elsewhere | (name != form and _is_certain(numbers, name))
    is_possible = (seconds >= EARLIEST) & (seconds < LATEST) & np.logical_not(is_elsewhere)
    is_date = is_implied & (numbers >= 10**7) & (numbers < 10**8)
    return (_is_certain(numbers, form) | is_possible) & np.logical_not(is_date)


def _is_certain(numbers: Any, form: str) -> Any:
    """Return whether numbers in an epoch's format are times from 1973 to 2100, which no other unit can mean."""
    seconds = numbers / 10.0 ** EPOCHS[form][1]
    return (seconds >= CERTAIN) & (seconds < LATEST)


def count_microseconds(numbers: NDArray[np.int64], form: str) -> NDArray[np.int64]:
    """Convert plausible whole numbers in an epoch's format to microseconds, rounded down."""
    digits = EPOCHS[form][1]
    # Integers stay exact, where float64 would round nanoseconds.
    return numbers * 10 ** (6 - digits) if digits <= 6 else numbers // 10 ** (digits - 6)


def read_time(text: str, form: str | None, takes_numbers: bool = False) -> int | None:
    """Convert a time in UTC to microseconds since 1970, rounded down; None if the text is no time.

    form: a name of EPOCHS or a pattern of strptime; None: ISO 8601. takes_numbers: whether numbers without a format are
    seconds.
    """
    if form in EPOCHS or (form is None and takes_numbers and re.fullmatch(NUMBER, text)):
        epoch = form or EPOCH
        if not re.fullmatch(NUMBER, text) or not is_plausible(float(text), epoch, form is None):
            return None
        # Decimal keeps each digit; a float64 of seconds would round the last microseconds.
        return math.floor(Decimal(text.strip()).scaleb(6 - EPOCHS[epoch][1]))
    if form is None:
        # Python 3.10 reads neither Z nor other than six digits of a second's fraction.
        if "." in text or "," in text:
            text = re.sub(r"[.,]([0-9]+)", lambda match: f".{match[1][:6]:0<6}", text, count=1)
        text = text[:-1] + "+00:00" if text.endswith("Z") else text
    try:
        time = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
        # Times without a zone count as UTC, so those with one are converted to it.
        if time.tzinfo is not None:
            time = time.astimezone(timezone.utc).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return (time - _1970) // timedelta(microseconds=1)


def time_fault(text: str, form: str | None, takes_numbers: bool, entry: str) -> str:
    """Describe a text that `read_time` refuses, with a remedy: another format, if the digits look like one.

    form, takes_numbers: as for `read_time`. entry: the schema's entry, such as "time: {column: NAME", which a remedy
    ends with a format.
    """

    def with_format(other: str) -> str:
        return f"{entry}, format: {other}}}"

    remedy = "correct this row, or give another format in the schema"
    kind = "an ISO 8601 date or time" if form is None else f"a time of format {form}"
    if form is None and takes_numbers:
        kind = "a time (ISO 8601, or seconds)"
    shown = f"{text[:40]!a}"
    if not re.fullmatch(NUMBER, text) or (form is not None and form not in EPOCHS):
        return f"{shown} is not {kind}; {remedy}"
    text, number, epoch = text.strip(), float(text), form or EPOCH
    times = [(pattern, read_time(text, pattern)) for pattern in DATE_NUMBERS.get(len(text), ())]
    pattern = next((name for name, time in times if time is not None and 0 <= time < LATEST * SECOND), None)
    date = None if pattern is None else with_format(f'"{pattern}"')
    if form is None and takes_numbers and 10**7 <= number < 10**8:
        formats = f"`{date}`, or `{with_format(EPOCH)}`," if date else f"`{with_format(EPOCH)}`"
        return f"{text} may be a date, or seconds; write {formats} in the schema"
    if date is not None:
        remedy = f"it looks like a date; write `{date}` in the schema"
    elif other := _other_epoch(number, form if not takes_numbers else epoch):
        remedy = f"it looks like {EPOCHS[other][0]}; write `{with_format(other)}` in the schema"
    if form is None and not takes_numbers:
        return f"{shown} is not {kind}; {remedy}"
    unit, digits = EPOCHS[epoch]
    seconds = number / 10.0**digits
    place = "before 1900" if seconds < EARLIEST else "in the first days of 1970"
    return f"{text} lies {'in the future' if seconds >= LATEST else place} as {unit}; {remedy}"


def _other_epoch(number: float, form: str | None) -> str | None:
    """Return the format of EPOCHS, other than `form`, that a number probably has; None if there is none."""
    others = [name for name in EPOCHS if name != form]
    names = [name for name in others if _is_certain(number, name)]
    if form is not None:
        finer = [name for name in others if EPOCHS[name][1] > EPOCHS[form][1]]
        names += [name for name in finer if is_plausible(number, name)]
    return names[0] if names else None


# Directives of strptime that have an effect beside some others alone, these, and what to write.
NEEDED_BESIDE = (
    ("p", "I", "%p has an effect with %I alone (hours of 12); write %I in place of %H"),
    ("I", "p", "%I counts hours to 12 and needs %p; write %H for hours to 24"),
    ("UW", "aAwu", "%U and %W have an effect with a weekday alone; add %w"),
    ("d", "YyGcx", "%d needs a year (%Y or %y), as not all have a 29 February; or use the column as a category"),
)


def fault_of_format(form: str) -> str | None:
    """Describe a format that is unknown or that strptime would ignore in part; None if it is valid."""
    if form in EPOCHS or "%" not in form:
        unknown = f'is not known; give {", ".join(EPOCHS)}, or a pattern of strptime, e.g. "%d.%m.%Y %H:%M"'
        return None if form in EPOCHS else unknown
    given = set(re.findall("%(.)", form))
    return next((fault for some, needed, fault in NEEDED_BESIDE if given & {*some} and not given & {*needed}), None)


def part_of(times: NDArray[np.datetime64], part: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a part of times [rows], one of PARTS (0 for a missing time), and a mask of the times that are present."""
    present = ~np.isnat(times)
    return np.where(present, PARTS[part](np.where(present, times, np.datetime64(0, "us"))), 0), present
