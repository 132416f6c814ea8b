"""Rows as a file's format yields them: columns by name, and the places of the rows for errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

CORRECT = "correct or remove this row"
Locator = Callable[[int], str]  # returns the file and row of a row, or of a field, for an error


class RawRows(NamedTuple):
    """Rows as read: each column is an Arrow array or, for mixed types, a list of Python values, [rows].

    The locator counts the lines before a row; it raises UserError if they are not rows.
    """

    columns: Mapping[str, Any]
    rows: int
    locator: Locator

    def locator_of(self, column: str) -> Locator:
        """Return the locator of a column's fields."""
        return lambda index: f"{self.locator(index)}, column {column}"


def numbered_rows(name: str, numbers: Sequence[int]) -> Locator:
    """Return the locator of rows with these numbers in a file."""
    return lambda index: f"{name}: row {numbers[index]}"
