"""Datasets of events as batches, equal to the reference's; generated events; AUCs by user."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torchrec.metrics.auc import compute_auc
from torchrec.metrics.gauc import compute_window_auc, get_auc_states

from app.config.train import TrainConfig
from app.data.batch import Batch
from app.training.state import run_length
from data_prep.dataset.format import load_manifest
from extensions.sequences.event_log import EventLog, EventSplit, user_metrics
from extensions.sequences.keys import AnchorOrder, HSTUConfig, SequencesConfig, SyntheticEventsConfig, WindowRest
from extensions.sequences.synthetic import World, click_probability, next_satiety
from tests.data_prep.conftest import prepare
from tests.extensions.sequences.event_logs import opened, reference, write_reference_log

HISTORY, _, SCAN, WINDOW_SECONDS, MAX_SEQ_LEN = reference()["params"].tolist()
LIKE_REFERENCE = SequencesConfig(
    history_length=HISTORY, scan_events=SCAN, hstu=HSTUConfig(max_seq_len=MAX_SEQ_LEN), window_seconds=WINDOW_SECONDS
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    prepare(*write_reference_log(directory), f"data.path={directory}/out")
    return directory / "out"


def reader(root: Path, rank: int = 0, world_size: int = 1, split: str = "train", **changes: Any) -> EventSplit:
    keys = dataclasses.replace(LIKE_REFERENCE, **changes)
    return EventLog(root, load_manifest(root), keys).split(split, rank, world_size)


def samples(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """Each sample as values that can be compared: ids by key, times, actions, label."""
    records = []
    for batch in batches:
        assert batch.inputs_of_model is not None
        by_key = [jagged.to_dense() for jagged in batch.sparse_features.to_dict().values()]
        lengths = batch.inputs_of_model.history_lengths
        ends = np.cumsum(lengths)
        for i in range(batch.num_valid):
            part = slice(int(ends[i] - lengths[i]), int(ends[i]))
            times, actions = batch.inputs_of_model.times[part].tolist(), batch.inputs_of_model.actions[part].tolist()
            ids = tuple(tuple(each[i].tolist()) for each in by_key)
            candidate_time = int(batch.inputs_of_model.candidate_times[i])
            records.append((ids, tuple(times), tuple(actions), candidate_time, float(batch.labels[i])))
    return records


def collated(z: dict[str, NDArray[Any]], name: str) -> list[tuple[Any, ...]]:
    """The reference's samples, in the order of `positions`, as `samples` has ours."""
    positions = z["m0_positions" if name == "m0" else "positions"]
    records = []
    cuts = [
        np.split(z[f"{name}_{part}_values"], np.cumsum(z[f"{name}_{part}_lengths"])[:-1]) for part in ("uih", "cand")
    ]
    uih, candidate = (
        [each[k * len(positions) : (k + 1) * len(positions)] for k in range(keys)]
        for each, keys in zip(cuts, (15, 6), strict=True)
    )
    for i in range(len(positions)):
        ids = tuple(tuple(uih[k][i].tolist()) for k in range(11))
        ids += tuple(tuple(candidate[k][i].tolist()) for k in range(3))
        candidate_time = int(candidate[3][i][0])
        label = float(int(candidate[4][i][0]) & 1)
        records.append((ids, tuple(uih[12][i].tolist()), tuple(uih[11][i].tolist()), candidate_time, label))
    return records


@pytest.mark.parametrize(
    ("name", "changes"), [("interleaved", {}), ("last_n", {"history": "last_n"}), ("m0", {"min_history": 0})]
)
def test_samples_equal_the_reference_s(root: Path, name: str, changes: dict[str, Any]) -> None:
    z, split = reference(), reader(root, **changes)
    windows = [split.log.window(window) for window in range(len(split.log.counts))]
    positions = z["m0_positions" if name == "m0" else "positions"]
    expected = dict(zip(positions.tolist(), collated(z, name), strict=True))
    assert np.sort(np.concatenate(windows)).tolist() == positions.tolist()
    actual = samples([*split.train_batches(1, 0, 0, 0), *split.log.split("val", 0, 1).eval_batches(7)])
    assert len(actual) == len(positions)
    assert actual == [expected[position] for window in windows for position in window.tolist()]


@pytest.mark.medium
@pytest.mark.parametrize("order", get_args(AnchorOrder))
@pytest.mark.parametrize("rest", get_args(WindowRest))
def test_global_batches_are_the_same_for_any_number_of_processes(
    root: Path, order: AnchorOrder, rest: WindowRest
) -> None:
    one = reader(root, order=order, rest=rest)
    whole, evaluated = list(one.train_batches(12, 7, 1, 0)), list(one.log.split("val", 0, 1).eval_batches(12))
    assert len(samples(evaluated)) == one.log.split("val", 0, 1).rows
    for world_size in (2, 3, 4):
        ranks = [reader(root, rank, world_size, order=order, rest=rest) for rank in range(world_size)]
        parts = [list(each.train_batches(12, 7, 1, 0)) for each in ranks]
        for number, batch in enumerate(whole):
            assert samples([batch]) == [one for part in parts for one in samples([part[number]])]
        scored = [list(each.log.split("val", rank, world_size).eval_batches(12)) for rank, each in enumerate(ranks)]
        assert {len(part) for part in scored} == {len(evaluated)}  # equal numbers of batches, of equal sizes
        assert {len(batch.labels) for part in scored for batch in part} == {12 // world_size}
        for number, batch in enumerate(evaluated):
            assert samples([batch]) == [one for part in scored for one in samples([part[number]])]


def test_order_begins_anywhere(root: Path) -> None:
    split = reader(root, order="shuffled")
    whole = list(split.train_batches(10, 3, 0, 0))
    assert len(whole) == split.num_batches(10)
    for first in (1, 7, len(whole) - 1):
        assert samples(list(split.train_batches(10, 3, 0, first))) == samples(whole[first:])


def test_rests_of_windows_are_carried_or_dropped(root: Path) -> None:
    counts = reader(root).log.counts[:-1]
    assert reader(root).num_batches(50) == counts.sum() // 50 == 3
    assert reader(root, rest="drop").num_batches(50) == (counts // 50).sum() == 3
    assert reader(root, rest="drop").num_batches(70) == 2
    for rest, steps in (("carry", counts.sum() // 70), ("drop", 2)):
        assert run_length(TrainConfig(70), reader(root, rest=rest), 1).total_steps == steps  # one pass, and no more
    dropped = samples(list(reader(root, rest="drop").train_batches(60, 0, 0, 0)))
    whole = samples(list(reader(root).train_batches(1, 0, 0, 0)))
    assert dropped == whole[:60] + whole[counts[0] : counts[0] + 60]


GENERATED = ["data.source=synthetic_events", "data.synthetic_events.users=300", "data.synthetic_events.items=500"]
GENERATOR = SyntheticEventsConfig(users=300, items=500)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("events")
    prepare(*GENERATED, f"data.path={root}")
    return root


def replay(generated: Path, shuffle: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The teacher's probabilities of the last day's samples, from the dataset alone, and their labels.

    shuffle: whether each sample's history comes in a random order.
    """
    world, (_, events) = World(GENERATOR), opened(generated)
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


def test_the_best_score_is_known_and_order_matters(generated: Path) -> None:
    manifest = json.loads((generated / "manifest.json").read_bytes())
    bayes = manifest["extra"]["bayes"]
    scores, labels = replay(generated, shuffle=False)
    assert len(labels) == bayes["rows"]
    assert roc_auc_score(labels, scores) == pytest.approx(bayes["sampled_auc"], abs=1e-4)
    assert bayes["auc"] == pytest.approx(bayes["sampled_auc"], abs=0.03)
    shuffled, _ = replay(generated, shuffle=True)
    assert roc_auc_score(labels, shuffled) < bayes["sampled_auc"] - 0.1
    assert 0.75 < bayes["auc"] < 0.95


@pytest.mark.parametrize("seed", range(5))
def test_aucs_equal_torchrec(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, 60)
    users = np.repeat(rng.permutation(60), lengths).astype(np.int32)
    logits = np.linspace(-3, 3, len(users), dtype=np.float32)[rng.permutation(len(users))]
    logits[users == 7] = 0.25
    labels = (rng.random(len(users)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    labels[users == 9] = 1
    preds, truth = (torch.from_numpy(each)[None].double() for each in (logits, labels))
    weights = torch.ones_like(truth)
    states = get_auc_states(truth.float(), preds.sigmoid().float(), weights.float(), torch.from_numpy(lengths))
    expected = compute_window_auc(states["auc_sum"], states["num_samples"])
    mixed = rng.permutation(len(users))  # a user's samples need not stand together
    figures = user_metrics(logits[mixed], labels[mixed], users[mixed])
    assert figures["gauc"] == pytest.approx(expected["gauc"].item(), abs=1e-6)
    assert figures["gauc_users"] == expected["num_samples"].item() < 59
    assert user_metrics(logits, labels, users)["auc_torchrec"] == compute_auc(1, [preds.sigmoid()], [truth], [weights])
