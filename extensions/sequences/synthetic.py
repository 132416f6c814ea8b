"""Generated events of listeners, with labels from a known model of the history.

Each item has an artist and an album. A user explores a few artists that change with time (drift), at the user's own
hours. A listen is to the end ("listen_plus") with probability

    p = sigmoid(BIAS - SATIETY * satiety[artist] + q[item] + HOUR * cos(2 pi (hour - peak[artist]) / 24)).

`satiety` follows from the user's own events: a listen multiplies its artist's satiety by DECAY, then adds 1 if it was
to the end, else -1. So p is a function of the history, its order, the item and the hour, and no model can know more
than p. What counts are the latest events of the candidate's artist, seldom the last event of all. A share LIKES of the
listens to the end are liked at once.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.documents import Json
from common.extensions import keys_of_extension
from common.files import write_atomically
from common.jit import Int, jit
from data_prep.config import DataConfig
from data_prep.sources.files import RAW_DIRECTORY, Source, resolve_sources, sources_of_generated
from data_prep.synthetic import PROBABILITY_STEPS, bayes_scores
from extensions.sequences.keys import SyntheticEventsConfig

VERSION = 2  # changes when the events of a configuration change
BLOCK_USERS = 256  # users of one stream of random numbers
DAY, TICK = 86_400, 5  # times are multiples of a tick, as in Yambda
ARTISTS, ALBUMS_PER_ARTIST = 8, 8
BIAS, SATIETY, DECAY, HOUR, QUALITY = 0.3, 0.8, 0.8, 0.7, 0.5
# QUALITY: standard deviation of q. CHANGE: probability that the current artist changes with a listen.
LIKES, CHANGE = 0.1, 0.05
MIN_HISTORY = 20  # as in extensions/sequences/conf_data/events/synthetic.yaml
RECORD, LOG, TABLE = "synthetic_events.json", "events.parquet", "items.parquet"


class World:
    """Properties that all users share: artist [items], album [items], quality [items], peak hour [ARTISTS].

    by_artist [items]: the items in the order of their artists; those of artist a are from starts[a] to starts[a + 1].
    """

    def __init__(self, config: SyntheticEventsConfig) -> None:
        """Draw the properties; the seed and the number of items decide them."""
        rng = np.random.default_rng([config.seed, 0])
        self.artist = rng.integers(0, ARTISTS, config.items)
        self.artist[:ARTISTS] = np.arange(ARTISTS)  # each artist has an item
        self.album = self.artist * ALBUMS_PER_ARTIST + rng.integers(0, ALBUMS_PER_ARTIST, config.items)
        self.quality = rng.normal(0, QUALITY, config.items)
        self.peak = rng.uniform(0, 24, ARTISTS)
        self.by_artist = np.argsort(self.artist, kind="stable")
        self.starts = np.searchsorted(self.artist[self.by_artist], np.arange(ARTISTS + 1))


def log_settings(config: SyntheticEventsConfig) -> Json:
    """Return the settings that decide the events, for the manifest's `extra`."""
    return {"version": VERSION, **asdict(config)}


def make_log(config: SyntheticEventsConfig, directory: Path) -> None:
    """Write the log, its items' table and a record of both as Parquet and JSON, unless they exist.

    The record has the best scores that any model can have on the last day (`bayes_scores`).
    """
    log, table, record = (directory / name for name in (LOG, TABLE, RECORD))
    if all(path.exists() for path in (log, table, record)):
        known = json.loads(record.read_bytes())
        sizes = [log.stat().st_size, table.stat().st_size]
        if known["config"] == log_settings(config) and known["bytes"] == sizes:
            return
    directory.mkdir(parents=True, exist_ok=True)
    # Without its record a log that is cut off by a kill is made again.
    record.unlink(missing_ok=True)
    print(f"{directory}: generating events of {config.users:,} users", file=sys.stderr, flush=True)
    world = World(config)
    pq.write_table(pa.table({"item": np.arange(config.items), "artist": world.artist, "album": world.album}), table)
    types = {"user": pa.int32(), "time": pa.uint32(), "item": pa.int32(), "event": pa.string(), "played": pa.int16()}
    score_blocks: list[tuple[NDArray[Any], ...]] = []
    with pq.ParquetWriter(log, pa.schema(types)) as writer:
        for block in range(0, config.users, BLOCK_USERS):
            columns, scores = user_events(config, world, block)
            writer.write_table(pa.table(columns, schema=pa.schema(types)))
            score_blocks.append(scores)
    times, probability, labels = (np.concatenate(columns) for columns in zip(*score_blocks, strict=True))
    is_last_day = (times - times.min()) // DAY == (times.max() - times.min()) // DAY
    steps = np.clip(np.rint(probability[is_last_day] * PROBABILITY_STEPS), 1, PROBABILITY_STEPS - 1).astype(np.int64)
    samples = np.bincount(steps, minlength=PROBABILITY_STEPS)
    positives = np.bincount(steps[labels[is_last_day]], minlength=PROBABILITY_STEPS)
    sizes, bayes = [log.stat().st_size, table.stat().st_size], bayes_scores(samples, positives)
    document = {"config": log_settings(config), "bytes": sizes, "bayes": bayes}
    write_atomically(record, json.dumps(document, indent=1).encode())


def figures(data: DataConfig, root: Path) -> Json:
    """Return the manifest's `extra` of a generated log: settings of the events, and the best scores."""
    known = json.loads((root / RAW_DIRECTORY / RECORD).read_bytes())
    return {"bayes": known["bayes"], data.source_kind.group: known["config"]}


def find_log(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return the log and its items' table, written below `root` unless they or a finished dataset are there."""
    config, directory = keys_of_extension(data, SyntheticEventsConfig), root / RAW_DIRECTORY
    if finished := sources_of_generated(data, root, log_settings(config)):
        return finished
    make_log(config, directory)
    return resolve_sources([str(directory / LOG), str(directory / TABLE)])


def user_events(
    config: SyntheticEventsConfig, world: World, first: int
) -> tuple[Json, tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]]:
    """Return the events of a block of users, by user and time, and times, probabilities and labels of its samples."""
    rng = np.random.default_rng([config.seed, 1, first])
    users = np.arange(first, min(first + BLOCK_USERS, config.users))
    counts = np.maximum(1, rng.poisson(config.events_per_day * config.days * rng.gamma(2, 0.5, len(users))))
    user = np.repeat(users, counts)
    day = rng.integers(0, config.days, len(user)) * DAY
    hour = (np.repeat(rng.uniform(0, 24, len(users)), counts) + rng.normal(0, 4, len(user))) % 24
    times = day + (hour * 3600 / TICK).astype(np.int64) * TICK
    order = np.lexsort((times, user))
    user, times = user[order], times[order]
    draws, listens = rng.random((len(user), 5)), len(user)
    items, probability, labels = np.empty(listens, np.int64), np.empty(listens), np.empty(listens, np.bool_)
    offsets, shared = np.append(0, np.cumsum(counts)), (world.by_artist, world.starts, world.quality, world.peak)
    _simulate(offsets, times, draws, config.stay, *shared, items, probability, labels)
    liked = np.flatnonzero(labels & (draws[:, 4] < LIKES))
    # A like follows its listen at once, at the same time; `entry` [rows]: an index among all listens, then all likes.
    entry = np.argsort(np.concatenate([np.arange(listens) * 2, liked * 2 + 1]), kind="stable")
    played = np.where(labels, 50 + (draws[:, 4] * 51).astype(np.int64), (draws[:, 4] * 50).astype(np.int64))
    columns = {
        "user": np.concatenate([user, user[liked]])[entry].astype(np.int32),
        "time": np.concatenate([times, times[liked]])[entry].astype(np.uint32),
        "item": np.concatenate([items, items[liked]])[entry].astype(np.int32),
        "event": np.array(["listen", "like"])[(entry >= listens).astype(np.int64)],
        "played": pa.array(np.append(played, np.zeros(len(liked)))[entry].astype(np.int16), mask=entry >= listens),
    }
    ranks = np.empty(len(entry), np.int64)
    ranks[entry] = np.arange(len(entry))
    # The rank of a user's first listen, which is the user's first event, makes ranks numbers of earlier events.
    earlier_events = ranks[:listens] - np.repeat(ranks[:listens][offsets[:-1]], counts)
    is_sample = earlier_events >= MIN_HISTORY
    return columns, (times[is_sample], probability[is_sample], labels[is_sample])


@jit
def _simulate(
    offsets: NDArray[np.int64],
    times: NDArray[np.int64],
    draws: NDArray[np.float64],
    stay: float,
    by_artist: NDArray[np.int64],
    starts: NDArray[np.int64],
    quality: NDArray[np.float64],
    peak: NDArray[np.float64],
    items: NDArray[np.int64],
    probability: NDArray[np.float64],
    labels: NDArray[np.bool_],
) -> None:
    """Draw `items`, `probability` and `labels` of all users' listens, [listens] each, in time order.

    offsets: [users + 1]. times: [listens] seconds. draws: [listens, 5] uniform numbers, whose last is not used here.
    stay: probability of the user's current artist. by_artist, starts, quality, peak: as of `World`.
    """
    satiety = np.empty(ARTISTS)
    for user in range(len(offsets) - 1):
        satiety[:] = 0
        focus: Int = 0
        for i in range(offsets[user], offsets[user + 1]):
            if i == offsets[user] or draws[i, 0] < CHANGE:
                # One number decides whether the artist changes and, by its further digits, to which one.
                focus = int(draws[i, 0] / CHANGE * 1e6) % ARTISTS
            artist = focus if draws[i, 1] < stay else int((draws[i, 1] - stay) / (1 - stay) * ARTISTS)
            width = starts[artist + 1] - starts[artist]
            # The square makes the first items of an artist the popular ones.
            items[i] = by_artist[starts[artist] + int(draws[i, 2] * draws[i, 2] * width)]
            probability[i] = click_probability(satiety[artist], quality[items[i]], peak[artist], times[i])
            labels[i] = draws[i, 3] < probability[i]
            satiety[artist] = next_satiety(satiety[artist], labels[i])


@jit
def click_probability(satiety: float, quality: float, peak: float, time: Int) -> float:
    """Return the probability of listening to the end, from the satiety and peak hour of the item's artist."""
    phase = 2 * np.pi * (time / 3600 % 24 - peak) / 24
    logit = BIAS - SATIETY * satiety + quality + HOUR * np.cos(phase)
    return 1 / (1 + np.exp(-logit))


@jit
def next_satiety(satiety: float, label: bool) -> float:
    """Return a user's satiety of an artist after a listen to one of its items."""
    return satiety * DECAY + (1 if label else -1)
