"""Proposed schemas: uses of columns, the label, refusals; drawn tables; `data.schema=auto`."""

import datetime
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from common.errors import UserError
from data_prep.dataset.format import load_manifest, splitmix64
from data_prep.sources.files import Source, resolve_sources
from data_prep.verify import verify_dataset
from extensions.inspect.command import inspection_page
from extensions.inspect.proposal import (
    MAX_EXACT,
    ColumnFigures,
    Proposal,
    auc_of_column,
    order_sentences,
    propose_schema,
    quantile_codes,
)
from tests.data_prep.conftest import prepare, seeds
from tests.data_prep.tables import paths, write
from tests.error_lines import refused

ROWS = 400
BITS = np.random.default_rng(7).integers(0, 2, ROWS).tolist()


def ratings(rows: int = ROWS) -> dict[str, list[Any]]:
    """Ratings as published, sorted by user."""
    rng = np.random.default_rng(0)
    return {
        "userId": sorted(rng.integers(1, 30, rows).tolist()),
        "movieId": rng.integers(1, 60, rows).tolist(),
        "rating": (rng.integers(1, 11, rows) / 2).tolist(),
        "timestamp": rng.integers(1_000_000_000, 1_500_000_000, rows).tolist(),
    }


def ads(rows: int = ROWS) -> dict[str, list[Any]]:
    """Advertisements in order of time, with columns that teach nothing or too much."""
    rng = np.random.default_rng(1)
    clicked = rng.random(rows) < 0.3
    start = datetime.datetime(2024, 3, 1)
    return {
        "event": [f"e{row:06d}" for row in range(rows)],
        "row": list(range(rows)),
        "shown_at": [(start + datetime.timedelta(minutes=13 * row)).isoformat(" ") for row in range(rows)],
        "site": [f"s{site}" for site in rng.integers(0, 15, rows)],
        "tags": rng.choice(["a|b", "b", "c|a|d", "d", "a|c", "b|d"], rows).tolist(),
        "price": rng.lognormal(1, 1, rows).round(3).tolist(),
        "age": ["NA" if row % 9 == 0 else int(rng.integers(18, 80)) for row in range(rows)],
        "children": rng.integers(0, 4, rows).tolist(),
        "version": ["v1"] * rows,
        "empty": [None] * rows,
        "revenue": np.where(clicked, rng.gamma(2, 5, rows).round(2), 0).tolist(),
        "clicked": np.where(clicked, "yes", "no").tolist(),
    }


def proposed(directory: Path, content: Any, label: str | None = None, name: str = "rows.csv") -> Proposal:
    return propose_schema(resolve_sources(str(write(directory / name, content))), label)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
def test_ratings(tmp_path: Path, name: str) -> None:
    content = ratings()
    proposal = proposed(tmp_path, content, name=name)
    grades = np.array(content["rating"])
    rates = {grade: (grades >= grade).mean() for grade in sorted(set(grades))[1:]}
    middle = min(rates, key=lambda grade: abs(rates[grade] - 0.5))
    document = yaml.safe_load(proposal.text)
    assert document["label"] == f"rating >= {middle:g}"
    assert proposal.label.rate == rates[middle]
    assert document["time"] == {"column": "timestamp", "format": "epoch"}
    assert document["sparse"][:2] == ["userId", "movieId"]
    assert [entry["part"] for entry in document["sparse"][2:]] == ["weekday", "hour"]
    assert proposal.groups == ["userId"]
    text = " ".join(order_sentences(proposal))
    assert text.startswith("Rows are grouped by userId (all rows of a value follow each other).")
    assert "data.split.method=time (the default here)" in text
    assert "data.split.method=group data.split.column=userId keeps all rows of a value" in text


def test_advertisements(tmp_path: Path) -> None:
    proposal = proposed(tmp_path, ads())
    document = yaml.safe_load(proposal.text)
    assert document == {
        "missing": ["NA"],
        "label": "clicked",
        "time": "shown_at",
        "dense": ["price", {"column": "age", "transform": "standard"}],
        "sparse": [
            {"column": "shown_at", "part": "weekday"},
            {"column": "shown_at", "part": "hour"},
            "site",
            {"column": "tags", "separator": "|"},
            "children",
        ],
    }
    reasons = {name: use.reason.partition(":")[0] for name, use in proposal.uses.items() if use.place == "out"}
    assert reasons == {
        "event": "unique",
        "row": "unique",
        "version": "constant",
        "empty": "constant",
        "revenue": "leaks the label",
    }
    assert all(f"#   {name}: {reason}" in proposal.text for name, reason in reasons.items())
    assert "Rows are in order of shown_at." in proposal.text
    assert "fraction tests on the last rows of the files, which are the newest" in proposal.text


def drawn_numbers(rows: int = 6000) -> dict[str, Any]:
    """Columns of whole numbers: ids with effects and without, quantities, an hour, values that hardly repeat."""
    rng = np.random.default_rng(3)
    columns = {"id": rng.integers(100, 300, rows), "user": rng.integers(0, 90, rows)}
    columns |= {"quantity": rng.integers(0, 900, rows), "serial": rng.integers(0, 4000, rows)}
    columns |= {"level": rng.integers(0, 35, rows), "hour": rng.integers(0, 24, rows)}
    scores = rng.normal(0, 1, 200)[columns["id"] - 100] + columns["quantity"] / 450 + columns["level"] / 12 - 3
    scores += np.abs(columns["hour"] - 12) / 6
    return columns | {"score": scores, "label": rng.random(rows) < 1 / (1 + np.exp(-scores))}


def losses_of(numbers: Any, labels: Any) -> list[float]:
    """Return the losses by value, by quantile and by neither; log loss, or RMSE of labels that are no bits."""
    frame = pd.DataFrame({"value": numbers, "label": labels * 1.0})
    frame["quantile"] = np.searchsorted(np.unique(np.quantile(numbers, np.arange(1, 32) / 32)), numbers)
    half = splitmix64(np.arange(len(frame), dtype=np.uint64)) % 2
    frame["all"] = 0
    losses: list[float] = []
    prior: Any = 0.0
    for key in ("all", "quantile", "value"):
        rates = np.zeros(len(frame))
        for fitted in (0, 1):
            groups = frame[half == fitted].groupby(key).label.agg(["sum", "count"]).reindex(frame[key]).fillna(0)
            before = frame.label[half == fitted].mean() if key != "value" else prior
            smoothed = (groups["sum"].to_numpy() + 10 * before) / (groups["count"].to_numpy() + 10)
            rates = np.where(half == fitted, rates, smoothed)
        if set(frame.label) <= {0.0, 1.0}:
            losses.append(float(-np.log(np.where(frame.label > 0, rates, 1 - rates)).mean()))
        else:
            losses.append(float(np.sqrt(((rates - frame.label) ** 2).mean())))
        prior = rates if key == "quantile" else prior
    return losses[::-1]


@pytest.mark.parametrize("label", ["label", "score"])
def test_whole_numbers_are_categories_by_their_rates(tmp_path: Path, label: str) -> None:
    table = drawn_numbers()
    columns = {name: values for name, values in table.items() if name not in ("score", "label")}
    proposal = proposed(tmp_path, {"y": table[label] * 1, **{f"c{i}": columns[name] for i, name in enumerate(columns)}})
    uses = dict(zip(columns, list(proposal.uses.values())[1:], strict=True))
    assert {name: use.place for name, use in uses.items()} == {
        "id": "sparse",
        "user": "sparse",
        "quantity": "dense",
        "serial": "dense",
        "level": "dense",
        "hour": "sparse",
    }
    for name in ("id", "user", "quantity", "level", "hour"):
        value, quantile, neither = (f"{loss:.4g}" for loss in losses_of(columns[name], table[label]))
        kind = "log loss" if label == "label" else "RMSE"
        assert uses[name].reason.endswith(f"{kind} {value} by value, {quantile} by quantile, {neither} by neither")
        assert f"# {uses[name].reason}\n" in proposal.text
    assert uses["serial"].reason.endswith(f"{6000 / len(set(columns['serial'])):.1f} rows a value")


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_days_as_numbers_are_times(tmp_path: Path, name: str) -> None:
    days = pd.date_range("2019-01-01", periods=ROWS, freq="3D")
    content = {"label": BITS, "cat": list("abca") * 100, "x": [int(f"{day:%Y%m%d}") for day in days]}
    proposal = proposed(tmp_path, content, name=name)
    assert proposal.time == ("x", "%Y%m%d")
    manifest = prepare(*paths(tmp_path, proposal.text, name))
    assert manifest.encoding["split"] == "time"
    weekdays = Counter(day.weekday() for day in days[: manifest.splits["train"].rows])
    assert manifest.num_embeddings["x_weekday"] == 1 + len(weekdays)


LABELS: dict[str, tuple[list[Any], str | None, Any]] = {
    "numbers": ([0, 1], None, "click"),
    "fractions": (["0.0", "1.0"], None, "click"),
    "words": (["true", "false"], None, "click"),
    "signs": ([-1, 1], None, "click == 1"),
    "pair": (["neg", "Pos"], None, "click == Pos"),
    "given": ([">50K", "<=50K"], "click == >50K", "click == >50K"),
    "blank": ([" Yes", " No"], "click == ' Yes'", "click == ' Yes'"),
    "threshold": ([1, 2, 3], "click >= 3", "click >= 3"),
    "beyond float64": ([2**53 + 1, 2**53, 5], f"click >= {2**53 + 1}", f"click >= {2**53 + 1}"),
    "grades": ([1, 2, 3, 4], None, "click >= 3"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels(tmp_path: Path, case: str) -> None:
    values, given, expected = LABELS[case]
    content = {"click": (values * ROWS)[:ROWS], "user": [f"u{row % 7}" for row in range(ROWS)]}
    proposal = proposed(tmp_path, content, given)
    entry = yaml.safe_load(proposal.text)["label"]
    assert entry == expected or entry == expected.replace("'", '"')
    assert prepare(*paths(tmp_path, proposal.text)).label_rate == proposal.label.rate


FEW = {"user": ["a", "b"] * 30}
KNOWN = (
    r"column label: has the values <=50K \(40\), >50K \(20\), of which none is known .*: data\.label='label == >50K'"
)
# The table, the label that is given, what the line says.
REFUSALS: list[tuple[Any, str | None, str]] = [
    ({"a": [0, 1] * 30, **FEW}, None, r"rows\.csv: no column is named label, click, .* or rating.*data\.label=COLUMN"),
    ({"label": [">50K", "<=50K", "<=50K"] * 20, "user": list("abc") * 20}, None, KNOWN),
    *(
        ({"rating": numbers * 30, **FEW}, None, rf"of which none is known .*: data\.label='rating == {max(numbers):g}'")
        for numbers in ([1, 5], [0.5, 1], [1, 2], [-1, 2])
    ),
    (
        {"label": [1, 0, "NA"] * 20, **FEW},
        "label == 1",
        "20 of 60 rows have no label, such as row 3 of the table .NA stands",
    ),
    ({"label": [1, 0, "x"] * 20, **FEW}, "label >= 1", "row 3 of the table, column label: 'x' is not a number"),
    ({"label": ["a"] * 60, **FEW}, None, "has the values a .60., of which none is known to be positive"),
]


@pytest.mark.parametrize(("content", "label", "message"), REFUSALS)
def test_refusals(tmp_path: Path, content: Any, label: str | None, message: str) -> None:
    refused(message, proposed, tmp_path, content, label)


def test_auto_trains_on_the_proposal_as_if_it_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = proposed(tmp_path, ratings()).text
    (tmp_path / "schema.yaml").write_text(text)
    raw = f"data.raw={tmp_path}/rows.csv"
    given = prepare(raw, f"data.schema={tmp_path}/schema.yaml", f"data.path={tmp_path}/given")
    capsys.readouterr()
    auto = [raw, "data.schema=auto", f"data.path={tmp_path}/auto"]
    prepare(*auto)
    assert "data.schema=auto: label: rating >= " in capsys.readouterr().err
    verify_dataset(tmp_path / "auto")
    assert load_manifest(tmp_path / "auto").digest == given.digest
    assert given.encoding["split"] == "time"
    prepare(*auto)  # finished already, by the schema that it has
    assert "already done" in capsys.readouterr().err
    prepare(*auto, "data.label=rating")
    refused(r"the label is rating >= .* there, movieId here", prepare, *auto, "data.label=movieId")
    given_keys = [raw, f"data.schema={tmp_path}/schema.yaml", f"data.path={tmp_path}/b"]
    refused(r"data\.label=x: has no effect without data\.schema=auto", prepare, *given_keys, "data.label=x")


@pytest.mark.medium
def test_different_values_are_counted_and_then_estimated() -> None:
    figures = ColumnFigures("x", "any")
    for start in range(0, 40_000, 1000):
        figures.add_values(np.arange(start, start + 2000, dtype=np.uint64))
    assert (figures.num_values, figures.has_exact_number) == (41_000, True)
    for start in range(0, 1_000_000, 10_000):
        figures.add_values(np.arange(start, start + 20_000, dtype=np.uint64))
    assert not figures.has_exact_number
    assert figures.num_values == pytest.approx(1_010_000, rel=4 / np.sqrt(MAX_EXACT / 2))


def test_the_auc_of_a_column_is_scikit_learn_s() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 5, 4000)
    labels = rng.random(4000) < np.array([0.1, 0.3, 0.5, 0.2, 0.8])[codes]
    rates = pd.Series(labels).groupby(codes).mean()[codes]
    assert auc_of_column(codes, labels) == pytest.approx(roc_auc_score(labels, rates), abs=0.01)
    assert auc_of_column(np.zeros(4000, np.int64), labels) == 0.5
    assert auc_of_column(codes[:60], labels[:60]) is None
    numbers = labels + rng.normal(0, 0.01, 4000)
    assert auc_of_column(quantile_codes(numbers), labels) == pytest.approx(1, abs=0.01)


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
    "iso": lambda draw: str(datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=draw.randint(0, 10**7))),
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


def proposal_or_none(sources: list[Source]) -> Proposal | None:
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
    proposal = proposal_or_none(sources)
    if proposal is None:
        return
    assert inspection_page(proposal, tmp_path)
    keys = paths(tmp_path, proposal.text, path.name)
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
    proposal = proposal_or_none(sources)
    assert proposal is None or proposal.text
