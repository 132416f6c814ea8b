"""Splits by time, group and label: which rows are held out, by plain NumPy and pandas, and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_prep import job
from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from data_prep.lookup import VocabularyTexts
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import SPLITS, Capture, load_split, prepare, sums, write_rows
from tests.data_prep.tables import write
from tests.error_lines import refused

ROWS = 900
SCHEMA = "label: label\ndense: [row]\nsparse: [user, item]\n"
RAW = "data.dense_transform=raw"  # so that the number of each row can be read from a shard


def table(seed: int = 0, rows: int = ROWS, times: int = 10**6) -> dict[str, list[Any]]:
    """Rows in no order of time, user or label."""
    rng = np.random.default_rng(seed)
    return {
        "label": (rng.random(rows) < 0.2).astype(int).tolist(),
        "row": list(range(rows)),
        "user": [f"u{user}" for user in rng.integers(0, 60, rows)],
        "item": rng.integers(0, 40, rows).tolist(),
        "ts": (1_600_000_000 + rng.integers(0, times, rows) * (10**6 // times)).tolist(),
    }


def make(directory: Path, content: dict[str, list[Any]], *keys: str, name: str = "rows.csv", out: str = "out") -> Any:
    """The row numbers of each split, in the order of the shards."""
    write(directory / name, content)
    if not (directory / "schema.yaml").exists():
        (directory / "schema.yaml").write_text(SCHEMA)
    raw = [] if any(key.startswith("data.train=") for key in keys) else [f"data.raw={directory / name}"]
    prepare(*raw, f"data.schema={directory}/schema.yaml", f"data.path={directory / out}", RAW, *keys)
    verify_dataset(directory / out)
    return {split: load_split(directory / out, split)[1][:, 0].astype(int).tolist() for split in SPLITS}


def expected_by_time(times: np.ndarray, share: float) -> dict[str, list[int]]:
    """Each boundary lies at the change of time nearest to its share; no split is empty."""
    order = np.sort(times)
    changes = np.flatnonzero(order[1:] != order[:-1]) + 1
    held_out = max(2, int(len(times) * share + 1e-9))
    ideal = [len(times) - held_out, len(times) - held_out // 2]
    nearest = [changes[np.argmin(np.abs(changes - place))] for place in ideal]
    first = min(nearest[0], changes[-2])
    second = max(nearest[1], changes[np.searchsorted(changes, first, side="right")])
    starts = order[[first, second]]
    number = np.searchsorted(starts, times, side="right")
    return {split: np.flatnonzero(number == place).tolist() for place, split in enumerate(SPLITS)}


def written(times: list[int], form: str) -> list[Any]:
    stamps = pd.to_datetime(times, unit="s")
    return {
        "number": times,
        "iso": [stamp.isoformat(" ") for stamp in stamps],
        "german": stamps.strftime("%d.%m.%Y %H:%M:%S").tolist(),
        "typed": list(stamps.to_pydatetime()),
        "milliseconds": [1000 * time for time in times],
    }[form]


FORMS = [
    ("number", "rows.csv", "time: ts"),
    ("iso", "rows.csv", "time: ts"),
    ("german", "rows.csv", "time: {column: ts, format: '%d.%m.%Y %H:%M:%S'}"),
    ("typed", "rows.parquet", "time: ts"),
    ("number", "rows.parquet", "time: ts"),
    ("milliseconds", "rows.jsonl", "time: {column: ts, format: epoch_ms}"),
    ("iso", "rows.jsonl", "time: ts"),
    ("milliseconds", "rows.csv", "dense: [row, {column: ts, part: hour, format: epoch_ms}]"),
]


@pytest.mark.parametrize(("form", "name", "line"), FORMS)
def test_the_newest_rows_are_held_out(tmp_path: Path, form: str, name: str, line: str) -> None:
    content = table()
    expected = expected_by_time(np.array(content["ts"]), 0.3)
    content["ts"] = written(content["ts"], form)
    key = line.split(":")[0]
    schema = [each for each in SCHEMA.splitlines() if not each.startswith(key)]
    (tmp_path / "schema.yaml").write_text("\n".join([*schema, line]) + "\n")
    keys = [] if key == "time" else ["data.split.method=time", "data.split.column=ts"]
    assert make(tmp_path, content, "data.split.held_out=0.3", *keys, name=name) == expected
    encoding = load_manifest(tmp_path / "out").encoding
    assert (encoding["split"], encoding["split_column"]) == ("time", "ts")


@pytest.mark.medium
@pytest.mark.parametrize("times", [3, 4, 5, 8, 50])
def test_rows_of_one_time_are_in_one_split(tmp_path: Path, times: int) -> None:
    for seed in range(3):
        content = table(seed, times=times)
        for share in (0.02, 0.3, 0.9):
            keys = ["data.split.method=time", "data.split.column=ts", f"data.split.held_out={share}"]
            rows = make(tmp_path, content, *keys, out=f"{seed}_{share}")
            assert rows == expected_by_time(np.array(content["ts"]), share)
            assert all(rows.values())


@pytest.mark.medium
def test_times_are_found_by_histograms_of_ever_smaller_ranges(tmp_path: Path) -> None:
    """Times of all years, which take several rounds, with many rows at one of them."""
    rng = np.random.default_rng(4)
    content = table(rows=700)
    times = np.concatenate([rng.integers(-2 * 10**9, 4 * 10**9, 300), np.full(100, 3 * 10**9), 10**9 + np.arange(300)])
    content["ts"] = rng.permutation(times).tolist()
    (tmp_path / "schema.yaml").write_text(SCHEMA + "time: {column: ts, format: epoch}\n")
    content["ts"] = [time if abs(time) > 10**8 else 10**9 for time in content["ts"]]
    for share in (0.2, 0.45, 0.8):
        rows = make(tmp_path, content, f"data.split.held_out={share}", out=f"{share}")
        assert rows == expected_by_time(np.array(content["ts"]), share)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl"])
@pytest.mark.parametrize("column", ["user", "item"])
def test_all_rows_of_a_group_are_in_one_split(tmp_path: Path, name: str, column: str) -> None:
    content, results = table(), []
    for seed in (0, 1):
        keys = ["data.split.method=group", f"data.split.column={column}", "data.split.held_out=0.4"]
        rows = make(tmp_path, content, *keys, f"data.split.seed={seed}", name=name, out=f"out{seed}")
        groups = {split: {content[column][row] for row in rows[split]} for split in SPLITS}
        assert sum(map(len, groups.values())) == len(set(content[column]))
        assert sorted(row for split in SPLITS for row in rows[split]) == list(range(ROWS))
        assert all(rows[split] == sorted(rows[split]) for split in SPLITS)
        results.append(groups)
    assert results[0] != results[1]


@pytest.mark.medium
def test_groups_have_the_shares_that_are_asked_for_and_the_same_in_every_form(tmp_path: Path) -> None:
    content = table(rows=6000)
    content["user"] = [f"u{row // 2}" for row in range(6000)]
    keys = ["data.split.method=group", "data.split.column=user", "data.split.held_out=0.4"]
    results = [make(tmp_path, content, *keys, name=f"rows.{form}", out=form) for form in ("csv", "jsonl", "parquet")]
    assert results[0] == results[1] == results[2]
    assert [len(results[0][split]) / 6000 for split in SPLITS] == pytest.approx([0.6, 0.2, 0.2], abs=0.03)


@pytest.mark.parametrize("share", [0.1, 1 / 7, 0.5])
def test_labels_have_the_same_share_in_each_split(tmp_path: Path, share: float) -> None:
    content = table(3)
    keys = ["data.split.method=stratified", f"data.split.held_out={share}"]
    results = [make(tmp_path, content, *keys, f"data.split.seed={seed}", out=f"out{seed}") for seed in (0, 5)]
    assert results[0] != results[1]
    totals = Counter(content["label"])
    for rows in results:
        for label, total in totals.items():
            held_out = int(total * share + 1e-9)
            counts = [sum(content["label"][row] == label for row in rows[split]) for split in SPLITS]
            assert counts == [total - held_out, held_out - held_out // 2, held_out // 2]
        # By chance: held-out rows are spread over the file.
        assert abs(np.mean(rows["val"] + rows["test"]) / ROWS - 0.5) < 0.1


def test_labels_of_criteo_s_rows(tmp_path: Path) -> None:
    keys = [*write_rows(tmp_path, 500, seed=3), "data.split.method=stratified", "data.split.held_out=0.5"]
    manifest = prepare(*keys)
    rates = [manifest.splits[split].label_rate for split in SPLITS]
    assert rates == pytest.approx([manifest.label_rate] * 3, abs=0.01)


SEEDS = [
    ("data.split.method=random data.split.held_out=0.3", "split", [0.7, 0.15, 0.15]),
    ("data.sampling.negative_drop_rate=0.875", "sampling", [0.5625 * 6 / 7, 0.5625 / 14, 0.5625 / 14]),
]


@pytest.mark.medium
@pytest.mark.parametrize(("overrides", "seed", "shares"), SEEDS)
def test_chance_follows_the_seed_and_no_chunks(tmp_path: Path, overrides: str, seed: str, shares: list[float]) -> None:
    """tests/oracles/test_preparation.py has which rows these may be, and what becomes of them."""
    raw, _ = write_rows(tmp_path, 1500, seed=11)
    results = []
    for name, more in (("a", ["data.chunk_bytes=20000"]), ("b", []), ("c", [f"data.{seed}.seed=8"])):
        prepare(raw, f"data.path={tmp_path / name}", *overrides.split(), *more)
        results.append([load_split(tmp_path / name, split)[1].tolist() for split in SPLITS])
    assert results[0] == results[1] != results[2]
    assert [len(rows) / 1500 for rows in results[0]] == pytest.approx(shares, abs=0.04)


METHODS = {
    "time": ["data.split.method=time", "data.split.column=ts"],
    "group": ["data.split.method=group", "data.split.column=user"],
    "stratified": ["data.split.method=stratified"],
    "random": ["data.split.method=random"],
}


@pytest.mark.parametrize("method", METHODS)
def test_the_vocabulary_has_train_s_values_alone(tmp_path: Path, method: str) -> None:
    content = table(rows=300)
    content["item"] = [row // 2 for row in range(300)]  # most of which are in one split
    rows = make(tmp_path, content, *METHODS[method], "data.split.held_out=0.5")
    for feature in ("user", "item"):
        counts = Counter(str(content[feature][row]) for row in rows["train"])
        texts = VocabularyTexts(tmp_path / "out", feature)
        assert {texts[number] for number in range(1, len(texts) + 1)} == set(counts)
    encoder = Encoder.load(tmp_path / "out")  # new rows need no column that decides the split
    assert "ts" not in encoder.input_columns


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drop", ["", "data.sampling.negative_drop_rate=0.5"])
def test_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, drop: str) -> None:
    content, results = table(), []
    for size in (2000, 1 << 20):
        monkeypatch.setattr(job, "MIN_OWN_CHUNK_BYTES", size)
        keys = [*METHODS[method], f"data.chunk_bytes={size}", *([drop] if drop else [])]
        results.append(make(tmp_path, content, *keys, out=f"out{size}"))
    assert results[0] == results[1]
    kept = [row for split in SPLITS for row in results[0][split]]
    assert {row for row in range(ROWS) if content["label"][row]} <= set(kept)
    assert (len(kept) < ROWS) == bool(drop)
    if method == "stratified":
        rates = [np.mean([content["label"][row] for row in results[0][split]]) for split in SPLITS]
        assert rates == pytest.approx([rates[0]] * 3, abs=0.01)


@pytest.mark.slow("processes")
@pytest.mark.parametrize("method", METHODS)
def test_workers_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(job, "MIN_OWN_CHUNK_BYTES", 3000)
    for workers in (1, 3):
        keys = [*METHODS[method], "data.chunk_bytes=3000", f"data.workers={workers}"]
        make(tmp_path, table(), *keys, out=f"out{workers}")
    assert sums(tmp_path / "out1") == sums(tmp_path / "out3")


@pytest.mark.parametrize("missing", ["val", "test"])
@pytest.mark.parametrize("method", [*METHODS, ""])
def test_a_missing_split_is_held_out_of_train(tmp_path: Path, method: str, missing: str) -> None:
    given = "test" if missing == "val" else "val"
    content, other = table(), table(seed=9, rows=50)
    other["row"] = list(range(5000, 5050))
    write(tmp_path / f"{given}.csv", {name: other[name] for name in content})
    keys = METHODS.get(method, [])
    files = [f"data.train={tmp_path}/rows.csv", f"data.{given}={tmp_path}/{given}.csv"]
    rows = make(tmp_path, content, *files, *keys, "data.split.held_out=0.3")
    assert rows[given] == other["row"]
    assert sorted(rows["train"] + rows[missing]) == list(range(ROWS))
    assert len(rows[missing]) == pytest.approx(0.3 * ROWS, rel=0.6)
    if method == "time":
        times = np.array(content["ts"])
        assert times[rows["train"]].max() < times[rows[missing]].min()
    if method == "stratified":
        rates = [np.mean([content["label"][row] for row in numbers]) for numbers in (rows[missing], range(ROWS))]
        assert rates[0] == pytest.approx(rates[1], abs=0.01)
    counts = {str(content["item"][row]) for row in rows["train"]}
    texts = VocabularyTexts(tmp_path / "out", "item")
    assert {texts[number] for number in range(1, len(texts) + 1)} == counts
    assert make(tmp_path, content, *files, *keys, "data.split.held_out=0.3") == rows  # finished already
    refused("holds another dataset", make, tmp_path, content, *files, *keys, "data.split.held_out=0.2")


def test_the_schema_alone_decides_the_default(tmp_path: Path) -> None:
    make(tmp_path, table())
    assert load_manifest(tmp_path / "out").encoding["split"] == "random"
    assert "split_column" not in load_manifest(tmp_path / "out").encoding
    (tmp_path / "schema.yaml").write_text(SCHEMA + "time: ts\n")
    by_time = make(tmp_path, table(), out="by_time")
    assert load_manifest(tmp_path / "by_time").encoding["table"]["time"] == {"column": "ts"}
    assert make(tmp_path, table(), "data.split.method=auto", out="by_time") == by_time
    assert make(tmp_path, table(), "data.split.column=ts", out="by_time") == by_time
    for key in ("method=random", "method=group data.split.column=user", "column=item"):
        refused(r"holds another dataset \(split", make, tmp_path, table(), *f"data.split.{key}".split(), out="by_time")


def changed(column: str, *values: Any, first: int = 0) -> dict[str, list[Any]]:
    """A small table with other values in a column from a row on."""
    content = table(rows=40)
    content[column][first : first + len(values)] = values
    return content


TABLE, NO_TIME, NO_USER = table(rows=40), changed("ts", None, first=7), changed("user", None, first=7)
DATE, THREE = changed("ts", "2024-01-01", first=5), changed("user", 3, first=5)
BY_TIME, BY_USER = "split.method=time split.column=ts", "split.method=group split.column=user"
WHEN = "split.method=time split.column=when"
MILLISECONDS = r"it looks like milliseconds; write `time: \{column: ts, format: epoch_ms\}` in the schema"
METHOD_OF_GIVEN = "train={0}/rows.csv val={0}/val.csv split.method=fraction"
REFUSALS: list[tuple[dict[str, list[Any]], str, str, str]] = [  # the table, keys, the form of its file, the message
    (TABLE, "split.method=group", "csv", r"give data\.split\.column=COLUMN$"),
    (TABLE, "split.method=time", "csv", r"or write time: COLUMN in .*schema\.yaml$"),
    (TABLE, WHEN, "csv", r"\.csv: no column when, which data\.split\.column names; it has label, row, user, item, ts$"),
    (TABLE, WHEN, "jsonl", "no column when"),
    (TABLE, "split.column=ts", "csv", r"has no effect .*method=time or .*method=group"),
    (TABLE, f"{BY_TIME} split.seed=3", "csv", "split.seed: has no effect"),
    (NO_TIME, BY_TIME, "csv", r"rows\.csv: row 9, column ts: no value; .* fill it in"),
    (NO_USER, BY_USER, "csv", r"rows\.csv: row 9, column user: no value; .* fill"),
    (NO_USER, BY_USER, "parquet", r"row group 0, row 8 of it, column user: no value"),
    (NO_TIME, BY_TIME, "parquet", r"row group 0, row 8 of it, column ts: no value"),
    (DATE, BY_TIME, "csv", r"row 7, column ts: '2024-01-01' is text, but the first row has a number \('16"),
    (THREE, BY_USER, "jsonl", r"row 6, column user: 3 is a number, but the first row has text \('u\d+'\); write all"),
    (changed("ts", *["soon"] * 40), BY_TIME, "csv", "row 2, column ts: 'soon' is not"),
    (changed("ts", *[1600000000000] * 40), BY_TIME, "csv", MILLISECONDS),
    (changed("ts", *[5] * 40), BY_TIME, "csv", "fewer than 3 different times"),
    (changed("user", *["u"] * 40), BY_USER, "csv", "(train|val|test).* (no rows|held out)"),
    (changed("user", *[["a"]] * 40), BY_USER, "parquet", "column user: list, which data.split.column cannot be"),
    (TABLE, "train=x split.method=random", "csv", r"name these files in data\.raw"),
    (TABLE, METHOD_OF_GIVEN, "csv", "holds no rows out of data.train; give one of random, time, group, stratified"),
]


@pytest.mark.parametrize(("content", "keys", "form", "message"), REFUSALS)
def test_refusals(tmp_path: Path, content: dict[str, list[Any]], keys: str, form: str, message: str) -> None:
    write(tmp_path / "val.csv", table(seed=8, rows=20))
    words = [f"data.{key}" for key in keys.format(tmp_path).split()]
    refused(message, make, tmp_path, content, *words, name=f"rows.{form}")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_numbers_as_labels_and_criteo_s_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text("label: {column: label, kind: number}\nsparse: [user]\n")
    message = r"stratified: needs labels of 0 and 1, and label has numbers .* use random"
    refused(message, make, tmp_path, TABLE, *METHODS["stratified"])
    refused(r"method=group: needs data\.schema", prepare, *write_rows(tmp_path), *METHODS["group"])


def test_the_key_that_a_warning_names_works(tmp_path: Path, capsys: Capture) -> None:
    content = table()
    schema = "label: label\ndense: [row, {column: ts, part: hour, format: epoch}]\nsparse: [user]\n"
    (tmp_path / "schema.yaml").write_text(schema)
    make(tmp_path, content)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "split at random although ts is a time" in line]
    keys = line.partition("; give ")[2].partition(", or say by ")[0].split()
    assert make(tmp_path, content, *keys) == expected_by_time(np.array(content["ts"]), 1 / 7)
    assert "split at random" not in capsys.readouterr().err
