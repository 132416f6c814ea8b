"""Drawn label rules as docs/inspect.md describes them, on columns of every kind of file, beside plain Python."""

import json
import operator
import random
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.parsing.readers import convert_rows
from data_prep.parsing.table import format_named, load_table, row_bytes, table_layout
from data_prep.sources.files import resolve_sources
from tests.data_prep.conftest import seeds
from tests.data_prep.tables import write

OPERATORS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
OPERATORS |= {">": operator.gt, "<": operator.lt}
TRUTHS = {"true": 1, "yes": 1, "false": 0, "no": 0}
FILES = ("csv", "jsonl", "parquet", "text parquet")
COLUMNS: dict[str, list[Any]] = {
    "integers": [0, 1, 4, 5, -3, 1000],
    "fractions": [0.5, 1.0, 4.5, 5.0, -0.25, 1e3],
    "booleans": [True, False],
    "words": ["like", "Like", " >50K", "<=50K", "50000+", "- 50000", "maybe"],
    "answers": ["yes", "No", "maybe", "1", "true"],
    "numerals": ["5", "05", "5.0", "+5", ".5", "0", " 1", "1e3"],
    "gaps": ["like", "NULL", "N/A", "like ", "nan"],
}
VALUES = ["5", "+5", "5.", ".5", "5e0", "-3", "1000", "true", "False", "YES", "no", "like", ">50K", "<=50K", "- 50000"]
VALUES += ["maybe", "'like'", '" >50K"', "'True'", '"5"', "'05'", "NULL", "= 5", "'5"]


def number(value: Any) -> Decimal | None:
    """The number, or the truth value, that a field or a rule's value is."""
    if not isinstance(value, str):
        return Decimal(value)
    text = value.strip(" \t")
    if text.lower() in TRUTHS:
        return Decimal(TRUTHS[text.lower()])
    try:
        return Decimal(text) if text.strip("0123456789+-.eE") == "" else None
    except InvalidOperation:
        return None


def expected_labels(name: str, value: str, fields: list[Any]) -> list[int] | None:
    """Labels of fields by a rule; None: the rule or a field is refused."""
    compare = OPERATORS[name]
    is_quoted = value[0] in "\"'"
    if is_quoted and (len(value) < 2 or value[-1] != value[0]):
        return None
    if value.startswith("="):
        return None
    text = value[1:-1] if is_quoted else value
    is_truth = not is_quoted and text.lower() in TRUTHS
    if not is_quoted and not is_truth and number(text) is not None:
        numbers = [number(each) for each in fields]
        return None if None in numbers else [int(compare(Decimal(each or 0), Decimal(text))) for each in numbers]
    if name not in ("==", "!="):
        return None
    labels = []
    for each in fields:
        if isinstance(each, str) and each != text and each.strip() in ("", "NULL", "N/A", "nan"):
            return None
        if isinstance(each, str) and not is_truth:
            is_equal = each == text if is_quoted else each.strip() == text
        else:
            is_equal = number(each) is not None and number(each) == number(text)
        labels.append(int(compare(is_equal, True)))
    return labels


def draw(seed: int) -> tuple[str, str, str, list[Any]]:
    """A kind of file, an operator, a value, and the fields of a column as that file holds them."""
    rng = random.Random(seed)
    kind = FILES[seed % len(FILES)]
    values = COLUMNS[rng.choice(list(COLUMNS))]
    fields = [rng.choice(values) for _ in range(rng.randint(1, 8))]
    if kind in ("csv", "text parquet"):
        fields = [str(each) for each in fields]
    name = rng.choice(["==", "==", "!=", *OPERATORS])
    own_value = str(rng.choice(values)).strip()
    return kind, name, rng.choice([own_value, *rng.sample(VALUES, 3)]), fields


def write_files(directory: Path, kind: str, rule: str, fields: list[Any]) -> None:
    """Write `rows` of a column `l` and a column `user`, and their schema `schema.yaml`."""
    users = [f"u{row}" for row in range(len(fields))]
    write(directory / f"rows.{kind.rpartition(' ')[2]}", {"l": fields, "user": users})
    (directory / "schema.yaml").write_text(json.dumps({"label": {"column": "l", "rule": rule}, "sparse": ["user"]}))


CASES = 600


def read_labels(directory: Path) -> NDArray[Any]:
    [source] = resolve_sources(str(directory / "rows.*"))
    table = load_table(directory / "schema.yaml", (source,))
    form = format_named(table.format)
    [chunk] = form.chunks(source, table_layout(table)[1], row_bytes(table), 1 << 20)
    [(batch, _)] = form.batches(source, chunk, *table_layout(table))
    return convert_rows(batch, table).labels


@pytest.mark.medium
@pytest.mark.parametrize("part", seeds(2, 4))
def test_drawn_rules_equal_the_oracle(part: int, tmp_path: Path) -> None:
    counts = {"refused": 0, "mixed": 0, "equal": 0}
    for seed in range(part * CASES, (part + 1) * CASES):
        kind, name, value, fields = draw(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        write_files(directory, kind, f"{name} {value}", fields)
        labels = expected_labels(name, value, fields)
        try:
            actual = read_labels(directory).tolist()
        except UserError:
            actual = None
        assert actual == labels, (seed, kind, name, value, fields)
        counts["refused" if labels is None else "mixed" if len(np.unique(labels)) == 2 else "equal"] += 1
    assert min(counts.values()) > CASES // 10, counts
