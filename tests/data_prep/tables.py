"""Own tables for tests: written in any form of file, and prepared."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import load_rows, prepare
from tests.error_lines import refused

SCHEMA = "label: label\ndense: [price]\nsparse: [user, item]\n"
HASHED = ("data.encoding=hash", "data.max_ind_range=1000", "data.dense_transform=raw")
ALLOW = "data.allow_degenerate=true"
Content = str | bytes | dict[str, Any]


def write(path: Path, content: Content, row_group_size: int | None = None) -> Path:
    """Write text or bytes as they are, and columns as the name ends: as Parquet, JSON lines, or text."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(content), path, row_group_size=row_group_size)
    else:
        rows = list(zip(*content.values(), strict=True))
        if path.suffix == ".jsonl":
            path.write_text(
                "".join(json.dumps(dict(zip(content, row, strict=True))) + "\n" for row in rows), encoding="utf-8"
            )
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                delimiter = "\t" if path.suffix == ".tsv" else ","
                csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([list(content), *rows])
    return path


def paths(directory: Path, schema: str, name: str = "rows.csv", out: str = "out") -> list[str]:
    """Write a schema; the keys that name it, the raw file and the dataset."""
    (directory / "schema.yaml").write_text(schema)
    return [f"data.raw={directory}/{name}", f"data.schema={directory}/schema.yaml", f"data.path={directory}/{out}"]


def make(directory: Path, content: Content, schema: str = SCHEMA, *more: str, name: str = "rows.csv") -> list[Any]:
    """The dataset of a table, in the order of its rows: labels, dense, ids."""
    write(directory / name, content)
    prepare(*paths(directory, schema, name), "data.split.method=fraction", *(more or HASHED))
    verify_dataset(directory / "out")
    return load_rows(directory / "out")


def refused_table(root: Path, content: Content, schema: str, message: str, *more: str, name: str = "rows.csv") -> str:
    """The one line by which a table is refused; nothing passes for a dataset then."""
    line = refused(message, make, root, content, schema, *HASHED, *more, name=name)
    assert not (root / "out/manifest.json").exists()
    return line


def ids(texts: list[str] | tuple[int | str, ...]) -> list[int]:
    return [oracle.text_value(str(text)) % 1000 for text in texts]


def table(rows: int = 40, **changes: str) -> str:
    """A CSV of `rows` rows; changes: row number (r5) -> the line to put there."""
    lines = [f"{i % 2},{i / 4},u{i},i{i}\n" for i in range(rows)]
    for number, line in changes.items():
        lines[int(number[1:]) - 2] = line
    return "label,price,user,item\n" + "".join(lines)
