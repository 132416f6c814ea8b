"""Columns of a user's own table, whatever file they come from, to labels, numbers and categories.

A column is an Arrow array of one type, or a list of Python's values. Numbers are cast all at once; all other rules, and
those for numbers that are not cast, run on a column's distinct values.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import offsets_of
from data_prep.dataset.label_rule import COMPARISONS, LabelRule, parse_rule
from data_prep.dataset.options import LabelKind
from data_prep.dataset.spelling import (
    LIST_SEPARATOR,
    TRUTHS,
    Form,
    form_of,
    form_of_typed,
    forms_of_texts,
    has_plain_integers,
    is_other_spelling,
    spell,
    text_of,
)
from data_prep.dataset.table_spec import DatePart, Table
from data_prep.parsing.dates import (
    EPOCH,
    EPOCHS,
    NO_TIME,
    count_microseconds,
    is_plausible,
    part_of,
    read_time,
    time_fault,
)
from data_prep.parsing.formats import CORRECT, Batch, Locator
from data_prep.parsing.numbers import NUMBERS, number_of
from data_prep.parsing.table_block import TableBlock, TextColumn

EMPTY = (None, "")  # no value
# Texts of a missing value, as pandas reads them, but for None, and as databases write it.
NULL_MARKS = frozenset(
    ["", "NULL", "null", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "\\N", "NaN", "nan", "-NaN", "-nan"]
)
SHOWN = 40  # characters of a value in an error


def convert(
    batch: Batch,
    table: Table,
    labelled: bool = True,
    max_number: float = np.inf,
    forms: Mapping[str, Form] | None = None,
) -> TableBlock:
    """Convert the rows of a batch.

    Args:
        batch: with `table.inputs` among its columns, and where labelled `table.label`.
        labelled: whether the label's column holds labels (else labels are 0).
        max_number: the largest number, without its sign, that a dense column may hold.
        forms: how the values of each sparse column are spelled in the dataset, for rows that its vocabularies do not
            come from: new rows, and files given for val or test; None: typed values get the spelling of
            `form_of_typed`.

    Raises:
        UserError: a value that does not fit (file, row, column, remedy).
    """
    columns = {name: without_marks(plain(values), table.missing) for name, values in batch.columns.items()}
    labels: NDArray[Any] = np.zeros(batch.rows, table.label_kind.dtype)
    if labelled:
        labels = _labels(columns[table.label], table, batch.locator_of(table.label))
    parts = {
        part.feature: _date_part(columns[part.column], part, batch.locator_of(part.column)) for part in table.parts
    }
    dense = np.empty((batch.rows, len(table.dense)))
    for i, name in enumerate(table.dense):
        if name in parts:
            dense[:, i] = parts[name][0]
        else:
            dense[:, i] = numbers_of(columns[name], table, batch.locator_of(name), 0.0, max_number)
    separators, categories = dict(table.separators), []
    for name in table.sparse:
        if name in parts:
            numbers, present = parts[name]
            texts = pa.array(numbers, mask=~present).cast(pa.string()).fill_null("")
            categories.append(TextColumn(texts.dictionary_encode(), Form(0)))
        else:
            form = None if forms is None else forms[name]
            categories.append(_categories(columns[name], separators.get(name), batch.locator_of(name), form))
    return TableBlock(labels, dense, tuple(categories))


def plain(values: Any) -> Any:
    """A column of a type that the rules know: without Arrow's dictionaries, views, large types and types of nulls."""
    return values if isinstance(values, list) else values.cast(_plain_type(values.type))


def _plain_type(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if is_list_type(kind):
        return pa.list_(_plain_type(kind.value_type))
    types = (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return pa.string() if any(is_type(kind) for is_type in types) else kind


def is_list_type(kind: Any) -> bool:
    """Whether an Arrow type is one of lists, of any or of one length."""
    types = pa.types
    is_type = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(each(kind) for each in is_type)


def to_list(values: Any) -> list[Any]:
    """A column as a list of Python's values."""
    return values if isinstance(values, list) else values.to_pylist()


class Distinct(NamedTuple):
    """A column by its distinct values: codes [rows] int64, and the value of each code."""

    codes: NDArray[np.int64]
    values: list[Any]

    def refuse(
        self, is_bad: Sequence[bool] | NDArray[np.bool_], locator: Locator, fault: str, remedy: str = CORRECT
    ) -> None:
        """Raise UserError for the first row whose value is bad: that it has none, or the value and its `fault`."""

        def describe(row: int) -> str:
            value = self.values[self.codes[row]]
            return "no value" if value in EMPTY else f"{excerpt(value)} {fault}"

        refuse_row(np.asarray(is_bad, np.bool_)[self.codes], locator, describe, remedy)


def distinct(values: Any) -> Distinct:
    """A column by its distinct values, in the order of their first rows."""
    if not isinstance(values, list):
        if not pa.types.is_nested(values.type):
            encoded = values.dictionary_encode(null_encoding="encode")
            return Distinct(encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist())
        values = values.to_pylist()
    keys = [(type(value), repr(value) if isinstance(value, list | dict) else value) for value in values]
    value_of = dict(zip(keys, values, strict=True))
    code_of = {key: code for code, key in enumerate(value_of)}
    return Distinct(np.array([code_of[key] for key in keys], np.int64), list(value_of.values()))


def to_texts(values: Any, locator: Locator) -> list[str]:
    """A column as text where no spellings are recorded: see `distinct_texts`."""
    column = distinct_texts(values, locator)
    return [column.values[code] for code in column.codes]


def distinct_texts(values: Any, locator: Locator) -> Distinct:
    """A column of ids, or of rows that are no user's own table, by its texts; "" where a field is empty.

    Raises:
        UserError: a value that is neither text nor a number.
    """
    column = distinct(plain(values))
    is_other = [not isinstance(value, str | bytes | int | float | Decimal | None) for value in column.values]
    column.refuse(is_other, locator, "is neither text nor a number")
    return Distinct(
        column.codes, [value.decode() if isinstance(value, bytes) else text_of(value) for value in column.values]
    )


def is_text(values: Any) -> bool:
    """Whether a column is an Arrow array of text."""
    return not isinstance(values, list) and bool(pa.types.is_string(values.type))


def excerpt(value: Any) -> str:
    """A value for an error."""
    return f"{value[:SHOWN]!a}" if isinstance(value, str) else str(value)[:SHOWN]


def refuse_row(bad: NDArray[np.bool_], locator: Locator, fault: Callable[[int], str], remedy: str = CORRECT) -> None:
    """Raise UserError for the first bad row; `fault` describes a row."""
    if bad.any():
        index = int(bad.argmax())
        raise UserError(f"{locator(index)}: {fault(index)}; {remedy}")


# ---- numbers


def numbers_of(values: Any, table: Table, locator: Locator, empty: float, max_number: float) -> NDArray[np.float64]:
    """Finite numbers of at most `max_number`; `empty` replaces missing ones, which are errors where it is NaN."""
    numbers = _cast(values, table, empty)
    if numbers is not None and (np.abs(numbers) <= max_number).all() and np.isfinite(numbers).all():
        return numbers
    column = distinct(values)
    array = np.array([empty if value in EMPTY else number_of(value, table) for value in column.values])
    column.refuse(~np.isfinite(array), locator, "is not a number")
    fault = (
        f"is beyond {max_number:.3g}, the largest number of this data.dense_transform; set "
        "data.dense_transform=signed_log1p"
    )
    column.refuse(np.abs(array) > max_number, locator, fault, "or correct this row")
    return array[column.codes]


def _cast(values: Any, table: Table, empty: float) -> NDArray[np.float64] | None:
    """All numbers at once; None where a rule is needed for one of them."""
    if isinstance(values, list):
        return None
    if is_text(values):
        if table.decimal != "." or table.thousands:
            return None
        values = pc.if_else(pc.equal(values, ""), None, values)
    elif not (
        pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    ):
        return None  # Arrow casts a decimal to another number than its text's now and then
    try:
        numbers: NDArray[np.float64] = values.cast(pa.float64(), safe=False).fill_null(empty).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers


def truths_of(values: Any, locator: Locator, empty: float) -> NDArray[np.bool_]:
    """Truth values [rows] of a column of 0, 1 or words for these; `empty` replaces missing ones, which NaN refuses."""
    column = distinct(values)
    numbers = np.array([empty if value in EMPTY else number_of(value, NUMBERS) for value in column.values], np.float64)
    column.refuse(~np.isin(numbers, (0, 1)), locator, "is not 0 or 1")
    truths: NDArray[np.bool_] = (numbers == 1)[column.codes]
    return truths


def _labels(values: Any, table: Table, locator: Locator) -> NDArray[Any]:
    """Labels [rows] of a column's values, by the table's rule if it has one."""
    rule = None if table.rule is None else parse_rule(table.rule)
    if rule is not None and is_by_value(rule, table):
        return _equality_labels(values, table, rule, locator)
    try:
        numbers = numbers_of(values, table, locator, np.nan, np.inf)
    except UserError:
        if table.label_kind is LabelKind.click:
            _refuse_texts(values, table, locator)
        raise
    if rule is not None:
        met: NDArray[np.bool_] = COMPARISONS[rule.operator](numbers, number_of(rule.value, table))
        return met.astype(np.int32)
    if table.label_kind is LabelKind.click:
        is_bad = (numbers != 0) & (numbers != 1)
        fault, remedy = "is not a label (0 or 1)", "correct the row, or give a rule or kind: number in the schema"
    else:
        with np.errstate(over="ignore"):
            is_bad = np.isinf(numbers.astype(np.float32))
        fault, remedy = "is beyond 3.4e38, the largest float32", "correct the row"
    refuse_row(is_bad, locator, lambda row: f"{numbers[row]:g} {fault}", remedy)
    return numbers.astype(table.label_kind.dtype)


def is_by_value(rule: LabelRule, table: Table) -> bool:
    """Whether a rule compares each field by itself, so that fields may be any text: text and truth values do."""
    is_truth = rule.value.lower() in TRUTHS
    return rule.is_equality and (rule.is_quoted or is_truth or math.isnan(number_of(rule.value, table)))


def _equality_labels(values: Any, table: Table, rule: LabelRule, locator: Locator) -> NDArray[np.int32]:
    """Labels [rows] of fields that are equal to the rule's value, or, by `!=`, are not."""
    column = distinct(values)
    is_missing = [value in EMPTY or (value != rule.value and is_null_mark(value)) for value in column.values]
    column.refuse(is_missing, locator, "stands for a missing value")
    is_equal = np.array([_is_value(value, rule, table) for value in column.values], np.bool_)
    labels: NDArray[np.int32] = COMPARISONS[rule.operator](is_equal, True).astype(np.int32)
    return labels[column.codes]


def _is_value(value: Any, rule: LabelRule, table: Table) -> bool:
    """Whether a field is the value of an equality rule: as text if both are, else as a number or a truth value."""
    if isinstance(value, str) and (rule.is_quoted or rule.value.lower() not in TRUTHS):
        return value == rule.value if rule.is_quoted else value.strip() == rule.value
    return number_of(value, table) == number_of(rule.value, table)


def is_null_mark(value: Any) -> bool:
    """Whether a value is a text by which programs write a missing value, blanks alone, or NaN."""
    return value.strip() in NULL_MARKS if isinstance(value, str) else value != value


def _refuse_texts(values: Any, table: Table, locator: Locator) -> None:
    """Raise UserError for labels that are texts, with those of the block and the rule that takes them."""
    column = distinct(values)
    is_other = [
        isinstance(value, str) and value != "" and math.isnan(number_of(value, table)) for value in column.values
    ]
    texts = list(itertools.compress(column.values, is_other))
    shown_texts = ", ".join(map(excerpt, texts[:5])) + (", …" if len(texts) > 5 else "")
    remedy = (
        f"labels that are texts need a rule in the schema, as in label: {table.label} == {texts[0] if texts else ''}"
    )
    column.refuse(is_other, locator, f"is not a number (texts: {shown_texts})", remedy)


# ---- dates


def _date_part(values: Any, part: DatePart, locator: Locator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A part of dates and times, or of text or numbers that stand for them; see `part_of`."""

    def entry(form: str) -> str:
        return f"{{column: {part.column}, part: {part.part}, format: {form}}}"

    return part_of(times_of(values, part.format, locator, entry), part.part)


def times_of(
    values: Any, form: str | None, locator: Locator, entry: Callable[[str], str], takes_numbers: bool = False
) -> NDArray[np.datetime64]:
    """Times [rows] in UTC as datetime64[us], rounded down; NaT where a field is empty.

    Args:
        form: of text and numbers; None: text is ISO 8601.
        entry: of a format, what to write in the schema.
        takes_numbers: whether, without a format, numbers are seconds.

    Raises:
        UserError: a value is no time of the format.
    """
    values = without_nan(values)
    if not isinstance(values, list) and (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        times: NDArray[np.datetime64] = values.to_numpy(zero_copy_only=False).astype("M8[us]")
        return times

    def refuse(is_bad: NDArray[np.bool_], text_of_row: Callable[[int], str]) -> None:
        if is_bad.any():
            row = int(is_bad.argmax())
            raise UserError(f"{locator(row)}: {time_fault(text_of_row(row), form, takes_numbers, entry)}")

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
    """A column of whole numbers as int64, null where a field is empty; None where one of its values is none."""
    if isinstance(values, list):
        return None
    if is_text(values):
        values = pc.if_else(pc.equal(values, ""), None, values)
        if pc.all(pc.match_substring_regex(values, "^-?[0-9]{1,18}$")).as_py() is False:
            return None
    elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def without_nan(values: Any) -> Any:
    """A column with null in place of NaN, by which pandas marks a missing number."""
    if isinstance(values, list) or not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), None, values)


# ---- categories


def _categories(values: Any, separator: str | None, locator: Locator, dataset_form: Form | None) -> TextColumn:
    """A column of one category a row, or, of text that a separator divides and of lists, any number; null is none."""
    if separator is None:
        return _text_column(values, locator, dataset_form)
    has_lists = not separator
    if has_lists and dataset_form is not None:
        separator = LIST_SEPARATOR  # in text of new rows alone
        if dataset_form & Form.UNJOINABLE and (isinstance(values, list) or is_text(values)):
            column = distinct(values)
            is_joined = [isinstance(value, str) and value != "" for value in column.values]
            fault = f"is text, but lists of the dataset hold empty values or {LIST_SEPARATOR}"
            column.refuse(is_joined, locator, fault, "give lists, in JSON or Parquet")
    members, offsets = _members(values, separator, keeps_empty=has_lists)
    encoded, form, _ = _text_column(
        members, lambda index: locator(int(np.searchsorted(offsets, index, "right")) - 1), dataset_form
    )
    texts = encoded.dictionary
    if has_lists and pc.any(pc.or_(pc.equal(texts, ""), pc.match_substring(texts, LIST_SEPARATOR))).as_py():
        form |= Form.UNJOINABLE
    return TextColumn(encoded, form, offsets)


def _text_column(values: Any, locator: Locator, dataset_form: Form | None) -> TextColumn:
    """The texts of values, "" of missing ones."""
    if is_text(values):
        encoded = values.fill_null("").dictionary_encode()
        form = forms_of_texts(encoded.dictionary)
    elif not isinstance(values, list) and pa.types.is_integer(values.type) and has_plain_integers(dataset_form):
        encoded = values.cast(pa.string()).fill_null("").dictionary_encode()
        return TextColumn(encoded, forms_of_texts(encoded.dictionary) & ~Form.TEXT)
    else:
        encoded, form = _read_typed(values, locator, dataset_form)
    if dataset_form and not dataset_form & Form.TEXT:  # other text would be an unknown category
        column = Distinct(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())
        is_other = [is_other_spelling(text) for text in column.values]
        fault = "is spelled otherwise in the dataset, whose values are typed"
        column.refuse(is_other, locator, fault, "write integers as 3, and true and false as 1 and 0")
    return TextColumn(encoded, form)


def _read_typed(values: Any, locator: Locator, dataset_form: Form | None) -> tuple[Any, Form]:
    """The same of values that are not all text, by their distinct values."""
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
    """A column with "" in place of the texts that stand for an empty field."""
    if not marks or not (isinstance(values, list) or is_text(values)):
        return values
    if isinstance(values, list):
        return ["" if isinstance(value, str) and value in marks else value for value in values]
    return pc.if_else(pc.is_in(values, value_set=pa.array(marks, pa.string())), "", values)


def _members(values: Any, separator: str, keeps_empty: bool) -> tuple[Any, NDArray[np.int64]]:
    """The values of all bags one after the other, and where each bag begins.

    Args:
        separator: of text; "": text is one value.
        keeps_empty: whether an empty text in a list is a value; in text that is divided it is none.
    """
    is_divided = is_text(values) and separator != ""
    if isinstance(values, list) or not (is_divided or pa.types.is_list(values.type)):
        bags = [_members_of(value, separator, keeps_empty) for value in to_list(values)]
        return [value for bag in bags for value in bag], offsets_of(np.array([len(bag) for bag in bags], np.int64))
    if is_divided:
        values, keeps_empty = pc.split_pattern(values, separator), False
    lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    members = values.flatten()  # without what lies under nulls
    is_kept = members.is_valid()
    if not keeps_empty and is_text(members):
        is_kept = pc.and_(is_kept, pc.not_equal(members, "").fill_null(False))
    kept_before = offsets_of(is_kept.to_numpy(zero_copy_only=False))
    return members.filter(is_kept), kept_before[offsets_of(lengths)]


def _members_of(value: Any, separator: str, keeps_empty: bool) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        return [part for part in (value.split(separator) if separator else [value]) if part]
    members = value if isinstance(value, list) else [value]
    return [member for member in members if member is not None and (keeps_empty or member != "")]
