"""HSTU's attention as three Triton kernels, without padding, and with scores that never leave the processor.

Forward, and the gradient of queries, run one program per block of queries and head; the gradients of keys and values
run one per block of keys and head. No two programs write to one place, so results repeat bit by bit. Sums are float32.
"""
# mypy: disable-error-code="no-untyped-def"
# Triton reads the annotation of a kernel's argument as an unknown value, unless it is `constexpr`.

import math
import os
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from extensions.sequences.event_log import SequenceLayout

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # on the CPU, as in `triton.jit`
LEAST_DOT = 16  # smallest rows and columns for `tl.dot`
BLOCK_BYTES = 128  # a block's positions, one value each; with heads of 128 it fits the local memory of every GPU


@triton.jit
def _load_bounds(key_starts, query_starts, candidates_only: constexpr):
    """Return a program's sequence: the first row and the row past the last of its keys, the same of its queries.

    Then the number of its first query in the sequence, of which a candidate is the last position.
    """
    sequence = tl.program_id(0)
    first_key, past_keys = tl.load(key_starts + sequence), tl.load(key_starts + sequence + 1)
    first_query, past_queries = tl.load(query_starts + sequence), tl.load(query_starts + sequence + 1)
    offset = past_keys - first_key - 1 if candidates_only else first_key * 0
    return first_key, past_keys, first_query, past_queries, offset


@triton.jit
def _head_offsets(rows, stop, heads: constexpr, width: constexpr, columns: constexpr):
    """Return the offsets of the program's head in these rows of [rows, heads, width], and a mask of existing values.

    Both are [rows, columns]; `columns` is the width padded to what `tl.dot` takes.
    """
    column = tl.arange(0, columns)
    # Many positions with wide heads exceed 32-bit offsets.
    offsets = (rows.to(tl.int64)[:, None] * heads + tl.program_id(1)) * width + column[None, :]
    return offsets, (rows < stop)[:, None] & (column < width)[None, :]


@triton.jit
def _dot(a, b, precision: constexpr):
    """Return the matrix product in float32. Triton's interpreter would multiply bfloat16's bits, so it gets float32."""
    if precision == "interpreted":
        product = tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        product = tl.dot(a, b, input_precision=precision)
    return product


@triton.jit
def _weights_and_slopes(q, k, query, key, scale, precision: constexpr):
    """Return the attention of queries to keys by their numbers in the sequence, and silu's slope; 0 for unseen keys.

    Values beyond a sequence's end are loaded as 0 and add nothing, since silu(0) is 0.
    """
    scores = _dot(q, tl.trans(k), precision) * scale
    sigmoid = tl.sigmoid(scores)
    mask = query[:, None] >= key[None, :]
    return tl.where(mask, scores * sigmoid, 0.0), tl.where(mask, sigmoid * (1 + scores * (1 - sigmoid)), 0.0)


@triton.jit
def _outputs_or_query_gradients(
    q_at,
    k_at,
    v_at,
    grad_at,
    out_at,
    key_starts,
    query_starts,
    scale,
    factor,
    backward: constexpr,
    candidates_only: constexpr,
    heads: constexpr,
    width: constexpr,
    value_width: constexpr,
    block: constexpr,
    columns: constexpr,
    value_columns: constexpr,
    precision: constexpr,
):
    """Store the outputs of a block of queries of one head, or with `backward` the gradients of these queries."""
    # q_at, k_at: [rows, heads, width]; v_at, grad_at (of the outputs): [rows, heads, value_width]; out_at: as v_at, or
    # with `backward` as q_at. key_starts, query_starts [B + 1]: first row of each sequence. scale: 1 / sqrt(width);
    # factor: 1 / the layout's divisor. grad_at is read with `backward` alone.
    first_key, past_keys, first_query, past_queries, offset = _load_bounds(key_starts, query_starts, candidates_only)
    start = tl.program_id(2) * block
    # The grid covers the longest sequence, so programs of shorter ones may have nothing to do.
    if first_query + start >= past_queries:
        return
    query = start + tl.arange(0, block)
    places, mask = _head_offsets(first_query + query, past_queries, heads, width, columns)
    value_places, value_mask = _head_offsets(first_query + query, past_queries, heads, value_width, value_columns)
    query += offset
    q = tl.load(q_at + places, mask=mask, other=0.0)
    if backward:
        grad = tl.load(grad_at + value_places, mask=value_mask, other=0.0)
        total = tl.zeros([block, columns], dtype=tl.float32)
    else:
        total = tl.zeros([block, value_columns], dtype=tl.float32)
    # No query of the block sees a key after the block's last query.
    for begin in range(0, tl.minimum(offset + start + block, past_keys - first_key), block):
        key = begin + tl.arange(0, block)
        key_places, key_mask = _head_offsets(first_key + key, past_keys, heads, width, columns)
        k = tl.load(k_at + key_places, mask=key_mask, other=0.0)
        key_places, key_mask = _head_offsets(first_key + key, past_keys, heads, value_width, value_columns)
        v = tl.load(v_at + key_places, mask=key_mask, other=0.0)
        weights, slope = _weights_and_slopes(q, k, query, key, scale, precision)
        if backward:
            slope *= _dot(grad, tl.trans(v), precision)
            total += _dot(slope.to(k.dtype), k, precision)
        else:
            total += _dot(weights.to(v.dtype), v, precision)
    if backward:
        tl.store(out_at + places, total * (scale * factor), mask=mask)
    else:
        tl.store(out_at + value_places, total * factor, mask=value_mask)


@triton.jit
def _key_and_value_gradients(
    q_at,
    k_at,
    v_at,
    grad_at,
    grad_k_at,
    grad_v_at,
    key_starts,
    query_starts,
    scale,
    factor,
    candidates_only: constexpr,
    heads: constexpr,
    width: constexpr,
    value_width: constexpr,
    block: constexpr,
    columns: constexpr,
    value_columns: constexpr,
    precision: constexpr,
):
    """Store the gradients of a block of keys and values of one head, summed over the queries that see them."""
    # q_at, k_at: [rows, heads, width]; v_at, grad_at (of the outputs): [rows, heads, value_width].
    first_key, past_keys, first_query, past_queries, offset = _load_bounds(key_starts, query_starts, candidates_only)
    start = tl.program_id(2) * block
    if first_key + start >= past_keys:
        return
    key = start + tl.arange(0, block)
    places, mask = _head_offsets(first_key + key, past_keys, heads, width, columns)
    value_places, value_mask = _head_offsets(first_key + key, past_keys, heads, value_width, value_columns)
    k = tl.load(k_at + places, mask=mask, other=0.0)
    v = tl.load(v_at + value_places, mask=value_mask, other=0.0)
    grad_k = tl.zeros([block, columns], dtype=tl.float32)
    grad_v = tl.zeros([block, value_columns], dtype=tl.float32)
    # Queries before the block's first key see none of its keys.
    for begin in range(tl.maximum(start - offset, 0), past_queries - first_query, block):
        query = begin + tl.arange(0, block)
        query_places, query_mask = _head_offsets(first_query + query, past_queries, heads, width, columns)
        q = tl.load(q_at + query_places, mask=query_mask, other=0.0)
        query_places, query_mask = _head_offsets(first_query + query, past_queries, heads, value_width, value_columns)
        grad = tl.load(grad_at + query_places, mask=query_mask, other=0.0)
        weights, slope = _weights_and_slopes(q, k, query + offset, key, scale, precision)
        grad_v += _dot(tl.trans(weights).to(grad.dtype), grad, precision)
        slope *= _dot(grad, tl.trans(v), precision)
        grad_k += _dot(tl.trans(slope).to(q.dtype), q, precision)
    tl.store(grad_k_at + places, grad_k * (scale * factor), mask=mask)
    tl.store(grad_v_at + value_places, grad_v * factor, mask=value_mask)


class TritonAttention(torch.autograd.Function):
    """Launches the kernels, on a GPU or in Triton's interpreter; all inputs are float32, float16 or bfloat16.

    The backward computes scores again instead of storing them.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
        """Return the outputs [T, H, V], or those of the candidates alone; save q, k and v for the backward."""
        # The kernels compute addresses from rows, heads and widths alone, without strides.
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = torch.empty(len(q), *v.shape[1:], dtype=v.dtype, device=v.device)
        ctx.layout, ctx.candidates_only = layout, candidates_only
        ctx.save_for_backward(q, k, v)
        grid, _, bounds, options = _launch(ctx, q, v)
        _outputs_or_query_gradients[grid](q, k, v, out, out, *bounds, backward=False, **options)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Return the gradients of q, k and v, and None for the arguments that are no tensors."""
        q, k, v = ctx.saved_tensors
        inputs = (q, k, v, grad_outputs[0].contiguous())
        grad_q, grad_k, grad_v = (torch.empty_like(tensor) for tensor in (q, k, v))
        query_grid, key_grid, bounds, options = _launch(ctx, q, v)
        _outputs_or_query_gradients[query_grid](*inputs, grad_q, *bounds, backward=True, **options)
        _key_and_value_gradients[key_grid](*inputs, grad_k, grad_v, *bounds, **options)
        return grad_q, grad_k, grad_v, None, None


def _launch(ctx: Any, q: Tensor, v: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
    """Return how the kernels run on queries [T, H, A] and values [T, H, V]; ctx has `layout` and `candidates_only`.

    Grids of the programs for queries and for keys, and the arguments that all kernels get after their tensors.
    """
    layout, block = ctx.layout, BLOCK_BYTES // q.element_size()
    queries = [1] * len(layout.lengths) if ctx.candidates_only else layout.lengths
    key_starts, query_starts = ([0, *accumulate(counts)] for counts in (layout.lengths, queries))
    # The keys differ from those of buckets, by which the first batch may be computed, too.
    key = "bounds", ctx.candidates_only
    if key not in layout.products:
        layout.products[key] = [torch.tensor(values, device=q.device) for values in (key_starts, query_starts)]
    bounds = layout.products[key]
    query_grid, key_grid = (
        (len(counts), q.shape[1], triton.cdiv(max(counts), block)) for counts in (queries, layout.lengths)
    )
    # Products of float32 follow torch's setting, but are never in TF32 on AMD, where not all GPUs have it.
    may_round = not torch.version.hip and torch.get_float32_matmul_precision() != "highest"
    options = {
        "candidates_only": ctx.candidates_only,
        "heads": q.shape[1],
        "width": q.shape[2],
        "value_width": v.shape[2],
        "block": block,
        # `tl.arange` needs powers of two.
        "columns": max(LEAST_DOT, triton.next_power_of_2(q.shape[2])),
        "value_columns": max(LEAST_DOT, triton.next_power_of_2(v.shape[2])),
        "precision": "interpreted" if INTERPRETED else "tf32" if may_round else "ieee",
        "num_warps": 4 if q.element_size() == 2 else 8,
        "num_stages": 2,
    }
    return query_grid, key_grid, (*bounds, 1 / math.sqrt(q.shape[2]), 1 / layout.divisor), options
