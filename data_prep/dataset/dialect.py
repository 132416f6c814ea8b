"""Dialect of fields in text files: quotes, an escape character, and the charset, but not the delimiter.

An exported encoder (extensions/export) runs a copy of this module.
"""

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

UTF_8 = "utf-8"
# Python's escapes, all of ASCII, and what UTF-7, HZ, ISO 2022 and IDNA read otherwise.
ASCII_SAMPLES = (rb"\u0041", bytes(range(128)), b"+AGE-~{", b"\x1b$B", b"xn--bcher-kva")


class Dialect(NamedTuple):
    """Form of fields in text files.

    quoting: csv (a field may be in quotes) or none (quotes are ordinary characters). escape: character that takes the
    next one literally; "": none. charset: name of a codec of Python's.
    """

    quoting: str = "csv"
    escape: str = ""
    charset: str = UTF_8

    def reader(self, lines: Iterable[str], delimiter: str, strict: bool = False) -> Any:
        """Return a csv.reader of lines with their ends."""
        lines, escape = self._with_null_marks(lines, delimiter) if self.escape else lines, self.escape or None
        if self.quoting == "none":
            return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, escapechar=escape, strict=strict)
        return csv.reader(lines, delimiter=delimiter, escapechar=escape, strict=strict)

    def _with_null_marks(self, lines: Iterable[str], delimiter: str) -> Iterator[str]:
        r"""Yield lines whose fields \N, by which MySQL marks a missing value, are read as \N, not as the letter N."""
        escape, end = re.escape(self.escape), re.escape(delimiter)
        pattern = re.compile(rf"(^|{end}){escape}N(?={end}|\r?\n?\Z)|{escape}.", re.DOTALL)
        mark = f"{self.escape}N"
        for line in lines:
            yield pattern.sub(self._double_escape, line) if mark in line else line

    def _double_escape(self, match: re.Match[str]) -> str:
        return match[0] if match[1] is None else f"{match[1]}{self.escape}{self.escape}N"

    @property
    def encoding(self) -> str:
        """Return the codec of a file's beginning, which may have a byte-order mark."""
        return "utf-8-sig" if self.charset == UTF_8 else self.charset


STANDARD = Dialect()


def charset_named(name: str) -> str | None:
    """Return Python's name of a charset; None if it is unknown or does not write ASCII characters as ASCII bytes."""
    try:
        charset = codecs.lookup(name).name
        is_ascii = all(sample.decode(charset) == sample.decode("ascii") for sample in ASCII_SAMPLES)
    except (LookupError, ValueError):  # LookupError also for codecs that do not decode to text
        return None
    # A manifest leaves out a default by its identity.
    return (UTF_8 if charset in (UTF_8, "utf-8-sig") else charset) if is_ascii else None
