"""Drawn logs of events against naive programs: rules, kept times, ids, windows, histories, values of many types."""

import gzip
import hashlib
import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from common.errors import UserError
from data_prep.dataset.format import load_manifest
from data_prep.dataset.spelling import text_key
from data_prep.verify import verify_dataset
from extensions.sequences.event_log import EventLog, EventSplit
from extensions.sequences.events import ANCHOR_BIT, FLAG_BIT, known_items
from extensions.sequences.keys import CandidateTime, HistoryKind, SequencesConfig
from tests.data_prep.conftest import prepare, run
from tests.extensions.sequences.event_logs import opened
from tests.extensions.sequences.log_oracle import (
    SECOND,
    Event,
    Log,
    by_user,
    clipped,
    counts_of,
    events_of,
    sample_of,
    windows_of,
)

FAST, BY_COMMAND, ALL = 1, 4, 25
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FAST)) for seed in range(ALL)]
ONE_PIECE = 1 << 20


def drawn_schema(rng: np.random.Generator) -> dict[str, Any]:
    """A schema, in the words of its YAML."""

    def maybe(key: str, *values: Any) -> dict[str, Any]:
        return {key: values[rng.integers(len(values))]} if rng.integers(2) else {}

    rules = [">= 50", "< 50", "!= 0", "== 7", "<= 2.5", "> -1"]
    seen = {"event": ["view", ""], "secs": rules[rng.integers(6)]}
    actions: dict[str, Any] = {"bought": {"event": "buy"}, "seen": seen}
    if rng.integers(2):
        actions["long"] = {"secs": rules[rng.integers(6)]}
    names = list(actions)
    schema: dict[str, Any] = {"user": "who", "item": "what", "time": "ts", "actions": actions}
    schema |= {"others": {"event": ["scroll"]}, "label": names[rng.integers(len(names))]}
    schema |= maybe("anchors", {"event": ["view", "buy"]}, {"secs": rules[rng.integers(6)]}, {"event": "view"})
    schema |= maybe("flag", "hot") | maybe("delimiter", ";", "|")
    schema |= maybe("min_history", 0, 3) | maybe("window_seconds", 40, 300)
    schema |= maybe("drop_last_seconds", 0, 30) | maybe("keep_seconds", 150, 500)
    feature_names = ["user", "item", "hour", *(["hot"] if "flag" in schema else [])]
    if rng.integers(3):
        schema["attributes"] = {"brand": {"file": "brands.csv", "item": "id", "column": "maker"}}
        feature_names.append("brand")
    if rng.integers(3):
        sizes = rng.integers(1, len(feature_names) + 1, 2)
        crosses = [[str(name) for name in rng.permutation(feature_names)[:size]] for size in sizes]
        schema["crosses"] = {
            f"cross_{i}": {"of": of, "rows": int(rng.integers(5, 5000))} for i, of in enumerate(crosses)
        }
    schema |= maybe("renumber", True, False)
    if not schema.get("renumber", True):
        schema |= maybe("rows", {"item": 12}, {"item": 30} | ({"brand": 4} if "brand" in feature_names else {}))
    return schema


def drawn_log(rng: np.random.Generator, directory: Path) -> tuple[Log, list[str]]:
    """A log in one to three files with its schema, and the arguments that name them."""
    schema, count = drawn_schema(rng), int(rng.integers(80, 250))
    renumber = schema.get("renumber", True)
    kinds = ["{}", "u{}", "{}x"] if renumber else ["{}"]
    user, item, maker = (kinds[rng.integers(len(kinds))] for _ in range(3))
    seconds = 1_700_000_000 + rng.integers(0, rng.choice([60, 1000]), count)
    if rng.integers(2):
        seconds.sort()
    times = seconds * SECOND
    flags = ["0", "1", "true", "no", "Yes", "FALSE"]
    texts = [datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") for time in seconds.tolist()]
    form = rng.integers(3)
    if form == 1:
        times += rng.integers(999, size=count) * 1000
        schema["time"], texts = {"column": "ts", "format": "epoch_ms"}, [str(time // 1000) for time in times]
    elif form == 2:
        texts = [str(time) for time in seconds]
    rows = [
        {
            "what": item.format(rng.zipf(1.4) % 23),
            "ts": text,
            "who": user.format(rng.zipf(1.6) % 9),
            "event": str(rng.choice(["view", "buy", "scroll", ""])),
            "secs": str(rng.choice(["", "0", "7", "2.5", "50", "-3", "61", "0.0"])),
            "hot": flags[rng.integers(len(flags))],
        }
        for text in texts
    ]
    tables: dict[str, dict[str, str]] = {}
    delimiter = schema.get("delimiter", ",")
    if "attributes" in schema:
        pairs = [(item.format(i), maker.format(rng.integers(1, 6))) for i in rng.permutation(30)[:20]]
        tables["brand"] = dict(pairs)
        lines = [f"maker{delimiter}id", *(f"{value}{delimiter}{key}" for key, value in pairs)]
        (directory / "brands.csv").write_text("\n".join(lines) + "\n")
    (directory / "log.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    cuts = np.sort(rng.integers(1, count, rng.integers(0, 3))).tolist()
    parts = [rows[low:high] for low, high in zip([0, *cuts], [*cuts, count], strict=True) if low < high]
    for number, part in enumerate(parts):
        write_part(directory / f"part_{number}", part, delimiter, int(rng.integers(3)))
    paths = sorted(str(path) for path in directory.glob("part_*"))
    arguments = [f"data.raw=[{','.join(paths)}]", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
    return Log(schema | {"time": "ts"}, rows, times.tolist(), tables), [*arguments]


def write_part(stem: Path, rows: list[dict[str, str]], delimiter: str, kind: int) -> None:
    """Rows as text, compressed text, or Parquet with numbers, null where a field is empty."""
    lines = [delimiter.join(rows[0]), *(delimiter.join(row.values()) for row in rows)]
    text = ("\n".join(lines) + "\n").encode()
    if kind == 0:
        stem.with_suffix(".csv").write_bytes(text)
    elif kind == 1:
        stem.with_suffix(".csv.gz").write_bytes(gzip.compress(text))
    else:
        columns = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
        columns["secs"] = pa.array([float(row["secs"]) if row["secs"] else None for row in rows])
        if all(row["ts"].isdecimal() for row in rows):
            columns["ts"] = columns["ts"].cast(pa.int64())
        pq.write_table(pa.table(columns), stem.with_suffix(".parquet"), row_group_size=50)


def ids_of(root: Path, log: Log, events: list[Event]) -> tuple[list[str], dict[str, dict[str, int]]]:
    """The users in the dataset's order, and the ids that users, items and the items' attributes have there."""
    _, arrays = opened(root)
    names = {text_key(event.user): event.user for event in events}
    users = [names[key] for key in arrays.users.tolist()]
    assert sorted(users) == sorted(names.values())
    renumber, rows = log.get("renumber", True), log.get("rows", {})
    keys, numbers = known_items(root, load_manifest(root), arrays)
    of_key = dict(zip(keys.tolist(), numbers.tolist(), strict=True))
    items = {event.item: of_key[text_key(event.item)] for event in events}
    ids = {"item": items, "user": {name: place + 1 if renumber else int(name) for place, name in enumerate(users)}}
    if renumber:  # one to one, from 1 on
        item_texts = {row["what"] for row in log.rows}
        assert sorted(of_key[text_key(item)] for item in item_texts) == list(range(1, len(item_texts) + 1))
    else:
        assert all(int(item) == identity for item, identity in items.items())
    for (name, table), column in zip(log.tables.items(), arrays.attributes, strict=True):
        ids[name] = {item: int(column[identity]) for item, identity in items.items()}
        pairs = {(clipped(table.get(item, "0"), rows.get(name)), identity) for item, identity in ids[name].items()}
        assert len(pairs) == len(dict(pairs)) == len({identity for _, identity in pairs})
        assert {identity for value, identity in pairs if value == "0"} <= {0}
        assert renumber or all(int(value) == identity for value, identity in pairs)
    return users, ids


def drawn_keys(rng: np.random.Generator) -> dict[str, Any]:
    """Keys of `data.synthetic_events.*`."""
    return {
        "min_history": [None, 0, 1, 5][rng.integers(4)],
        "window_seconds": [None, 25, 200][rng.integers(3)],
        "history": ["interleaved", "last_n"][rng.integers(2)],
        "history_length": int(rng.integers(1, 12)),
        "scan_events": [4, 20_000][rng.integers(2)],
        "max_history": [None, 3][rng.integers(2)],
        "candidate_time": ["history", "own"][rng.integers(2)],
    }


def read_samples(reader: EventSplit) -> list[Any]:
    """The samples of a split, each as `sample_of` gives it."""
    samples: list[Any] = []
    for batch in reader.eval_batches(5):
        inputs = batch.inputs_of_model
        assert inputs is not None
        keyed = [jagged.to_dense() for jagged in batch.sparse_features.to_dict().values()]
        ends = np.cumsum(inputs.history_lengths)
        for place in range(batch.num_valid):
            part = slice(int(ends[place]) - inputs.history_lengths[place], int(ends[place]))
            history = inputs.times[part].tolist(), inputs.actions[part].tolist()
            candidate = int(inputs.candidate_times[place]), float(batch.labels[place])
            samples.append(([each[place].tolist() for each in keyed], *history, *candidate))
    return samples


@pytest.mark.medium
@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_log(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng([seed, 39])
    log, arguments = drawn_log(rng, tmp_path)
    events = events_of(log)
    chunk = int(rng.choice([2000, ONE_PIECE]))
    print(f"seed {seed}: {log.schema}, data.chunk_bytes={chunk}")
    fault = fault_of([*arguments, f"data.chunk_bytes={chunk}", "data.workers=1"], by_command=seed < BY_COMMAND)
    if not any(event.is_anchor for event in events):
        assert "meets `anchors`" in fault
        return
    label = list(log.schema["actions"]).index(log.schema["label"])
    if len({event.actions[label] for event in events if event.is_anchor}) == 1:
        assert "so nothing can be learned" in fault
        fault = fault_of([*arguments, f"data.chunk_bytes={chunk}", "data.allow_degenerate=true"], by_command=False)
    assert not fault
    root = tmp_path / "out"
    manifest = verify_dataset(root)
    users, ids = ids_of(root, log, events)
    stored = [event for user in users for event in by_user(events)[user]]
    _, arrays = opened(root)
    assert arrays.items.tolist() == [ids["item"][event.item] for event in stored]
    assert arrays.times.tolist() == [event.seconds for event in stored]
    flags = [sum(met << bit for bit, met in enumerate(event.actions)) for event in stored]
    flags = [
        bits + ANCHOR_BIT * event.is_anchor + FLAG_BIT * event.flag for bits, event in zip(flags, stored, strict=True)
    ]
    assert arrays.flags.tolist() == flags
    expected = counts_of(log)
    if chunk < ONE_PIECE or len(list(tmp_path.glob("part_*"))) > 1:  # events out of order are seen in a piece alone
        assert manifest.extra["unsorted"] <= expected.pop("unsorted")
    assert {key: manifest.extra[key] for key in expected} == expected
    compare_samples(root, log, users, ids, drawn_keys(rng))


def fault_of(arguments: list[str], by_command: bool) -> str:
    """Prepare a log, by the command or as it does; what it refuses."""
    try:
        if not by_command:
            prepare(*arguments)
            return ""
    except UserError as error:
        return str(error)
    result = run(*arguments)
    assert result.returncode in (0, 2), result.stderr
    return result.stderr if result.returncode else ""


def compare_samples(
    root: Path, log: Log, users: list[str], ids: dict[str, dict[str, int]], keys: dict[str, Any]
) -> None:
    """The samples of every window that can be evaluated, and all those before it, are the naive program's."""
    print(keys)
    windows = windows_of(log, users, keys)
    expected = [[sample_of(log, user, place, keys, ids) for user, place in window] for window in windows]
    for window in [number for number, samples in enumerate(expected) if number and samples][-3:]:
        kinds = {"history": HistoryKind(keys["history"]), "candidate_time": CandidateTime(keys["candidate_time"])}
        event_config = SequencesConfig(**keys | kinds, eval_window=window)
        events_log = EventLog(root, load_manifest(root), event_config)
        assert events_log.split("train", 0, 1).rows == sum(map(len, expected[:window]))
        assert read_samples(events_log.split("val", 0, 1)) == expected[window]
        assert read_samples(events_log.split("train", 0, 1)) == [
            sample for part in expected[:window] for sample in part
        ]


START = 1_690_000_000  # seconds
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DIGITS = {"epoch": 0, "epoch_ms": 3, "epoch_us": 6, "epoch_ns": 9}
PATTERNS = ("%d.%m.%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f %z", "%Y%m%d%H%M%S")
SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")
TRUTHS: list[tuple[Any, Any]] = [(True, False), ("true", "false"), ("True", "False"), ("YES", "no"), (1, 0), ("1", "0")]


@dataclass
class File:
    """A file of a log: its name, and its columns' values, or Arrow's array of time."""

    name: str
    users: list[Any]
    items: list[Any]
    times: Any
    bought: list[bool]
    truths: tuple[Any, Any]

    @property
    def columns(self) -> dict[str, Any]:
        """Values by the columns' names."""
        bought = [self.truths[0] if each else self.truths[1] for each in self.bought]
        return {"who": self.users, "what": self.items, "when": self.times, "bought": bought}


def microseconds(value: Any, form: str | None) -> int:
    """Microseconds since 1970 that a value means, rounded down."""
    if isinstance(value, pd.Timestamp):
        return int(value.value) // 1000
    is_number = isinstance(value, int | float) or re.fullmatch(r"-?[0-9.]+", value)
    if form in DIGITS or (form is None and is_number):
        return math.floor(Decimal(str(value)) * Decimal(10) ** (6 - DIGITS[form or "epoch"]))
    if form is None:
        stamp = pd.Timestamp(value)
        return int((stamp if stamp.tz is None else stamp.tz_convert("UTC")).value) // 1000
    time = datetime.strptime(str(value), form)
    time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return round((time - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(microseconds=1))


def key_of(value: Any) -> int:
    """Key of a user or an item."""
    text = str(int(value)) if isinstance(value, int | float) else value
    if re.fullmatch("0|[1-9][0-9]*", text):
        return int(text)
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return int(np.array(number | 1 << 63, np.uint64).astype(np.int64))


def expected_arrays(files: list[File], form: str | None) -> dict[str, list[int]]:
    """The dataset's arrays."""
    parts = []
    for file in files:
        times = (
            file.times
            if isinstance(file.times, list)
            else [pd.Timestamp(each.value, unit=each.type.unit) for each in file.times]
        )
        keys = {"user": map(key_of, file.users), "item": map(key_of, file.items)}
        columns = {**keys, "time": (microseconds(time, form) for time in times), "bought": file.bought}
        parts.append(pd.DataFrame({name: list(values) for name, values in columns.items()}))
    log = pd.concat(parts, ignore_index=True)
    log = log.sort_values(["user", "time"], kind="stable")
    counts = log.groupby("user", sort=True).size()
    ranks = {key: rank for rank, key in enumerate(sorted(set(log["item"])), start=1)}
    return {
        "users": counts.index.tolist(),
        "offsets": [0, *counts.cumsum().tolist()],
        "items": [ranks[item] for item in log["item"]],
        "times": (log["time"] // 10**6).tolist(),
        "flags": [64 + (128 + 4 + 1 if bought else 2) for bought in log["bought"]],
    }


def drawn_typed_log(draw: random.Random, directory: Path) -> tuple[list[File], str | None]:
    """Write a log in one to four files, and its schema as log.yaml; its files and format."""
    form = draw.choice([None, None, *DIGITS, *PATTERNS])
    step = NANOSECONDS[draw.choice(["s", "ms", "us", "ns"])]
    has_texts, number = draw.random() < 0.5, draw.randint(1, 4)
    files: list[File] = []
    for place in range(number):
        rows = draw.randint(1, 40)
        nanoseconds = [(START * 10**9 + draw.randrange(20 * 10**9)) // step * step for _ in range(rows)]
        suffix = draw.choice(SUFFIXES)
        is_last_text = (
            place == number - 1 and form is not None and not any(isinstance(each.times, list) for each in files)
        )
        users, items = drawn_ids(draw, rows, 4, has_texts, suffix), drawn_ids(draw, rows, 9, has_texts, suffix)
        times = drawn_times(draw, nanoseconds, form, suffix == ".parquet" and not is_last_text)
        bought = [draw.random() < 0.5 for _ in range(rows)]
        truths = draw.choice(TRUTHS)
        files.append(File(f"{place}{suffix}", users, items, times, bought, truths))
        write_file(directory / files[-1].name, files[-1].columns)
    time = draw.choice(["when", {"column": "when"}]) if form is None else {"column": "when", "format": form}
    truth = draw.choice([True, "true", "True", "yes", 1])
    actions = {"bought": {"bought": truth}, "seen": {"bought": False}, "same": {"bought": "== 1"}}
    schema = {"user": "who", "item": "what", "time": time, "actions": actions, "label": "bought", "flag": "bought"}
    (directory / "log.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    return files, form


def drawn_ids(draw: random.Random, rows: int, number: int, has_texts: bool, suffix: str) -> list[Any]:
    """Ids of one type: integers, floats in typed files, or text, of which some are integers."""
    pool = [7, 2**53 - 1, 12_345_678_901, 10**15 + 1, *range(20, 20 + number)][:number]
    ids = [draw.choice(pool) for _ in range(rows)]
    kinds: list[Callable[[int], Any]] = [int, str, *([float] if suffix != ".csv" and suffix != ".csv.gz" else [])]
    kinds += [lambda each: f"u{each}"] if has_texts else []
    return list(map(draw.choice(kinds), ids))


def drawn_times(draw: random.Random, nanoseconds: list[int], form: str | None, may_be_typed: bool) -> Any:
    """Times of one type that the format allows, as exact as that type is."""
    units = list(NANOSECONDS)
    if may_be_typed and draw.random() < 0.5:
        unit, zone = draw.choice(units), draw.choice([None, "UTC", "Asia/Tokyo", "America/New_York"])
        return pa.array([each // NANOSECONDS[unit] for each in nanoseconds], pa.int64()).cast(pa.timestamp(unit, zone))
    kinds: list[Callable[[int], Any]]
    if form in DIGITS or (form is None and draw.random() < 0.5):
        unit = units[DIGITS[form or "epoch"] // 3]
        kinds = [lambda each: each // NANOSECONDS[unit], lambda each: str(each // NANOSECONDS[unit])]
        if unit in ("s", "ms"):
            kinds += [lambda each: each / NANOSECONDS[unit], lambda each: str(Decimal(each) / NANOSECONDS[unit])]
    elif form is None:
        offset_zone = timezone(timedelta(minutes=draw.choice([0, 90, -480])))
        digits = draw.choice([0, 3, 6, 9])
        has_zone, ending = draw.random() < 0.6, draw.choice(["Z", "+00:00"])

        def iso(each: int) -> str:
            time = datetime.fromtimestamp(each // 10**9, offset_zone if has_zone else timezone.utc)
            fraction = f".{each % 10**9:09d}"[: digits + 1] if digits else ""
            offset = time.strftime("%z")
            offset = ending if offset == "+0000" else f"{offset[:3]}:{offset[3:]}"
            return f"{time:%Y-%m-%d}{draw.choice('T ')}{time:%H:%M:%S}{fraction}{offset if has_zone else ''}"

        kinds = [iso]
    else:
        written_zone = timezone(timedelta(hours=5)) if "%z" in form else timezone.utc

        def formatted(each: int) -> str:
            time = datetime.fromtimestamp(each // 10**9, written_zone).replace(microsecond=each % 10**9 // 1000)
            return time.strftime(form)

        kinds = [formatted, *([lambda each: int(formatted(each))] if form == PATTERNS[-1] else [])]
    return list(map(draw.choice(kinds), nanoseconds))


def write_file(path: Path, columns: dict[str, Any]) -> None:
    """Write columns in the form that the file's name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=17)
        return
    rows = zip(*columns.values(), strict=True)
    if ".csv" in path.name:
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    else:
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


FAST_TYPED, ALL_TYPED = 12, 132
BLOCKS = [range(FAST_TYPED), *(range(start, start + 20) for start in range(FAST_TYPED, ALL_TYPED, 20))]


@pytest.mark.medium
@pytest.mark.parametrize("seeds", [pytest.param(each, marks=[pytest.mark.slow] * (each.start > 0)) for each in BLOCKS])
def test_drawn_logs_are_stored_as_their_values_mean(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        draw, directory = random.Random(seed), tmp_path / str(seed)
        directory.mkdir()
        files, form = drawn_typed_log(draw, directory)
        about = (
            f"seed {seed}: format {form}, {[(each.name, each.users[0], each.times[0], each.truths) for each in files]}"
        )
        raw = ",".join(str(directory / file.name) for file in files)
        arguments = [f"data.raw=[{raw}]", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
        chunk = draw.choice(["300", "1MiB"])
        try:
            prepare(*arguments, f"data.chunk_bytes={chunk}", "data.allow_degenerate=true")
        except Exception as error:
            raise AssertionError(about) from error
        _, arrays = opened(directory / "out")
        for name, expected in expected_arrays(files, form).items():
            assert getattr(arrays, name).tolist() == expected, f"{name}, {about}"
