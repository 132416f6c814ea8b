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
    rows = np.array(_draw_negatives(positives, set(items.values())))
    return {split: [HEADER, *rows[order].tolist()] for split, order in _draw_orders(len(rows)).items()}


def _draw_negatives(positives: Mapping[int, set[int]], items: set[int]) -> list[tuple[int, int, int]]:
    """Return rows (label, user, item): each user's positives, then as many negatives.

    Users are numbered by first appearance. The draws depend on the order of CPython's sets.
    """
    draw, rows = np.random.RandomState(SEED), []
    for user, user_items in enumerate(positives.values()):
        rows += [(1, user, item) for item in user_items]
        rows += [
            (0, user, int(item)) for item in draw.choice(list(items - user_items), size=len(user_items), replace=False)
        ]
    return rows


def _draw_orders(count: int) -> dict[str, list[int]]:
    """Draw the row numbers of each split, in KGCN's order."""
    draw, held_out = np.random.RandomState(SEED), int(count * SHARE)
    val = draw.choice(list(range(count)), size=held_out, replace=False)
    remaining = set(range(count)) - set(val.tolist())
    test = draw.choice(list(remaining), size=held_out, replace=False)
    return {"train": list(remaining - set(test.tolist())), "val": val.tolist(), "test": test.tolist()}
