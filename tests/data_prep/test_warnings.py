"""Datasets that nothing can be learned from: one line each when they are made."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.data_prep import oracle
from tests.data_prep.conftest import Capture, prepare
from tests.data_prep.tables import ALLOW, paths
from tests.error_lines import refused

SCHEMA = "label: label\ndense: [price]\nsparse: [user, item, {column: tags, separator: '|'}]\n"
Rows = Sequence[tuple[int | str, ...]]
HASHED = ("data.encoding=hash", "data.max_ind_range=50")


def warned(capsys: Capture, directory: Path, rows: Rows, *overrides: str, schema: str = SCHEMA) -> list[str]:
    """The warnings while a table of (label, price, user, item, tags) is prepared."""
    text = "label,price,user,item,tags\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (directory / "rows.csv").write_text(text)
    capsys.readouterr()
    prepare(*paths(directory, schema), "data.split.method=fraction", *overrides)
    prefix = f"{directory}/out: warning: "
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def good(count: int, label: Callable[..., Any] = lambda i: i % 2) -> Rows:
    return [(label(i), i % 5, f"u{i % 7}", f"i{i % 3}", "a|b" if i % 4 else "") for i in range(count)]


@pytest.mark.medium
@pytest.mark.parametrize("overrides", [(), pytest.param(HASHED, marks=pytest.mark.slow)], ids=["vocabulary", "hash"])
def test_each_kind(capsys: Capture, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    assert warned(capsys, tmp_path, good(300), *overrides) == []
    more = [*overrides, "data.overwrite=true"]

    (line,) = warned(capsys, tmp_path, good(700, lambda i: int(i >= 500)), *more)  # 600 of them are train's
    assert line.startswith("label rates differ (train 0.1667, val 1.0000, test 1.0000): only one class in val and test")
    assert line.endswith("if the rows are sorted by label, set data.split.method=random")
    assert warned(capsys, tmp_path, good(700, lambda i: int(i >= 500)), *more, "data.split.method=random") == []

    (line,) = warned(capsys, tmp_path, good(2100, lambda i: i % 10 == 0 if i < 1800 else i % 10 != 0), *more)
    assert line.startswith("label rates differ (train 0.1000, val 0.9000, test 0.9000): if the rows are sorted")

    for only in (0, 1):
        (line,) = warned(capsys, tmp_path, good(100, lambda i, only=only: only), *more, ALLOW)
        assert line.startswith(f"every label is {only}: there is nothing to learn")

    rows = [(label, "", user, "same", tags) for label, _, user, _, tags in good(300)]
    (line,) = warned(capsys, tmp_path, rows, *more)
    assert line.startswith("the same value, or none, in every row of price, item: nothing can be learned")

    lines = warned(capsys, tmp_path, good(1), *more, ALLOW)
    assert len(lines) == 3
    assert lines[0].startswith("test has no rows")
    assert lines[1].startswith("every label is 0")


@pytest.mark.medium
def test_columns_without_values_in_lists_and_in_criteo_s_rows(capsys: Capture, tmp_path: Path) -> None:
    rows = [(label, price, user, item, "") for label, price, user, item, _ in good(300)]
    (line,) = warned(capsys, tmp_path, rows)
    assert "in every row of tags:" in line
    days = oracle.make_rows(200, seed=3).decode().splitlines()
    (tmp_path / "day_0").write_text("".join("\t".join([*day.split("\t")[:-1], ""]) + "\n" for day in days))
    prepare(f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/criteo")
    assert "in every row of cat_25:" in capsys.readouterr().err


@pytest.mark.medium
def test_constant_columns_are_found_whatever_the_stages(capsys: Capture, tmp_path: Path) -> None:
    """Also where chunks are encoded in a stage of their own, or rows leave their order."""
    rows = [(label, 7, user, "same", tags) for label, _, user, _, tags in good(300)]
    for more in (["data.dense_transform=minmax"], ["data.split.method=random"], ["data.chunk_bytes=500"]):
        (line,) = warned(capsys, tmp_path, rows, *more, "data.overwrite=true")
        assert "in every row of price, item:" in line


@pytest.mark.medium
def test_integers_around_2_to_the_63_are_not_one_value(capsys: Capture, tmp_path: Path) -> None:
    rows = [(label, price, 2**63 - 20 + i, item, tags) for i, (label, price, _, item, tags) in enumerate(good(40))]
    for more in ([], HASHED, ["data.chunk_bytes=500"]):
        lines = warned(capsys, tmp_path, rows, *more, "data.overwrite=true")
        assert not [line for line in lines if "the same value, or none" in line], lines


def test_a_separator_that_divides_nothing_is_named(capsys: Capture, tmp_path: Path) -> None:
    schema = SCHEMA.replace("'|'", "', '")
    (line,) = warned(capsys, tmp_path, good(300), schema=schema)
    assert line == "the separator occurs in no field of tags (', '): check it in data.schema"
    assert warned(capsys, tmp_path, good(300), *HASHED, "data.overwrite=true", schema=schema) == [line]


@pytest.mark.medium
def test_a_threshold_above_all_counts_is_refused(capsys: Capture, tmp_path: Path) -> None:
    message = r"data.frequency_threshold=5000: no value of any column occurs 5000 times in train.*data.allow_degenerate"
    refused(message, warned, capsys, tmp_path, good(300), "data.frequency_threshold=5000")
    lines = warned(capsys, tmp_path, good(300), "data.frequency_threshold=5000", ALLOW)
    assert "no value of user, item, tags occurs 5000 times in train, so all of them are unknown" in lines[0]
    (line,) = warned(capsys, tmp_path, good(300), "data.frequency_threshold=60", "data.overwrite=true")
    assert line == "data.frequency_threshold=60: no value of user occurs 60 times in train, so all of them are unknown"


HOURS = "dense: [price, {column: at, part: hour}]"
REQUESTS = [
    ("", HOURS, True),
    ("data.split.method=auto", "dense: [{column: at, part: hour}, {column: at, part: day}]", True),
    ("data.split.method=random", HOURS, False),
    ("data.split.method=fraction", HOURS, False),
    ("", "dense: [price]", False),
]


@pytest.mark.parametrize(("keys", "schema", "is_named"), REQUESTS)
def test_times_and_random_splits(keys: str, schema: str, is_named: bool, tmp_path: Path, capsys: Capture) -> None:
    rows = [f"{i // 5 % 2},{i},u{i % 7},2026-01-{1 + i // 24:02d} {i % 24:02d}:00:00\n" for i in range(240)]
    (tmp_path / "rows.csv").write_text("".join(["label,price,user,at\n", *rows]))
    prepare(*paths(tmp_path, f"label: label\nsparse: [user]\n{schema}\n"), *keys.split())
    lines = [line for line in capsys.readouterr().err.splitlines() if "split at random" in line]
    assert [line.partition("although ")[2].partition(",")[0] for line in lines] == ["at is a time"] * is_named
