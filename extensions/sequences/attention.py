"""HSTU's attention over sequences of different lengths (Zhai et al. 2024, arXiv:2402.17152), by equivalent strategies.

The output at position i is, per head, the sum over positions j that i sees of silu(q_i . k_j / sqrt(width)) / N * v_j,
without softmax. A position sees itself and earlier ones. Candidates, at a sequence's end, see the history and
themselves.

Shapes: B sequences, T positions of all sequences, H heads; A and V widths of a head's queries and values.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from extensions.sequences.keys import Attention
from extensions.sequences.sequence_layout import SequenceLayout
from extensions.sequences.validate import triton_problem

CHUNK_BYTES = 4 << 20  # scores held at a time: small enough for the cache, since they are read several times
LENGTHS_ALIKE = 1.25  # length of a bucket's longest sequence over its shortest; limits the computation on padding
FEW_POSITIONS = 64  # up to as many positions more do not justify another bucket


def attend(
    strategy: Attention, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool = False
) -> Tensor:
    """Attend from queries [T, H, A] to keys [T, H, A] and values [T, H, V]; return [T, H, V].

    candidates_only: queries and result have only the candidates, sequence by sequence.
    """
    return _STRATEGIES[strategy](q, k, v, layout, candidates_only)


def attend_padded(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
    """Attend over sequences padded to the longest, like the definition; memory is B * H * longest^2."""
    (bucket,) = _buckets(layout, candidates_only, q.device, alike=math.inf)
    keys, values = _rows(k, bucket.positions), _rows(v, bucket.positions)  # [B, n, H, width]
    scores = torch.einsum("bihd,bjhd->bhij", _rows(q, bucket.query_rows), keys) / math.sqrt(q.shape[2])
    mask = bucket.seen(0, bucket.query_rows.shape[1], bucket.positions.shape[1])
    weights = torch.nn.functional.silu(scores) * mask.unsqueeze(1) / layout.divisor
    return _rows(torch.einsum("bhij,bjhd->bihd", weights, values).flatten(0, 1), bucket.query_slots)


def attend_bucketed(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
    """Attend over sequences of similar length, a few queries at a time, in bounded memory for any lengths."""
    out: Tensor = _Bucketed.apply(q, k, v, layout, candidates_only)
    return out


def attend_by_triton(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
    """Attend by kernels for GPUs; on a CPU, where such a run may be evaluated, fall back to `attend_bucketed`."""
    if triton_problem(q.device.type) is not None:
        return attend_bucketed(q, k, v, layout, candidates_only)
    from extensions.sequences.attention_triton import attend_triton  # Triton comes only with torch for GPUs

    return attend_triton(q, k, v, layout, candidates_only)


_STRATEGIES: dict[Attention, Callable[[Tensor, Tensor, Tensor, SequenceLayout, bool], Tensor]] = {
    Attention.padded: attend_padded,
    Attention.bucketed: attend_bucketed,
    Attention.triton: attend_by_triton,
}


@dataclass(frozen=True)
class _Bucket:
    """A bucket of b sequences, padded to n positions and m queries.

    positions: [b, n] places of the keys among T; 0 for padding, which no query sees.
    query_rows: [b, m] rows of the queries among the given ones; 0 for padding. first_query: [b, 1] place of the first
        query in its sequence.
    query_slots, key_slots: flat places in [b, m] and [b, n] without padding, sequence by sequence.
    histories: [b, 1] number of positions before the candidates.
    """

    positions: Tensor
    query_rows: Tensor
    first_query: Tensor
    query_slots: Tensor
    key_slots: Tensor
    histories: Tensor
    one_candidate: bool

    def seen(self, start: int, stop: int, num_keys: int) -> Tensor:
        """Return [b, stop - start, num_keys]: whether these queries see these keys."""
        device = self.positions.device
        query = self.first_query + torch.arange(start, stop, device=device)  # [b, stop - start]
        key = torch.arange(num_keys, device=device)
        if self.one_candidate:  # the last position, which sees all earlier ones
            return query.unsqueeze(2) >= key
        histories = self.histories.unsqueeze(2)
        earlier = torch.minimum(query.unsqueeze(2), histories) > torch.minimum(key, histories)
        return earlier | (query.unsqueeze(2) == key)


def _buckets(
    layout: SequenceLayout, candidates_only: bool, device: torch.device, alike: float = LENGTHS_ALIKE
) -> Iterator[_Bucket]:
    """Yield buckets of sequences by length; the longest has `alike` times the shortest's or FEW_POSITIONS more."""
    lengths, candidates = torch.tensor(layout.lengths), torch.tensor(layout.num_candidates)
    queries = candidates if candidates_only else lengths
    starts, query_starts = (counts.cumsum(0) - counts for counts in (lengths, queries))
    order = lengths.argsort(stable=True) if alike < math.inf else torch.arange(len(lengths))
    shortest, edges = 0, [0]
    for place, length in enumerate(lengths[order].tolist()):
        if place and length > max(alike * shortest, shortest + FEW_POSITIONS):
            edges.append(place)
        if place == edges[-1]:
            shortest = length
    for begin, end in pairwise([*edges, len(order)]):
        group = order[begin:end]
        histories = (lengths - candidates)[group].unsqueeze(1)
        positions, key_slots = _padded(starts[group], lengths[group])
        query_rows, query_slots = _padded(query_starts[group], queries[group])
        first_query = histories if candidates_only else torch.zeros_like(histories)
        yield _Bucket(
            positions.to(device),
            query_rows.to(device),
            first_query.to(device),
            query_slots.to(device),
            key_slots.to(device),
            histories.to(device),
            bool((candidates[group] == 1).all()),
        )


def _padded(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [b, longest] of sequences that begin at `starts`, 0 for padding, and the rest's flat places."""
    place = torch.arange(int(lengths.max()))
    is_real = place < lengths.unsqueeze(1)
    return (starts.unsqueeze(1) + place) * is_real, is_real.flatten().nonzero().squeeze(1)


class _Bucketed(torch.autograd.Function):
    """Attention by buckets and chunks of queries. The backward computes scores again instead of storing them.

    Padded queries, keys and values are [b * H, m or n, width].
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.layout, make_buckets = layout, lambda: list(_buckets(layout, candidates_only, q.device))
        ctx.buckets = layout.once(("buckets", candidates_only), make_buckets)
        out = v.new_empty(q.shape[0], *v.shape[1:])
        for bucket in ctx.buckets:
            queries, keys, values = _padded_by_head(bucket, q, k, v)
            result = values.new_empty(*queries.shape[:2], values.shape[2])
            for start, stop, num_keys in _chunks(bucket, q.shape[1]):
                scores = _product(queries[:, start:stop], keys[:, :num_keys].mT, 1 / math.sqrt(q.shape[2]))
                weights = torch.nn.functional.silu(scores, inplace=True)
                _hide(weights, bucket, start, stop, num_keys)
                result[:, start:stop] = _product(weights, values[:, :num_keys], 1 / layout.divisor)
            _spread(out, bucket.query_rows, bucket.query_slots, result)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v = ctx.saved_tensors
        to_q, to_k, to_v = (torch.empty_like(tensor) for tensor in (q, k, v))
        of_scores, of_weights = 1 / math.sqrt(q.shape[2]), 1 / ctx.layout.divisor
        for bucket in ctx.buckets:
            queries, keys, values = _padded_by_head(bucket, q, k, v)
            grad = _gathered(grad_outputs[0], bucket.query_rows, bucket.query_slots)
            grad_q, grad_k, grad_v = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
            for start, stop, num_keys in _chunks(bucket, q.shape[1]):
                part, seen_keys = slice(start, stop), slice(num_keys)
                scores = _product(queries[:, part], keys[:, seen_keys].mT, of_scores)
                sigmoid = scores.sigmoid()
                _hide(sigmoid, bucket, start, stop, num_keys)
                weights = scores.mul_(sigmoid)
                grad_v[:, seen_keys].baddbmm_(weights.mT, grad[:, part], alpha=of_weights)
                # silu's derivative: sigmoid * (1 + scores * (1 - sigmoid)) = sigmoid + weights * (1 - sigmoid)
                slope = torch.addcmul(sigmoid, weights, 1 - sigmoid)
                grad_scores = _product(grad[:, part], values[:, seen_keys].mT, of_weights * of_scores).mul_(slope)
                grad_q[:, part] = grad_scores @ keys[:, seen_keys]
                grad_k[:, seen_keys].baddbmm_(grad_scores.mT, queries[:, part])
            _spread(to_q, bucket.query_rows, bucket.query_slots, grad_q)
            _spread(to_k, bucket.positions, bucket.key_slots, grad_k)
            _spread(to_v, bucket.positions, bucket.key_slots, grad_v)
        return to_q, to_k, to_v, None, None


def _product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=factor)


def _rows(flat: Tensor, rows: Tensor) -> Tensor:
    """Return flat[rows]; torch copies whole rows in index_select, but single numbers in indexing."""
    return flat.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _padded_by_head(bucket: _Bucket, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = (q, bucket.query_rows), (k, bucket.positions), (v, bucket.positions)
    queries, keys, values = (_by_head(_rows(*of)) for of in rows)
    return queries, keys, values


def _by_head(padded: Tensor) -> Tensor:
    """Reshape [b, n, H, width] to [b * H, n, width]."""
    return padded.transpose(1, 2).flatten(0, 1)


def _chunks(bucket: _Bucket, heads: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of queries whose scores take at most CHUNK_BYTES, with the maximum number of keys that they see."""
    (b, n), m = bucket.positions.shape, bucket.query_rows.shape[1]
    rows = max(1, min(m, CHUNK_BYTES // max(1, 4 * b * heads * n)))
    for start in range(0, m, rows):
        stop = min(start + rows, m)
        yield start, stop, n if m < n else stop  # queries are all positions, or only the candidates


def _hide(values: Tensor, bucket: _Bucket, start: int, stop: int, num_keys: int) -> None:
    """Set the values of keys that queries do not see to 0, in place."""
    if bucket.one_candidate and bucket.query_rows.shape[1] == bucket.positions.shape[1]:
        values[..., start:].tril_()
    else:
        values.unflatten(0, (len(bucket.positions), -1)).mul_(bucket.seen(start, stop, num_keys).unsqueeze(1))


def _gathered(flat: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """Gather [rows, H, width] to [b * H, m, width], with 0 for padding."""
    padded = flat.new_zeros(rows.numel(), *flat.shape[1:])
    padded.index_copy_(0, slots, _rows(flat, rows.flatten()[slots]))
    return _by_head(padded.unflatten(0, rows.shape))


def _spread(flat: Tensor, rows: Tensor, slots: Tensor, padded: Tensor) -> None:
    """Write [b * H, m, width] without padding to `rows` of [rows, H, width]."""
    by_sequence = padded.unflatten(0, (len(rows), -1)).transpose(1, 2).flatten(0, 1)
    flat.index_copy_(0, rows.flatten()[slots], _rows(by_sequence, slots))
