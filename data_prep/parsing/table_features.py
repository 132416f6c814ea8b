"""Reader of a schema's features: the entries of the keys dense and sparse."""

import difflib
from pathlib import Path
from typing import Any, NamedTuple, get_args

from common.errors import UserError
from data_prep.dataset.table_spec import DatePart, Transform, Vector
from data_prep.parsing.dates import PARTS, fault_of_format

# Keys of an entry of dense or sparse.
ENTRY_KEYS = ("column", "part", "format", "separator", "transform", "vector")
TRANSFORMS = get_args(Transform)
MAX_VECTOR = 1 << 14


class Names(NamedTuple):
    """The columns of a file, and whether the names come from the file, not from positions."""

    all: tuple[str, ...]
    are_own: bool


def features_of(path: Path, dense: list[Any], sparse: list[Any], names: Names) -> dict[str, Any]:
    """Return the fields of a table that the entries of dense and sparse describe."""
    parts: list[DatePart] = []
    vectors: list[Vector] = []
    transforms: list[tuple[str, str]] = []
    dense_names: list[str] = []
    for entry in dense:
        dense_names += _dense_features(path, entry, names, parts, vectors, transforms)
    sparse_names, separators = [], []
    for entry in sparse:
        if isinstance(entry, dict) and "separator" in entry:
            column, separator = _separated(path, entry)
            sparse_names.append(name_of(path, column, names))
            separators.append((sparse_names[-1], separator))
        else:
            sparse_names.append(_feature(path, "sparse", entry, names, parts))
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


def _dense_features(
    path: Path,
    entry: Any,
    names: Names,
    parts: list[DatePart],
    vectors: list[Vector],
    transforms: list[tuple[str, str]],
) -> list[str]:
    """Return the features of an entry of dense, and add its part, vector and transform to the lists."""
    if not isinstance(entry, dict) or not {"transform", "vector"} & set(entry):
        return [_feature(path, "dense", entry, names, parts)]
    transform = entry.get("transform", "raw")  # the numbers of a vector are scaled already
    if transform not in TRANSFORMS:
        raise UserError(f"{path}: key dense, {entry}: transforms are {', '.join(TRANSFORMS)}")
    rest = {key: value for key, value in entry.items() if key != "transform"}
    if "vector" in rest:
        vectors.append(_vector(path, rest, names))
        features = list(vectors[-1].features)
    else:
        features = [_feature(path, "dense", rest["column"] if set(rest) == {"column"} else rest, names, parts)]
    transforms += [(feature, transform) for feature in features]
    return features


def _vector(path: Path, entry: dict[str, Any], names: Names) -> Vector:
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
    return Vector(name_of(path, entry["column"], names), size, separator)


def _separated(path: Path, entry: dict[str, Any]) -> tuple[Any, str]:
    """Parse {column: COLUMN, separator: "|"} to column and separator."""
    separator = entry["separator"]
    if set(entry) != {"column", "separator"} or not isinstance(separator, str) or not separator:
        raise UserError(f'{path}: key sparse, {entry}: give a column, or {{column: NAME, separator: "|"}}')
    return entry["column"], separator


def _feature(path: Path, key: str, entry: Any, names: Names, parts: list[DatePart]) -> str:
    """Return the feature of COLUMN or {column: COLUMN, part: hour}; the latter is added to `parts`."""
    if not isinstance(entry, dict):
        return name_of(path, entry, names)
    words = {str(name): ENTRY_KEYS for name in entry} | {str(entry.get("part", "day")): tuple(PARTS)}
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
    column = name_of(path, entry["column"], names)
    if form is not None and (fault := fault_of_format(form)) is not None:
        raise UserError(f"{path}: key {key}, format {form}: {fault}")
    parts.append(DatePart(f"{column}_{part}", column, part, form))
    return parts[-1].feature


def name_of(path: Path, column: Any, names: Names) -> str:
    """Return a column's name, given by name or position."""
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
