"""Preparation of rows as docs/data.md describes it, in plain lines: what a dataset must hold, given where rows went.

The draws of a random split and of a sample are not in the docs, so the rows of each split are an input here; that they
can be the rows of such a split is what `check_split` checks.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

Bags = list[list[int]]  # of a column: the values of each row
SPLITS = ("train", "val", "test")


@dataclass
class Job:
    """A drawn job: the keys of its command, and its raw rows in order.

    dense [rows][N]: numbers, of which the first is the row's own; sparse [F][rows]: values; days: rows of each file.
    """

    keys: dict[str, Any]
    labels: list[int]
    dense: list[list[float]]
    sparse: list[Bags]
    days: list[int]
    is_own: bool = False

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or what the docs say for it if it is not given."""
        return self.keys.get(key, default)

    @property
    def encoding(self) -> str:
        return str(self.get("encoding", "vocabulary"))

    @property
    def method(self) -> str:
        by_encoding = {"dlrm_kaggle": "fraction", "amd_blog": "scikit_learn"}
        if self.encoding in by_encoding:
            return by_encoding[self.encoding]
        setting = self.get("split.method", "auto")
        usual = "random" if self.is_own else "last_day" if len(self.days) > 1 else "fraction"
        return usual if setting == "auto" else str(setting)


def check_split(job: Job, rows: dict[str, list[int]]) -> None:
    """The rows of the splits, by their numbers, are as the docs say."""
    everything = range(len(job.labels))
    split_rows = sorted(row for split in SPLITS for row in rows[split])
    assert len(set(split_rows)) == len(split_rows)
    rate = job.get("sampling.negative_drop_rate", 0.0)
    negatives = [row for row in everything if not job.labels[row]]
    dropped = sorted(set(everything) - set(split_rows))
    assert set(dropped) <= set(negatives)
    _expect_share(len(dropped), len(negatives), rate)
    held_out = [*rows["val"], *rows["test"]] if job.encoding != "dlrm_kaggle" else [*rows["test"], *rows["val"]]
    train, share = rows["train"], job.get("split.held_out", 1 / 7)
    seeds = {"torchrec": 0, "torchrec_fixed": 0, "dlrm_kaggle": 123}
    if job.encoding in seeds and job.method in ("fraction", "last_day"):  # NumPy's legacy generator has shuffled train
        order = np.random.RandomState(seeds[job.encoding]).permutation(len(train))
        train = [row for _, row in sorted(zip(order.tolist(), train, strict=True))]
    if job.method == "scikit_learn":
        share, seed = (0.2, 42) if job.encoding == "amd_blog" else (share, job.get("split.seed", 0))
        expected = train_test_split(split_rows, test_size=share, random_state=seed)
        assert [train, held_out] == expected
        assert not rows["val"]
        return
    assert [train, rows["val"], rows["test"]] == [sorted(each) for each in (train, rows["val"], rows["test"])]
    if job.method == "random":
        _expect_share(len(held_out), len(split_rows), share)
        _expect_share(len(rows["val"]), len(held_out), 0.5)
        return
    halves = (len(held_out) - len(held_out) // 2, len(held_out) // 2)
    first, second = ("test", "val") if job.encoding == "dlrm_kaggle" else ("val", "test")
    assert (len(rows[first]), len(rows[second])) == halves
    assert train + held_out == split_rows
    if job.method == "last_day":
        begin = sum(job.days[:-1])
        assert held_out == [row for row in split_rows if row >= begin]
    else:
        assert abs(len(held_out) - share * len(split_rows)) <= 2


def _expect_share(count: int, of: int, share: float) -> None:
    assert abs(count - share * of) <= 5 * math.sqrt(share * (1 - share) * of) + 1e-9


def dense_of(job: Job) -> np.ndarray:
    """All rows' numbers after their transform, [rows, N] float64."""
    usual = {"torchrec": "torchrec", "torchrec_fixed": "torchrec", "dlrm_kaggle": "log_float32", "amd_blog": "minmax"}
    transform = job.get("dense_transform", "signed_log1p" if job.is_own else usual.get(job.encoding, "log1p"))
    x = np.array(job.dense, np.float64).reshape(len(job.labels), -1)
    if transform in ("raw", "integers"):
        return x
    if transform in ("log1p", "log_float32"):
        return np.log(1 + np.maximum(x, 0))
    if transform == "signed_log1p":
        return np.where(x < 0, -np.log(1 + np.abs(x)), np.log(1 + np.abs(x)))
    if transform == "torchrec":
        files = np.repeat(np.arange(len(job.days)), job.days)
        return np.stack([np.log(row - x[files == file].min() + 2) for row, file in zip(x, files, strict=True)])
    low, high = x.min(axis=0), x.max(axis=0)
    return (x - low) / np.where(high > low, high - low, 1)


def transformed(x: np.ndarray, name: str, train: list[int]) -> np.ndarray:
    """A column of an own table by a transform of its own, fitted on some rows."""
    fitted = x[train]
    if name == "log1p":
        return np.log1p(np.maximum(x, 0))
    if name == "signed_log1p":
        return np.sign(x) * np.log1p(np.abs(x))
    if name == "standard":
        return (x - statistics.mean(fitted.tolist())) / (statistics.pstdev(fitted.tolist()) or 1)
    if name == "minmax":
        return (x - fitted.min()) / ((fitted.max() - fitted.min()) or 1)
    if name == "quantile":
        ranks = np.arange(257) / 256
        quantiles = np.quantile(fitted, ranks, method="lower")
        values = np.unique(quantiles)
        return np.interp(x, values, [ranks[quantiles == value].mean() for value in values])
    return x


def ids_of(job: Job, values: Bags, train: Sequence[int], split_rows: Sequence[int]) -> list[list[int]] | None:
    """The ids of a column's values, row by row; None where the column is dropped."""
    cap, threshold = job.get("max_ind_range", None), job.get("frequency_threshold", 1)
    if job.encoding == "hash":
        return [[value % cap for value in bag] for bag in values]
    of_train = job.encoding == "vocabulary"
    occurrences = [value for row in sorted(train if of_train else split_rows) for value in sorted(values[row])]
    counts = Counter(occurrences)
    orders = {"amd_blog": "value", "vocabulary": job.get("vocabulary_order", "frequency")}
    order = orders.get(job.encoding, "first_appearance")
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    ranked = [value for value in ranked if counts[value] >= threshold]
    if of_train and cap is not None:
        ranked = ranked[: cap - 1]
    if order == "value":
        ranked.sort()
    elif order == "first_appearance":
        ranked = [value for value in dict.fromkeys(occurrences) if value in set(ranked)]
    if job.encoding == "amd_blog" and len(counts) > job.get("max_categories", 10_000):
        return None
    first, unknown = {"vocabulary": (1, 0), "torchrec": (2, 1), "torchrec_fixed": (2, 1)}.get(job.encoding, (0, 0))
    table = {value: first + place for place, value in enumerate(ranked)}
    ids = [[table.get(value, unknown) for value in bag] for bag in values]
    if cap is not None and job.encoding.startswith("torchrec"):
        return [[identity % cap for identity in bag] for bag in ids]
    return ids
