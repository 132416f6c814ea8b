"""Documents decoded to types: what they refuse, and that nothing is lost."""

import json
import math
import re
from pathlib import Path

import msgspec
import pytest

from common.documents import Number, OpenDocument, decode, encode, plain, read_document
from tests.error_lines import refused


class Inner(OpenDocument, kw_only=True):
    size: Number


class Outer(msgspec.Struct):
    by_name: dict[str, Inner]
    listed: list[Inner]


def test_further_keys_are_kept_at_any_depth_and_written_last() -> None:
    text = '{"by_name": {"a": {"size": 1, "x": {"y": [1]}}}, "listed": [{"size": 2.5, "size2": null}]}'
    document = decode(text, Outer)
    assert document.by_name["a"].rest == {"x": {"y": [1]}}
    assert encode(document) == text
    assert plain(document) == json.loads(text)


def test_numbers_are_read_as_python_writes_them() -> None:
    document = decode('{"size": NaN, "other": -Infinity}', Inner)
    assert math.isnan(document.size)
    assert document.figure("other") == -math.inf
    assert encode(decode('{"size": 3}', Inner)) == '{"size": 3}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"by_name": {}}', "key 'listed' is missing"),
        ('{"by_name": {"a.b": {"size": 1}, "c": {}}, "listed": []}', "key 'by_name.c.size' is missing"),
        ('{"by_name": {}, "listed": [{"size": 1}, {"size": "x"}]}', "key 'listed[1].size' is \"x\": expected"),
        ('{"by_name": {}, "listed": null}', "key 'listed' is null: expected `array`, got `null`"),
        ("3", "the document: expected `object`, got `int`"),
        ("", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        decode(text, Outer)
    (tmp_path / "x.json").write_text(text)
    message = rf"^{tmp_path}/x\.json: damaged \(.*\); make it again$"
    refused(message, read_document, tmp_path / "x.json", Outer, "make it again")
