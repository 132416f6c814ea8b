"""Candidates for scoring, from the files people have: every form becomes columns of text, as in a raw file."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError
from data_prep.encoding.encoder import read_text_rows

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
OTHER_DELIMITERS = (",", "\t", ";", "|")  # tried where a name's own gives no column that the model knows
SUFFIXES = (*DELIMITERS, ".parquet", ".jsonl", ".ndjson", ".json")


class Candidates(NamedTuple):
    """Rows by column: `columns` maps a name to its text in every row; `first_row` is the first one's in the file.

    absent: of columns that some rows (of JSON) do not have, the indices of these rows, where the text is empty.
    """

    columns: dict[str, list[str]]
    rows: int
    first_row: int
    absent: Mapping[str, Sequence[int]] = {}


def read_candidates(
    path: Path,
    raw_columns: Sequence[str],
    label: str,
    separators: Mapping[str, str] | None = None,
    needed: Collection[str] | None = None,
) -> Candidates:
    """Read a file by the ending of its name.

    .tsv, .txt and .csv have a first row of names, or else all columns in the order of a raw file, with the label
    or without it, and may be compressed by gzip (NAME.csv.gz); .jsonl has one object a line; .json has a list of
    objects, or an object {"user": {...}, "candidates": [{...}, ...]} where the user's columns are added to each
    candidate.

    Args:
        raw_columns: names of the columns of a raw file, in its order; label: which of them is the label.
        separators: by multi-valued column, the separator that joins the values of a list (Parquet, JSON).
        needed: columns whose values are read; those of others may be of any kind, and are left out; None: all.

    Raises:
        UserError: not readable, of no known form, or without rows (file, row, remedy).
    """
    suffix = Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: unknown kind of file; give one whose name ends in {', '.join(SUFFIXES)}")
    try:
        if suffix in DELIMITERS:
            found = _read_text(path, DELIMITERS[suffix], raw_columns, label, needed)
        elif path.suffix.lower() == ".gz":
            raise UserError(f"{path}: only TSV and CSV are read compressed; unpack it: gunzip {shlex.quote(str(path))}")
        elif suffix == ".parquet":
            found = _read_parquet(path, separators or {}, needed)
        else:
            objects = _read_json(path) if suffix == ".json" else _read_json_lines(path)
            found = _from_objects(path, objects, separators or {}, needed)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; convert it") from error
    if not found.rows:
        raise UserError(f"{path}: no rows; give at least one candidate")
    return found


def with_user(candidates: Candidates, user: Candidates, path: Path) -> Candidates:
    """The candidates with the columns of one user's row that they lack, each by itself.

    Raises:
        UserError: not one row.
    """
    if user.rows != 1:
        raise UserError(f"{path}: {user.rows} rows; the user is one row")
    columns = {name: text * candidates.rows for name, text in user.columns.items()} | candidates.columns
    for name, rows in candidates.absent.items():
        if name in user.columns:
            columns[name] = list(columns[name])
            for row in rows:
                columns[name][row] = user.columns[name][0]
    return candidates._replace(columns=columns)


def ignored_columns(candidates: Candidates, path: Path, wanted: Sequence[str], spare: Sequence[str]) -> list[str]:
    """The columns that nobody reads, when all that are wanted are there.

    Raises:
        UserError: names the first wanted column that is not there.
    """
    for name in wanted:
        if name not in candidates.columns:
            raise UserError(f"{path}: no column {name}; the model reads {', '.join(wanted)}")
    return [name for name in candidates.columns if name not in wanted and name not in spare]


def _read_text(
    path: Path, delimiter: str, raw_columns: Sequence[str], label: str, needed: Collection[str] | None
) -> Candidates:
    for tried in (delimiter, *OTHER_DELIMITERS):
        rows, numbers = read_text_rows(path, tried)
        named = bool(rows) and any(field in raw_columns for field in rows[0])
        if named or (rows and len(rows[0]) in (len(raw_columns), len(raw_columns) - 1)):
            break
    else:
        rows, numbers = read_text_rows(path, delimiter)
    if named:
        names: Sequence[str] = rows[0]
        _require_distinct(f"{path}: row 1", names, needed)
    else:
        names = raw_columns
        if rows and len(rows[0]) == len(raw_columns) - 1:
            names = [name for name in raw_columns if name != label]
    body, numbers = (rows[1:], numbers[1:]) if named else (rows, numbers)
    for row, fields in zip(numbers, body, strict=True):
        if len(fields) != len(names):
            raise UserError(f"{path}: row {row}: {len(fields)} columns, but a row has {len(names)}; correct the row")
    columns = {name: [fields[i] for fields in body] for i, name in enumerate(names)}
    return Candidates(columns, len(body), numbers[0] if body else 1)


def _require_distinct(where: str, names: Sequence[str], needed: Collection[str] | None) -> None:
    for name in names:
        if names.count(name) > 1 and (needed is None or name in needed):
            raise UserError(f"{where}: a column is named twice, {name}; rename one")


def _read_parquet(path: Path, separators: Mapping[str, str], needed: Collection[str] | None) -> Candidates:
    try:
        import pyarrow.parquet  # not at the top: of the many that score, few score Parquet
    except ImportError as error:
        raise UserError(f"{path}: Parquet needs pyarrow; install it, or give CSV") from error
    try:
        if path.is_dir():
            table = pyarrow.parquet.read_table(path)
        else:
            with pyarrow.parquet.ParquetFile(path) as file:  # unlike read_table it takes two columns of one name
                table = file.read()
    except (pyarrow.ArrowException, ValueError) as error:
        raise UserError(f"{path}: not readable as Parquet ({error})") from error
    _require_distinct(str(path), table.column_names, needed)
    columns = {name: [""] * table.num_rows for name in table.column_names}
    for name, values in zip(table.column_names, table.columns, strict=True):
        if needed is None or name in needed:
            texts = enumerate(values.to_pylist(), start=1)
            columns[name] = [_to_text(value, path, row, name, separators) for row, value in texts]
    return Candidates(columns, table.num_rows, 1)


def _read_json(path: Path) -> dict[int, Any]:
    """The objects of a document, by their number from 1."""
    try:
        document = json.loads(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); JSON lines want the ending .jsonl") from error
    if isinstance(document, dict) and document.keys() == {"user", "candidates"}:
        user, candidates = document["user"], document["candidates"]
        if isinstance(user, dict) and isinstance(candidates, list) and all(isinstance(c, dict) for c in candidates):
            return dict(enumerate((user | candidate for candidate in candidates), start=1))
    if not isinstance(document, list):
        raise UserError(f'{path}: give a list of objects, or {{"user": {{...}}, "candidates": [{{...}}, ...]}}')
    return dict(enumerate(document, start=1))


def _read_json_lines(path: Path) -> dict[int, Any]:
    """The objects of a file, by their line; empty lines are passed over, and only line feeds end one (RFC 8259)."""
    objects = {}
    for row, line in enumerate(path.read_text("utf-8-sig").split("\n"), start=1):
        if not line.strip(" \t\r"):
            continue
        try:
            objects[row] = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: row {row}: not JSON ({error}); give one object a line") from error
    return objects


def _from_objects(
    path: Path, objects: Mapping[int, Any], separators: Mapping[str, str], needed: Collection[str] | None
) -> Candidates:
    for row, item in objects.items():
        if not isinstance(item, dict):
            raise UserError(f"{path}: row {row}: not an object of columns")
    columns = {name: [""] * len(objects) for item in objects.values() for name in item}
    for name in columns:
        if needed is None or name in needed:
            columns[name] = [_to_text(item.get(name), path, row, name, separators) for row, item in objects.items()]
    absent = {name: [index for index, item in enumerate(objects.values()) if name not in item] for name in columns}
    return Candidates(
        columns, len(objects), next(iter(objects), 1), {name: rows for name, rows in absent.items() if rows}
    )


def _to_text(value: Any, path: Path, row: int, column: str, separators: Mapping[str, str]) -> str:
    """Format a value as in a raw file."""
    if isinstance(value, list) and column in separators:
        return separators[column].join(_to_text(item, path, row, column, {}) for item in value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a table with gaps has its integers as 3.0
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    raise UserError(f"{path}: row {row}, column {column}: {type(value).__name__} is neither text nor a number")


def row_names(candidates: Candidates, id_column: str) -> list[str]:
    """Names of the candidates: their ids, or their numbers from 1."""
    return candidates.columns.get(id_column) or [str(row) for row in range(1, candidates.rows + 1)]
