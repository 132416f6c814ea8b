"""HSTU from raw events, sample by sample in float64: which samples there are, their ids, their logits and the loss.

Written from Zhai et al. 2024 (arXiv:2402.17152) and MLPerf's DLRMv4; imports nothing of ours. N of the attention is
fixed, so that a sample's logit depends on nothing but the sample.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
MASK, PI = (1 << 64) - 1, 3.14  # the reference's
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


class Event(NamedTuple):
    """An event: `actions` has a bit for each kind, `organic` is the flag."""

    user: int
    time: int
    item: int
    organic: int
    actions: int
    is_listen: bool


class Sample(NamedTuple):
    """A candidate event, the events of its user that are shown before it, and its label."""

    event: Event
    history: list[Event]
    label: float


@dataclass
class Sizes:
    """Sizes of histories and of the model, which has `heads` heads; queries and values are of one head."""

    history: int
    scan: int
    most: int
    min_history: int
    heads: int
    queries: int
    values: int
    layers: int
    divisor: float


def hash_of(words: list[int], rows: int) -> int:
    """XXH64 of 8-byte words without a seed, modulo `rows` (xxhash's specification; fewer than 32 bytes)."""
    assert len(words) < 4
    value = (PRIMES[4] + 8 * len(words)) & MASK
    for word in words:
        lane = _rotated((word & MASK) * PRIMES[1] & MASK, 31) * PRIMES[0] & MASK
        value = (_rotated(value ^ lane, 27) * PRIMES[0] + PRIMES[3]) & MASK
    for shift, prime in ((33, PRIMES[1]), (29, PRIMES[2])):
        value = (value ^ value >> shift) * prime & MASK
    return (value ^ value >> 32) % rows


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


def kept(events: list[Event], keep_seconds: int, drop_last_seconds: int) -> list[Event]:
    """The events in the time that is kept, by user, then time, then as they came."""
    end = max(event.time for event in events) - drop_last_seconds
    return sorted((e for e in events if end - keep_seconds <= e.time < end), key=lambda e: (e.user, e.time))


def windows(events: list[Event], seconds: int, sizes: Sizes) -> list[list[Sample]]:
    """The samples of each window of time: listens with enough events of their user before."""
    samples: dict[int, Sample] = {}
    for place, event in enumerate(events):
        before = [other for other in events[:place] if other.user == event.user]
        if event.is_listen and len(before) >= sizes.min_history:
            samples[place] = Sample(event, _shown(before, sizes), float(event.actions & 1))
    first = min(sample.event.time for sample in samples.values())
    by_window: dict[int, list[Sample]] = {}
    for sample in samples.values():
        by_window.setdefault((sample.event.time - first) // seconds, []).append(sample)
    return [by_window.get(number, []) for number in range(max(by_window) + 1)]


def _shown(before: list[Event], sizes: Sizes) -> list[Event]:
    """Return the last `most` of the events that are the last few of one of three kinds among the last `scan`."""
    places: set[int] = set()
    recent = before[-sizes.scan :]
    for bit in range(3):
        of_kind = [place for place, event in enumerate(recent) if event.actions >> bit & 1]
        places |= set(of_kind[-(sizes.history // 3) :])
    return [recent[place] for place in sorted(places)][-sizes.most :]


def logit(
    sample: Sample, ids: dict[str, list[int]], context: list[str], parameters: Parameters, sizes: Sizes
) -> Tensor:
    """The logit of a sample with these ids by table: of each context one, of others the history's, then its own."""
    p, event, history = parameters, sample.event, sample.history
    query = history[-1].time if history else event.time
    rows = {name: p[name][torch.tensor(numbers)] for name, numbers in ids.items()}
    x = [rows[name][0] @ p["context_weight"][number] + p["context_bias"][number] for number, name in enumerate(context)]
    for place in range(len(history) + 1):
        vector = _perceptron(rows["item"][place], p, "content")
        vector = vector + _perceptron(torch.cat([rows[name][place] for name in ("artist", "album")]), p, "attributes")
        if place < len(history):
            bits = [float(history[place].actions >> bit & 1) for bit in range(3)]
            action = torch.cat([bit * p["actions.rows"][number] for number, bit in enumerate(bits)])
        else:
            action = p["actions.candidate"][0]
        x.append(vector + _perceptron(action, p, "action"))
    times = [0] * len(context) + [each.time for each in history] + [query]
    count, total = len(context), len(times)
    for place, vector in enumerate(x):
        distance = place if place < count else max(count, 2 * count + len(history) - place)
        age = int(math.sqrt(max(query - times[place], 1e-6) / 60))
        ages, positions = p["ages"], p["positions"]
        x[place] = vector * math.sqrt(len(vector)) + positions[min(distance, len(positions) - 1)]
        x[place] = x[place] + ages[min(age, len(ages) - 1)]
    for number in range(sizes.layers):
        x = _layer(x, p, f"layers.{number}.", sizes)
    hours = query // 3600
    angles = [hours % 24 / 24 * 2 * PI, hours // 24 % 7 / 7 * 2 * PI]
    clock = torch.tensor([wave(angle) for angle in angles for wave in (math.cos, math.sin)], dtype=torch.float64)
    assert total == len(x)
    user = _normed(torch.cat([x[-1], clock]) @ p["user.0.weight"].T + p["user.0.bias"], p, "user.1.", 1e-5)
    item = _perceptron(torch.cat([rows[name][-1] for name in ("item", "artist", "album")]), p, "item")
    hidden = _swish((user * item) @ p["head.layers.0.weight"].T + p["head.layers.0.bias"], p, "head.layers.1.norm.")
    return (hidden @ p["head.layers.2.weight"].T + p["head.layers.2.bias"])[0]


def _layer(x: list[Tensor], p: Parameters, name: str, sizes: Sizes) -> list[Tensor]:
    """Each position sees itself and all before it."""
    heads, parts = sizes.heads, []
    widths = [heads * width for width in (sizes.values, sizes.values, sizes.queries, sizes.queries)]
    for vector in x:
        mixed = _normed(vector, p, f"{name}input_norm.", 1e-6) @ p[f"{name}projection"] + p[f"{name}bias"]
        parts.append(mixed.split(widths))
    out = []
    for i, vector in enumerate(x):
        u, _, q, _ = parts[i]
        u, attended = u * torch.sigmoid(u), []
        for head in range(heads):
            head_columns = slice(head * sizes.queries, (head + 1) * sizes.queries)
            mixed = torch.zeros(sizes.values, dtype=torch.float64)
            for _, v, _, k in parts[: i + 1]:
                score = (q[head_columns] * k[head_columns]).sum() / math.sqrt(sizes.queries)
                value = v[head * sizes.values : (head + 1) * sizes.values]
                mixed = mixed + score * torch.sigmoid(score) / sizes.divisor * value
            attended.append(mixed)
        joined = torch.cat(attended)
        gated = torch.cat([u, joined, u * _normed(joined, p, f"{name}output_norm.", 1e-6)])
        out.append(vector + gated @ p[f"{name}output"])
    return out


def _normed(x: Tensor, p: Parameters, name: str, eps: float) -> Tensor:
    return (x - x.mean()) / torch.sqrt(x.var(correction=0) + eps) * p[f"{name}weight"] + p[f"{name}bias"]


def _swish(x: Tensor, p: Parameters, name: str) -> Tensor:
    return x * torch.sigmoid(_normed(x, p, name, 1e-5))


def _perceptron(x: Tensor, p: Parameters, name: str) -> Tensor:
    hidden = _swish(x @ p[f"{name}.0.weight"].T + p[f"{name}.0.bias"], p, f"{name}.1.norm.")
    return _normed(hidden @ p[f"{name}.2.weight"].T + p[f"{name}.2.bias"], p, f"{name}.3.", 1e-5)
