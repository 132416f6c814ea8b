"""MovieLens-100K with the columns and sizes of TensorFlow Recommenders' tutorial of DCN v2.

The tutorial shuffles the order of TensorFlow Datasets by TensorFlow's generator. This module shuffles RecBole's order
of the ratings by NumPy's.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from data_prep.published.sets import Rows

SEED, TRAIN_ROWS = 42, 80_000
AGES = (1, 18, 25, 35, 45, 50, 56)  # lowest age of each bucket, which names it, as in TensorFlow Datasets
HEADER = (
    "user_rating",
    "movie_id",
    "user_id",
    "user_gender",
    "user_zip_code",
    "user_occupation_text",
    "bucketized_user_age",
)


def split_rows(ratings: Path, users: Path) -> Mapping[str, Rows]:
    """Return the rows of train and test, with HEADER's columns.

    Args:
        ratings: lines `user item rating timestamp` with a header, tab-separated.
        users: lines `user age gender occupation zip_code` with a header, tab-separated.
    """
    user_fields = {}
    for line in users.read_text(encoding="utf-8").splitlines()[1:]:
        user, age, gender, occupation, zip_code = line.split("\t")
        bucket = AGES[int(np.searchsorted(AGES, int(age), "right")) - 1]
        user_fields[user] = gender, zip_code, occupation, bucket
    rows = []
    for line in ratings.read_text(encoding="utf-8").splitlines()[1:]:
        user, movie, rating, _ = line.split("\t")
        rows.append((rating, movie, user, *user_fields[user]))
    order = np.random.RandomState(SEED).permutation(len(rows)).tolist()
    parts = {"train": order[:TRAIN_ROWS], "test": order[TRAIN_ROWS:]}
    return {split: [HEADER, *(rows[number] for number in numbers)] for split, numbers in parts.items()}
