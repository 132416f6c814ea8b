"""Spellings of categorical values. A text is a category as it stands; a typed value has one spelling per column.

A boolean or a number of a Parquet or JSON file takes the text that such values have in the dataset's rows. If those
rows are text, this is their only spelling ("True" or "1", "3" or "3.0"); if they are typed, "1" and "3".
"""

import math
import re
from decimal import Decimal
from enum import IntFlag
from functools import reduce
from operator import or_
from typing import Any

EXACT_INTEGERS = 1 << 53  # whole float64 values below this are exact
NUMBER = r"[ \t]*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*"
PLAIN = r"0|-?[1-9][0-9]*"
TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}  # words in any case, and their numbers
WORDS = {"title": ("False", "True"), "lower": ("false", "true"), "upper": ("FALSE", "TRUE")}


class Form(IntFlag):
    """Spellings that occur in a column. TEXT: some values came as text, not typed."""

    TITLE = 1  # False, True
    LOWER = 2  # false, true
    UPPER = 4  # FALSE, TRUE
    PLAIN = 8  # 3
    POINT = 16  # 3.0
    OTHER_INTEGER = 32  # 03, +3, 3.00, 3e0
    NOT_BINARY = 64  # an integer other than 0 and 1
    SHORTEST = 128  # 0.5, as Python writes it
    OTHER_FRACTION = 256  # .5, 0.50
    TEXT = 512
    UNJOINABLE = 1024  # a list holds an empty value or a value with LIST_SEPARATOR


LIST_SEPARATOR = "|"  # joins a list's values to one text
_OF_WORDS = {
    word: form
    for form, words in zip((Form.TITLE, Form.LOWER, Form.UPPER), WORDS.values(), strict=True)
    for word in words
}
_WORD_FORMS = Form.TITLE | Form.LOWER | Form.UPPER


def form_of(text: str) -> Form:
    """Return the spelling of one text; TEXT alone if it is neither a boolean nor a number."""
    if text in _OF_WORDS:
        return Form.TEXT | _OF_WORDS[text]
    if not re.fullmatch(NUMBER, text):
        return Form.TEXT
    is_plain, value = re.fullmatch(PLAIN, text) is not None, float(text)
    if not is_plain and not value.is_integer():
        return Form.TEXT | (Form.SHORTEST if repr(value) == text else Form.OTHER_FRACTION)
    binary = Form(0) if value in (0, 1) else Form.NOT_BINARY
    if is_plain:
        return Form.TEXT | Form.PLAIN | binary
    is_point = text.endswith(".0") and re.fullmatch(PLAIN, text[:-2])
    return Form.TEXT | (Form.POINT if is_point else Form.OTHER_INTEGER) | binary


def forms_of_texts(texts: Any) -> Form:
    """Return the spellings in an Arrow array of distinct texts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    # Few texts are judged one by one: integers have three forms at most, and most other texts are no numbers.

    rest, examples = texts, list(texts[:1].to_pylist())
    for is_plain in (are_digits, lambda part: pc.match_substring_regex(part, f"^({PLAIN})$")):
        mask = is_plain(rest)
        # Of three different integers, one is neither 0 nor 1.
        examples += rest.filter(mask)[:3].to_pylist()
        rest = rest.filter(pc.invert(mask))
    words = pc.is_in(rest, value_set=pa.array(list(_OF_WORDS), pa.string()))
    examples += rest.filter(pc.or_(words, pc.match_substring_regex(rest, f"^({NUMBER})$"))).to_pylist()
    return reduce(or_, map(form_of, examples), Form(0))


def are_digits(texts: Any) -> Any:
    """Return a mask of the texts in an Arrow array that are integers without sign or leading zeros."""
    import pyarrow.compute as pc

    begins_plainly = pc.or_(pc.invert(pc.starts_with(texts, "0")), pc.equal(pc.binary_length(texts), 1))
    return pc.and_(pc.ascii_is_decimal(texts), begins_plainly)


def form_of_typed(value: Any) -> Form:
    """Return the spelling of a boolean or integer in a column with typed rows; 0 for other values."""
    whole = whole_number(value)
    if whole is None:
        return Form(0)
    return Form.PLAIN if whole in (0, 1) else Form.PLAIN | Form.NOT_BINARY


def whole_number(value: Any) -> int | None:
    """Return the integer that equals a typed value (boolean, integer or fraction); None if no integer does."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else None
    if isinstance(value, float) and abs(value) < EXACT_INTEGERS and value.is_integer():
        return int(value)
    return None


def text_of(value: Any) -> str:
    """Return the text of a value that needs no column's spelling, such as an id or a time."""
    whole = None if isinstance(value, str) else whole_number(value)
    return "" if value is None else str(value if whole is None else whole)


def has_plain_integers(forms: Form | None) -> bool:
    """Return whether a column spells integers only as Python does. `forms` is None before the first row."""
    return forms is None or forms & (Form.PLAIN | Form.POINT | Form.OTHER_INTEGER) == Form.PLAIN


def compared_text(value: Any) -> str:
    """Return the text that conditions compare. Truth values, typed or as words in any case, become 1 or 0."""
    text = text_of(value)
    truth = TRUTHS.get(text.strip().lower())
    return text if truth is None else str(int(truth))


def spell(value: Any, forms: Form) -> str | None:
    """Return the text of a typed value in a column with these spellings; None if it has none, or more than one."""
    if isinstance(value, bool):
        words = forms & _WORD_FORMS
        if words:
            name = (words.name or "").lower()
            return WORDS[name][value] if name in WORDS else None
        is_binary = forms & Form.PLAIN and not forms & (Form.POINT | Form.OTHER_INTEGER | Form.NOT_BINARY)
        return str(int(value)) if is_binary else None
    whole = whole_number(value)
    if whole is not None:
        integers = forms & (Form.PLAIN | Form.POINT | Form.OTHER_INTEGER)
        return {Form.PLAIN: str(whole), Form.POINT: f"{whole}.0"}.get(integers)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return repr(float(value)) if forms & (Form.SHORTEST | Form.OTHER_FRACTION) == Form.SHORTEST else None
    return None


def is_other_spelling(text: str) -> bool:
    """Return whether a text reads as a boolean or number that a column with typed rows spells otherwise."""
    return bool(form_of(text) & ~(Form.TEXT | Form.NOT_BINARY | Form.PLAIN))


def to_text(forms: Form) -> str:
    """Return the spellings' names for the manifest, such as "plain+text"."""
    return "+".join(form.name.lower() for form in Form if form & forms and form.name)


def from_text(text: str) -> Form:
    """Parse the form of `to_text`. Raise KeyError for an unknown name."""
    forms = Form(0)
    for name in text.split("+") if text else ():
        forms |= Form[name.upper()]
    return forms
