"""Drawn label rules on typed and textual columns of every kind of file, beside plain lines of Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.parsing.formats import format_named, table_layout, table_size
from data_prep.parsing.labels import convert_rows
from data_prep.parsing.table_yaml import load_table
from data_prep.sources.discover import resolve_sources
from tests.data_prep.conftest import seeds
from tests.oracles import label_rules as oracle

CASES = 600


def read_labels(directory: Path) -> NDArray[Any]:
    """Labels of the only `rows.*` of a directory by its `schema.yaml`."""
    [source] = resolve_sources(str(directory / "rows.*"))
    table = load_table(directory / "schema.yaml", (source,))
    form = format_named(table.format)
    [chunk] = form.chunks(source, table_size(table), 1 << 20)
    [(batch, _)] = form.batches(source, chunk, *table_layout(table))
    return convert_rows(batch, table).labels


@pytest.mark.medium
@pytest.mark.parametrize("part", seeds(2, 4))
def test_drawn_rules_equal_the_oracle(part: int, tmp_path: Path) -> None:
    counts = {"refused": 0, "mixed": 0, "equal": 0}
    for seed in range(part * CASES, (part + 1) * CASES):
        kind, name, value, fields = oracle.draw(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        oracle.write_files(directory, kind, f"{name} {value}", fields)
        labels = oracle.expected_labels(name, value, fields)
        try:
            actual = read_labels(directory).tolist()
        except UserError:
            actual = None
        assert actual == labels, (seed, kind, name, value, fields)
        counts["refused" if labels is None else "mixed" if len(np.unique(labels)) == 2 else "equal"] += 1
    assert min(counts.values()) > CASES // 10, counts
