"""Delimiter and header of a text file, by its first lines; the columns of all files."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from common.errors import UserError
from data_prep.dataset.spelling import NUMBER
from data_prep.parsing.formats import Column, FileLayout, Format, format_of
from data_prep.parsing.table_yaml import DELIMITERS
from data_prep.parsing.text import decode
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks

LINES = 50  # lines that show the delimiter
FIRST_BYTES = 1 << 20


class Files(NamedTuple):
    """The files of a table: their form, layout and columns."""

    sources: tuple[Source, ...]
    form: Format
    layout: FileLayout
    columns: tuple[Column, ...]

    @property
    def has_text(self) -> bool:
        """Return whether they are delimited text."""
        return self.form.has_layout


def read_layout(sources: Sequence[Source]) -> Files:
    """Return the layout that all files share."""
    forms = {form.name: form for form in map(format_of, sources)}
    if len(forms) > 1:
        raise UserError(f"data.raw: {' and '.join(sorted(forms))} files together; give files of one kind")
    [form] = forms.values()
    delimiter, header = _text_layout(sources[0]) if form.has_layout else (",", True)
    columns = form.columns(sources[0], delimiter, header)
    for source in sources[1:]:
        others = form.columns(source, delimiter, header)
        if form.merges_columns:
            names = [column.name for column in columns]
            columns += [column for column in others if column.name not in names]
        elif others != columns:
            raise UserError(f"{source.path}: other columns than in {sources[0].path}; give like files")
    names = [column.name for column in columns]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise UserError(f"{sources[0].path}: row 1: two columns {twice}; rename one of them")
    if len(names) < 2:
        columns_read = f"one column alone ({names[0]})" if names else "no column"
        raise UserError(f"{sources[0].path}: {columns_read}; a table has a label and another column")
    lists = tuple(column.name for column in columns if column.kind == "list")
    return Files(tuple(sources), form, FileLayout(tuple(names), delimiter, header, lists), tuple(columns))


def _text_layout(source: Source) -> tuple[str, bool]:
    """Return the delimiter that divides the first lines into most columns, all alike, and whether row 1 has names."""
    lines = _first_lines(source)
    widths = {}
    for delimiter in DELIMITERS:
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        widths[delimiter] = (len(set(counts)) == 1, max(counts, default=0))
    order = [",", *(each for each in DELIMITERS if each != ",")]
    delimiter = max(order, key=lambda each: (widths[each][1] > 1, *widths[each]))
    first, *rows = csv.reader(lines, delimiter=delimiter)
    # Two columns may lack a name: the index that pandas writes, and an empty one if a delimiter ends each line.
    is_index = not first[0] and all(row[0] for row in rows)
    is_end = not first[-1] and not any(row[-1] for row in rows)
    named = first[is_index : len(first) - is_end]
    return delimiter, named != [] and all(named) and not any(map(_is_number, named))


def _is_number(text: str) -> bool:
    return re.fullmatch(NUMBER, text) is not None


def _first_lines(source: Source) -> list[str]:
    """Return the first lines of a file that are not blank. Raise UserError if there are none."""
    with LineBlocks(source) as blocks:
        for block in blocks.until(FIRST_BYTES):
            content = bytes(block.buffer[block.start : block.end])[:FIRST_BYTES]
            whole = content[: content.rfind(b"\n") + 1] or content
            lines = re.split(r"\r\n?|\n", decode(whole, source.path, 1))  # splitlines() would also cut at U+2028
            lines = [line for line in lines if line.strip()][: LINES + 1]
            if lines:
                return lines
    raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
