"""A user's own table: the formats of its files, and the YAML that describes its label, features and splits.

A format, a row of FORMATS, yields `RawRows`: columns by name, and the places of their rows. data_prep/codec/convert.py
and extensions/sequences/events.py convert these columns without knowing the format.
"""

import difflib
import json
import math
import re
import string
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, cast, get_args

import yaml
from msgspec import Meta, Struct, structs
from msgspec.structs import replace

from common.documents import UNKNOWN, convert
from common.errors import UserError
from common.extensions import directories_of_values
from data_prep.codec.values import (
    EPOCH,
    PARTS,
    STANDARD,
    TRUTHS,
    Dialect,
    RawRows,
    charset_named,
    fault_of_format,
    number_of,
)
from data_prep.dataset.options import (
    COLUMN_AND_RULE,
    COMPARISONS,
    FORMATS,
    NUMBER,
    DatePart,
    LabelKind,
    LabelRule,
    Part,
    Table,
    TimeColumn,
    Transform,
    Vector,
    parse_rule,
)
from data_prep.sources.files import LineBlocks, Source, copy_command, count_lines_before, without_packing

NUMBER_LIST = "list of numbers"


class Column(NamedTuple):
    """A column. `kind` is text, integer, number, time, list, NUMBER_LIST, any, or the name of another type."""

    name: str
    kind: str


class FileLayout(NamedTuple):
    """Columns of a file, in order; delimiter and dialect of text; `lists`: columns of lists.

    header: whether the first row of text names the columns.
    """

    names: tuple[str, ...] = ()
    delimiter: str = ","
    header: bool = True
    lists: Collection[str] = ()
    dialect: Dialect = STANDARD


class Chunk(NamedTuple):
    """A part of a file: lines that begin in the bytes start..stop of its text, or the rows `rows`."""

    start: int
    stop: int
    rows: Any = None

    def bytes_of(self, source: Source) -> int:
        """Return the bytes of the file that the chunk covers; the last chunk may end beyond the file."""
        return min(self.stop, source.bytes) - self.start


MIN_ROW_BYTES = 41  # shortest row of text; data_prep/job.py relies on it


def table_layout(table: Table) -> tuple[list[str], FileLayout]:
    """Return the columns to read of a table, and the layout of its files."""
    columns = list(dict.fromkeys((*table.targets, *table.inputs)))
    lists = (*table.schema.ragged, *(vector.column for vector in table.vectors))  # that may hold lists
    return columns, FileLayout(table.names, table.delimiter, table.header, lists, table.dialect)


def row_bytes(table: Table) -> int:
    """Return the least memory of a table's row."""
    return max(MIN_ROW_BYTES, 4 + 8 * len(table.dense) + 4 * len(table.sparse))


class Format(ABC):
    """A file format; instances have no state.

    Attributes:
        name: name in messages and manifests.
        has_layout: whether delimiter and header apply.
        merges_columns: whether files, and first rows of a file, may lack columns that others have.
    """

    name: str
    has_layout = False
    merges_columns = False

    @abstractmethod
    def accepts(self, source: Source) -> bool:
        """Return whether a file has this format."""

    @abstractmethod
    def columns(self, source: Source, layout: FileLayout) -> list[Column]:
        """Return the columns of a file, in order; the names in `layout` do not matter."""

    @abstractmethod
    def chunks(self, source: Source, layout: FileLayout, row_bytes: int, chunk_bytes: int) -> list[Chunk]:
        """Divide the file into chunks of at most `chunk_bytes`, in row order; depends on the arguments alone.

        row_bytes: least memory of a row.
        """

    @abstractmethod
    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield some columns of a chunk, with the number of the file's bytes that each batch covers."""

    def num_rows(self, source: Source) -> int | None:
        """Return the rows of a file if its metadata holds them, otherwise None."""
        return None


class LineFormat(Format):
    """A format with one row per line of text; `batch_bytes` are parsed at once."""

    batch_bytes = 8 << 20

    def chunks(self, source: Source, layout: FileLayout, row_bytes: int, chunk_bytes: int) -> list[Chunk]:
        """Divide the file at multiples of `chunk_bytes`; a line belongs to the chunk in which it begins."""
        if source.compressed:
            # The length of its text is known only once it is inflated.
            return [Chunk(0, 1 << 62)]
        return [Chunk(start, start + chunk_bytes) for start in range(0, source.bytes, chunk_bytes)]

    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield some columns of a chunk, with the number of the file's bytes that each batch covers."""
        with LineBlocks(source, chunk.start) as lines:
            yield from self.batches_of(source, lines, chunk.stop, columns, layout)

    def batches_of(
        self, source: Source, lines: LineBlocks, stop: int, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield batches of the lines that begin before the offset `stop`, from an open reader: see `batches`."""
        parts: list[bytes] = []
        begin = 0
        for block in lines.read_until(stop):
            # A block is valid until the next one is read, so its bytes are copied.
            begin = begin if parts else block.offset
            parts.append(bytes(block.buffer[block.start : block.end]))
            if sum(map(len, parts)) >= self.batch_bytes:
                yield self._parse(b"".join(parts), columns, layout, source, begin), lines.advance()
                parts = []
        if parts:
            yield self._parse(b"".join(parts), columns, layout, source, begin), lines.advance()

    def _parse(self, text: bytes, columns: Sequence[str], layout: FileLayout, source: Source, offset: int) -> RawRows:
        """Parse whole lines, which begin at the byte `offset` of a source's text."""
        # Line 1 alone is special (names, a byte-order mark), so 2 stands for any other until an error needs its number.
        count_before, first = partial(self.lines_before, source, layout, offset), 2 if offset else 1
        try:
            fields, numbers = self.fields(text, columns, layout, source.path, first)
        except UserError:
            if offset:  # count lines only for an error
                self.fields(text, columns, layout, source.path, 1 + count_before())
            raise
        return RawRows(fields, len(numbers), lambda i: f"{source.path}: row {numbers[i] - first + 1 + count_before()}")

    @abstractmethod
    def fields(
        self, text: bytes, columns: Sequence[str], layout: FileLayout, name: str, row: int
    ) -> tuple[Mapping[str, Any], Sequence[int]]:
        """Parse whole lines that begin at line `row` of a file: the columns, and the number of each row's line.

        Raises UserError: an invalid row (file, row, remedy).
        """

    def lines_before(self, source: Source, layout: FileLayout, offset: int) -> int:
        """Count a source's lines before an offset of its text. Raise UserError if they are not rows."""
        return count_lines_before(source, offset)


def format_named(name: str) -> Format:
    """Return the format of FORMATS with that name, and import its module."""
    module, kind = FORMATS[name]
    form: Format = getattr(import_module(module), kind)()
    return form


def format_of(source: Source) -> Format:
    """Return the first format that accepts a file. Raise UserError if its name does not tell the form of JSON."""
    if suffix_of(source.name) == ".json":
        command = copy_command("jq -c '.[]'", source.path)
        raise UserError(f"{source.path}: name JSON lines .jsonl, and write an array one object a line: {command}.jsonl")
    return next(form for form in map(format_named, FORMATS) if form.accepts(source))


def suffix_of(name: str) -> str:
    """Return a file name's suffix in lower case, without a compression's."""
    return PurePath(without_packing(name)).suffix.lower()


TRANSFORMS = get_args(Transform)
MAX_VECTOR = 1 << 14  # numbers of a vector, each of which is a dense feature
Reference: TypeAlias = str | Annotated[int, Meta(ge=0)]  # of a column: its name, or its position from 0
FilledText = Annotated[str, Meta(min_length=1)]
# What an entry of dense or sparse may have besides its column, by what makes it special.
FORMS = {
    "dense": {"": "transform", "part": "part format transform", "vector": "vector separator transform"},
    "sparse": {"": "separator", "part": "part format"},
}
ENTRY_EXAMPLES = {
    "dense": '{column: NAME, transform: log1p}, {column: NAME, vector: 64, separator: " "}',
    "sparse": '{column: NAME, separator: "|"}',
}

DOCUMENT_FORMS = {
    "label": 'a column, or {column: NAME, rule: ">= 4"}, {column: NAME, positive: [yes]}, {column: NAME, kind: number}',
    "sparse": f"a list, of at least one column or {ENTRY_EXAMPLES['sparse']}",
    "dense": f"a list of columns, or {ENTRY_EXAMPLES['dense']}",
    "time": "a column, or {column: NAME, format: epoch}",
    "weight": "a column",
}


class Entry(Struct, forbid_unknown_fields=True):
    """An entry of dense or sparse that is more than a column."""

    column: Reference
    transform: str | None = None
    vector: Annotated[int, Meta(ge=1, le=MAX_VECTOR)] | None = None
    separator: FilledText | None = None
    part: str | None = None
    format: str | None = None


class LabelEntry(Struct, forbid_unknown_fields=True):
    """The entry of a label that is more than a column."""

    column: Reference
    rule: str | None = None
    kind: LabelKind = LabelKind.click
    positive: Annotated[list[FilledText], Meta(min_length=1)] | None = None


class TimeEntry(Struct, forbid_unknown_fields=True):
    """The entry of a time with a format."""

    column: Reference
    format: str | None = None


class Document(Struct, forbid_unknown_fields=True):
    """A table's YAML: docs/inspect.md. A mark is one character that no number has otherwise."""

    label: Reference | LabelEntry
    sparse: Annotated[list[Reference | Entry], Meta(min_length=1)]
    dense: list[Reference | Entry] | None = None
    time: Reference | TimeEntry | None = None
    weight: Reference | None = None
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    header: bool = True
    decimal: Annotated[str, Meta(pattern=r"\A[^0-9+-]\Z")] = "."
    thousands: Annotated[str, Meta(pattern=r"\A[^0-9+-]?\Z")] = ""
    missing: list[FilledText] | None = None
    quoting: Literal["csv", "none"] = "csv"
    escape: Annotated[str, Meta(max_length=1)] = ""
    charset: str = STANDARD.charset


def _parse_features(path: Path, document: Document, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return the fields of a table that the entries of dense and sparse describe; refuse invalid entries.

    path: the YAML file, for errors, here and below. name_of: returns a column's name.
    """
    names: dict[str, list[str]] = {"dense": [], "sparse": []}
    parts, vectors = list[DatePart](), list[Vector]()
    transforms, separators = list[tuple[str, str]](), list[tuple[str, str]]()
    entries = [("dense", entry) for entry in document.dense or []] + [("sparse", entry) for entry in document.sparse]
    for key, entry in entries:
        if not isinstance(entry, Entry):
            names[key].append(name_of(entry))
            continue
        given = {name: value for name, value in structs.asdict(entry).items() if value is not None}
        form = FORMS[key].get(next((name for name in ("part", "vector") if name in given), ""), "")
        if not set(given) - {"column"} <= set(form.split()) or entry.part not in (None, *PARTS):
            raise UserError(
                f"{path}: key {key}, {given}: give a column, {ENTRY_EXAMPLES[key]}, or "
                f'{{column: NAME, part: hour, format: "%d.%m.%Y"}}; parts are {", ".join(PARTS)}'
            )
        if entry.transform not in (None, *TRANSFORMS):
            raise UserError(f"{path}: key {key}, {given}: transforms are {', '.join(TRANSFORMS)}")
        column = name_of(entry.column)
        features: tuple[str, ...] = (column,)
        if entry.part is not None:
            features = (f"{column}_{entry.part}",)
            _check_format(path, key, entry.format)
            parts.append(DatePart(features[0], column, cast(Part, entry.part), entry.format))
        elif entry.vector is not None:
            vectors.append(Vector(column, entry.vector, entry.separator or ""))
            features = vectors[-1].features
        elif entry.separator is not None:
            separators.append((column, entry.separator))
        names[key] += features
        # The numbers of a vector are scaled already.
        transform = entry.transform or ("raw" if entry.vector else None)
        transforms += [(feature, transform) for feature in features if transform]
    for name in names["sparse"]:
        if set(name) & set("./\\\0") or not name:
            raise UserError(f"{path}: sparse column {name!r}: names files and tables; rename it without . / and \\")
    features_of = {key: tuple(columns) for key, columns in names.items()}
    lists: dict[str, list[Any]] = {
        "separators": separators,
        "parts": parts,
        "vectors": vectors,
        "transforms": transforms,
    }
    return features_of | {key: tuple(values) for key, values in lists.items()}


def _check_format(path: Path, key: str, form: str | None) -> None:
    """Raise UserError for an invalid format of times; None: ISO 8601."""
    if form is not None and (fault := fault_of_format(form)) is not None:
        raise UserError(f"{path}: key {key}, format {form}: {fault}")


def _column_name(path: Path, names: Sequence[str], are_own: bool, column: str | int) -> str:
    """Return the name of a column that the schema gives by name or position; refuse a position beyond the last.

    names: all columns of a file. are_own: whether the names come from the file, not from positions.
    """
    if isinstance(column, int):
        if column >= len(names):
            raise UserError(f"{path}: column {column}: the file has {len(names)} columns, counted from 0")
        if are_own and str(column) in names and names[column] != str(column):
            raise UserError(
                f"{path}: column {column}: is a position ({names[column]}) and the name of another column; write "
                f'{names[column]!r}, or "{column}" in quotes for the name (of a label {{column: "{column}", …}})'
            )
        return names[column]
    if are_own:
        return column
    raise UserError(f"{path}: {column!r} is not a column; of these files columns are positions from 0")


TEXT_KINDS = ("text", "any")  # kinds of columns that hold text; columns of text and JSON files have kind any
TEXT_KEYS = ("delimiter", "header", "decimal", "thousands", "missing", "quoting", "escape", "charset")
DELIMITERS = (";", "\t", "|", ",")


def schema_path(name: str) -> Path:
    """Return the path of a schema given by its path or by the name of a built-in one."""
    directories = directories_of_values(Path(__file__).parents[1] / "conf")
    built_in = (path / group / f"{name}.yaml" for path in directories for group in ("tables", "events"))
    return Path(name) if Path(name).exists() else next((path for path in built_in if path.exists()), Path(name))


def load_table(path: Path, sources: tuple[Source, ...], text: str | None = None) -> Table:
    """Read a table's YAML file and check it against the files' columns.

    text: the YAML, of which `path` is only a name in errors; None: read the file.
    """
    document, given = _read_yaml(path, text)
    form = common_format(sources)
    for key in () if form.has_layout else TEXT_KEYS:
        if key in given:
            fault = f"has no effect, as {sources[0].path} is a {form.name} file"
            raise UserError(f"{path}: key {key}: {fault}; leave it out")
    dialect = _parse_dialect(path, document, sources[0])
    columns = read_columns(form, sources, FileLayout((), document.delimiter, document.header, dialect=dialect))
    names = tuple(name for name, _ in columns[0])
    layout: dict[str, Any] = {
        "delimiter": document.delimiter,
        "header": document.header,
        "names": names,
        "format": form.name,
    }
    label, rule_text, kind, positive = _parse_label(path, document.label, names)
    name_of = partial(_column_name, path, names, document.header)
    fields = _parse_fields(path, document, name_of(label), name_of)
    fields |= {"rule": rule_text, "label_kind": kind, "positive": positive}
    table = Table(**layout, **dialect._asdict(), **fields)
    rule = _check_rule(path, table)
    # With columns by position, a first row that serves as names may be a row of values.
    if form.has_layout and document.header and isinstance(label, int):
        is_label = not math.isnan(number_of(table.label, table)) or table.label in table.positive
        is_label = is_label or (rule is not None and table.label == rule.value)
        if is_label and table.names != tuple(map(str, range(len(table.names)))):
            raise UserError(
                f"{sources[0].path}: row 1: {table.label!r} is a label, not a column's name; if the file has no names, "
                f"write header: false in {path}, else rename the column"
            )
    kinds = _common_kinds(path, form, table, sources, columns)
    return _check_kinds(path, sources[0], table, kinds)


def drop_empty_files(sources: list[Source]) -> list[Source]:
    """Leave out files without rows, as Spark writes some, unless all are empty."""
    filled = [source for source in sources if format_of(source).num_rows(source) != 0]
    if not filled or len(filled) == len(sources):
        return sources
    names = ", ".join(source.name for source in sources if source not in filled)
    print(f"skipped {len(sources) - len(filled)} files without rows: {names}", file=sys.stderr)
    return filled


def common_format(sources: Sequence[Source]) -> Format:
    """Return the format of some files. Raise UserError if they have several."""
    forms = {form.name: form for form in map(format_of, sources)}
    if len(forms) > 1:
        keys = " and ".join(dict.fromkeys(source.key for source in sources))
        raise UserError(f"{' and '.join(sorted(forms))} files together in {keys}; give files of one kind")
    return next(iter(forms.values()))


def read_columns(form: Format, sources: Sequence[Source], layout: FileLayout) -> list[list[Column]]:
    """Return each file's columns; JSON rows may lack some, so these are joined over all files of a split."""
    columns = [form.columns(source, layout) for source in sources]
    if not form.merges_columns:
        return columns
    kinds_of: dict[str | None, dict[str, str]] = {}
    for source, source_columns in zip(sources, columns, strict=True):
        kinds = kinds_of.setdefault(source.split, {})
        for name, kind in source_columns:
            # One file with lists makes it a column of lists.
            kinds[name] = kind if kind == "list" else kinds.get(name, kind)
    return [[Column(name, kind) for name, kind in kinds_of[source.split].items()] for source in sources]


def _common_kinds(
    path: Path, form: Format, table: Table, sources: Sequence[Source], columns: Sequence[Sequence[Column]]
) -> dict[str, str]:
    """Return the kind of each column over all files; refuse files that lack a used column or have other types.

    columns: of each file, as its format reports them.
    """
    kinds = {column.name: column.kind for column in columns[0]}
    row = "row 1: " if form.has_layout and table.header else ""
    for source, source_columns in zip(sources, columns, strict=True):
        names = [column.name for column in source_columns]
        location = f"{source.path}: {row}"
        for name in table.named_columns:
            if name not in names:
                text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in ", ".join(names))
                shown = text if len(text) <= 200 else f"{text[:200]}…"
                remedy = f"correct one of them{_suggest_hint(form, names, table.header)}"
                raise UserError(f"{location}no column {name}, which {path} names; it has {shown}; {remedy}")
            if names.count(name) > 1:
                raise UserError(f"{location}two columns {name}; rename one of them")
        if row and source_columns != columns[0]:
            raise UserError(f"{source.path}: row 1: other columns than in {sources[0].path}; give like files")
        for name, kind in source_columns:
            expected = kinds.get(name, kind)
            # Gaps turn integers into numbers, a column without values has kind null, and in JSON lines a file of val
            # may have no list.
            wider = {("integer", "number"): "number", ("list", NUMBER_LIST): NUMBER_LIST}
            if expected == "null":
                kinds[name] = kind
            elif expected == kind or kind == "null" or (expected, kind) == ("list", "any"):
                kinds[name] = expected
            elif (pair := (min(expected, kind), max(expected, kind))) in wider:
                kinds[name] = wider[pair]
            elif name in table.named_columns:
                fault = f"{kind}, but {expected} in {sources[0].path}"
                raise UserError(f"{source.path}, column {name}: {fault}; write both files with one type")
        if form.num_rows(source) == 0:
            raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
    return kinds


def _suggest_hint(form: Format, names: Sequence[str], header: bool) -> str:
    """Return a hint for the error that a file with these columns lacks one, such as another delimiter; "" without."""
    if form.merges_columns:
        return ", or put a row that has it among the first of a file"
    delimiters = [delimiter for delimiter in DELIMITERS if len(names) == 1 and delimiter in names[0]]
    if form.has_layout and delimiters:
        return f", or write delimiter: {json.dumps(delimiters[0])} in the schema"
    if form.has_layout and header and all(re.fullmatch(r"[-+]?[\d.]+", name) for name in names):
        return ", or if the file has no names, write header: false and name columns by positions, from 0"
    return ""


def _check_kinds(path: Path, source: Source, table: Table, kinds: dict[str, str]) -> Table:
    """Refuse columns whose kind does not allow their use; return the table with "" as separator of columns of lists.

    kinds: of all columns, by name.
    """
    derived = {part.feature for part in table.parts}
    derived |= {feature for vector in table.vectors for feature in vector.features}
    for name in (*table.targets, *table.dense):
        allowed = ("integer", "number", "any", "null", *(["text"] if name == table.label else []))
        if name not in derived and kinds[name] not in allowed:
            raise UserError(f"{source.path}, column {name}: {kinds[name]}, not numbers; {_suggest_remedy(name, kinds)}")
    for part in table.parts:
        part_kinds = ("time", *TEXT_KINDS) if part.format is None else ("integer", "number", *TEXT_KINDS)
        if kinds[part.column] not in part_kinds:
            raise UserError(
                f"{source.path}, column {part.column}: {kinds[part.column]}, but {path} has "
                f"{'no format' if part.format is None else f'format {part.format}'} for it; "
                f"{'leave it out' if kinds[part.column] == 'time' else f'numbers need one, e.g. format: {EPOCH}'}"
            )
    for vector in table.vectors:
        kind = kinds[vector.column]
        if kind not in (TEXT_KINDS if vector.separator else ("list", NUMBER_LIST, "null")):
            entry = f'{{column: {vector.column}, vector: {vector.size}, separator: " "}}'
            fault = f"{kind}, not {'text' if vector.separator else 'lists of numbers'}"
            remedy = f"lists have no separator, and text needs one, e.g. {entry}"
            raise UserError(f"{source.path}, column {vector.column}: {fault}; {remedy}")
    plain = [name for name in table.sparse if name not in derived]
    separators = {name: _find_separator(path, source, table, name, kinds) for name in plain}
    ordered = tuple((name, separator) for name, separator in separators.items() if separator is not None)
    return replace(table, separators=ordered)


def _suggest_remedy(name: str, kinds: dict[str, str]) -> str:
    """Suggest what to do about a typed column whose type is not supported."""
    if kinds[name] in ("list", NUMBER_LIST):
        return f"write {{column: {name}, vector: 64}} in dense, with the length of the lists, or convert the column"
    return f"use a part of it: {{column: {name}, part: weekday}}" if kinds[name] == "time" else "convert the column"


def _find_separator(path: Path, source: Source, table: Table, name: str, kinds: dict[str, str]) -> str | None:
    """Return the separator of a sparse column's values, "" for a column of lists; None for single values."""
    separator, kind = dict(table.separators).get(name), kinds[name]
    if kind == "list":
        if separator is not None:
            raise UserError(f"{path}: column {name}: holds lists in {source.path}; leave the separator out")
        return ""
    if kind not in ("integer", "number", "null", *TEXT_KINDS):
        fault = f"{kind}; categories are text, integers or lists of these"
        raise UserError(f"{source.path}, column {name}: {fault}; {_suggest_remedy(name, kinds)}")
    if separator is not None and kind not in ("null", *TEXT_KINDS):
        raise UserError(f"{source.path}, column {name}: {kind}, which no separator divides")
    return separator


def _read_yaml(path: Path, text: str | None) -> tuple[Document, Collection[str]]:
    """Read a YAML file, or its `text` if given; return it, and the keys that it has."""
    try:
        # All keys become texts, and so do dates, which may name columns.
        document = yaml.safe_load(path.read_text(encoding="utf-8") if text is None else text)
        content = json.loads(json.dumps(document, default=str))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{path}: {str(error.strerror).lower()}; name the YAML file in data.schema") from error
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not readable as YAML ({reason}); see docs/inspect.md") from error
    keys = Document.__struct_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in keys:
            close = difflib.get_close_matches(key, [*keys, "separator"], n=1)
            remedy = f"did you mean {close[0]}?" if close else f"leave it out; known are {', '.join(sorted(keys))}"
            if close == ["separator"]:
                remedy = "the file's is delimiter, and a column's separator stands in {column: NAME, separator: \"|\"}"
            raise UserError(f"{path}: key {key} is not known; {remedy}")
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a mapping; write one `key: value` a line, of which label and sparse are needed")
    try:
        return convert(content, Document), content
    except ValueError as error:
        fault, key = str(error).replace(UNKNOWN, "is not known"), re.match(r"key '(\w+)", str(error))
        form = DOCUMENT_FORMS.get(key[1]) if key else None
        # The names of JSON's types are no words of YAML.
        remedy = f"give {form}; columns are names, or positions from 0" if form else "see docs/inspect.md"
        raise UserError(f"{path}: {fault.partition(': expected')[0] if form else fault}; {remedy}") from error


def _parse_dialect(path: Path, document: Document, source: Source) -> Dialect:
    """Return the dialect of text files; source: a file, for the command that converts it."""
    escape = document.escape
    if escape and (escape not in string.punctuation or escape in ('"', document.delimiter)):
        raise UserError(
            f'{path}: key escape: give one punctuation mark other than quote and delimiter, e.g. escape: "\\"'
        )
    if (known := charset_named(document.charset)) is None:
        command = copy_command(f"iconv -f {document.charset} -t UTF-8", source.path)
        raise UserError(
            f"{path}: key charset: {document.charset} is unknown to Python, or writes delimiters and line ends in "
            f"other bytes than ASCII; leave it out and convert the file: {command}"
        )
    return Dialect(document.quoting, escape, known)


def _parse_fields(path: Path, document: Document, label: str, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return the fields of a table that a document describes, except its layout, its dialect and the label's rule."""
    fields = _parse_features(path, document, name_of) | {"label": label}
    if document.weight is not None:
        fields["weight"] = name_of(document.weight)
    table_columns = (label, *([fields["weight"]] if "weight" in fields else []), *fields["dense"], *fields["sparse"])
    if twice := [name for name, count in Counter(table_columns).items() if count > 1]:
        raise UserError(f"{path}: column {twice[0]} is named twice; a column has one use")
    if document.decimal == document.thousands:
        raise UserError(f'{path}: keys decimal and thousands: give two characters, e.g. decimal: ","')
    if (time := document.time) is not None:
        time = time if isinstance(time, TimeEntry) else TimeEntry(time)
        _check_format(path, "time", time.format)
        fields["time"] = TimeColumn(name_of(time.column), time.format)
    marks = {"decimal": document.decimal, "thousands": document.thousands, "missing": tuple(document.missing or ())}
    return fields | marks


def _parse_label(path: Path, label: Any, names: Sequence[str]) -> tuple[Any, str | None, LabelKind, tuple[str, ...]]:
    """Parse a label to its column (name or position), rule, kind and positive values; the last may be none.

    Forms are COLUMN, "COLUMN >= 4", {column: COLUMN, rule: ">= 4"}, {…, kind: number} and {…, positive: [VALUE, …]}.
    """
    if isinstance(label, str) and label not in names:
        if match := COLUMN_AND_RULE.fullmatch(label.strip()):
            return (int(match[1]) if match[1].isdecimal() else match[1]), match[2], LabelKind.click, ()
        if re.search("[=<>]", label):
            column, _, value = re.split("([=<>!]+)", label, maxsplit=1)
            raise UserError(
                f"{path}: key label: {label}: not a rule, as in {column.strip()} == {value.strip()}; operators are "
                f"{', '.join(COMPARISONS)}"
            )
    if not isinstance(label, LabelEntry):
        return label, None, LabelKind.click, ()
    if [label.rule is not None, label.positive is not None, label.kind is LabelKind.number].count(True) > 1:
        raise UserError(f"{path}: key label: rule, positive and kind: number exclude each other; leave one of them")
    return label.column, label.rule, label.kind, tuple(dict.fromkeys(label.positive or ()))


def _check_rule(path: Path, table: Table) -> LabelRule | None:
    """Return the table's rule, if it has one; refuse it without a value, or with a value that no field can have."""
    if table.rule is None:
        return None
    try:
        rule = parse_rule(table.rule)
    except ValueError as error:
        raise UserError(f"{path}: key label: {error}; see docs/inspect.md") from error
    is_number = not rule.is_quoted and not math.isnan(number_of(rule.value, table))
    if not rule.is_quoted and not is_number and re.fullmatch(NUMBER, rule.value):
        fault = f"{rule.value} is no number by decimal: {json.dumps(table.decimal)}"
        fault += f" and thousands: {json.dumps(table.thousands)}" if table.thousands else ""
        raise UserError(f"{path}: key label: {fault}; write it as the file does, or in quotes to compare texts")
    if not rule.is_equality and (not is_number or rule.value.lower() in TRUTHS):
        raise UserError(f"{path}: key label: {table.rule}: {rule.operator} needs a number; texts take == and !=")
    return rule
