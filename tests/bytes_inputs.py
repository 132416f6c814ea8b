"""Raw rows for tests/test_bytes.py: the same bytes on every machine, by seeded NumPy integers and plain formatting."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

INTEGERS, CATEGORIES = 13, 26
DISTINCT_ROWS = 170_000  # lookup tables of 26 columns of so many values take two passes at 512 MiB
GENRES = ("Action", "Comedy", "Drama", "Film-Noir", "Sci-Fi", "Été")

CSV_SCHEMA = """\
label: rating >= 4
dense: [price, age]
sparse: [user, {column: genres, separator: "|"}, item, {column: tags, separator: ", "}]
"""
BARE_SCHEMA = """\
delimiter: "\\t"
header: false
label: {column: 2, rule: "> 3"}
dense: [3]
sparse: [0, {column: 5, separator: "|"}, 1]
"""
PARQUET_SCHEMA = """\
label: rating >= 4
dense: [price, age]
sparse: [user, genres, item, {column: tags, separator: ", "}]
"""
NUMBERS_SCHEMA = """\
label: {column: rating, kind: number}
dense: [price]
sparse: [user, {column: genres, separator: "|"}, item]
"""


def write_inputs(directory: Path) -> None:
    """Write every raw file and schema that the cases read, apart from those of `write_distinct_rows`."""
    (directory / "days").mkdir()
    (directory / "trace").mkdir()
    (directory / "trace/far.log").write_text("7, 3, 20, 4, 9\n0, 1, 2, 5\n0.2, 0.5, 0.75, 1.0\n")
    (directory / "trace/near.log").write_text(f"{', '.join(map(str, range(400)))}\n0, 1, 3, 90\n0.1, 0.6, 0.9, 1.0\n")
    (directory / "gz").mkdir()
    rows = criteo_rows(1500, seed=0)
    (directory / "rows.tsv").write_bytes(rows)
    (directory / "crlf.tsv").write_bytes(rows.replace(b"\n", b"\r\n"))
    for day, count in enumerate((700, 450, 331)):
        lines = criteo_rows(count, seed=10 + day)
        (directory / f"days/day_{day}").write_bytes(lines)
        (directory / f"gz/day_{day}.gz").write_bytes(gzip.compress(lines, mtime=0))
    table = table_columns(1500)
    _write_text(directory, table)
    _write_parquet(directory / "table.parquet", table)
    _write_parquet(directory / "more.parquet", table_columns(400, seed=4))
    for name, schema in (
        ("csv", CSV_SCHEMA),
        ("bare", BARE_SCHEMA),
        ("parquet", PARQUET_SCHEMA),
        ("numbers", NUMBERS_SCHEMA),
    ):
        (directory / f"{name}.yaml").write_text(schema)


def criteo_rows(rows: int, seed: int) -> bytes:
    """Lines in Criteo's format: skewed values, empty fields, negative and large integers, hexadecimal extremes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=rows) == 0
    integers = rng.integers(-3, 60, size=(rows, INTEGERS)) ** rng.integers(1, 4, size=(rows, INTEGERS))
    integers[::97, 4] = 2**31 - 1
    no_integer = rng.integers(6, size=(rows, INTEGERS)) == 0
    ceilings = 2 + np.arange(CATEGORIES) ** 2
    draws = rng.integers(0, 2**31, size=(2, rows, CATEGORIES)) % ceilings
    values = draws.min(axis=0) * 2_654_435_761 % 2**32
    values[::53, 7], values[::59, 8], values[::61, 9] = 0, 2**31, 2**32 - 1
    no_category = rng.integers(9, size=(rows, CATEGORIES)) == 0
    lines = []
    for row in range(rows):
        fields = [str(int(labels[row]))]
        fields += ["" if no_integer[row, i] else str(integers[row, i]) for i in range(INTEGERS)]
        fields += ["" if no_category[row, i] else f"{values[row, i]:08x}" for i in range(CATEGORIES)]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode()


def write_distinct_rows(path: Path) -> None:
    """Criteo rows of which nearly every category is a new value: a vocabulary too large for one pass."""
    rng = np.random.default_rng(7)
    with open(path, "wb") as file:
        for row in range(DISTINCT_ROWS):
            values = rng.bytes(4 * CATEGORIES).hex(" ", 4).replace(" ", "\t")
            file.write(f"{row % 3 % 2}\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t13\t{values}\n".encode())


def table_columns(rows: int, seed: int = 3) -> dict[str, list[Any]]:
    """Columns of a table as Python values; `genres` and `tags` hold any number of values a row."""
    rng = np.random.default_rng(seed)

    def several(names: tuple[str, ...], most: int) -> list[list[str]]:
        return [[names[i] for i in rng.integers(len(names), size=rng.integers(most + 1))] for _ in range(rows)]

    return {
        "user": [f"u{value}" for value in rng.integers(90, size=rows)],
        "item": rng.integers(10**9, 10**9 + 200, size=rows).tolist(),
        "rating": (rng.integers(2, 11, size=rows) / 2).tolist(),
        "price": [None if value == 0 else value / 8 for value in rng.integers(-40, 4000, size=rows).tolist()],
        "age": rng.integers(99, size=rows).tolist(),
        "genres": several(GENRES, 4),
        "tags": [", ".join(tags) for tags in several(tuple(f'tag "{i}"' for i in range(40)), 3)],
    }


def _write_text(directory: Path, table: dict[str, list[Any]]) -> None:
    """The table as CSV with quoted fields, and without a header, separated by tabs."""
    columns = {**table, "genres": ["|".join(genres) for genres in table["genres"]]}
    texts = [["" if value is None else str(value) for value in column] for column in columns.values()]
    quoted = [",".join(columns)]
    quoted += [",".join(_quote(field) for field in row) for row in zip(*texts, strict=True)]
    (directory / "table.csv").write_bytes(("\n".join(quoted) + "\n").encode())
    bare = ["\t".join(row[:6]) for row in zip(*texts, strict=True)]
    (directory / "table.tsv").write_bytes(("\n".join(bare) + "\n").encode())


def _quote(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if {",", '"'} & set(field) else field


def _write_parquet(path: Path, table: dict[str, list[Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=400)
