"""MovieLens 1M as in Neural Collaborative Filtering: pairs of users and films, and 100 candidates to rank per user.

Its train.rating holds all pairs except those of test.rating, in the order of ratings.dat. Users are numbered by their
ids less one, items by first appearance in that order (hexiangnan/neural_collaborative_filtering at 4aab159).
"""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet

from data_prep.published.sets import Rows

HEADER = ("label", "user", "item")


def split_rows(ratings: Path, test_rating: Path, test_negative: Path) -> Mapping[str, Rows]:
    """Return rows (label, user, item): train's with label 1, and test's with each user's positive, then negatives.

    Args:
        ratings: Parquet with the columns userID and movieID of all pairs as text.
        test_rating: lines `user item rating time`, tab-separated.
        test_negative: lines of the same users, tab-separated: `(user,item)` and the negatives. 156 negatives equal the
            user's positive; they stay.
    """
    table = pyarrow.parquet.read_table(ratings, columns=["userID", "movieID"])
    users, films = (column.to_numpy().astype(np.int64) for column in table.columns)
    users -= 1
    # The published test pairs number films by their first appearance.
    _, first, place = np.unique(films, return_index=True, return_inverse=True)
    items = first.argsort().argsort()[place]
    test = np.loadtxt(test_rating, np.int64, delimiter="\t", usecols=(0, 1))
    negatives = [line.split("\t")[1:] for line in test_negative.read_text(encoding="utf-8").splitlines()]
    num_items = int(items.max()) + 1
    # One number for a pair turns the search for pairs into a search for numbers.
    is_test = np.isin(users * num_items + items, test[:, 0] * num_items + test[:, 1])
    pairs = zip(users[~is_test].tolist(), items[~is_test].tolist(), strict=True)
    # Each user's positive comes first, then the negatives to rank it among.
    candidates: list[tuple[object, ...]] = [HEADER]
    for (user, item), others in zip(test.tolist(), negatives, strict=True):
        candidates.append((1, user, item))
        candidates += [(0, user, int(other)) for other in others]
    return {"train": chain([HEADER], ((1, user, item) for user, item in pairs)), "test": candidates}
