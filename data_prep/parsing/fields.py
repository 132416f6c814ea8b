"""Columns of text to the block that a raw file of the same rows would give."""

import csv
import io
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from common.errors import UserError
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import Table
from data_prep.parsing.criteo import Block, parse_bytes
from data_prep.parsing.table_csv import LIST_SEPARATOR, parse_table


def text_separators(table: Table | None) -> dict[str, str]:
    """What stands between the values of each multi-valued column, in text."""
    return {} if table is None else {name: text or LIST_SEPARATOR for name, text in table.separators}


def parse_fields(
    columns: Mapping[str, Sequence[str]], schema: Schema, table: Table | None, name: str, first_row: int
) -> Block:
    """Parse unlabelled rows given by column.

    Args:
        columns: the text of every dense and sparse column of `schema`, one string a row; all of one length.
        table: of a user's own; None: Criteo's rows.
        name: what to call the rows in an error; first_row: the number of the first.

    Raises:
        UserError: a field that does not fit (row, column, remedy).
    """
    names = (*schema.dense, *schema.sparse)
    strangers = "\r\n" if table is not None else "\t\r\n"
    for column in names:
        for row, text in enumerate(columns[column], start=first_row):
            if any(character in text for character in strangers):
                raise UserError(f"{name}: row {row}, column {column}: a tab or a line break in it; remove it")
    rows = zip(*(columns[column] for column in names), strict=True)
    if table is None:
        text = "".join("\t".join(fields) + "\n" for fields in rows)
        return parse_bytes(text.encode(), name, schema, labelled=False, first_row=first_row, missing=np.int32(0))
    lines = io.StringIO()
    csv.writer(lines, delimiter=table.delimiter, lineterminator="\n").writerows(rows)
    table = replace(table, header=True, names=names)
    return parse_table(lines.getvalue().encode(), table, name, first_row, labelled=False)
