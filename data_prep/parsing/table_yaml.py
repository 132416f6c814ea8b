"""The YAML file that describes a user's table: label, features, splits."""

import difflib
import json
import math
import re
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from msgspec.structs import replace

from common.errors import UserError
from common.extensions import directories_of_values
from data_prep.codec.dates import EPOCH, PARTS, fault_of_format, number_of
from data_prep.codec.values import STANDARD, TRUTHS, Dialect, charset_named
from data_prep.dataset.options import (
    COLUMN_AND_RULE,
    COMPARISONS,
    NUMBER,
    DatePart,
    LabelKind,
    LabelRule,
    Table,
    TimeColumn,
    Transform,
    Vector,
    parse_rule,
)
from data_prep.parsing.formats import NUMBER_LIST, Column, FileLayout, Format, format_of
from data_prep.sources.discover import Source, copy_command

TRANSFORMS = get_args(Transform)
MAX_VECTOR = 1 << 14  # numbers of a vector, each of which is a dense feature


class Names(NamedTuple):
    """The columns of a file, and whether the names come from the file, not from positions."""

    all: tuple[str, ...]
    are_own: bool


def _parse_features(path: Path, dense: list[Any], sparse: list[Any], names: Names) -> dict[str, Any]:
    """Return the fields of a table that the entries of dense and sparse describe; refuse invalid entries.

    path: the YAML file, for errors, here and below.
    """
    parts: list[DatePart] = []
    vectors: list[Vector] = []
    transforms: list[tuple[str, str]] = []
    dense_names: list[str] = []
    for entry in dense:
        if not isinstance(entry, dict) or not {"transform", "vector"} & set(entry):
            dense_names.append(_parse_feature(path, "dense", entry, names, parts))
            continue
        transform = entry.get("transform", "raw")  # the numbers of a vector are scaled already
        if transform not in TRANSFORMS:
            raise UserError(f"{path}: key dense, {entry}: transforms are {', '.join(TRANSFORMS)}")
        rest = {key: value for key, value in entry.items() if key != "transform"}
        if "vector" in rest:
            vectors.append(_parse_vector(path, rest, names))
            features = list(vectors[-1].features)
        else:
            column = rest["column"] if set(rest) == {"column"} else rest
            features = [_parse_feature(path, "dense", column, names, parts)]
        dense_names += features
        transforms += [(feature, transform) for feature in features]
    sparse_names, separators = [], []
    for entry in sparse:
        if isinstance(entry, dict) and "separator" in entry:
            separator = entry["separator"]
            if set(entry) != {"column", "separator"} or not isinstance(separator, str) or not separator:
                raise UserError(f'{path}: key sparse, {entry}: give a column, or {{column: NAME, separator: "|"}}')
            sparse_names.append(_column_name(path, entry["column"], names))
            separators.append((sparse_names[-1], separator))
        else:
            sparse_names.append(_parse_feature(path, "sparse", entry, names, parts))
    for name in sparse_names:
        if set(name) & set("./\\\0") or not name:
            raise UserError(f"{path}: sparse column {name!r}: names files and tables; rename it without . / and \\")
    return {
        "dense": tuple(dense_names),
        "sparse": tuple(sparse_names),
        "separators": tuple(separators),
        "parts": tuple(parts),
        "vectors": tuple(vectors),
        "transforms": tuple(transforms),
    }


def _parse_vector(path: Path, entry: dict[str, Any], names: Names) -> Vector:
    """Parse {column: COLUMN, vector: 64} or {column: COLUMN, vector: 64, separator: " "}."""
    size, separator = entry["vector"], entry.get("separator", "")
    if (
        not {"column", "vector"} <= set(entry) <= {"column", "vector", "separator"}
        or isinstance(size, bool)
        or not isinstance(size, int)
        or not 1 <= size <= MAX_VECTOR
        or not isinstance(separator, str)
        or ("separator" in entry and not separator)
    ):
        raise UserError(
            f"{path}: key dense, {entry}: give a vector as {{column: NAME, vector: 64}}, of at most {MAX_VECTOR} "
            'numbers; text also needs a separator, as in {column: NAME, vector: 64, separator: " "}'
        )
    return Vector(_column_name(path, entry["column"], names), size, separator)


def _check_format(path: Path, key: str, form: str | None) -> None:
    """Raise UserError for an invalid format of times; None: ISO 8601."""
    if form is not None and (fault := fault_of_format(form)) is not None:
        raise UserError(f"{path}: key {key}, format {form}: {fault}")


def _parse_feature(path: Path, key: str, entry: Any, names: Names, parts: list[DatePart]) -> str:
    """Return the feature of COLUMN or {column: COLUMN, part: hour}; the latter is added to `parts`."""
    if not isinstance(entry, dict):
        return _column_name(path, entry, names)
    entry_keys = ("column", "part", "format", "separator", "transform", "vector")
    words = {str(name): entry_keys for name in entry} | {str(entry.get("part", "day")): tuple(PARTS)}
    for word, known in words.items():
        if word not in known and (close := difflib.get_close_matches(word, known, n=1)):
            raise UserError(f"{path}: key {key}, {entry}: {word} is not known; did you mean {close[0]}?")
    part, form = entry.get("part"), entry.get("format")
    is_known = {"column", "part"} <= set(entry) <= {"column", "part", "format"}
    if not is_known or part not in PARTS or not isinstance(form, str | None):
        others = '{column: NAME, separator: "|"}' if key == "sparse" else "{column: NAME, transform: log1p}"
        raise UserError(
            f"{path}: key {key}, {entry}: give a column, {others}, or "
            f'{{column: NAME, part: hour, format: "%d.%m.%Y"}}; parts are {", ".join(PARTS)}'
        )
    column = _column_name(path, entry["column"], names)
    _check_format(path, key, form)
    parts.append(DatePart(f"{column}_{part}", column, part, form))
    return parts[-1].feature


def _column_name(path: Path, column: Any, names: Names) -> str:
    """Return the name of a column that the schema gives by name or position; refuse a position beyond the last."""
    if isinstance(column, int) and not isinstance(column, bool) and column >= 0:
        if column >= len(names.all):
            raise UserError(f"{path}: column {column}: the file has {len(names.all)} columns, counted from 0")
        if names.are_own and str(column) in names.all and names.all[column] != str(column):
            raise UserError(
                f"{path}: column {column}: is a position ({names.all[column]}) and the name of another column; write "
                f'{names.all[column]!r}, or "{column}" in quotes for the name (of a label {{column: "{column}", …}})'
            )
        return names.all[column]
    if names.are_own and isinstance(column, str):
        return column
    kind = "names, or positions from 0" if names.are_own else "positions from 0"
    raise UserError(f"{path}: {column!r} is not a column; of these files columns are {kind}")


TEXT_KINDS = ("text", "any")  # kinds of columns that hold text; columns of text and JSON files have kind any
TEXT_KEYS = ("delimiter", "header", "decimal", "thousands", "missing", "quoting", "escape", "charset")
KEYS = {*TEXT_KEYS, "label", "dense", "sparse", "time", "weight"}
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
    document = _read_yaml(path, text)
    form = common_format(sources)
    for key in () if form.has_layout else TEXT_KEYS:
        if key in document:
            fault = f"has no effect, as {sources[0].path} is a {form.name} file"
            raise UserError(f"{path}: key {key}: {fault}; leave it out")
    header, delimiter = document.get("header", True), document.get("delimiter", ",")
    if not isinstance(header, bool) or not isinstance(delimiter, str) or len(delimiter) != 1:
        raise UserError(f"{path}: keys header and delimiter: give true or false, and one character")
    dialect = _parse_dialect(path, document, delimiter, sources[0])
    columns = read_columns(form, sources, FileLayout((), delimiter, header, dialect=dialect))
    names = Names(tuple(column.name for column in columns[0]), header)
    layout = {"delimiter": delimiter, "header": header, "names": names.all, "format": form.name, **dialect._asdict()}
    table = Table(**layout, **_parse_fields(path, document, names))
    rule = _check_rule(path, table)
    # With columns by position, a first row that serves as names may be a row of values.
    if form.has_layout and header and isinstance(_parse_label(path, document["label"], names)[0], int):
        is_label = not math.isnan(number_of(table.label, table)) or table.label in table.positive
        is_label = is_label or (rule is not None and table.label == rule.value)
        if is_label and table.names != tuple(map(str, range(len(table.names)))):
            raise UserError(
                f"{sources[0].path}: row 1: {table.label!r} is a label, not a column's name; if the file has no names, "
                f"write header: false in {path}, else rename the column"
            )
    kinds = _common_kinds(path, form, table, sources, columns)
    from data_prep.parsing.labels import add_known_pair  # imports pyarrow, which Criteo's rows do not need

    return add_known_pair(path, sources, _check_kinds(path, sources[0], table, kinds))


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
        # Refuse a column of vectors that holds neither lists nor text with a separator.
        kind = kinds[vector.column]
        is_text = kind in TEXT_KINDS
        if kind not in ("list", NUMBER_LIST, "null") and not is_text:
            raise UserError(f"{source.path}, column {vector.column}: {kind}, not lists of numbers; convert the column")
        if is_text and not vector.separator:
            entry = f'{{column: {vector.column}, vector: {vector.size}, separator: " "}}'
            raise UserError(f"{path}: column {vector.column}: text; give the separator of its numbers, e.g. {entry}")
        if not is_text and vector.separator:
            raise UserError(f"{path}: column {vector.column}: holds lists in {source.path}; leave the separator out")
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


def _read_yaml(path: Path, text: str | None) -> dict[str, Any]:
    """Read a YAML file, or its `text` if given; refuse unknown and missing keys."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8") if text is None else text)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; check data.schema") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: a directory; name the YAML file in data.schema") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not readable as YAML ({reason}); see docs/inspect.md") from error
    if not isinstance(document, dict):
        raise UserError(f"{path}: not a mapping; write one `key: value` a line, of which label and sparse are needed")
    for key in map(str, document):
        if key not in KEYS:
            close = difflib.get_close_matches(key, [*KEYS, "separator"], n=1)
            remedy = f"did you mean {close[0]}?" if close else f"leave it out; known are {', '.join(sorted(KEYS))}"
            if close == ["separator"]:
                remedy = "the file's is delimiter, and a column's separator stands in {column: NAME, separator: \"|\"}"
            raise UserError(f"{path}: key {key} is not known; {remedy}")
    for key in ("label", "sparse"):
        if key not in document:
            raise UserError(f"{path}: lacks {key}; add it, as in docs/inspect.md")
    return document


def _parse_dialect(path: Path, document: dict[str, Any], delimiter: str, source: Source) -> Dialect:
    """Parse the keys quoting, escape and charset of text files.

    source: a file, for the command that converts it.
    """
    quoting, escape, charset = (document.get(key, getattr(STANDARD, key)) for key in Dialect._fields)
    if quoting not in ("csv", "none"):
        raise UserError(f"{path}: key quoting: give csv, or none for quotes that are ordinary characters")
    if not isinstance(escape, str) or (escape and (escape not in string.punctuation or escape in ('"', delimiter))):
        raise UserError(
            f'{path}: key escape: give one punctuation mark other than quote and delimiter, e.g. escape: "\\"'
        )
    if not isinstance(charset, str) or (known := charset_named(charset)) is None:
        command = copy_command(f"iconv -f {charset} -t UTF-8", source.path)
        raise UserError(
            f"{path}: key charset: {charset} is unknown to Python, or writes delimiters and line ends in other bytes "
            f"than ASCII; leave it out and convert the file: {command}"
        )
    return Dialect("none" if quoting == "none" else STANDARD.quoting, escape, known)


def _parse_fields(path: Path, document: dict[str, Any], names: Names) -> dict[str, Any]:
    """Return the fields of a table that a document describes, except its layout and dialect."""
    label, rule, kind, positive = _parse_label(path, document["label"], names)
    dense, sparse = document.get("dense") or [], document["sparse"]
    if not isinstance(dense, list) or not isinstance(sparse, list) or not sparse:
        raise UserError(f"{path}: keys dense and sparse: give lists of columns, sparse at least one")
    fields = _parse_features(path, dense, sparse, names)
    label = _column_name(path, label, names)
    if document.get("weight") is not None:
        fields["weight"] = _column_name(path, document["weight"], names)
    table_columns = (label, *([fields["weight"]] if "weight" in fields else []), *fields["dense"], *fields["sparse"])
    if len(set(table_columns)) != len(table_columns):
        twice = next(name for name in table_columns if table_columns.count(name) > 1)
        raise UserError(f"{path}: column {twice} is named twice; a column has one use")

    decimal, thousands = document.get("decimal", "."), document.get("thousands", "")
    characters = [decimal, thousands or "x"]
    if not all(isinstance(mark, str) and len(mark) == 1 and mark not in "0123456789+-" for mark in characters) or (
        decimal == thousands
    ):
        raise UserError(f'{path}: keys decimal and thousands: give one character each, e.g. decimal: ","')
    missing = document.get("missing") or []
    if not isinstance(missing, list) or not all(isinstance(mark, str) and mark for mark in missing):
        raise UserError(f'{path}: key missing: give a list of texts in quotes, e.g. ["NA", "NULL"]')

    # COLUMN or {column: COLUMN, format: epoch}.
    if (entry := document.get("time")) is not None:
        time = entry if isinstance(entry, dict) else {"column": entry}
        form = time.get("format")
        if not {"column"} <= set(time) <= {"column", "format"} or not isinstance(form, str | None):
            raise UserError(f"{path}: key time, {entry}: give a column, or {{column: NAME, format: epoch}}")
        column = _column_name(path, time["column"], names)
        _check_format(path, "time", form)
        fields["time"] = TimeColumn(column, form)
    fields |= {"decimal": decimal, "thousands": thousands, "missing": tuple(missing)}
    return {**fields, "label": label, "rule": rule, "label_kind": kind, "positive": positive}


def _parse_label(path: Path, label: Any, names: Names) -> tuple[Any, str | None, LabelKind, tuple[str, ...]]:
    """Parse a label to its column (name or position), rule, kind and positive values; the last may be none.

    Forms are COLUMN, "COLUMN >= 4", {column: COLUMN, rule: ">= 4"}, {…, kind: number} and {…, positive: [VALUE, …]}.
    """
    if isinstance(label, str) and label not in names.all:
        if match := COLUMN_AND_RULE.fullmatch(label.strip()):
            return (int(match[1]) if match[1].isdecimal() else match[1]), match[2], LabelKind.click, ()
        if re.search("[=<>]", label):
            column, _, value = re.split("([=<>!]+)", label, maxsplit=1)
            raise UserError(
                f"{path}: key label: {label}: not a rule, as in {column.strip()} == {value.strip()}; operators are "
                f"{', '.join(COMPARISONS)}"
            )
    if not isinstance(label, dict):
        return label, None, LabelKind.click, ()
    rule, kind = label.get("rule"), label.get("kind", LabelKind.click.value)
    keys = {"column", "rule", "kind", "positive"}
    if not {"column"} < set(label) <= keys or kind not in [member.value for member in LabelKind]:
        raise UserError(
            f'{path}: key label: give a column, {{column: NAME, rule: ">= 4"}}, {{column: NAME, positive: ["yes"]}} '
            "or {column: NAME, kind: number}"
        )
    if (rule is not None or "positive" in label) and kind == LabelKind.number.value:
        word = "positive" if rule is None else "a rule"
        raise UserError(
            f"{path}: key label: {word} makes labels of 0 and 1; leave out kind: number, or {word.split()[-1]}"
        )
    if rule is not None and "positive" in label:
        raise UserError(f"{path}: key label: rule and positive both say what is 1; leave one of them out")
    values = label.get("positive", ["x"])
    if not isinstance(values, list) or not values or not all(isinstance(value, str) and value for value in values):
        raise UserError(f'{path}: key label, positive: give a list of texts in quotes, e.g. ["yes", "1"]')
    positive = tuple(dict.fromkeys(values)) if "positive" in label else ()
    return label["column"], None if rule is None else str(rule), LabelKind(kind), positive


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
