"""Readers of text, JSON lines and Parquet, a row of `FORMATS` each; labels by their rule, and pairs that need none.

pyarrow accepts blocks that csv refuses or reads otherwise: with an open quote in the last row, a carriage return inside
a line, a byte-order mark, or a blank line. So pyarrow reads a block only if it has none of these, and only if each line
becomes one row.

A chunk is several row groups, or a part of one if the group exceeds the size of a chunk.
"""

import csv
import itertools
import math
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from common.errors import UserError
from data_prep.codec.convert import (
    EMPTY,
    Distinct,
    convert,
    distinct,
    excerpt,
    is_list_type,
    numbers_of,
    plain,
    refuse_row,
    without_marks,
)
from data_prep.codec.files import BYTE_ORDER_MARK, decode_text, gather_column, read_exact, read_objects
from data_prep.codec.values import (
    CORRECT,
    EXACT_INTEGERS,
    STANDARD,
    TRUTHS,
    UTF_8,
    Dialect,
    Form,
    Locator,
    NumberForm,
    RawRows,
    TableBlock,
    exact_number_of,
    number_of,
    text_of,
)
from data_prep.dataset.options import COMPARISONS, LabelKind, LabelRule, Table, parse_rule
from data_prep.parsing.table import (
    NUMBER_LIST,
    Chunk,
    Column,
    FileLayout,
    Format,
    LineFormat,
    format_named,
    row_bytes,
    suffix_of,
    table_layout,
)
from data_prep.sources.files import LineBlocks, Source, describe_bare_returns

SENTINEL = "end"  # value of all fields in a line that is appended to a block, to find a quote left open before it


class Text(LineFormat):
    """Format of delimited text."""

    name = "text"
    has_layout = True

    def accepts(self, source: Source) -> bool:
        """Return True: any file may be text."""
        return True

    def columns(self, source: Source, layout: FileLayout) -> list[Column]:
        """Return a column of kind any for each field of the first line: its text or, without a header, its number."""
        with LineBlocks(source) as lines:
            for block in lines.read_until(1):
                text = bytes(block.buffer[block.start : block.end])
                names = next(
                    (fields for _, fields in exact_rows(text, layout.delimiter, source.path, 1, layout.dialect)), []
                )
                return [Column(name if layout.header else f"column_{i}", "any") for i, name in enumerate(names)]
        raise UserError(f"{source.path}: empty file; get it again, or leave it out of {source.key}")

    def fields(
        self, text: bytes, columns: Sequence[str], layout: FileLayout, name: str, row: int
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """Parse lines as `LineFormat.fields` describes: fast by pyarrow, or by csv where the two may differ."""
        if layout.header and row == 1:
            row, text = 2, text.partition(b"\n")[2]
        places, width = [layout.names.index(column) for column in columns], len(layout.names)
        dialect = layout.dialect
        block = text if dialect.charset == UTF_8 else decode_text(text, name, row, dialect).encode()
        fast = None if dialect.escape else read_fast(block, layout.delimiter, places, width, dialect.quoting)
        if fast is not None:
            return dict(zip(columns, fast.columns, strict=True)), range(row, row + fast.num_rows)
        rows = exact_rows(text, layout.delimiter, name, row, dialect)
        for number, fields in rows:
            if len(fields) != width:
                column = layout.names[min(len(fields), width - 1)]
                fault, remedy = f"{len(fields)} columns, but a row has {width} (see column {column})", CORRECT
                if len(fields) == width + 1 and not fields[-1]:
                    fault = "ends in a delimiter, unlike row 1"
                    remedy = f"if every row does, end row 1 in one, too, else {CORRECT}"
                raise UserError(f"{name}: row {number}: {fault}; {remedy}")
        arrays = (pa.array([fields[place] for _, fields in rows], pa.string()) for place in places)
        return dict(zip(columns, arrays, strict=True)), [number for number, _ in rows]

    def lines_before(self, source: Source, layout: FileLayout, offset: int) -> int:
        """Count lines as `LineFormat.lines_before` describes. Raise UserError for an open quote before the offset."""
        row = 1
        with LineBlocks(source) as before:
            for block in before.read_until(offset):
                text = bytes(block.buffer[block.start : block.end])
                exact_rows(text, layout.delimiter, source.path, row, layout.dialect)
                row += text.count(b"\n")
        return row - 1


def exact_rows(
    block: bytes, delimiter: str, name: str, row: int, dialect: Dialect = STANDARD
) -> list[tuple[int, list[str]]]:
    """Parse whole lines as `read_exact` does; row: number of the first line."""
    lines = decode_text(block, name, row, dialect).removesuffix("\n").split("\n")
    returns = describe_bare_returns(name)
    return list(read_exact((f"{line}\n" for line in lines), delimiter, name, row, dialect, returns))


def read_fast(
    block: bytes, delimiter: str, places: Sequence[int], width: int, quoting: str = STANDARD.quoting
) -> pa.RecordBatch | None:
    """Parse whole lines with pyarrow; None if `exact_rows` must parse the block.

    The columns are named by position ("0", "1", …) and have the same fields as `exact_rows` gives. A missing field is
    "".

    Args:
        block: whole lines in UTF-8; the last may lack its line end.
        places: positions of the columns to return; width: number of columns in a row.
        quoting: see `Dialect`.
    """
    has_quotes = quoting == STANDARD.quoting
    if not _is_plain(block, delimiter, has_quotes):
        return None
    lines = block if block.endswith(b"\n") else block + b"\n"
    # A further line of known fields is swallowed by a quote that the last row leaves open, and so reveals it.
    sentinel = delimiter.join([f'"{SENTINEL}"' if has_quotes else SENTINEL] * width) + "\n"
    batch = _read_csv(lines + sentinel.encode(), delimiter, width, places, has_quotes)
    # As many rows as lines prove that no quoted field has swallowed a line end.
    if batch is None or batch.num_rows != lines.count(b"\n") + 1:
        return None
    if any(column[-1].as_py() != SENTINEL for column in batch.columns):
        return None
    rows = batch.slice(0, batch.num_rows - 1)
    # Whether a line may be blank: csv skips it, but pyarrow makes a row of empty fields.
    has_empty = pc.min(pc.binary_length(rows.column(0))).as_py() == 0
    if has_empty and (b"\n\n" in lines or b"\n\r\n" in lines):
        return None
    # csv refuses a field beyond this limit, so no faster reader may accept it.
    limit = csv.field_size_limit()
    is_long = len(lines) > limit and any(pc.max(pc.binary_length(each)).as_py() > limit for each in rows.columns)
    return None if is_long else rows


def _is_plain(block: bytes, delimiter: str, has_quotes: bool) -> bool:
    r"""Return whether a block begins with a row, has \r only before \n, a delimiter of one byte, and is UTF-8."""
    try:
        if not block.isascii():
            block.decode()
    except UnicodeDecodeError:
        return False
    return (
        block != b""
        and len(delimiter.encode()) == 1
        and delimiter not in '"\r\n\0'
        and not block.startswith((b"\n", b"\r\n", BYTE_ORDER_MARK))
        and b"\0" not in block  # Python 3.10's csv refuses it
        and (b"\r" not in block or block.count(b"\r") == block.count(b"\r\n"))
        and (delimiter == "\\" or not has_quotes or b'\\"' not in block)  # `read_exact` refuses it as an escape
    )


def _read_csv(
    lines: bytes, delimiter: str, width: int, places: Sequence[int], has_quotes: bool
) -> pa.RecordBatch | None:
    """Parse the columns at `places` as text in one batch; None if pyarrow refuses the lines."""
    names, quote = [str(position) for position in range(width)], '"' if has_quotes else False
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(lines),
            # Processes are the parallelism, and one block keeps all rows in one batch.
            arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1),
            arrow_csv.ParseOptions(
                delimiter=delimiter, quote_char=quote, newlines_in_values=False, ignore_empty_lines=False
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                include_columns=[names[place] for place in places],
                check_utf8=False,  # `_is_plain` has checked the block
            ),
        )
    except pa.ArrowInvalid:
        return None
    [batch] = table.to_batches()
    return batch


# Of a table of five columns Python's own decoder takes half of the time of parsing.
_decode_json = msgspec.json.Decoder().decode


class JsonLines(LineFormat):
    """Format of JSON lines."""

    name = "json_lines"
    merges_columns = True
    batch_bytes = 2 << 20  # Python objects take many times as much memory

    def accepts(self, source: Source) -> bool:
        """Return whether the file's name has a suffix of JSON lines."""
        return suffix_of(source.name) in (".jsonl", ".ndjson")

    def columns(self, source: Source, layout: FileLayout) -> list[Column]:
        """Return the members of the objects in the first MiB; one that is a list in any of them is of kind list."""
        kinds: dict[str, str] = {}
        with LineBlocks(source) as lines:
            for block in lines.read_until(1 << 20):
                text = bytes(block.buffer[block.start : block.end])
                for item in read_objects(text, source.path, decode=_decode_json).values():
                    for name, value in item.items():
                        kinds[name] = "list" if isinstance(value, list) else kinds.get(name, "any")
        if not kinds:
            raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
        return [Column(name, kind) for name, kind in kinds.items()]

    def fields(
        self, text: bytes, columns: Sequence[str], layout: FileLayout, name: str, row: int
    ) -> tuple[dict[str, Any], list[int]]:
        """Parse lines as `LineFormat.fields` describes."""
        objects = read_objects(text, name, row, _decode_json)
        return {column: gather_column(objects, column) for column in columns}, list(objects)


MAGIC = b"PAR1"
BATCH_ROWS = 1 << 16  # at most, since repeated texts are larger in memory than in the file
BATCH_BYTES = 16 << 20  # size of a batch in pyarrow's memory, and of its read-ahead over all columns
BUFFER_BYTES, MIN_BUFFER_BYTES = 1 << 20, 1 << 14
FIELD_BYTES, LIST_VALUE_BYTES = 8, 16  # memory of a field, and of a value in a list, during reading
VALUE_TEXT_BYTES = 2  # text of a value in a list; the chunk size of data_prep/config.py assumes it


class RowRange(NamedTuple):
    """Rows first..first + rows within the row groups groups[0]..groups[1].

    `row` is the number of the groups' first row in the file, from 0.
    """

    groups: tuple[int, int]
    first: int
    rows: int
    row: int


class Parquet(Format):
    """Format of Parquet files."""

    name = "parquet"

    def accepts(self, source: Source) -> bool:
        """Return whether the file begins with Parquet's magic bytes."""
        with open(source.path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC

    def columns(self, source: Source, layout: FileLayout) -> list[Column]:
        """Return the columns of the file's schema, and its partition columns, which are text."""
        own = [Column(field.name, _column_kind(field.type)) for field in _open_parquet(source).schema_arrow]
        return own + [Column(name, "any") for name, _ in source.partitions]

    def num_rows(self, source: Source) -> int:
        """Return the number of rows in the file's metadata."""
        return int(_open_parquet(source).metadata.num_rows)

    def chunks(self, source: Source, layout: FileLayout, row_bytes: int, chunk_bytes: int) -> list[Chunk]:
        """Divide by uncompressed size, at least `row_bytes` a row: rows may take hardly any space in the file."""
        # Sizes come from the metadata, so that no data are read to plan the chunks.
        metadata = _open_parquet(source).metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        sizes = [
            max(
                group.total_byte_size, row_bytes * group.num_rows + VALUE_TEXT_BYTES * _list_values(group, layout.lists)
            )
            for group in groups
        ]
        ranges = cut_groups([group.num_rows for group in groups], sizes, chunk_bytes)
        # A chunk is read by rows; its bytes, their share of the file, only show progress. The last end begins no chunk.
        ends = [source.bytes * (part.row + part.first + part.rows) // max(1, metadata.num_rows) for part in ranges]
        return [Chunk(start, stop, rows) for start, stop, rows in zip([0, *ends], ends, ranges, strict=False)]

    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield batches of as many rows as pyarrow holds in about BATCH_BYTES."""
        partitions = {name: value for name, value in source.partitions if name in columns}
        own = [name for name in columns if name not in partitions]
        rows, key = chunk.rows, (source, chunk.rows.groups, *own)
        reader = _unfinished.pop(key, None)
        _unfinished.clear()
        # A reader cannot begin inside a row group, so the one of the previous part continues for the next.
        if reader is None or reader.position > rows.first:
            reader = _GroupReader(source, rows, own, layout.lists)
        row_bytes = source.bytes / max(1, reader.metadata.num_rows)
        try:
            for first, part in reader.read(rows.first, rows.first + rows.rows):
                locator = partial(_locate, source.path, reader.metadata, rows.row + first)
                fields = {name: part.column(name) for name in own}
                for name, value in partitions.items():
                    fields[name] = pa.repeat(pa.scalar(value, pa.string()), len(part))
                yield RawRows(fields, len(part), locator), int(row_bytes * len(part))
        except OSError as error:
            raise UserError(
                f"{source.path}: row groups {rows.groups[0]} to {rows.groups[1] - 1}: damaged "
                f"({' '.join(str(error).split())}); get it again"
            ) from error
        if reader.position < reader.rows:
            _unfinished[key] = reader


class _GroupReader:
    """Reader of some row groups for one chunk after another, since pyarrow cannot begin inside a group.

    rows: rows of the groups; position: rows read so far.
    """

    def __init__(self, source: Source, chunk: RowRange, columns: Sequence[str], lists: Collection[str]) -> None:
        file, groups = _open_parquet(source, max(1, len(columns))), range(*chunk.groups)
        self.metadata = file.metadata
        group_metadata = [self.metadata.row_group(i) for i in groups]
        self.rows, self.position = sum(group.num_rows for group in group_metadata), 0
        values_per_row = sum(_list_values(group, lists) for group in group_metadata) / max(1, self.rows)
        row_bytes = FIELD_BYTES * max(1, len(columns)) + LIST_VALUE_BYTES * values_per_row
        max_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / row_bytes)))
        # A chunk is divided into equal batches of at most max_rows, so that no batch has rows of two chunks.
        batch_rows = -(-chunk.rows // -(-chunk.rows // max_rows))
        # pyarrow reads lists of dictionary entries only group by group.
        types = [file.schema_arrow.field(name).type for name in columns]
        is_by_group = any(is_list_type(kind) and pa.types.is_dictionary(kind.value_type) for kind in types)
        sets = [[group] for group in groups] if is_by_group else [groups]
        self._batches = itertools.chain.from_iterable(
            file.iter_batches(batch_rows, row_groups=row_groups, columns=list(columns), use_threads=False)
            for row_groups in sets
        )
        self._rest: Any = None  # unread rows of the last batch

    def read(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield batches of the rows start..stop, each with the number of its first row; skip the rows before."""
        while self.position < stop:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise OSError("fewer rows than its end says")
            first, end = max(start - self.position, 0), min(stop - self.position, len(batch))
            self._rest = batch.slice(end) if end < len(batch) else None
            begin, self.position = self.position + first, self.position + end
            if first < end:
                yield begin, batch.slice(first, end - first)


_unfinished: dict[Any, _GroupReader] = {}  # the last reader, until a thread takes it for the next chunk


def _locate(path: str, metadata: Any, first: int, index: int) -> str:
    """Return the place of a row for an error: file, row group and row.

    metadata: the file's. first: number of the batch's first row in the file, from 0. index: of the row in the batch.
    """
    row, group = first + index, 0
    for group in range(metadata.num_row_groups):
        if row < metadata.row_group(group).num_rows:
            break
        row -= metadata.row_group(group).num_rows
    return f"{path}: row group {group}, row {row + 1} of it"


def cut_groups(rows: list[int], sizes: list[int], chunk_bytes: int) -> list[RowRange]:
    """Divide row groups, given their rows and bytes, into ranges of rows of at most `chunk_bytes`."""
    chunks: list[RowRange] = []
    begin = group = 0
    # Small groups are joined to a chunk, and a group that exceeds one is divided by rows, which have about equal sizes.
    while group < len(sizes):
        stop, size = group + 1, sizes[group]
        while stop < len(sizes) and size + sizes[stop] <= chunk_bytes:
            size += sizes[stop]
            stop += 1
        total = sum(rows[group:stop])
        step = max(1, -(-total // max(1, -(-size // chunk_bytes))))
        chunks += [RowRange((group, stop), first, min(step, total - first), begin) for first in range(0, total, step)]
        begin += total
        group = stop
    return chunks


def _open_parquet(source: Source, num_columns: int = 1) -> Any:
    """Open the file with a buffer for each of `num_columns` columns. Raise UserError if it is not readable."""
    buffer = max(MIN_BUFFER_BYTES, min(BUFFER_BYTES, BATCH_BYTES // num_columns))
    try:
        # Without its own prefetch, which holds whole column chunks, pyarrow's memory stays within the buffers.
        return pq.ParquetFile(source.path, buffer_size=buffer, pre_buffer=False)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source.path}: not readable as Parquet ({reason}); get it again") from error


def _list_values(group: Any, lists: Collection[str]) -> int:
    """Count the values of those columns of a row group that are in `lists`."""
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(column.num_values for column in columns if column.path_in_schema.partition(".")[0] in lists)


def _column_kind(data_type: Any) -> str:
    """Return the kind of an Arrow type for `Column`; the type's own name for one that no rule reads."""
    types = pa.types
    if types.is_dictionary(data_type):
        data_type = data_type.value_type
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return "text"
    if types.is_integer(data_type) or types.is_boolean(data_type):
        return "integer"
    if types.is_floating(data_type) or types.is_decimal(data_type):
        return "number"
    if types.is_timestamp(data_type) or types.is_date(data_type):
        return "time"
    member = _column_kind(data_type.value_type) if is_list_type(data_type) else ""
    return {"text": "list", "integer": "list", "null": "list", "number": NUMBER_LIST}.get(member, str(data_type))


class _WithoutPandas(MetaPathFinder):
    """Import hook that refuses pandas, for the one call below that would import it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise ImportError for pandas."""
        if fullname == "pandas":
            raise ImportError("pandas is left out")


# The first conversion of a list makes pyarrow import pandas, which takes longer than reading a file of 10 MB.
_finder = _WithoutPandas()
sys.meta_path.insert(0, _finder)
try:
    pa.array([])
finally:
    sys.meta_path.remove(_finder)


# Texts by which pandas (but for None) and databases write a missing value.
NULL_MARKS = frozenset(
    ["", "NULL", "null", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "\\N", "NaN", "nan", "-NaN", "-nan"]
)
SHOWN_TEXTS = 5


def convert_rows(
    batch: RawRows, table: Table, limits: Sequence[float] | None = None, forms: Mapping[str, Form] | None = None
) -> TableBlock:
    """Convert a batch of rows as `convert` does, with their labels and weights."""
    block = convert(batch, table, limits, forms)
    labels, positive_rows, weights = read_targets(batch, table)
    return block._replace(labels=labels, positive_rows=positive_rows, weights=weights)


def read_targets(batch: RawRows, table: Table) -> tuple[NDArray[Any], tuple[int, ...], NDArray[np.float32] | None]:
    """Return labels [rows], the rows with each of the table's `positive` labels, and sample weights [rows] or None."""
    weights = None
    if table.weight:
        locator = batch.locator_of(table.weight)
        numbers = numbers_of(_column_of(batch, table.weight, table), table, locator, np.nan, np.inf)
        with np.errstate(over="ignore"):
            weights = numbers.astype(np.float32)
        # A number beyond float32 became infinite.
        is_bad = (numbers < 0) | np.isinf(weights)
        fault = "is not a weight, from 0 to 3.4e38, the largest float32"
        refuse_row(is_bad, locator, lambda row: f"{numbers[row]:g} {fault}", "correct the row, or leave it out")
    values, locator = _column_of(batch, table.label, table), batch.locator_of(table.label)
    if not table.positive:
        return _read_labels(values, table, locator), (), weights
    column = distinct(values)
    _refuse_missing(column, table.positive, locator)
    if table.negative:
        known = (*table.positive, *table.negative)
        is_other = [_place_of(value, known, table) < 0 for value in column.values]
        column.refuse(is_other, locator, f"is neither {table.positive[0]} nor {table.negative[0]}")
    # The index of each row's value among the positive ones, and -1 for all others, which the counts leave out.
    indices = np.array([_place_of(value, table.positive, table) for value in column.values], np.int64)[column.codes]
    counts = np.bincount(indices + 1, minlength=1 + len(table.positive))[1:]
    return (indices >= 0).astype(np.int32), tuple(counts.tolist()), weights


def _column_of(batch: RawRows, name: str, table: Table) -> Any:
    """Return a column of a batch in the types that the rules know, with "" for marks of missing values."""
    return without_marks(plain(batch.columns[name]), table.missing)


def _read_labels(values: Any, table: Table, locator: Locator) -> NDArray[Any]:
    """Convert a column to labels [rows] of the table's kind, by its rule if it has one."""
    rule = None if table.rule is None else parse_rule(table.rule)
    if rule is not None and is_by_value(rule, table):
        # Labels [rows]: whether each field equals the rule's value (with `!=`, whether it differs).
        column = distinct(values)
        _refuse_missing(column, (rule.value,), locator)
        is_equal = np.array([_is_value(value, rule, table) for value in column.values], np.bool_)
        labels: NDArray[np.int32] = COMPARISONS[rule.operator](is_equal, True).astype(np.int32)
        return labels[column.codes]
    try:
        numbers = numbers_of(values, table, locator, np.nan, np.inf)
    except UserError:
        if table.label_kind is LabelKind.click:
            _refuse_texts(values, table, locator)
        raise
    if rule is not None:
        return meets_rule(values, numbers, rule, table).astype(np.int32)
    if table.label_kind is LabelKind.click:
        is_bad = (numbers != 0) & (numbers != 1)
        fault, remedy = "is not a label (0 or 1)", "correct the row, or give a rule or kind: number in the schema"
    else:
        with np.errstate(over="ignore"):
            is_bad = np.isinf(numbers.astype(np.float32))
        fault, remedy = "is beyond 3.4e38, the largest float32", "correct the row"
    refuse_row(is_bad, locator, lambda row: f"{numbers[row]:g} {fault}", remedy)
    return numbers.astype(table.label_kind.dtype)


def meets_rule(values: Any, numbers: NDArray[np.float64], rule: LabelRule, form: NumberForm) -> NDArray[np.bool_]:
    """Return a mask of a column's values that meet a rule.

    numbers: the values as float64. form: how the file writes numbers.
    """
    compare, number = COMPARISONS[rule.operator], number_of(rule.value, form)
    # A rule's number below 2^53 differs from its neighbours in float64, so the whole column is compared at once.
    if not abs(number) >= EXACT_INTEGERS:
        met: NDArray[np.bool_] = compare(numbers, number)
        return met
    # The file may have integers that are equal as float64 alone.
    column, value = distinct(values), exact_number_of(rule.value, form)
    is_met = [compare(exact_number_of(distinct_value, form), value) for distinct_value in column.values]
    return np.array(is_met, np.bool_)[column.codes]


def is_by_value(rule: LabelRule, form: NumberForm) -> bool:
    """Return whether a rule compares texts or truth values, so that fields may be any text."""
    is_truth = rule.value.lower() in TRUTHS
    return rule.is_equality and (rule.is_quoted or is_truth or math.isnan(number_of(rule.value, form)))


def _place_of(value: Any, texts: Sequence[str], table: Table) -> int:
    """Return the index of the text that a field is, or else of the first that it equals by value; -1 for none."""
    # An exact text comes first, as two of the values may mean the same number.
    if (text := text_of(value)) in texts:
        return texts.index(text)
    is_equal = (_is_value(value, LabelRule("==", text, True), table) for text in texts)
    return next(itertools.compress(itertools.count(), is_equal), -1)


def _refuse_missing(column: Distinct, named: Sequence[str], locator: Locator) -> None:
    """Raise UserError for an empty field, or one that stands for a missing value and that the schema does not name."""
    is_bad = [value in EMPTY or (value not in named and is_missing(value)) for value in column.values]
    column.refuse(is_bad, locator, "stands for a missing value")


def _is_value(value: Any, rule: LabelRule, table: Table) -> bool:
    """Return whether a field equals a rule's value: as text if both are text, else as a number or truth value."""
    if isinstance(value, str) and (rule.is_quoted or rule.value.lower() not in TRUTHS):
        return value == rule.value if rule.is_quoted else value.strip() == rule.value
    return exact_number_of(value, table) == exact_number_of(rule.value, table)


def is_missing(value: Any) -> bool:
    """Return whether a value is missing, a null mark, only blanks, or NaN."""
    return value.strip() in NULL_MARKS if isinstance(value, str) else value is None or value != value


def _refuse_texts(values: Any, table: Table, locator: Locator) -> None:
    """Raise UserError for labels that are texts; the message shows some and a rule that accepts them."""
    column = distinct(values)
    is_other = [
        isinstance(value, str) and value != "" and math.isnan(number_of(value, table)) for value in column.values
    ]
    texts = list(itertools.compress(column.values, is_other))
    shown_texts = ", ".join(map(excerpt, texts[:SHOWN_TEXTS])) + (", …" if len(texts) > SHOWN_TEXTS else "")
    remedy = (
        f"labels that are texts need a rule in the schema, as in label: {table.label} == {texts[0] if texts else ''}"
    )
    column.refuse(is_other, locator, f"is not a number (texts: {shown_texts})", remedy)


SHOWN_VALUES = 8
COUNTED_ROWS = 1_000_000  # first rows whose label values are counted
CHUNK_BYTES = 8 << 20
# Pairs of words that need no rule: the word that means 1, and the one that means 0. Truth words are labels already.
WORD_PAIRS = (
    ("y", "n"),
    ("t", "f"),
    ("click", "no_click"),
    ("click", "no click"),
    ("clicked", "not_clicked"),
    ("clicked", "not clicked"),
    ("positive", "negative"),
    ("pos", "neg"),
)
# The positive value of each pair. 1 and 2 are left out, as either may be the click; 1 and 0 are labels already.
PAIRS: dict[frozenset[Hashable], Hashable] = {frozenset(pair): pair[0] for pair in (*WORD_PAIRS, (1.0, -1.0))}


def describe_label_values(table: Table, sources: Sequence[Source]) -> str:
    """Return the most frequent values of the label column in the sources' first rows, for an error."""
    counts: Counter[Any] = sum(_counts_by_batch(table, sources), Counter())
    frequent = counts.most_common(SHOWN_VALUES)
    shown = ", ".join(f"{'no value' if value is None else excerpt(value)} ({rows:,})" for value, rows in frequent)
    more = f" and {len(counts) - SHOWN_VALUES} more" if len(counts) > SHOWN_VALUES else ""
    return f"values of {counts.total():,} rows are {shown}{more}"


def add_known_pair(path: Path, sources: Sequence[Source], table: Table) -> Table:
    """Return the table with the positive and the negative label if its labels are a known pair of words; log this.

    Labels that need no pair are left alone: 0 and 1, truth words, numbers, and those with a rule or positive values.
    Any other values are left to the reader of rows, which names the row, and what to write.

    path: the schema, for errors.
    """
    if table.label_kind is LabelKind.number or table.rule is not None or table.positive:
        return table
    train = [source for source in sources if source.split in (None, "train")]
    values: dict[Hashable, Any] = {}
    for counts in _counts_by_batch(table, train):
        # Two values suffice to find a pair, so most files are read only at their beginning.
        values |= {_meaning(value, table): value for value in counts if not is_missing(value)}
        if len(values) > 1:
            break
    if (positive := PAIRS.get(frozenset(values))) is None:
        return table
    [negative] = set(values) - {positive}
    one, zero = text_of(values[positive]), text_of(values[negative])
    print(f"{path}: label {table.label}: {one} is 1, {zero} is 0", file=sys.stderr)
    return replace(table, positive=(one,), negative=(zero,))


def _counts_by_batch(table: Table, sources: Sequence[Source]) -> Iterator[Counter[Any]]:
    """Yield the counts of the label column's values in each batch of the first COUNTED_ROWS rows or a little more."""
    form, layout, least = format_named(table.format), table_layout(table)[1], row_bytes(table)
    pairs = ((source, chunk) for source in sources for chunk in form.chunks(source, layout, least, CHUNK_BYTES))
    batches = (batch for source, chunk in pairs for batch, _ in form.batches(source, chunk, [table.label], layout))
    rows = 0
    for batch in batches:
        column = distinct(_column_of(batch, table.label, table))
        counts: Counter[Any] = Counter()
        for value, count in zip(column.values, np.bincount(column.codes).tolist(), strict=True):
            counts[text_of(value) if isinstance(value, list | dict) else value] += count
        yield counts
        rows += batch.rows
        if rows >= COUNTED_ROWS:
            return


def _meaning(value: Any, table: Table) -> Hashable:
    """Return a label's number, or its text without blanks and in lower case: 1 and 1.0 or Yes and yes are one label."""
    number = number_of(value, table)
    return text_of(value).strip().lower() if np.isnan(number) else number
