"""Table sizes as a publication has them: the core's are in app/config/published.py, an extension adds rows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from data_prep.dataset.kinds import ROWS, DatasetKind


class PublishedTables(NamedTuple):
    """Table sizes as published.

    Attributes:
        rows: of each feature's table.
        num_dense: number of dense features.
        kind: the kind of the data. schema: its `raw_schema`, as a manifest has it; None of rows.
    """

    name: str
    rows: Mapping[str, int]
    num_dense: int
    kind: DatasetKind = ROWS
    schema: Callable[[], dict[str, Any]] | None = None
