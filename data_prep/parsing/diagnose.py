"""What is wrong with a row that the parser refused: slow, exact, one line."""

from data_prep.dataset.schema import Schema

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
MAX_CATEGORY_DIGITS = 8
SHOWN_BYTES = 40


def diagnose_row(line: bytes, name: str, row: int, schema: Schema, labelled: bool, is_last: bool) -> str:
    """One line for the user: file, row, column, what was found, what to do.

    Args:
        line: the row's bytes without its newline.
        row: its number in the file, from 1.
        is_last: whether it is the file's last row, which may have been cut off.
    """
    where = f"{name}: row {row}"
    columns = schema.columns if labelled else schema.columns[1:]
    if line.endswith(b"\r"):
        line = line[:-1]
    if not line:
        return f"{where}: empty line; remove it"
    fields = line.split(b"\t")
    if len(fields) != len(columns) and not _is_text(line):
        return f"{where}: not text; give tab-separated rows, plain or gzip-compressed, or a table with data.schema"
    if len(fields) == 1 and line.count(b",") > 1:
        return f"{where}: separated by commas, not tabs; for a table of your own, use data=custom with data.schema"
    if len(fields) != len(columns):
        column = columns[len(fields)] if len(fields) < len(columns) else columns[-1]
        if len(fields) < len(columns) and is_last:
            remedy = f"the file is cut off before column {column}: get the whole file, or remove this row"
        elif len(fields) < len(columns):
            remedy = f"column {column} is missing: correct or remove this row"
        else:
            remedy = f"something follows column {column}: correct or remove this row"
        return f"{where}: {len(fields)} columns, but a row has {len(columns)}; {remedy}"
    for field, column in zip(fields, columns, strict=True):
        fault = _fault(field, column, schema)
        if fault:
            return f"{where}, column {column}: {_shown(field)} {fault}; correct or remove this row"
    return f"{where}: not readable as a row; correct or remove this row"


def _is_text(line: bytes) -> bool:
    """Whether bytes can be text: UTF-8 without control characters but tabs and ends of lines."""
    try:
        return not any(character < " " and character not in "\t\r\n" for character in line.decode())
    except UnicodeDecodeError:
        return False


def _fault(field: bytes, column: str, schema: Schema) -> str | None:
    """What is wrong with one field, or None."""
    if column == schema.label:
        return None if field in (b"0", b"1") else "is not a label (0 or 1)"
    if not field:
        return None
    if column in schema.dense:
        digits = field[1:] if field.startswith(b"-") else field
        if not (digits.isdigit() and digits.isascii()):
            return "is not an integer"
        in_range = INT32_MIN <= int(field) <= INT32_MAX
        return None if in_range else f"does not fit 32 bits ({INT32_MIN} to {INT32_MAX})"
    if any(byte not in b"0123456789abcdefABCDEF" for byte in field):
        return "is not a hexadecimal category"
    if len(field) > MAX_CATEGORY_DIGITS:
        return f"is longer than {MAX_CATEGORY_DIGITS} hexadecimal digits"
    return None


def _shown(field: bytes) -> str:
    text = field[:SHOWN_BYTES].decode("ascii", "backslashreplace")
    return ascii(text) + ("…" if len(field) > SHOWN_BYTES else "")
