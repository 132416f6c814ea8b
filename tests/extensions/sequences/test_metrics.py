"""Per-user AUC and the AUC of MLPerf's reference against TorchRec's; runs on other samples are not compared."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torchrec.metrics.auc import compute_auc
from torchrec.metrics.gauc import compute_window_auc, get_auc_states

from app.report.compare import compare_auc, group_runs
from app.report.read import read_run
from extensions.sequences.event_log import user_metrics
from tests.app.report.runs import write_run


@pytest.mark.parametrize("seed", range(5))
def test_they_equal_torchrec(seed: int) -> None:
    """Also for users of one label, of one score, and of one sample."""
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


def test_ties_count_half_for_users_and_not_at_all_merged_for_the_reference() -> None:
    logits, labels = np.zeros(4, np.float32), np.array([1, 1, 0, 0], np.float32)
    figures = user_metrics(logits, labels, np.zeros(4, np.int64))
    assert figures == {"gauc": None, "gauc_users": 0, "auc_torchrec": 1.0}
    logits = np.array([0, 0, 0, 1], np.float32)
    assert user_metrics(logits, labels, np.zeros(4, np.int64))["gauc"] == 0.25


@pytest.mark.parametrize("label", [0, 1])
def test_one_label_has_none(label: int) -> None:
    figures = user_metrics(np.arange(3, dtype=np.float32), np.full(3, label, np.float32), np.arange(3))
    assert figures == {"gauc": None, "gauc_users": 0, "auc_torchrec": None}


@pytest.mark.parametrize(
    ("key", "comparable"),
    [("eval_window=3", False), ("min_history=9", False), ("window_seconds=60", False), ("history_length=9", True)],
)
def test_other_samples_of_the_same_events_are_not_comparable(key: str, comparable: bool, tmp_path: Path) -> None:
    """A longer history of the same samples is another model of the same rows."""
    runs = [read_run(write_run(tmp_path / "a")), read_run(write_run(tmp_path / "b", f"sequences.{key}"))]
    auc = compare_auc(*group_runs(runs))
    assert auc is not None
    assert (auc.difference is not None) == comparable
