"""Candidates for scoring: new rows, columns of the user beside them, and their names."""

from collections.abc import Sequence

import pyarrow as pa

from common.errors import UserError
from data_prep.encoding.new_rows import NewRows


def with_user(candidates: NewRows, user: NewRows) -> NewRows:
    """Return the candidates with the values that they lack, column by column, from one user's row."""
    if len(user.numbers) != 1:
        raise UserError(f"{user.name}: {len(user.numbers)} rows; the user is one row")
    rows = len(candidates.numbers)
    columns = {
        name: values * rows if isinstance(values, list) else values.take(pa.array([0] * rows, pa.int64()))
        for name, values in user.columns.items()
    } | candidates.columns
    for name, absent in candidates.absent.items():
        if name in user.columns:
            [default] = user.values(name)
            lacking = set(absent)
            columns[name] = [default if row in lacking else value for row, value in enumerate(candidates.values(name))]
    return candidates._replace(columns=columns)


def ignored_columns(candidates: NewRows, columns: Sequence[str], spare: Sequence[str]) -> list[str]:
    """Return the columns that nobody reads, after a check that all wanted columns exist."""
    for name in columns:
        if name not in candidates.columns:
            raise UserError(f"{candidates.name}: no column {name}; the model reads {', '.join(columns)}")
    return [name for name in candidates.columns if name not in columns and name not in spare]


def row_names(candidates: NewRows, id_column: str) -> list[str]:
    """Return the candidates' names: their ids, or their numbers from 1."""
    if id_column in candidates.columns:
        return candidates.texts(id_column)
    return [str(row) for row in range(1, len(candidates.numbers) + 1)]
