"""KGCN's Last.FM: the artists that a user listened to, and as many others drawn by a seed.

Follows src/preprocess.py and src/data_loader.py of hwwang55/KGCN at 2363ca2, both with numpy.random.seed(555).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from data_prep.published.sets import Rows

SEED = 555
SHARE = 0.2  # share of val and of test
HEADER = ("label", "user", "item")


def split_rows(listened: Path, artists: Path) -> Mapping[str, Rows]:
    """Return rows (label, user, item) of train, val and test.

    Args:
        listened: lines `user artist weight` with a header, tab-separated.
        artists: lines `artist entity`; the line number is the item's number.
    """
    items = {
        line.split("\t")[0]: number for number, line in enumerate(artists.read_text(encoding="utf-8").splitlines())
    }
    positives: dict[int, set[int]] = {}
    for line in listened.read_text(encoding="utf-8").splitlines()[1:]:
        user, artist, _ = line.split("\t")
        # KGCN leaves out artists that its graph of knowledge lacks.
        if artist in items:
            positives.setdefault(int(user), set()).add(items[artist])

    # Rows (label, user, item): each user's positives, then as many negatives. Users are numbered by first appearance.
    # The draws depend on the order of CPython's sets.
    draw, pairs = np.random.RandomState(SEED), []
    all_items = set(items.values())
    for user_number, user_items in enumerate(positives.values()):
        negatives = draw.choice(list(all_items - user_items), size=len(user_items), replace=False)
        pairs += [(1, user_number, item) for item in user_items]
        pairs += [(0, user_number, int(item)) for item in negatives]

    # The row numbers of each split, in KGCN's order; its second program seeds the generator anew.
    draw, held_out = np.random.RandomState(SEED), int(len(pairs) * SHARE)
    val = draw.choice(list(range(len(pairs))), size=held_out, replace=False).tolist()
    remaining = set(range(len(pairs))) - set(val)
    test = draw.choice(list(remaining), size=held_out, replace=False).tolist()
    orders = {"train": list(remaining - set(test)), "val": val, "test": test}
    rows = np.array(pairs)
    return {split: [HEADER, *rows[order].tolist()] for split, order in orders.items()}
