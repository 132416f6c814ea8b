"""The spellings of many texts at once are those of each by itself."""

import itertools
import random

import pyarrow as pa
import pytest

from data_prep.dataset.spelling import Form, are_digits, form_of, forms_of_texts, has_plain_integers

INTEGERS = ["0", "1", "2", "17", "-1", "-20", "-0", "007", "00", "+3", "3.0", "-3.0", "3.00", "99999999999999999999"]
OTHERS = ["", "0.5", ".5", "0.50", "1e3", "True", "true", "TRUE", "False", "x", "3 ", " 3", "3x", "--5", "1_0", "٣"]
TEXTS = INTEGERS + OTHERS


@pytest.mark.medium
def test_forms_of_all_texts_are_those_of_each() -> None:
    rng = random.Random(0)
    draws = [*itertools.combinations(TEXTS, 1), *itertools.combinations(TEXTS, 2)]
    draws += [tuple(rng.sample(TEXTS, rng.randint(3, len(TEXTS)))) for _ in range(300)]
    for texts in [(), *draws]:
        expected = Form(0)
        for text in texts:
            expected |= form_of(text)
        assert forms_of_texts(pa.array(texts, pa.string())) == expected, texts


def test_digits_are_whole_numbers_without_more_zeros() -> None:
    expected = [text.isascii() and text.isdecimal() and str(int(text)) == text for text in TEXTS]
    assert are_digits(pa.array(TEXTS, pa.string())).to_pylist() == expected


@pytest.mark.parametrize(
    ("texts", "is_plain"),
    [(["3", "-20"], True), (["3", "x"], True), (["3", "3.0"], False), (["3", "007"], False), (["0.5"], False)],
)
def test_plain_integers_are_as_python_writes_them(texts: list[str], is_plain: bool) -> None:
    assert has_plain_integers(forms_of_texts(pa.array(texts))) is is_plain
    assert has_plain_integers(None)
