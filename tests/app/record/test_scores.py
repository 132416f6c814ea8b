"""Kept scores: what is written is read; what is damaged or half written is not."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.record.documents import kept_splits, read_scores, write_scores
from common.errors import UserError

LOGITS = np.array([0.5, -1.0, 2.0], np.float32)
LABELS = np.array([1.0, 0.0, 1.0], np.float32)


def test_scores_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert kept_splits(tmp_path) == []
    for split in ("val", "test", "late"):
        write_scores(tmp_path, split, 7, "d" * 64, LOGITS, LABELS)
    assert kept_splits(tmp_path) == ["test", "late", "val"]
    scores = read_scores(tmp_path, "test")
    assert (scores.about.rows, scores.about.step, scores.about.dataset) == (3, 7, "d" * 64)
    assert scores.logits.tolist() == LOGITS.tolist()
    assert scores.labels.tolist() == [True, False, True]
    assert np.load(tmp_path / "scores/test.logits.npy").dtype == np.float32
    assert np.load(tmp_path / "scores/test.labels.npy").dtype == np.bool_
    with pytest.raises(FileNotFoundError):
        read_scores(tmp_path, "train")


@pytest.mark.parametrize("name", ["logits", "labels"])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_array_of_another_writing_is_no_part_of_it(tmp_path: Path, name: str, is_there: bool) -> None:
    """As after a kill between the files, or by hand."""
    write_scores(tmp_path, "test", 7, "d", LOGITS, LABELS)
    path = tmp_path / f"scores/test.{name}.npy"
    np.save(path, np.load(path)[:-1])
    if not is_there:
        path.unlink()
    with pytest.raises(UserError, match=rf"test\.{name}\.npy: damaged .*keep_scores=3"):
        read_scores(tmp_path, "test")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_scores(tmp_path, "test", 7, "d", LOGITS, LABELS)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "rows": "x"}))
    with pytest.raises(UserError, match=r"test\.json: damaged \(key 'rows' is \"x\""):
        read_scores(tmp_path, "test")
