"""Drawn logs of events in files of many types, and what their datasets hold, by pandas, datetime and Decimal.

A column of a file has one type. What a value of it means follows from its type and the schema's format, as
docs/sequences.md says; `microseconds` and `key_of` know no more than a value and the format.
"""

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
import yaml

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


# ---- drawing


def drawn_log(draw: random.Random, directory: Path) -> tuple[list[File], str | None]:
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
    time = "when" if form is None else {"column": "when", "format": form}
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
