"""Drawn logs of events against the naive program: rules, kept times, ids, windows, histories, values of many types."""

import gzip
import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from common.errors import UserError
from data_prep.codec.values import text_key
from data_prep.dataset.format import load_manifest
from data_prep.verify import verify_dataset
from extensions.sequences.event_log import EventLog, EventSplit
from extensions.sequences.events import ANCHOR_BIT, FLAG_BIT, known_items
from extensions.sequences.keys import HSTUConfig, SequencesConfig
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

FAST, BY_COMMAND, ALL = 6, 4, 100
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FAST)) for seed in range(ALL)]
ONE_PIECE = 1 << 20
DIGITS = {"epoch": 0, "epoch_ms": 3, "epoch_us": 6, "epoch_ns": 9}
PATTERNS = ("%Y%m%d%H%M%S", "%d.%m.%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f %z")
# Values of each type that are false, and that are true.
TRUTHS: list[tuple[list[Any], list[Any]]]
TRUTHS = [([False], [True]), ([0], [1]), (["0", "no", "false", "FALSE", "No"], ["1", "yes", "true", "YES", "True"])]


def one_of(rng: np.random.Generator, values: Any) -> Any:
    return values[rng.integers(len(values))]


def drawn_schema(rng: np.random.Generator) -> dict[str, Any]:

    def maybe(key: str, *values: Any) -> dict[str, Any]:
        return {key: values[rng.integers(len(values))]} if rng.integers(2) else {}

    rules = [">= 50", "< 50", "!= 0", "== 7", "<= 2.5", "> -1"]
    seen = {"event": ["view", ""], "secs": rules[rng.integers(6)]}
    actions: dict[str, Any] = {"bought": {"event": "buy"}, "seen": seen}
    if rng.integers(2):
        actions["long"] = {"secs": rules[rng.integers(6)]}
    if rng.integers(2):
        actions |= {"warm": {"hot": one_of(rng, [True, "true", "True", "yes", 1])}, "cold": {"hot": False}}
        actions["same"] = {"hot": "== 1"}
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
    form = one_of(rng, [*[None] * 6, *DIGITS, *PATTERNS])
    step = SECOND if form in PATTERNS[:2] else one_of(rng, [1, 1000, SECOND])
    seconds = 1_700_000_000 + rng.integers(0, rng.choice([60, 1000]), count)
    if rng.integers(2):
        seconds.sort()
    times = (seconds * SECOND + rng.integers(0, SECOND // step, count) * step).tolist()
    schema["time"] = one_of(rng, ["ts", {"column": "ts"}]) if form is None else {"column": "ts", "format": form}
    rows = [
        {
            "what": item.format(rng.zipf(1.4) % 23),
            "who": user.format(rng.zipf(1.6) % 9),
            "event": str(rng.choice(["view", "buy", "scroll", ""])),
            "secs": str(rng.choice(["", "0", "7", "2.5", "50", "-3", "61", "0.0"])),
            "hot": "01"[rng.integers(2)],
        }
        for _ in times
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
    parts = [(low, high) for low, high in zip([0, *cuts], [*cuts, count], strict=True) if low < high]
    for number, (low, high) in enumerate(parts):
        stem = directory / f"part_{number}"
        # A format is for numbers and texts, of which there is a file then.
        write_part(rng, stem, rows[low:high], times[low:high], delimiter, form, form is None or number > 0)
    paths = sorted(str(path) for path in directory.glob("part_*"))
    arguments = [f"data.raw=[{','.join(paths)}]", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
    return Log(schema | {"time": "ts"}, rows, times, tables), arguments


def write_part(
    rng: np.random.Generator,
    stem: Path,
    rows: list[dict[str, str]],
    times: list[int],
    delimiter: str,
    form: str | None,
    may_be_stamps: bool,
) -> None:
    """Rows as text, JSON lines or Parquet, some compressed; ids, times and truth values of any type."""
    suffix = one_of(rng, [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", *[".parquet"] * 3])
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    truths = one_of(rng, TRUTHS)
    columns["hot"] = [one_of(rng, truths[int(hot)]) for hot in columns["hot"]]
    columns["ts"] = drawn_times(rng, times, form, may_be_stamps and suffix == ".parquet")
    if ".csv" not in suffix:
        columns["secs"] = [float(secs) if secs else None for secs in columns["secs"]]
        for name in ("what", "who"):
            if all(text.isdecimal() for text in columns[name]):
                columns[name] = list(map(one_of(rng, [str, int, float]), map(int, columns[name])))
    if suffix == ".parquet":
        pq.write_table(pa.table(columns), f"{stem}{suffix}", row_group_size=50)
        return
    if ".csv" in suffix:
        lines = [delimiter.join(map(str, row)) for row in [list(columns), *zip(*columns.values(), strict=True)]]
    else:
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    content = ("\n".join(lines) + "\n").encode()
    Path(f"{stem}{suffix}").write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)


def drawn_times(rng: np.random.Generator, times: list[int], form: str | None, may_be_stamps: bool) -> Any:
    """Times in microseconds as values of one type that the format allows; nanoseconds are cut off."""
    step = math.gcd(*times, SECOND)
    if may_be_stamps and rng.integers(2):
        unit, size = one_of(rng, [pair for pair in (("s", SECOND), ("ms", 1000), ("us", 1)) if pair[1] <= step])
        zone = one_of(rng, [None, "UTC", "Asia/Tokyo", "America/New_York"])
        stamps = pa.array([time // size for time in times], pa.int64()).cast(pa.timestamp(unit, zone))
        return stamps.cast(pa.timestamp("ns", zone)) if rng.integers(2) else stamps
    kinds: list[Callable[[int], Any]]
    if form in DIGITS or (form is None and rng.integers(2)):
        digits = DIGITS[form or "epoch"]
        kinds = [lambda time: format(Decimal(time).scaleb(digits - 6).normalize(), "f")]
        kinds += [lambda time: time * 10**digits // SECOND + 789 * (digits == 9)] * (step * 10**digits % SECOND == 0)
        kinds += [lambda time: time * 10**digits / SECOND] * (digits <= 3 and step >= 1000)
    elif form is None:
        zone_of_texts = one_of(rng, [None, *(timezone(timedelta(minutes=minutes)) for minutes in (0, 90, -480))])
        digits = one_of(rng, [digits for digits in (0, 3, 6, 9) if step * 10**digits % SECOND == 0])
        utc = one_of(rng, ["Z", "+00:00"])

        def iso(time: int) -> str:
            moment = datetime.fromtimestamp(time // SECOND, zone_of_texts or timezone.utc)
            fraction = f".{time % SECOND:06d}789"[: digits + 1] if digits else ""
            offset = "" if zone_of_texts is None else moment.isoformat()[19:].replace("+00:00", utc)
            return f"{moment:%Y-%m-%d}{one_of(rng, 'T ')}{moment:%H:%M:%S}{fraction}{offset}"

        kinds = [iso]
    else:

        def formatted(time: int) -> str:
            zone = timezone(timedelta(hours=5)) if "%z" in form else timezone.utc
            return (datetime.fromtimestamp(time // SECOND, zone) + timedelta(microseconds=time % SECOND)).strftime(form)

        kinds = [formatted, *([lambda time: int(formatted(time))] if form == PATTERNS[0] else [])]
    return list(map(one_of(rng, kinds), times))


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
    given = {name: value for name, value in keys.items() if name != "max_history"}
    windows = windows_of(log, users, keys)
    expected = [[sample_of(log, user, place, keys, ids) for user, place in window] for window in windows]
    for window in [number for number, samples in enumerate(expected) if number and samples][-3:]:
        positions = 2 + len(log.get("crosses", {})) + (keys["max_history"] or 4000)
        event_config = SequencesConfig(**given, eval_window=window, hstu=HSTUConfig(max_seq_len=positions))
        events_log = EventLog(root, load_manifest(root), event_config)
        assert events_log.split("train", 0, 1).rows == sum(map(len, expected[:window]))
        assert read_samples(events_log.split("val", 0, 1)) == expected[window]
        assert read_samples(events_log.split("train", 0, 1)) == [
            sample for part in expected[:window] for sample in part
        ]
