"""A user's own table as docs/inspect.md describes it, in plain lines: drawn rows, their files, and what a model reads.

Each field is kept twice: as files of text hold it, and as files with types do. Both are the same row.
"""

import csv
import gzip
import hashlib
import io
import json
import math
import random
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

RAW_KINDS = ("csv", "csv.gz", "parquet", "jsonl")  # of raw files
TYPED = ("parquet", "jsonl")  # those that have types
LIST_SEPARATOR = "|"  # of lists where text stands for them, if the schema has none
EPOCH = datetime(1970, 1, 1)
WORDS = ["u1", "a b", " lead", "trail ", "é", "日本", 'say "so"', "true", "1.5", "NaN", "null", "x|y", "0", "#1", "it'"]
BOOLEANS = [("False", "True"), ("false", "true"), ("FALSE", "TRUE"), ("0", "1")]
ELEMENTS = ["a", "b c", "é", "1", "x"]
NASTY_ELEMENTS = ["a|b", "", "a", "|", "b"]  # which text joined by a separator cannot hold
INTEGERS = [0, 7, -3, 42, 123456, 10**15 + 1, 2**53 + 1]
FRACTIONS = [0.5, 1.25, -2.75, 0.1, 3.0, 1e-07]
MARKS = ("NA", "-")
PARTS = ("year", "month", "day", "weekday", "hour", "minute", "second", "date", "timestamp")
FORMS = {None: "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M": "%d.%m.%Y %H:%M", "epoch": "epoch"}
# Of these, text may have several spellings of one number, or a truth value be spelled as a number.
AMBIGUOUS = ("zeros", "mixed", "local fraction", "truths as numbers", "gapped as integers")
Fields = tuple[list[str], list[Any]]  # of a column: as text, and typed


def value_of(text: str) -> int:
    """What a category is known by: a whole number by itself, any other text by eight bytes of its BLAKE2b."""
    if re.fullmatch("0|[1-9][0-9]*", text, re.ASCII) and int(text) < 2**63:
        return int(text)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 2**63


def text_of(value: Any) -> str:
    """The text that a value of a file with types is as a category."""
    if value is None or isinstance(value, str):
        return value or ""
    return str(int(value))  # truth values, and integers that a column with gaps has as fractions


@dataclass
class Column:
    """A column: its fields as text and as typed values (None: missing), and its use.

    use: label, dense, sparse, list, date or unused; kind: of what the fields are; separator: of lists in text.
    parts: of a date, each with its use; form: of a date in text, as in the schema; arrow: its type in raw Parquet.
    """

    name: str
    use: str
    kind: str
    texts: list[str]
    values: list[Any]
    separator: str | None = None
    parts: dict[str, str] = field(default_factory=dict)
    form: str | None = None
    arrow: Any = None


@dataclass
class OwnTable:
    """Columns in the order of the file, and what the schema says of text files."""

    columns: list[Column]
    raw: str
    delimiter: str = ","
    header: bool = True
    decimal: str = "."
    thousands: str = ""
    missing: tuple[str, ...] = ()
    rule: str | None = None

    @property
    def is_typed(self) -> bool:
        return self.raw in TYPED

    @property
    def read(self) -> list[Column]:
        return [column for column in self.columns if column.use not in ("label", "unused")]

    @property
    def is_ambiguous(self) -> bool:
        return any(column.kind in AMBIGUOUS for column in self.read)

    def features(self, use: str) -> list[tuple[str, Column, str | None]]:
        """Name, column and part of a date of the dense or the sparse features, in the schema's order."""
        plain = ("dense",) if use == "dense" else ("sparse", "list")
        plain_features = [(column.name, column, None) for column in self.read if column.use in plain]
        return plain_features + [
            (f"{column.name}_{part}", column, part)
            for column in self.read
            for part, use_of_part in column.parts.items()
            if use_of_part == use
        ]

    def schema(self) -> str:
        def place(column: Column) -> Any:
            return column.name if self.header else self.columns.index(column)

        def entry(column: Column, part: str | None) -> Any:
            if part is not None:
                form = {} if column.form is None else {"format": column.form}
                return {"column": place(column), "part": part, **form}
            is_list = column.use == "list" and column.separator is not None
            return {"column": place(column), "separator": column.separator} if is_list else place(column)

        label = next(place(column) for column in self.columns if column.use == "label")
        document: dict[str, Any] = {"label": label if self.rule is None else {"column": label, "rule": self.rule}}
        for use in ("dense", "sparse"):
            document[use] = [entry(column, part) for _, column, part in self.features(use)]
        if not self.is_typed:
            document |= {"delimiter": self.delimiter, "header": self.header, "decimal": self.decimal}
            document |= {"thousands": self.thousands} if self.thousands else {}
            document |= {"missing": list(self.missing)} if self.missing else {}
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def dense_of(table: OwnTable, transform: str, fitted: list[int] | None = None) -> np.ndarray:
    """All rows' numbers after their transform, [rows, N] float32; fitted: rows that ranges are of, if not all.

    transform: float64 for the numbers as they are, in float64.
    """
    columns = [
        [0 if value is None else float(value) if part is None else part_of(value, part) for value in column.values]
        for _, column, part in table.features("dense")
    ]
    x = np.array(columns, np.float64).reshape(len(columns), -1).T
    if transform == "float64":
        return x
    if transform == "raw":
        return x.astype(np.float32)
    if transform == "minmax":
        rows = x if fitted is None else x[fitted]
        low, high = rows.min(axis=0), rows.max(axis=0)
        return ((x - low) / np.where(high > low, high - low, 1)).astype(np.float32)
    return (np.sign(x) * np.log1p(np.abs(x))).astype(np.float32)


def bags_of(table: OwnTable, feature: tuple[str, Column, str | None]) -> list[list[str]]:
    _, column, part = feature
    if part is not None:
        return [["" if value is None else str(part_of(value, part))] for value in column.values]
    if table.is_typed and column.separator is None:
        if column.use == "list":
            return [[text_of(element) for element in value or []] for value in column.values]
        return [[text_of(value)] for value in column.values]
    texts = ["" if text in table.missing else text for text in column.texts]
    if column.use == "list":
        return [[part for part in text.split(column.separator) if part] for text in texts]
    return [[text] for text in texts]


def ids_of(table: OwnTable, root: Path, max_ind_range: int | None) -> list[list[list[int]]]:
    """The ids of each sparse feature's bags, row by row; max_ind_range: of `hash`, None for a vocabulary."""
    features = []
    for feature in table.features("sparse"):
        bags = bags_of(table, feature)
        if max_ind_range is not None:
            features.append([[value_of(text) % max_ind_range for text in bag] for bag in bags])
            continue
        vocabulary = np.load(root / "vocab" / f"{feature[0]}.npy").tolist()
        places = {value: place for place, value in enumerate(vocabulary, start=1)}
        features.append([[places.get(value_of(text), 0) for text in bag] for bag in bags])
    return features


def part_of(time: datetime, part: str) -> int:
    seconds = int((time - EPOCH).total_seconds())
    return {"weekday": time.weekday(), "date": seconds // 86400, "timestamp": seconds}.get(part, getattr(time, part, 0))


def write_text(
    table: OwnTable, path: Path, rows: list[int], columns: list[Column], delimiter: str, header: bool
) -> None:
    """Rows as text, compressed where the name says so."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    if header:
        writer.writerow([column.name for column in columns])
    writer.writerows([column.texts[row] for column in columns] for row in rows)
    text = stream.getvalue().encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def objects_of(rows: list[int], columns: list[Column], as_text: bool = False) -> list[dict[str, Any]]:
    def field_of(column: Column, row: int) -> Any:
        value = column.values[row]
        return column.texts[row] if as_text or isinstance(value, datetime) else value

    return [{column.name: field_of(column, row) for column in columns} for row in rows]


def write_lines(path: Path, objects: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects), encoding="utf-8")


def write_parquet(path: Path, rows: list[int], columns: list[Column], as_text: bool = False, raw: bool = False) -> None:
    """Rows as Parquet; raw: in several row groups, with the columns' own types."""
    arrays = {}
    for column in columns:
        fields: list[Any] = column.texts if as_text else column.values
        if any(isinstance(value, float) for value in fields):
            fields = [None if value is None else float(value) for value in fields]
        is_list = column.use == "list" and not as_text
        element = pa.int64() if "integer" in column.kind else pa.string()
        array = pa.array([fields[row] for row in rows], pa.list_(element) if is_list else None)
        arrays[column.name] = array.cast(column.arrow) if raw and column.arrow is not None else array
    pq.write_table(pa.table(arrays), path, row_group_size=17 if raw else None)


def write_raw(table: OwnTable, path: Path, rows: list[int] | None = None) -> None:
    rows = list(range(len(table.columns[0].texts))) if rows is None else rows
    if table.raw == "parquet":
        write_parquet(path, rows, table.columns, raw=True)
    elif table.raw == "jsonl":
        write_lines(path, objects_of(rows, table.columns))
    else:
        write_text(table, path, rows, table.columns, table.delimiter, table.header)


def as_number(value: float, decimal: str, thousands: str) -> str:
    sign, (whole, _, fraction) = "-" if value < 0 else "", repr(abs(value)).partition(".")
    if thousands:
        whole = f"{int(whole):,}".replace(",", thousands)
    return sign + whole + (decimal + fraction if fraction else "")


def drawn_pool(draw: random.Random, kind: str, table: OwnTable) -> list[tuple[str, Any]]:
    whole = draw.sample(INTEGERS, 4)
    if kind == "text":
        words = [*WORDS, f"a{table.delimiter}b"]
        return [(word, word) for word in draw.sample(words, 5)]
    if kind == "integer":
        return [(str(number), number) for number in whole]
    if kind == "zeros":
        return [("007", 7), ("010", 10), ("12", 12)]
    if kind == "mixed":
        return [("3", 3), ("3.0", 3.0), ("7", 7)]
    if kind.startswith("gapped"):  # an integer column of pandas with missing values
        small = [number for number in whole if number < 2**53]
        number_type = float if kind == "gapped" else int
        return [(str(number) if table.is_typed else f"{number}.0", number_type(number)) for number in small]
    if kind == "fraction":
        return [(repr(number), number) for number in draw.sample(FRACTIONS, 4)]
    if kind == "local fraction":
        return [(str(number).replace(".", table.decimal), number) for number in (0.5, 1.25, 0.75)]
    if kind == "truths as numbers":
        return [("0", False), ("1", True)]
    low, high = draw.choice(BOOLEANS[:3]) if not table.is_typed else ("0", "1")
    return [(low, False), (high, True)]


def drawn_fields(draw: random.Random, pool: list[tuple[str, Any]], rows: int, missing: list[str]) -> Fields:
    """Texts and values of a column: each of the pool at least once, then any of it, some missing."""
    pairs = [*pool, *(draw.choice(pool) for _ in range(rows - len(pool)))]
    pairs = [(draw.choice(missing), None) if missing and draw.random() < 0.15 else pair for pair in pairs]
    return [text for text, _ in pairs], [value for _, value in pairs]


def drawn_number(draw: random.Random, table: OwnTable, rows: int, missing: list[str]) -> Fields:
    """Integers, fractions or truth values, as people write them."""
    kind = draw.choice(["integer", "fraction", "large", "truth"])
    if kind == "truth":
        pool: list[tuple[str, Any]] = [("False", False), ("True", True)]
    else:
        numbers: list[float] = [draw.randint(-50, 5000) for _ in range(6)]
        if kind == "fraction":
            numbers = [1.234, 4.95, *(round(draw.uniform(-5, 5), 3) for _ in range(8))]
        elif kind == "large":
            numbers = [round(draw.uniform(1e3, 3e6), 2) for _ in range(8)]
        pool = [(as_number(number, table.decimal, table.thousands), number) for number in numbers]
    return drawn_fields(draw, pool, rows, missing)


def drawn_dates(draw: random.Random, table: OwnTable, rows: int, missing: list[str]) -> Column:
    """A column of dates, of which one to three parts are used."""
    form = draw.choice([None, "%d.%m.%Y %H:%M", "epoch"]) if not table.is_typed else None
    step = 1 if form != "%d.%m.%Y %H:%M" else 60
    times = [EPOCH + timedelta(seconds=step * (draw.randint(-(10**8), 2 * 10**9) // step)) for _ in range(6)]
    texts = [str(int((t - EPOCH).total_seconds())) if form == "epoch" else t.strftime(FORMS[form]) for t in times]
    fields = drawn_fields(draw, list(zip(texts, times, strict=True)), rows, missing)
    parts = {part: draw.choice(["dense", "sparse"]) for part in draw.sample(PARTS, draw.randint(1, 3))}
    arrow = draw.choice([None, pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin")])
    return Column("when", "date", "date", *fields, parts=parts, form=form, arrow=arrow)


def drawn_list(draw: random.Random, table: OwnTable, rows: int, missing: list[str]) -> Column:
    kind = draw.choice(["list", "integer list", *(["nasty list"] if table.is_typed else [])])
    sets: dict[str, list[Any]] = {"list": ELEMENTS, "integer list": [*INTEGERS], "nasty list": NASTY_ELEMENTS}
    elements = sets[kind]
    separator = None if table.is_typed else draw.choice([LIST_SEPARATOR, ", ", ";"])
    bags = [[element] for element in elements]
    bags += [[draw.choice(elements) for _ in range(draw.randint(0, 3))] for _ in range(rows - len(bags))]
    pool = [((separator or LIST_SEPARATOR).join(map(str, bag)), bag) for bag in bags]
    fields = [(draw.choice(missing), None) if missing and draw.random() < 0.1 else pair for pair in pool]
    texts, values = [text for text, _ in fields], [value for _, value in fields]
    return Column("tags", "list", kind, texts, values, separator=separator)


def drawn_table(draw: random.Random, raw: str, rows: int) -> OwnTable:
    """A table of one to three categories, and any of numbers, dates, a list and columns that are not used."""
    table = OwnTable([], raw)
    if not table.is_typed:
        table.delimiter, table.header = draw.choice(",;\t|^§"), draw.random() < 0.6
        table.decimal, table.thousands = draw.choice([(".", ""), (",", ""), (",", "."), (".", ","), (",", "'")])
        table.missing = draw.choice([(), MARKS])
    missing = ["", *table.missing]
    kinds = ["text", "integer", "boolean", "gapped"]
    if not table.is_typed:
        kinds += ["fraction", *(AMBIGUOUS if draw.random() < 0.3 else ())]
    columns = []
    for number, kind in enumerate(draw.sample(kinds, draw.randint(1, 3))):
        fields = drawn_fields(draw, drawn_pool(draw, kind, table), rows, draw.choice([[], missing]))
        columns.append(Column(f"c{number}", "sparse", kind, *fields))
        if kind == "text":
            columns[-1].arrow = draw.choice([None, pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
    numbers = [drawn_number(draw, table, rows, missing) for _ in range(draw.randint(1, 2))]
    columns += [Column(f"n{place}", "dense", "number", *fields) for place, fields in enumerate(numbers)]
    if draw.random() < 0.5:
        columns.append(drawn_dates(draw, table, rows, missing))
    if draw.random() < 0.5:
        columns.append(drawn_list(draw, table, rows, missing))
    unused = [(), ("spare",), *([("copy", "copy")] if not table.is_typed and table.header else [])]
    for name in draw.choice(unused):
        texts = [draw.choice(WORDS) for _ in range(rows)]
        columns.append(Column(name, "unused", "text", texts, list(texts)))
    table.rule = draw.choice([None, ">= 3"])
    labels = [row % 2 if row < 2 else draw.randint(0, 1 if table.rule is None else 5) for row in range(rows)]
    columns.append(Column("label", "label", "number", list(map(str, labels)), labels))
    draw.shuffle(columns)
    table.columns = columns
    if not table.header:
        for place, column in enumerate(columns):
            column.name = f"column_{place}"
    assert not any(isinstance(value, float) and math.isnan(value) for column in columns for value in column.values)
    return table
