"""Columns of a user's files, or in memory, to values.

A column is an Arrow array of one type or a list of Python values. Numbers are cast all at once where possible; all
other rules run on a column's distinct values.

NaN, None, and NA and NaT of pandas mean a missing value.
An exported encoder (extensions/export) runs a copy of this module, so that it needs NumPy and pyarrow alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.values import (
    CORRECT,
    EPOCH,
    EPOCHS,
    LIST_SEPARATOR,
    NO_TIME,
    NUMBERS,
    Form,
    Locator,
    NumberForm,
    RawRows,
    TableBlock,
    TextColumn,
    count_microseconds,
    form_of,
    form_of_typed,
    forms_of_texts,
    has_plain_integers,
    is_plausible,
    number_of,
    offsets_of,
    part_of,
    read_time,
    reads_as_untyped,
    spell,
    text_of,
    time_fault,
)

EMPTY = (None, "")  # missing values
SHOWN = 40  # characters of a value in an error


def convert(
    batch: RawRows, table: Any, limits: Sequence[float] | None = None, forms: Mapping[str, Form] | None = None
) -> TableBlock:
    """Convert a batch of rows without their labels, which become 0: `labels.convert_rows` reads those.

    Raises UserError: an invalid value (file, row, column, remedy).

    Args:
        batch: its columns include `table.inputs`.
        table: a `Table` of data_prep/dataset/options.py, or what an export keeps of one.
        limits: largest absolute value of each dense feature; None: any.
        forms: spellings of each sparse column in the dataset, for rows that its vocabularies are not made from (new
            rows, and files given for val or test); None: a typed value gets the spelling of `form_of_typed`.
    """
    columns = {name: without_marks(plain(values), table.missing) for name, values in batch.columns.items()}
    parts = {}  # the numbers [rows] of each feature that is a part of dates, and a mask of the rows that have one
    for part in table.parts:
        entry = f"{{column: {part.column}, part: {part.part}"
        times = times_of(columns[part.column], part.format, batch.locator_of(part.column), entry)
        parts[part.feature] = part_of(times, part.part)
    dense, own_transforms = np.empty((batch.rows, len(table.dense))), dict(table.transforms)
    limits = [np.inf] * len(table.dense) if limits is None else limits
    in_vectors: set[int] = set()  # places of dense features; score.py has vectors with these keys alone
    for vector in table.vectors:
        start, locator = table.dense.index(f"{vector.column}_0"), batch.locator_of(vector.column)
        numbers = _read_vectors(columns[vector.column], vector, table, locator, limits[start])
        dense[:, start : start + vector.size] = numbers
        in_vectors.update(range(start, start + vector.size))
    for i, name in enumerate(table.dense):
        if name in parts:
            dense[:, i] = parts[name][0]
        elif i not in in_vectors:
            wider = OWN_WIDER if name in own_transforms else WIDER
            dense[:, i] = numbers_of(columns[name], table, batch.locator_of(name), 0.0, limits[i], wider)
    separators, categories = dict(table.separators), []
    for name in table.sparse:
        if name in parts:
            part_numbers, present = parts[name]
            texts = pa.array(part_numbers, mask=~present).cast(pa.string()).fill_null("")
            categories.append(TextColumn(texts.dictionary_encode(), Form(0)))
        else:
            form = None if forms is None else forms[name]
            categories.append(_convert_categories(columns[name], separators.get(name), batch.locator_of(name), form))
    return TableBlock(np.zeros(batch.rows, table.label_kind.dtype), dense, tuple(categories))


def plain(values: Any) -> Any:
    """Cast an Arrow column to the types that the rules know: no dictionaries, views, large types or null type."""
    if isinstance(values, list):
        return values
    if isinstance(values.type, pa.BaseExtensionType):  # pandas' periods and intervals: each rule refuses the type
        return [values.type] * len(values)
    try:
        return values.cast(_plain_type(values.type))
    except pa.ArrowNotImplementedError:  # raised for dictionaries of views, as polars has them
        return values.to_pylist()


def _plain_type(kind: Any) -> Any:
    """Return the Arrow type that `plain` casts a type to: of a dictionary its values', of any kind of list `list`."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if is_list_type(kind):
        return pa.list_(_plain_type(kind.value_type))
    types = (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return pa.string() if any(is_type(kind) for is_type in types) else kind


def is_list_type(kind: Any) -> bool:
    """Return whether an Arrow type is a list, of any or of fixed length."""
    types = pa.types
    is_list = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in (*is_list, types.is_list_view, types.is_large_list_view))


def to_list(values: Any) -> list[Any]:
    """Return a column as a list of Python values."""
    return values if isinstance(values, list) else values.to_pylist()


class Distinct(NamedTuple):
    """A column's distinct values: codes [rows] int64, and the value of each code."""

    codes: NDArray[np.int64]
    values: list[Any]

    def refuse(
        self, is_bad: Sequence[bool] | NDArray[np.bool_], locator: Locator, fault: str, remedy: str = CORRECT
    ) -> None:
        """Raise UserError for the first row with a bad value, with its `fault`; is_bad: [values], by distinct value."""

        def describe(row: int) -> str:
            value = self.values[self.codes[row]]
            return "no value" if value in EMPTY else f"{excerpt(value)} {fault}"

        refuse_row(np.asarray(is_bad, np.bool_)[self.codes], locator, describe, remedy)


def distinct(values: Any) -> Distinct:
    """Return a column's distinct values, in order of their first rows; True, 1 and 1.0 stay different."""
    if not isinstance(values, list):
        if not pa.types.is_nested(values.type):
            encoded = values.dictionary_encode(null_encoding="encode")
            return Distinct(encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist())
        values = values.to_pylist()
    # The type belongs to the key, since True, 1 and 1.0 are equal and would become one value.
    keys = [(type(value), value if isinstance(value, Hashable) else repr(value)) for value in values]
    value_of = dict(zip(keys, values, strict=True))
    code_of = {key: code for code, key in enumerate(value_of)}
    return Distinct(np.array([code_of[key] for key in keys], np.int64), list(value_of.values()))


def to_texts(values: Any, locator: Locator) -> list[str]:
    """Return a column as text, without a dataset's spellings: see `distinct_texts`."""
    column = distinct_texts(values, locator)
    return [column.values[code] for code in column.codes]


def distinct_texts(values: Any, locator: Locator) -> Distinct:
    """Return the distinct texts of a column of ids, or of rows outside a user's own table; "" for an empty field."""
    values = plain(values)
    refuse_rounded(values, locator)
    column = distinct(values)
    is_other = [not isinstance(value, str | bytes | int | float | Decimal | None) for value in column.values]
    column.refuse(is_other, locator, "is neither text nor a number")
    return Distinct(
        column.codes, [value.decode() if isinstance(value, bytes) else text_of(value) for value in column.values]
    )


def refuse_rounded(values: Any, locator: Locator) -> None:
    """Raise UserError for a floating-point number that is too large for its type to tell whole numbers apart."""
    kind = pa.float64() if isinstance(values, list) else values.type
    if not pa.types.is_floating(kind):
        return
    # The type holds every whole number up to this power of 2; beyond it two ids of a file may have become one.
    bits = {16: 11, 32: 24, 64: 53}[kind.bit_width]
    if isinstance(values, list):
        numbers = np.array([value if isinstance(value, float) else 0.0 for value in values])
    else:
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
    is_bad = np.isfinite(numbers) & (np.abs(numbers) >= 2.0**bits)
    fault = f"is rounded, as a float{kind.bit_width} from 2^{bits} on"
    refuse_row(is_bad, locator, lambda row: f"{numbers[row]:g} {fault}", "write the column as int64 or text")


def is_text(values: Any) -> bool:
    """Return whether a column is an Arrow array of text."""
    return not isinstance(values, list) and bool(pa.types.is_string(values.type))


def excerpt(value: Any) -> str:
    """Return a value in a short form for an error."""
    return f"{value[:SHOWN]!a}" if isinstance(value, str) else str(value)[:SHOWN]


def refuse_row(bad: NDArray[np.bool_], locator: Locator, fault: Callable[[int], str], remedy: str = CORRECT) -> None:
    """Raise UserError for the first bad row; `fault` describes a row by its index in the batch."""
    if bad.any():
        index = int(bad.argmax())
        raise UserError(f"{locator(index)}: {fault(index)}; {remedy}")


# ---- numbers


def _read_vectors(values: Any, vector: Any, form: NumberForm, locator: Locator, limit: float) -> NDArray[np.float64]:
    """Convert lists, or text with a separator, to numbers [rows, size]; an empty field is all 0."""
    members, offsets = _divide_bags(values, vector.separator or LIST_SEPARATOR, keeps_empty=True)
    lengths = np.diff(offsets)

    def fault(row: int) -> str:
        return f"{lengths[row]} numbers, but {vector.column} is a vector of {vector.size}"

    refuse_row((lengths != vector.size) & (lengths != 0), locator, fault)
    rows = np.flatnonzero(lengths)
    numbers = numbers_of(
        members, form, lambda index: locator(int(rows[index // vector.size])), np.nan, limit, OWN_WIDER
    )
    result = np.zeros((len(lengths), vector.size))
    result[rows] = numbers.reshape(-1, vector.size)
    return result


WIDER = "data.dense_transform=signed_log1p"
OWN_WIDER = "transform: signed_log1p for it in data.schema"
DATE = re.compile(r"\s*\d{4}-\d\d-\d\d")


def numbers_of(
    values: Any, form: NumberForm, locator: Locator, empty: float, max_number: float, wider: str = WIDER
) -> NDArray[np.float64]:
    """Convert to finite numbers of at most `max_number`. `empty` replaces missing ones; NaN makes them errors.

    wider: what to set for larger numbers, for the error.
    """
    # Almost all columns are cast at once; the rules run only if a value fails, and on distinct values.
    numbers = _cast_numbers(values, form, empty)
    if numbers is not None and (np.abs(numbers) <= max_number).all() and np.isfinite(numbers).all():
        return numbers
    column = distinct(values)
    array = np.array([empty if value in EMPTY else number_of(value, form) for value in column.values])
    # Dates among numbers are a common mistake, and their remedy is another one.
    dates = [isinstance(value, str) and DATE.match(value) is not None for value in column.values]
    if any(dates):
        remedy = "write {column: NAME, part: weekday}, or another part, for a date or time"
        column.refuse(~np.isfinite(array) & dates, locator, "is not a number", remedy)
    column.refuse(~np.isfinite(array), locator, "is not a number")
    fault = f"is beyond {max_number:.3g}, the largest number of its transform; set {wider}"
    column.refuse(np.abs(array) > max_number, locator, fault, "or correct this row")
    return array[column.codes]


def _cast_numbers(values: Any, form: NumberForm, empty: float) -> NDArray[np.float64] | None:
    """Cast all numbers at once, [rows]; None if one of them needs a rule. `empty` replaces missing ones."""
    if isinstance(values, list):
        return None
    if is_text(values):
        # Arrow's cast knows neither a decimal comma nor separated thousands.
        if form.decimal != "." or form.thousands:
            return None
        # Arrow refuses to cast an empty text.
        values = pc.if_else(pc.equal(values, ""), None, values)
    elif not (
        pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    ):
        return None  # Arrow's cast of a decimal sometimes differs from that of its text
    try:
        numbers: NDArray[np.float64] = values.cast(pa.float64(), safe=False).fill_null(empty).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers


def truths_of(values: Any, locator: Locator, empty: float) -> NDArray[np.bool_]:
    """Convert 0, 1 or truth words to booleans [rows]. `empty` replaces missing ones; NaN makes them errors."""
    column = distinct(values)
    numbers = np.array([empty if value in EMPTY else number_of(value, NUMBERS) for value in column.values], np.float64)
    column.refuse(~np.isin(numbers, (0, 1)), locator, "is not 0 or 1")
    truths: NDArray[np.bool_] = (numbers == 1)[column.codes]
    return truths


# ---- dates


def times_of(
    values: Any, form: str | None, locator: Locator, entry: str, takes_numbers: bool = False
) -> NDArray[np.datetime64]:
    """Convert to times [rows] in UTC, datetime64[us], rounded down; NaT for an empty field.

    Args:
        form: format of text and numbers; None: text is ISO 8601.
        entry: the schema's entry without its format, for errors: see `time_fault`.
        takes_numbers: whether numbers without a format are seconds.
    """
    values = without_nan(values)
    if not isinstance(values, list) and values.type != pa.float64():  # A float64 is exact enough for microseconds.
        refuse_rounded(values, locator)
    if not isinstance(values, list) and (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        times: NDArray[np.datetime64] = values.to_numpy(zero_copy_only=False).astype("M8[us]")
        return times

    def refuse(is_bad: NDArray[np.bool_], text_of_row: Callable[[int], str]) -> None:
        if is_bad.any():
            row = int(is_bad.argmax())
            raise UserError(f"{locator(row)}: {time_fault(text_of_row(row), form, takes_numbers, entry)}")

    # Arithmetic on a whole column is much faster than reading each text as a time.
    if (form in EPOCHS or (form is None and takes_numbers)) and (whole := _whole_numbers(values)) is not None:
        numbers, is_missing = whole.fill_null(0).to_numpy(), whole.is_null().to_numpy(zero_copy_only=False)
        is_time = is_plausible(numbers.astype(np.float64), form or EPOCH, form is None)
        refuse(~(is_missing | is_time), lambda row: str(numbers[row]))
        times = count_microseconds(numbers, form or EPOCH).astype("M8[us]")
        return np.where(is_missing, NO_TIME, times)
    column = distinct(values)
    texts = [str(value) if isinstance(value, bool | bytes) else text_of(value).strip() for value in column.values]
    counts = [read_time(text, form, takes_numbers) if text else 0 for text in texts]
    refuse(np.array([count is None for count in counts], np.bool_)[column.codes], lambda row: texts[column.codes[row]])
    times = np.array(counts, np.int64).astype("M8[us]")
    return np.where([text == "" for text in texts], NO_TIME, times)[column.codes]


def _whole_numbers(values: Any) -> Any:
    """Convert a column of integers to int64, null for an empty field; None if a value is not an integer."""
    if isinstance(values, list):
        return None
    if is_text(values):
        values = pc.if_else(pc.equal(values, ""), None, values)
        # Eighteen digits fit int64 for certain, and Arrow's cast also takes other forms, such as 0x1F.
        if pc.all(pc.match_substring_regex(values, "^-?[0-9]{1,18}$")).as_py() is False:
            return None
    elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def without_nan(values: Any) -> Any:
    """Return a column of floats with null for NaN, which pandas writes for a missing number; others as they are."""
    if isinstance(values, list) or not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), None, values)


# ---- categories


def _convert_categories(values: Any, separator: str | None, locator: Locator, dataset_form: Form | None) -> TextColumn:
    """Convert a column to one category a row or, with a separator, to bags, in which null is no value.

    separator: divides text; "": the column has lists; None: single values. dataset_form: spellings of the column in the
    dataset, for new rows; None: these rows are the dataset's.
    """
    if separator is None:
        return _convert_texts(values, locator, dataset_form)
    has_lists = not separator
    if has_lists and dataset_form is not None:
        separator = LIST_SEPARATOR  # new rows may give text instead of lists
        if dataset_form & Form.UNJOINABLE and (isinstance(values, list) or is_text(values)):
            column = distinct(values)
            is_joined = [isinstance(value, str) and value != "" for value in column.values]
            fault = f"is text, but lists of the dataset hold empty values or {LIST_SEPARATOR}"
            column.refuse(is_joined, locator, fault, "give lists, in JSON or Parquet")
    members, offsets = _divide_bags(values, separator, keeps_empty=has_lists)
    encoded, form, _ = _convert_texts(
        members, lambda index: locator(int(np.searchsorted(offsets, index, "right")) - 1), dataset_form
    )
    texts = encoded.dictionary
    if has_lists and pc.any(pc.or_(pc.equal(texts, ""), pc.match_substring(texts, LIST_SEPARATOR))).as_py():
        form |= Form.UNJOINABLE
    return TextColumn(encoded, form, offsets)


def _convert_texts(values: Any, locator: Locator, dataset_form: Form | None) -> TextColumn:
    """Convert values to texts; "" for missing ones. `dataset_form` is as in `_convert_categories`.

    Of new rows, text is refused that spells a number or truth value otherwise than a dataset of typed values has it.
    """
    if is_text(values):
        encoded = values.fill_null("").dictionary_encode()
        form = forms_of_texts(encoded.dictionary)
    elif not isinstance(values, list) and pa.types.is_integer(values.type) and has_plain_integers(dataset_form):
        # Such a column spells integers as Arrow's cast does, so no list of Python values is needed.
        encoded = values.cast(pa.string()).fill_null("").dictionary_encode()
        return TextColumn(encoded, forms_of_texts(encoded.dictionary) & ~Form.TEXT)  # they did not come as text
    else:
        encoded, form = _convert_typed(values, locator, dataset_form)
    if dataset_form and not dataset_form & Form.TEXT:  # Text of another spelling would be an unknown category.
        column = Distinct(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())
        is_other = [reads_as_untyped(text) for text in column.values]
        fault = "is spelled otherwise in the dataset, whose values are typed"
        column.refuse(is_other, locator, fault, "write integers as 3, and true and false as 1 and 0")
    return TextColumn(encoded, form)


def _convert_typed(values: Any, locator: Locator, dataset_form: Form | None) -> tuple[Any, Form]:
    """Convert values that are not all text, by their distinct values; return the encoded texts and their spellings.

    dataset_form: as in `_convert_categories`.
    """
    refuse_rounded(values, locator)
    column = distinct(values)
    spelling = Form.PLAIN if dataset_form is None else dataset_form
    form, texts = Form(0), []
    for value in column.values:
        form |= form_of(value) if isinstance(value, str) else form_of_typed(value)
        texts.append((value or "") if isinstance(value, str | None) else spell(value, spelling))
    is_bad = [text is None for text in texts]
    if dataset_form is not None:
        fault = "has no one spelling among the dataset's values of this column"
        pairs = zip(is_bad, column.values, strict=True)
        is_unspelled = [bad and isinstance(value, int | float | Decimal) for bad, value in pairs]
        column.refuse(is_unspelled, locator, fault, "give it as text, as in the dataset's rows")
    column.refuse(is_bad, locator, "is not a category: text or an integer")
    return pa.array(texts, pa.string()).take(pa.array(column.codes)).dictionary_encode(), form


def without_marks(values: Any, marks: Sequence[str]) -> Any:
    """Replace texts that mean an empty field, `marks`, by ""."""
    if marks and isinstance(values, list):
        return ["" if isinstance(value, str) and value in marks else value for value in values]
    if not marks or not is_text(values):
        return values
    return pc.if_else(pc.is_in(values, value_set=pa.array(marks, pa.string())), "", values)


def _divide_bags(values: Any, separator: str, keeps_empty: bool) -> tuple[Any, NDArray[np.int64]]:
    """Return the values of all bags, one bag after another, and where each begins and the last ends: [rows + 1] int64.

    separator: divides text; "": text is one value. keeps_empty: whether an empty text in a list is a value; in divided
    text it never is.
    """
    is_divided = is_text(values) and separator != ""
    if isinstance(values, list) or not (is_divided or pa.types.is_list(values.type)):
        bags = [_divide_value(value, separator, keeps_empty) for value in to_list(values)]
        return [value for bag in bags for value in bag], offsets_of(np.array([len(bag) for bag in bags], np.int64))
    if is_divided:
        values, keeps_empty = pc.split_pattern(values, separator), False
    # Offsets are counted anew, since nulls and empty texts leave gaps in Arrow's own.
    lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    members = values.flatten()  # skips values below null lists
    is_kept = members.is_valid()
    if not keeps_empty and is_text(members):
        is_kept = pc.and_(is_kept, pc.not_equal(members, "").fill_null(False))
    # Bags lose the values that are left out, so the kept ones before each bag's old beginning give its new one.
    kept_before = offsets_of(is_kept.to_numpy(zero_copy_only=False))
    return members.filter(is_kept), kept_before[offsets_of(lengths)]


def _divide_value(value: Any, separator: str, keeps_empty: bool) -> list[Any]:
    """Return the values of one field of a mixed column, none for null; the arguments are as in `_divide_bags`."""
    if value is None:
        return []
    if isinstance(value, str):
        return [part for part in (value.split(separator) if separator else [value]) if part]
    members = value if isinstance(value, list) else [value]
    return [member for member in members if member is not None and (keeps_empty or member != "")]


MISSING = ("NAType", "NaTType")  # types of pandas' missing values, which need not be there


def to_column(values: Any, name: str) -> Any:
    """Return values as an Arrow array or a list of Python values; null or None for a missing one.

    values: a list or another iterable, or an array or series of NumPy, Arrow, pandas or polars. name: the values' name
    in errors.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return without_nan(values)
    is_table = isinstance(values, Mapping | Set) or hasattr(values, "columns")
    is_one = isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0
    if is_table or is_one:
        remedy = "give a list" if is_table else f"give [{values!r:.40}] for one value"
        raise UserError(f"{name}: {type(values).__name__}, not a list or an array; {remedy}")
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        numbers = values.astype(np.float64) if values.dtype.kind == "f" else values
        # Arrow takes numbers in the machine's byte order alone.
        return pa.array(numbers.astype(numbers.dtype.newbyteorder("="), copy=False), from_pandas=True)
    series = values.to_list() if hasattr(values, "to_list") else values  # polars' yields its lists as series
    return [plain_value(value) for value in series]


def plain_value(value: Any) -> Any:
    """Return a value of NumPy or pandas as Python's; None for a missing one."""
    if hasattr(value, "tolist"):
        is_time = isinstance(value, np.generic | np.ndarray) and value.dtype.kind == "M"
        value = (value.astype("datetime64[us]") if is_time else value).tolist()
    is_missing = type(value).__name__ in MISSING or (isinstance(value, float) and value != value)
    return None if is_missing else value
