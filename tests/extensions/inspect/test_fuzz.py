"""Drawn tables of all forms of file: inspect proposes a schema, which always prepares, or refuses in one line."""

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from data_prep.sources.discover import Source, resolve_sources
from extensions.inspect.command import inspection_page
from extensions.inspect.proposal import Proposal, propose_schema
from tests.data_prep.conftest import prepare, seeds
from tests.data_prep.tables import write

NAMES = ["label", "y", "click", "rating", "userId", "item_id", "ts", "date", "price", "a.b", "x y", "été", "1", "0"]
NAMES += ["n#", "- a", "ts_hour", "{a}", "a: b", "'q", '"', "null", "true", "~", "#c", "a=b", ">= 4", "", "x>1"]
NAMES += ["label >= 4", "[x", "*z", "&q", "!t"]
Draw = Callable[[random.Random], Any]

VALUES: dict[str, Draw] = {
    "bit": lambda draw: draw.randint(0, 1),
    "constant": lambda draw: "same",
    "few": lambda draw: draw.choice(["a", "b", "c d", "é"]),
    "word": lambda draw: draw.choice(["yes", "no"]),
    "integer": lambda draw: draw.randint(-5, 10 ** draw.randint(1, 12)),
    "large": lambda draw: draw.choice([2**63, 10**30, -(2**70), 5]),
    "fraction": lambda draw: round(draw.gauss(0, 100), 3),
    "spelled": lambda draw: draw.choice(["+5", "5.", ".5", " 7 ", "1e3", "-0", "007", "1e400", "1_0", "inf", "nan"]),
    "marked": lambda draw: draw.choice([1, 2, 3.5, "NA", "NULL", " "]),
    "id": lambda draw: f"id{draw.random()}",
    "tags": lambda draw: "|".join(draw.sample("abcdef", draw.randint(0, 3))),
    "commas": lambda draw: ", ".join(draw.sample(["x", "y", "z"], draw.randint(1, 3))),
    "seconds": lambda draw: draw.randint(10**9, 17 * 10**8),
    "milliseconds": lambda draw: draw.randint(10**12, 17 * 10**11),
    "iso": lambda draw: (datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=draw.randint(0, 10**7))).isoformat(
        " "
    ),
    "day": lambda draw: f"2024-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}",
    "german": lambda draw: f"{draw.randint(1, 28)}.{draw.randint(1, 12)}.2023 {draw.randint(0, 23)}:05",
    "american": lambda draw: f"{draw.randint(1, 12)}/{draw.randint(1, 28)}/2023",
    "mixed": lambda draw: draw.choice([1, "one", 2.5, "", None, "2024-01-01", "true"]),
    "odd": lambda draw: draw.choice(['say "hi"', "a;b", "tab\there", "#x", "= 3", "\\N", "\u2028", "\x00", "'"]),
    "empty": lambda draw: None,
}
TYPED: dict[str, Draw] = {
    "boolean": lambda draw: draw.random() < 0.5,
    "list": lambda draw: draw.sample(["a", "b", "", "c|d"], draw.randint(0, 3)),
    "numbers": lambda draw: [draw.randint(0, 9) for _ in range(draw.randint(0, 3))],
    "not finite": lambda draw: draw.choice([1.5, float("inf"), float("nan")]),
}
PARQUET: dict[str, Draw] = {
    "timestamp": lambda draw: datetime.datetime(2024, 1, draw.randint(1, 28), draw.randint(0, 23)),
    "date": lambda draw: datetime.date(2024, 1, draw.randint(1, 28)),
    "decimal": lambda draw: Decimal(draw.randint(0, 99)) / 4,
    "bytes": lambda draw: bytes([draw.randint(0, 255)]),
    "struct": lambda draw: {"a": 1},
}
SINGLE_TYPED = ("mixed", "marked", "large", "spelled")  # which Parquet's columns of one type cannot hold


def drawn_rows(draw: random.Random, form: str) -> dict[str, list[Any]]:
    kinds = dict(VALUES) | (TYPED if form != "csv" else {}) | (PARQUET if form == "parquet" else {})
    if form == "parquet":
        kinds = {name: kind for name, kind in kinds.items() if name not in SINGLE_TYPED}
    if form == "jsonl":
        del kinds["not finite"]
    rows = draw.choice([1, 3, 30, 30, 200])
    names = draw.sample(NAMES, draw.randint(1, 9))
    is_plain = draw.random() < 0.9
    if is_plain:  # numbers among the names make a text file one without names
        names = ["label", *(name for name in names if name not in ("label", "1", "0", ""))]
    content = {}
    for name in names:
        kind = draw.choice(["bit", "word", "bit", *kinds] if name == "label" and not is_plain else list(kinds))
        if name == "label" and is_plain:
            kind = draw.choice(["bit", "bit", "word", "integer", *(["fraction"] if form != "csv" else [])])
        gaps = 0 if name == "label" and is_plain else draw.choice([0, 0, 0, 0.1])
        content[name] = [None if draw.random() < gaps else kinds[kind](draw) for _ in range(rows)]
    draw_order = list(content)
    draw.shuffle(draw_order)
    return {name: content[name] for name in draw_order}


def proposed(sources: list[Source]) -> Proposal | None:
    """The proposal for some files; None if they are refused, which takes one line."""
    try:
        return propose_schema(sources)
    except UserError as refusal:
        message = str(refusal)
    assert message
    assert "\n" not in message
    return None


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(40, 120))
def test_a_proposal_prepares(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    form = ("csv", "jsonl", "parquet")[seed % 3]
    content = drawn_rows(draw, form)
    path = write(tmp_path / f"rows.{form}", content)
    print(path.read_bytes()[:500], {name: values[:4] for name, values in content.items()})
    sources = resolve_sources(str(path))
    proposal = proposed(sources)
    if proposal is None:
        return
    assert inspection_page(proposal, tmp_path)
    (tmp_path / "schema.yaml").write_text(proposal.text)
    keys = [f"data.raw={path}", f"data.schema={tmp_path}/schema.yaml", f"data.path={tmp_path}/out"]
    manifest = prepare(*keys, "data.allow_degenerate=true", "data.split.held_out=0.4")
    assert manifest.rows == len(next(iter(content.values())))
    if proposal.label.rate is not None:
        assert manifest.label_rate == proposal.label.rate


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_any_bytes_are_refused_in_one_line_or_read(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    alphabet = draw.choice([bytes(range(256)), b'0123456789,.\n"a;|\t', b"label,\n01a", b'{"label":01,}\n[]a'])
    content = bytes(draw.choices(alphabet, k=draw.randint(1, 400)))
    content = draw.choice([b"", b"label,user\n", b"\xef\xbb\xbflabel;x\n", b"PAR1", b'{"label": 1}\n']) + content
    path = tmp_path / draw.choice(["rows.csv", "rows.jsonl", "rows.txt"])
    path.write_bytes(content)
    try:
        sources = resolve_sources(str(path))
    except UserError:
        return
    proposal = proposed(sources)
    assert proposal is None or proposal.text
