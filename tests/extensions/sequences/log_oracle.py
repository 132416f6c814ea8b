"""Logs of events as docs/sequences.md describes them, in plain lines: what a dataset of events, and its samples, hold.

The ids that `renumber` gives are not in the docs, so they are an input here, with the order of the users that follows
from them; that they count from 1 on is what the test checks.
"""

import operator
import re
from dataclasses import dataclass
from typing import Any

RULES = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
TRUTHS = {"true": "1", "yes": "1", "false": "0", "no": "0"}
SECOND = 1_000_000
WORD = 1 << 64
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


@dataclass
class Log:
    """A drawn log: its schema as in YAML, rows of text by column in the input's order, with times in microseconds.

    tables: for each attribute the text of an item's attribute, by the item's text.
    """

    schema: dict[str, Any]
    rows: list[dict[str, str]]
    times: list[int]
    tables: dict[str, dict[str, str]]

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or what the docs say for it if it is not given."""
        return self.schema.get(key, default)


@dataclass
class Event:
    """An event of a user; row: its place in the input. item: as in the log; time: in microseconds."""

    user: str
    item: str
    time: int
    actions: list[bool]
    is_anchor: bool
    flag: bool
    row: int

    @property
    def seconds(self) -> int:
        """The time as the dataset has it."""
        return self.time // SECOND


def meets(row: dict[str, str], condition: dict[str, Any]) -> bool:
    """All columns of the condition hold."""
    for column, holds in condition.items():
        rule = re.fullmatch(r"(==|!=|>=|<=|>|<) (.+)", holds) if isinstance(holds, str) else None
        if rule is None:
            values = map(str, holds if isinstance(holds, list) else [holds])
            if row[column] not in [TRUTHS.get(value.lower(), value) for value in values]:
                return False
        elif not row[column] or not RULES[rule[1]](float(row[column]), float(rule[2])):
            return False
    return True


def events_of(log: Log) -> list[Event]:
    """The events that are kept, in the input's order."""
    dropped = log.get("drop_last_seconds", 0)
    end = max(log.times) - dropped * SECOND if dropped else max(log.times) + 1
    begin, rows = end - log.get("keep_seconds", end) * SECOND, log.get("rows", {})
    return [
        Event(
            row[log.schema["user"]],
            clipped(row[log.schema["item"]], rows.get("item")),
            time,
            [meets(row, condition) for condition in log.schema["actions"].values()],
            meets(row, log.get("anchors", {})),
            "flag" in log.schema and row[log.schema["flag"]] == "1",
            place,
        )
        for place, (row, time) in enumerate(zip(log.rows, log.times, strict=True))
        if begin <= time < end
    ]


def clipped(number: str, rows: int | None) -> str:
    """An id, or 0 where it is beyond its table."""
    return "0" if rows is not None and int(number) >= rows else number


def by_user(events: list[Event]) -> dict[str, list[Event]]:
    """Each user's events in time, ties in the input's order."""
    users = {event.user for event in events}
    return {user: sorted((e for e in events if e.user == user), key=lambda e: (e.time, e.row)) for user in users}


def samples_of(user: list[Event], min_history: int) -> list[int]:
    """Places of a user's events that are samples."""
    return [place for place, event in enumerate(user) if event.is_anchor and place >= min_history]


def counts_of(log: Log) -> dict[str, Any]:
    """Return the counts of the manifest for a log that was read in one piece."""
    events, raw_items = events_of(log), [row[log.schema["item"]] for row in log.rows]
    users, least = by_user(events), log.get("min_history", 1)
    return {
        "users": len(users),
        "anchors": sum(len(samples_of(user, least)) for user in users.values()),
        "short_users": sum(len(user) <= least for user in users.values()),
        "out_of_table": sum(event.item != raw_items[event.row] for event in events),
        "dropped": len(log.rows) - len(events),
        "without_attribute": {
            name: sum(event.item not in table for event in events) for name, table in log.tables.items()
        },
    }


def history_of(user: list[Event], place: int, keys: dict[str, Any], num_actions: int) -> list[Event]:
    """The events of a sample's history, the oldest first."""
    before = [event for event in user[:place][-keys["scan_events"] :] if any(event.actions)]
    if keys["history"] == "last_n":
        history = before[-keys["history_length"] :]
    else:
        each = max(1, keys["history_length"] // num_actions)
        rows = {e.row for action in range(num_actions) for e in [e for e in before if e.actions[action]][-each:]}
        history = [event for event in before if event.row in rows]
    return history[-keys["max_history"] :] if keys["max_history"] else history


def windows_of(log: Log, users: list[str], keys: dict[str, Any]) -> list[list[tuple[list[Event], int]]]:
    """Samples of each window, in the order of `users`, then time: the user's events, and the sample's place."""
    least = log.get("min_history", 1) if keys["min_history"] is None else keys["min_history"]
    seconds = keys["window_seconds"] or log.get("window_seconds", 86_400)
    events = by_user(events_of(log))
    samples = [(events[user], place) for user in users for place in samples_of(events[user], least)]
    first = min((user[place].seconds for user, place in samples), default=0)
    windows: dict[int, list[tuple[list[Event], int]]] = {}
    for user, place in samples:
        windows.setdefault((user[place].seconds - first) // seconds, []).append((user, place))
    return [windows.get(number, []) for number in range(max(windows, default=-1) + 1)]


def sample_of(log: Log, user: list[Event], place: int, keys: dict[str, Any], ids: dict[str, dict[str, int]]) -> Any:
    """A sample as the reader gives it: ids by key, times and actions of the history, candidate's time, label."""
    candidate, actions = user[place], list(log.schema["actions"])
    history = history_of(user, place, keys, len(actions))
    tables = ["item", *log.tables]
    values = {name: ids[name][candidate.item] for name in tables}
    values |= {"user": ids["user"][candidate.user], "hour": candidate.seconds // 3600 % 24}
    values |= {log.schema["flag"]: int(candidate.flag)} if "flag" in log.schema else {}
    keyed = [[ids["user"][candidate.user]]]
    keyed += [[xxh64([values[name] for name in c["of"]]) % c["rows"]] for c in log.get("crosses", {}).values()]
    keyed += [[ids[name][event.item] for event in history] for name in tables]
    keyed += [[values[name]] for name in tables]
    bits = [sum(met << bit for bit, met in enumerate(event.actions)) for event in history]
    time = history[-1].seconds if history and keys["candidate_time"] == "history" else candidate.seconds
    label = float(candidate.actions[actions.index(log.schema["label"])])
    return keyed, [event.seconds for event in history], bits, time, label


def xxh64(values: list[int]) -> int:
    """XXH64 (seed 0) of up to three little-endian int64s, by its specification; of more, its steps for so few."""

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) % WORD

    total = (PRIMES[4] + 8 * len(values)) % WORD
    for value in values:
        total ^= rotated(value * PRIMES[1] % WORD, 31) * PRIMES[0] % WORD
        total = (rotated(total, 27) * PRIMES[0] + PRIMES[3]) % WORD
    total = (total ^ total >> 33) * PRIMES[1] % WORD
    total = (total ^ total >> 29) * PRIMES[2] % WORD
    return total ^ total >> 32
