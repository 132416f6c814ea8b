"""Generated events: the model behind their labels is the best, needs the history, and needs its order."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from extensions.sequences.keys import SyntheticEventsConfig
from extensions.sequences.synthetic import World, click_probability, next_satiety
from tests.data_prep.conftest import prepare, sums
from tests.extensions.sequences.event_logs import opened

SMALL = ["data.source=synthetic_events", "data.synthetic_events.users=300", "data.synthetic_events.items=500"]
CONFIG = SyntheticEventsConfig(users=300, items=500)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("events")
    prepare(*SMALL, f"data.path={root}")
    return root


def auc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """By ranks, ties in halves."""
    values, counts = np.unique(scores, return_inverse=True, return_counts=True)[1:]
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[values]
    positives = labels.sum()
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * (~labels).sum()))


def replay(root: Path, shuffle: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The teacher's probabilities of the last day's samples, from the dataset alone, and their labels.

    shuffle: whether each sample's history comes in a random order.
    """
    world, (_, events) = World(CONFIG), opened(root)
    rng, scores, labels = np.random.default_rng(0), [], []
    anchors = np.concatenate([np.arange(low + 20, high) for low, high in itertools.pairwise(events.offsets)])
    anchors = anchors[events.flags[anchors] & 64 != 0]
    times = events.times[anchors].astype(np.int64)
    windows = (times - times.min()) // 86_400
    for anchor in anchors[windows == windows.max()]:
        user = int(np.searchsorted(events.offsets, anchor, "right")) - 1
        past = np.arange(events.offsets[user], anchor)
        past = past[events.flags[past] & 64 != 0]
        artist = world.artist[events.items[past] - 1]
        item = int(events.items[anchor]) - 1
        of_artist = past[artist == world.artist[item]]
        satiety = 0.0
        for event in rng.permutation(of_artist) if shuffle else of_artist:
            satiety = next_satiety(satiety, bool(events.flags[event] & 1))
        peak = world.peak[world.artist[item]]
        scores.append(click_probability(satiety, world.quality[item], peak, int(events.times[anchor])))
        labels.append(bool(events.flags[anchor] & 1))
    return np.array(scores), np.array(labels)


def test_the_best_score_is_known_and_order_matters(root: Path) -> None:
    manifest = json.loads((root / "manifest.json").read_bytes())
    bayes = manifest["extra"]["bayes"]
    scores, labels = replay(root, shuffle=False)
    assert len(labels) == bayes["rows"]
    assert auc(scores, labels) == pytest.approx(bayes["sampled_auc"], abs=1e-4)
    assert bayes["auc"] == pytest.approx(bayes["sampled_auc"], abs=0.03)
    shuffled, _ = replay(root, shuffle=True)
    assert auc(shuffled, labels) < bayes["sampled_auc"] - 0.1
    assert 0.75 < bayes["auc"] < 0.95


def test_every_item_is_there_and_likes_follow_their_listens(root: Path) -> None:
    _, events = opened(root)
    likes = np.flatnonzero(events.flags & 2)
    assert len(likes) > 1000
    assert (events.flags[likes - 1] & 1).all()
    assert (events.items[likes] == events.items[likes - 1]).all()
    assert (events.times[likes] == events.times[likes - 1]).all()
    hours = [
        np.bincount(events.times[low:high] // 3600 % 24, minlength=24)
        for low, high in itertools.pairwise(events.offsets)
    ]
    assert np.mean([each.max() / each.sum() for each in hours]) > 1.8 / 24  # users have hours of their own


def test_seeds_decide_the_bytes(root: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        prepare(*SMALL, f"data.path={tmp_path}/{name}", f"data.synthetic_events.seed={seed}")
    assert sums(tmp_path / "same") == sums(root)
    assert sums(tmp_path / "other") != sums(root)
    assert dataclasses.asdict(CONFIG)["seed"] == 0
