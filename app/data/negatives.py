"""Negatives for a split that has only positives, drawn anew in each epoch.

Each row is followed by `per_positive` copies of itself with label 0 and another item, which the user has in no row of
train. A draw is a function of the seed, the epoch and the row's number alone, so it does not depend on processes, on
batches or on where a run was resumed. Every row of the item's table can be drawn, even one whose value the split lacks.
"""

import logging

import numpy as np
from numpy.typing import NDArray

from app.config.data import NegativesConfig
from app.data.batch import RowArrays
from app.data.shards import SplitShards
from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.sample import INCREMENT, mix

log = logging.getLogger("clickwork")

READ_ROWS = 1 << 18  # rows read in one piece while users' items are collected
DRAWS = 3  # makes this hash's use of seed and epoch differ from the others


class DrawnNegatives:
    """The rows of a split with their negatives; the numbers of row r begin at r * (1 + per_positive)."""

    def __init__(self, shards: SplitShards, manifest: Manifest, config: NegativesConfig) -> None:
        """Collect each user's items; takes 8 bytes per positive."""
        assert config.user is not None  # validate_data requires it beside per_positive
        assert config.item is not None
        one_hot = [name for name in manifest.num_embeddings if name not in manifest.ragged]
        self._shards, self._user, self._item = shards, one_hot.index(config.user), one_hot.index(config.item)
        self._per_row, self.rows = config.rows_per_positive, shards.rows * config.rows_per_positive
        num_users, self._num_items = (manifest.num_embeddings[name] for name in (config.user, config.item))
        pairs = np.unique(np.concatenate([np.empty(0, np.int64), *self._pairs()]))  # user * items + item
        users, items = pairs // self._num_items, pairs % self._num_items
        self._counts = np.bincount(users, minlength=num_users)
        self._starts = np.cumsum(self._counts) - self._counts
        below = items - (np.arange(len(pairs)) - self._starts[users])  # how many lower items the user does not have
        self._keys = users * (self._num_items + 1) + below
        if (full := np.flatnonzero(self._counts == self._num_items)).size:
            raise UserError(
                f"data.negatives.item={config.item}: the user with id {full[0]} of {config.user} has all "
                f"{self._num_items} rows of its table, so there is no negative to draw; give "
                "data.negatives.per_positive=null data.negatives.user=null data.negatives.item=null"
            )
        others = [
            name for name in (*manifest.schema["dense"], *manifest.num_embeddings) if name not in vars(config).values()
        ]
        if others:
            log.warning("data.negatives: drawn rows have their positive's values of %s", ", ".join(others))

    def _pairs(self) -> list[NDArray[np.int64]]:
        pairs = []
        for start in range(0, self._shards.rows, READ_ROWS):
            stop = min(start + READ_ROWS, self._shards.rows)
            rows = self._shards.read([(start, stop)], np.arange(stop - start))
            if not rows.labels.all():
                raise UserError(
                    f"data.negatives.per_positive={self._per_row - 1}: row {start + int(rows.labels.argmin())} of the "
                    "train split has label 0, and negatives are drawn for positives alone; leave out the rows of label "
                    "0, or give data.negatives.per_positive=null data.negatives.user=null data.negatives.item=null"
                )
            ids = rows.sparse.astype(np.int64)
            pairs.append(ids[:, self._user] * self._num_items + ids[:, self._item])
        return pairs

    def read(self, ranges: list[tuple[int, int]], order: NDArray[np.int64], seed: int, epoch: int) -> RowArrays:
        """Return the rows of an epoch with the numbers `order`, counted over ranges of rows and negatives.

        Raises as `SplitShards.read`.
        """
        numbers = np.concatenate([np.arange(*each) for each in ranges])[order]
        on_disk = [(start // self._per_row, -(-stop // self._per_row)) for start, stop in ranges]
        sizes = [stop - start for start, stop in on_disk]
        firsts = np.cumsum(sizes) - sizes  # number of each range's first row among the rows read
        shifts: NDArray[np.int64] = np.repeat(
            firsts - [start for start, _ in on_disk], [stop - start for start, stop in ranges]
        )
        rows = self._shards.read(on_disk, numbers // self._per_row + shifts[order])
        negatives = np.flatnonzero(numbers % self._per_row)
        rows.labels[negatives] = 0
        users = rows.sparse[negatives, self._user]
        rows.sparse[negatives, self._item] = self._draw(users, numbers[negatives], seed, epoch)
        return rows

    def _draw(self, users: NDArray[np.int32], numbers: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """Draw for each row [n] an item that its user has no row with.

        The hash chooses the user's k-th free item. An item of the user lies below it if at most k free items lie below
        that item; the search in `_keys` counts those items of the user.
        """
        [state] = np.random.SeedSequence([seed, epoch, DRAWS]).generate_state(1, np.uint64)
        free = self._num_items - self._counts[users]
        place = (mix(state + numbers.astype(np.uint64) * INCREMENT) % free.astype(np.uint64)).astype(np.int64)
        key = users.astype(np.int64) * (self._num_items + 1) + place
        return place + np.searchsorted(self._keys, key, side="right") - self._starts[users]
