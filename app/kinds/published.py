"""Published table sizes that extensions add to those in app/config/published.py."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from data_prep.dataset.kinds import ROWS, DatasetKind


class PublishedTables(NamedTuple):
    """Table sizes of one publication.

    Attributes:
        name: the value that selects them.
        rows: number of rows of each feature's table.
        num_dense: number of dense features.
        kind: the kind of the dataset.
        schema: returns the dataset's `raw_schema` as a manifest holds it; None for rows.
    """

    name: str
    rows: Mapping[str, int]
    num_dense: int
    kind: DatasetKind = ROWS
    schema: Callable[[], dict[str, Any]] | None = None
