"""A batch, and how rows become one. Shapes: B samples of this process, N dense features, F sparse features, L ids."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from common.errors import UserError
from data_prep.dataset.bags import Bags, join, offsets_of
from data_prep.dataset.multi_hot import MultiHotTables


@dataclass
class Sequences(Pipelineable):
    """What a batch of histories holds besides ids: H events of B samples, sample by sample, the oldest first.

    Attributes:
        lengths: [B] int32 events of each sample's history.
        times: [H] int64 seconds.
        actions: [H] uint8, a bit for each action of the dataset's schema.
        anchor_times: [B] int64 seconds, of the candidates themselves.
        query_times: [B] int64 seconds, of the last event of each history; of the candidate where it has none.
    """

    lengths: Tensor
    times: Tensor
    actions: Tensor
    anchor_times: Tensor
    query_times: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Sequences":
        """Copy to a device."""
        return Sequences(*(each.to(device, non_blocking=non_blocking) for each in vars(self).values()))

    def pinned(self) -> "Sequences":
        """Copy to page-locked memory."""
        return Sequences(*(each.pin_memory() for each in vars(self).values()))

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses these tensors."""
        for part in vars(self).values():
            part.record_stream(stream)


@dataclass
class Batch(Pipelineable):
    """One process's share of a global batch.

    Attributes:
        dense_features: [B, N] float32.
        sparse_features: F keys, B bags each; values int32 [L], feature-major.
        labels: [B] float32, 0 or 1.
        num_valid: number of samples before the padding (evaluation only).
        sequences: of a dataset of events, whose sparse_features app/data/events.py describes.
    """

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor
    num_valid: int
    sequences: Sequences | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """Copy to a device; to a GPU from page-locked memory, without which no copy overlaps a kernel."""
        here = self.pinned() if device.type != "cpu" and self.labels.device.type == "cpu" else self
        return replace(
            here,
            dense_features=here.dense_features.to(device, non_blocking=non_blocking),
            sparse_features=here.sparse_features.to(device, non_blocking=non_blocking),
            labels=here.labels.to(device, non_blocking=non_blocking),
            sequences=here.sequences and here.sequences.to(device, non_blocking),
        )

    def pinned(self) -> "Batch":
        """Copy to page-locked memory, which torch reuses for the next batches."""
        return replace(
            self,
            dense_features=self.dense_features.pin_memory(),
            sparse_features=self.sparse_features.pin_memory(),
            labels=self.labels.pin_memory(),
            sequences=self.sequences and self.sequences.pinned(),
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses these tensors."""
        for part in (self.dense_features, self.sparse_features, self.labels, self.sequences):
            if part is not None:
                part.record_stream(stream)


class RowArrays(NamedTuple):
    """Rows in the order of use: labels [n] float32, dense [n, N] float32, sparse [n, F] int32.

    Where features are multi-hot `sparse` has the columns of the others, and `bags` theirs, one entry a feature.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    bags: tuple[Bags, ...] = ()

    def part(self, start: int, stop: int) -> "RowArrays":
        """Rows [start, stop), as views."""
        rows = slice(start, stop)
        bags = tuple(feature.part(start, stop) for feature in self.bags)
        return RowArrays(self.labels[rows], self.dense[rows], self.sparse[rows], bags)

    def take(self, order: NDArray[np.integer]) -> "RowArrays":
        """The rows numbered `order`, in that order."""
        bags = tuple(feature.take(order) for feature in self.bags)
        return RowArrays(self.labels[order], self.dense[order], self.sparse[order], bags)


def join_rows(parts: list[RowArrays]) -> RowArrays:
    """The rows of all parts, part after part."""
    if len(parts) == 1:
        return parts[0]
    labels, dense, sparse, bags = zip(*parts, strict=True)
    joined = tuple(join(feature) for feature in zip(*bags, strict=True))
    return RowArrays(np.concatenate(labels), np.concatenate(dense), np.concatenate(sparse), joined)


class OneHotBatches:
    """Makes batches of one id a bag; lengths and offsets are the same for all of them."""

    def __init__(self, features: list[str], local_batch_size: int) -> None:
        self._features, self._stride = features, local_batch_size
        self._lengths = torch.ones(len(features) * local_batch_size, dtype=torch.int32)
        self._offsets = torch.arange(len(features) * local_batch_size + 1, dtype=torch.int32)
        self._offset_per_key = [feature * local_batch_size for feature in range(len(features) + 1)]

    def batch(self, rows: RowArrays) -> Batch:
        """Rows, padded with zeros to the local batch size."""
        num_valid = len(rows.labels)
        rows = _padded(rows, self._stride)
        sparse_features = KeyedJaggedTensor(
            keys=self._features,
            values=torch.from_numpy(np.ascontiguousarray(rows.sparse.T)).flatten(),
            lengths=self._lengths,
            offsets=self._offsets,
            stride=self._stride,
            length_per_key=[self._stride] * len(self._features),  # else summed on the device, and waited for
            offset_per_key=self._offset_per_key,
        )
        return Batch(torch.from_numpy(rows.dense), sparse_features, torch.from_numpy(rows.labels), num_valid)


class MultiHotBatches:
    """Makes batches of bags of any size; a padded row's bags of a multi-hot feature are empty.

    Multi-hot features are those in `ragged`, with bags in the rows, or those that `tables` expands from their ids.
    """

    def __init__(
        self, features: list[str], ragged: list[str], tables: MultiHotTables | None, local_batch_size: int
    ) -> None:
        self._features, self._stride = features, local_batch_size
        others = [name for name in features if name not in ragged]
        self._columns = [(name in ragged, (ragged if name in ragged else others).index(name)) for name in features]
        self._tables = tables
        self._ones = np.ones(local_batch_size, np.int64)

    def batch(self, rows: RowArrays) -> Batch:
        """Rows, padded to the local batch size.

        Raises:
            UserError: more ids than int32 can count.
        """
        num_valid = len(rows.labels)
        rows = _padded(rows, self._stride)
        columns = np.ascontiguousarray(rows.sparse.T)
        values, lengths = zip(*(self._feature(f, rows, columns, num_valid) for f in range(len(self._features))),
                              strict=True)  # fmt: skip
        offsets = offsets_of(np.concatenate(lengths))
        if offsets[-1] > np.iinfo(np.int32).max:
            raise UserError(f"a batch of {self._stride} rows has {offsets[-1]:,} ids; use a smaller batch")
        per_key = offsets[:: self._stride].tolist()
        sparse_features = KeyedJaggedTensor(
            keys=self._features,
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.diff(offsets).astype(np.int32)),
            offsets=torch.from_numpy(offsets.astype(np.int32)),
            stride=self._stride,
            length_per_key=np.diff(per_key).tolist(),  # else counted on the device, which the host would wait for
            offset_per_key=per_key,
        )
        return Batch(torch.from_numpy(rows.dense), sparse_features, torch.from_numpy(rows.labels), num_valid)

    def _feature(
        self, feature: int, rows: RowArrays, columns: NDArray[np.int32], num_valid: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of one feature and the lengths of its bags, [B]."""
        is_ragged, column = self._columns[feature]
        if is_ragged:
            return rows.bags[column].ids, rows.bags[column].lengths
        if self._tables is None or self._tables.tables[feature] is None:
            return columns[column], self._ones
        bags = self._tables.expand(feature, columns[column, :num_valid])
        lengths = np.where(np.arange(self._stride) < num_valid, bags.shape[1], 0)
        return bags.reshape(-1), lengths


def _padded(rows: RowArrays, count: int) -> RowArrays:
    """Rows, padded with zeros and empty bags to `count` rows."""
    missing = count - len(rows.labels)
    if not missing:
        return rows
    return RowArrays(
        np.pad(rows.labels, (0, missing)),
        np.pad(rows.dense, ((0, missing), (0, 0))),
        np.pad(rows.sparse, ((0, missing), (0, 0))),
        tuple(Bags(bags.values, np.pad(bags.offsets, (0, missing), mode="edge")) for bags in rows.bags),
    )
