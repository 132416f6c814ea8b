"""A batch, and how rows become one. Shapes: B samples of this process, N dense features, F sparse features, L ids."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from common.errors import UserError
from data_prep.codec.values import Bags, join, offsets_of
from data_prep.dataset.format import splitmix64
from data_prep.dataset.multi_hot import MultiHotTables

# One batch waits for its copy to the device while the thread builds the next.
BATCHES_AHEAD = 2


@dataclass
class Layout:
    """Positions of the bags of F keys, B bags each, in a batch's values [L]; batches of the same layout share one.

    lengths, offsets: [F * B] and [F * B + 1] int32, key by key: ids of each bag, and position of its first id.
    offset_per_key: [F + 1], the position of each key's first id, then L.
    """

    keys: list[str]
    lengths: Tensor
    offsets: Tensor
    offset_per_key: list[int]
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def bags(self, values: Tensor) -> KeyedJaggedTensor:
        """Return bags of these values, on their device; lengths and offsets are copied there once."""
        if values.device not in self._copies:
            self._copies[values.device] = self.lengths.to(values.device), self.offsets.to(values.device)
        lengths, offsets = self._copies[values.device]
        return KeyedJaggedTensor(
            keys=self.keys,
            values=values,
            lengths=lengths,
            offsets=offsets,
            stride=len(self.lengths) // len(self.keys),
            # Without it the device would count the lengths and the host wait.
            length_per_key=np.diff(self.offset_per_key).tolist(),
            offset_per_key=self.offset_per_key,
        )


def layout_of(keys: list[str], lengths: Sequence[NDArray[np.integer]]) -> Layout:
    """Return the layout of bags; `lengths`: per key, the number of ids in each of its B bags."""
    stride, offsets = len(lengths[0]), offsets_of(np.concatenate(lengths))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UserError(f"a batch of {stride} rows has {offsets[-1]:,} ids; use a smaller batch")
    lengths_32 = torch.from_numpy(np.diff(offsets).astype(np.int32))
    # Offsets are int32, like ids: half the bytes to copy, exchange and keep.
    return Layout(keys, lengths_32, torch.from_numpy(offsets.astype(np.int32)), offsets[::stride].tolist())


@dataclass
class Batch(Pipelineable):
    """One process's share of a global batch.

    Attributes:
        dense_features: [B, N] float32.
        sparse_features: F keys, B bags each; values int32 [L], feature-major.
        labels: [B] float32, 0 or 1; [B, tasks] where several are learned, the dataset's label first.
        num_valid: samples of this process before the padding, which evaluations and an epoch's last batch can have.
        inputs_of_model: inputs of an extension's model that replace dense_features.
        layout: layout of sparse_features, if several batches share it.
        share: weight of this rank's mean loss; 1 if all ranks have equally many samples.
        num_global: samples of the global batch, without padding, for train.deterministic=layout; 0 in evaluations.
        weights: [B] float32, the sample weights as the dataset has them; None if it has none.
        packed: float32, one buffer that holds all tensors, in page-locked or a device's memory; None: each has its own.
    """

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor
    num_valid: int
    inputs_of_model: Pipelineable | None = None
    layout: Layout | None = None
    share: float = 1.0
    num_global: int = 0
    weights: Tensor | None = None
    packed: Tensor | None = None

    @property
    def inputs(self) -> tuple[Any, KeyedJaggedTensor]:
        """Return a model's inputs: dense features (or the inputs that replace them) and ids."""
        return self.dense_features if self.inputs_of_model is None else self.inputs_of_model, self.sparse_features

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.dense_features, self.sparse_features, self.labels, self.inputs_of_model, self.weights

    def targets(self, rows: slice = slice(None)) -> tuple[Tensor, ...]:
        """Return the inputs of a loss besides the logits: the rows' labels, and their weights if there are any."""
        return (self.labels[rows],) if self.weights is None else (self.labels[rows], self.weights[rows])

    def row_keys(self) -> NDArray[np.int64]:
        """Return a number per sample [B], equal for samples with equal features whatever the order in their bags."""
        features = self.sparse_features
        ids, offsets = (part.cpu().numpy() for part in (features.values(), features.offsets()))
        # A sum of hashes ignores the order in a bag, and sums that wrap around still have exact differences.
        sums = np.append(np.uint64(0), np.cumsum(splitmix64(ids.astype(np.uint64)), dtype=np.uint64))
        keys = np.zeros(features.stride(), np.uint64)
        for bags in np.diff(sums[offsets]).reshape(-1, len(keys)):
            keys = splitmix64(keys + bags)
        for column in self.dense_features.cpu().numpy().view(np.uint32).T:
            keys = splitmix64(keys + column)
        return keys.view(np.int64)

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """Copy to a device; to a GPU from page-locked memory, since other copies do not overlap kernels."""
        is_pageable = self.labels.device.type == "cpu" and not self.labels.is_pinned()
        source = self.pinned() if device.type != "cpu" and is_pageable else self
        if source.packed is not None:  # one copy is faster than one for each tensor
            return source._with_buffer(source.packed.to(device, non_blocking=non_blocking))
        return source._map_parts(lambda part: part.to(device, non_blocking=non_blocking))

    def pinned(self) -> "Batch":
        """Copy to page-locked memory, which torch reuses for the next batches."""
        # Bags are made from a buffer by a shared layout, and another model's inputs have no place in one.
        if self.layout is None or self.inputs_of_model is not None:
            return self._map_parts(lambda part: part.pin_memory())
        size = sum(_padded_size(tensor) for tensor in self._tensors)
        pinned = self._with_buffer(torch.empty(size, dtype=torch.float32, pin_memory=True))
        for target, source in zip(pinned._tensors, self._tensors, strict=True):
            target.copy_(source)
        return pinned

    @property
    def _tensors(self) -> list[Tensor]:
        """Return dense features, ids, labels and weights, whose values all have four bytes."""
        tensors = (self.dense_features, self.sparse_features.values(), self.labels, self.weights)
        return [tensor for tensor in tensors if tensor is not None]

    def _with_buffer(self, buffer: Tensor) -> "Batch":
        """Return a batch whose tensors are consecutive parts of a float32 buffer."""
        parts, start = [], 0
        for tensor in self._tensors:
            parts.append(buffer[start : start + tensor.numel()].view(tensor.dtype).view(tensor.shape))
            start += _padded_size(tensor)
        dense, ids, labels, *weights = parts
        assert self.layout is not None
        return replace(
            self,
            dense_features=dense,
            sparse_features=self.layout.bags(ids),
            labels=labels,
            weights=weights[0] if weights else None,
            packed=buffer,
        )

    def _map_parts(self, change: Callable[[Any], Any]) -> "Batch":
        """Return a copy whose tensors are changed; of bags with a shared layout, only the values change."""
        features, layout = self.sparse_features, self.layout
        return replace(
            self,
            dense_features=change(self.dense_features),
            sparse_features=change(features) if layout is None else layout.bags(change(features.values())),
            labels=change(self.labels),
            inputs_of_model=self.inputs_of_model and change(self.inputs_of_model),
            weights=None if self.weights is None else change(self.weights),
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses these tensors, so that their memory is not given away before."""
        for part in self._parts:
            if part is not None:
                part.record_stream(stream)


def _padded_size(tensor: Tensor) -> int:
    """Return the values of a tensor's part of a buffer; kernels read memory that begins at a multiple of 128 bytes."""
    return -(-tensor.numel() // 32) * 32


def pinned_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches in page-locked memory for a GPU; a thread builds them while others are in use."""

    def build() -> Batch | None:
        batch = next(batches, None)
        return None if batch is None else batch.pinned()

    with background_thread("batch", device) as pool:
        waiting = deque(pool.submit(build) for _ in range(BATCHES_AHEAD))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(build))
            yield batch


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on a GPU; a stream of its own copies one while another is computed."""
    copying, copied = torch.cuda.Stream(device), None
    for batch in chain(pinned_ahead(batches, device), [None]):
        previous = copied
        if batch is not None:
            with torch.cuda.stream(copying):
                copied = batch.to(device, non_blocking=True), copying.record_event()
        if previous is not None:
            # The allocator must not give the memory away while the computing stream still reads it.
            computing = torch.cuda.current_stream(device)
            computing.wait_event(previous[1])
            previous[0].record_stream(computing)
            yield previous[0]


class RowArrays(NamedTuple):
    """Rows in the order of use: labels [n] float32, dense [n, N] float32, sparse [n, F] int32.

    If features are multi-hot, `bags` has an entry for each of them, and `sparse` the columns of the others. `weights`
    [n] float32 are sample weights, if there are any.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    bags: tuple[Bags, ...] = ()
    weights: NDArray[np.float32] | None = None

    def part(self, start: int, stop: int) -> "RowArrays":
        """Return rows [start, stop) as views."""
        return self._select(slice(start, stop), tuple(feature.part(start, stop) for feature in self.bags))

    def take(self, order: NDArray[np.integer]) -> "RowArrays":
        """Return the rows numbered `order`, in that order."""
        return self._select(order, tuple(feature.take(order) for feature in self.bags))

    def _select(self, rows: Any, bags: tuple[Bags, ...]) -> "RowArrays":
        weights = None if self.weights is None else self.weights[rows]
        return RowArrays(self.labels[rows], self.dense[rows], self.sparse[rows], bags, weights)


def join_rows(parts: list[RowArrays]) -> RowArrays:
    """Return the rows of all parts, part after part; a single part is returned as it is, without a copy."""
    if len(parts) == 1:
        return parts[0]
    labels, dense, sparse, bags, weights = zip(*parts, strict=True)
    joined = tuple(join(feature) for feature in zip(*bags, strict=True))
    joined_weights = None if weights[0] is None else np.concatenate(weights)
    return RowArrays(np.concatenate(labels), np.concatenate(dense), np.concatenate(sparse), joined, joined_weights)


class BatchBuilder:
    """Builds batches of one size from rows.

    The bags of a feature in `ragged` are in the rows. `tables` expands the ids of others; without it they have one id.
    """

    def __init__(
        self, features: list[str], local_batch_size: int, ragged: list[str], tables: MultiHotTables | None
    ) -> None:
        self._features, self._stride, self._tables = features, local_batch_size, tables
        single = [name for name in features if name not in ragged]
        # Of each feature: whether its bags are in the rows, and its place among those, or among the other features.
        self._columns = [(name in ragged, (ragged if name in ragged else single).index(name)) for name in features]
        self._sizes = [1] * len(features) if tables is None else tables.sizes
        self._is_one_hot = not ragged and max(self._sizes) == 1
        # Whole batches have bags of equal lengths, so they share one layout, whose copy stays on the device.
        self._full = None if ragged else layout_of(features, [np.full(local_batch_size, size) for size in self._sizes])

    def batch(self, rows: RowArrays) -> Batch:
        """Return a batch of the rows, padded to the batch size with zeros and, for multi-hot features, empty bags."""
        num_valid = len(rows.labels)
        if missing := self._stride - num_valid:
            rows = RowArrays(
                np.pad(rows.labels, (0, missing)),
                np.pad(rows.dense, ((0, missing), (0, 0))),
                np.pad(rows.sparse, ((0, missing), (0, 0))),
                tuple(Bags(bags.values, np.pad(bags.offsets, (0, missing), mode="edge")) for bags in rows.bags),
                None if rows.weights is None else np.pad(rows.weights, (0, missing)),
            )
        is_full = self._is_one_hot or num_valid == self._stride
        layout = self._full if is_full else None
        if layout is None:
            # A padded feature of one id keeps id 0, so the layout is that of a whole batch. Longer bags are empty.
            is_valid = np.arange(self._stride) < num_valid
            columns_and_sizes = zip(self._columns, self._sizes, strict=True)
            lengths = [
                rows.bags[column].lengths if is_ragged else np.where(is_valid | (size == 1), size, 0)
                for (is_ragged, column), size in columns_and_sizes
            ]
            layout = layout_of(self._features, lengths)
        sparse_features = layout.bags(torch.from_numpy(self._values(rows, num_valid, layout.offset_per_key)))
        return Batch(
            torch.from_numpy(rows.dense),
            sparse_features,
            torch.from_numpy(rows.labels),
            num_valid,
            layout=layout if layout is self._full else None,
            weights=None if rows.weights is None else torch.from_numpy(rows.weights),
        )

    def _values(self, rows: RowArrays, num_valid: int, starts: list[int]) -> NDArray[np.int32]:
        """Return the ids [L] of all bags, feature by feature; starts: [F + 1], the place of each feature's first id."""
        if self._is_one_hot:
            return np.ascontiguousarray(rows.sparse.T).reshape(-1)
        values = np.empty(starts[-1], np.int32)
        for feature, (is_ragged, column) in enumerate(self._columns):
            out = values[starts[feature] : starts[feature + 1]]
            if is_ragged:
                out[:] = rows.bags[column].ids
            elif self._tables is None or self._sizes[feature] == 1:
                out[:] = rows.sparse[:, column]
            else:
                self._tables.expand(feature, rows.sparse[:num_valid, column], out)
        return values


def background_thread(name: str, device: torch.device | None = None) -> ThreadPoolExecutor:
    """Return a pool of one thread in which torch computes without OpenMP threads of its own.

    A second team of OpenMP threads would slow training down for good: libgomp would manage more threads than there are
    processors and let each spin for less long, so that every parallel region of a step would end in a sleep and a
    wake-up.

    name: the thread's, in a debugger or profiler. device: GPU that becomes its current one, which would be GPU 0.
    """
    torch.get_num_threads()  # a thread that has not computed yet would take over the number set by the new one

    def prepare() -> None:
        torch.set_num_threads(1)  # for this thread alone; others that have computed keep their number
        if device is not None and device.type == "cuda":
            torch.cuda.set_device(device)

    return ThreadPoolExecutor(1, name, initializer=prepare)
