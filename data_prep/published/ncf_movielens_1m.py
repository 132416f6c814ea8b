"""MovieLens 1M as Neural Collaborative Filtering has it: pairs of users and films, and for each user 100 to be ranked.

Its train.rating, which holds all pairs but those of test.rating, is in the order of ratings.dat; users are numbered by
their ids less one, items by first appearance in that order (hexiangnan/neural_collaborative_filtering at 4aab159).
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray

from data_prep.published.sets import Rows

HEADER = ("label", "user", "item")


def split_rows(ratings: Path, test_rating: Path, test_negative: Path) -> Mapping[str, Rows]:
    """Rows (label, user, item) of train, all of label 1, and of test: each user's positive and then its negatives.

    Args:
        ratings: Parquet, the columns userID and movieID of all pairs as text.
        test_rating: lines `user item rating time`, separated by tabs.
        test_negative: lines of the same users, `(user,item)` and their negatives, separated by tabs; 156 of these are
            the user's positive itself, and stay.
    """
    users, items = _pairs(ratings)
    test = np.loadtxt(test_rating, np.int64, delimiter="\t", usecols=(0, 1))
    negatives = [line.split("\t")[1:] for line in test_negative.read_text().splitlines()]
    num_items = int(items.max()) + 1
    is_test = np.isin(users * num_items + items, test[:, 0] * num_items + test[:, 1])
    pairs = zip(users[~is_test].tolist(), items[~is_test].tolist(), strict=True)
    return {
        "train": chain([HEADER], ((1, user, item) for user, item in pairs)),
        "test": chain([HEADER], _candidates(test, negatives)),
    }


def _pairs(ratings: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of users and items of all pairs, in their order."""
    table = pyarrow.parquet.read_table(ratings, columns=["userID", "movieID"])
    users, films = (column.to_numpy().astype(np.int64) for column in table.columns)
    _, first, place = np.unique(films, return_index=True, return_inverse=True)
    return users - 1, first.argsort().argsort()[place]


def _candidates(test: NDArray[np.int64], negatives: list[list[str]]) -> Iterator[tuple[object, ...]]:
    for (user, item), others in zip(test.tolist(), negatives, strict=True):
        yield 1, user, item
        yield from ((0, user, int(other)) for other in others)
