"""HSTU (Zhai et al. 2024, arXiv:2402.17152) as in MLPerf's DLRMv4, and its attention.

The output at position i is, per head, the sum over positions j that i sees of silu(q_i . k_j / sqrt(width)) / N * v_j,
without softmax. A position sees itself and earlier ones.

Shapes in attention: B sequences, T positions of all of them, H heads; A and V widths of a head's queries and values.

A sequence has C context vectors, the history's L events from the oldest on, and a candidate. Each position becomes a
vector of width `dim`, and layers of attention mix them. The candidates' last vectors then meet their items' vectors.

Shapes in the model: B sequences as above, one for each sample, E events of all histories, D embedding_dim, G = `dim`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torchrec import JaggedTensor, KeyedJaggedTensor

from app.config.app_config import AppConfig
from app.model.embeddings import Features, TableArch, TableInitRange, TableSpec, row_collection
from common.command import log
from common.errors import last_line
from common.extensions import keys_of_extension
from extensions.sequences.event_log import SequenceLayout, Sequences
from extensions.sequences.events import EventSchema
from extensions.sequences.keys import Attention, HSTUConfig, SequencesConfig, triton_problem

CHUNK_BYTES = 4 << 20  # scores held at a time: small enough for the cache, since they are read several times
LENGTHS_ALIKE = 1.25  # length of a bucket's longest sequence over its shortest; limits the computation on padding
FEW_POSITIONS = 64  # up to as many positions more do not justify another bucket


def attend(
    strategy: Attention, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool = False
) -> Tensor:
    """Attend from queries [T, H, A] to keys [T, H, A] and values [T, H, V]; return [T, H, V].

    candidates_only: queries [B, H, A] and result [B, H, V] are the candidates' alone.
    """
    arguments = (q, k, v, layout, candidates_only)
    # A run with triton may be evaluated on a CPU, which computes the same without it.
    takes_kernels = strategy == "triton" and triton_problem(q.device.type) is None
    if strategy == "auto" and prefers_triton(q.device):
        kind = (q.dtype, q.shape[1:], v.shape[2], candidates_only)
        if kind not in _AGREES:
            _AGREES[kind] = _kernels_agree(*arguments)
        takes_kernels = _AGREES[kind]
    out: Tensor = attend_by_triton(*arguments) if takes_kernels else BucketedAttention.apply(*arguments)
    return out


# Whether Triton's kernels are right, by type and widths of their arguments: each kind is compared once in a process.
_AGREES: dict[tuple[Any, ...], bool] = {}


def prefers_triton(device: torch.device) -> bool:
    """Return whether Triton's kernels compute attention there by default; on AMD's GPUs they have not run."""
    return device.type == "cuda" and torch.version.hip is None and triton_problem(device.type) is None


def _kernels_agree(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> bool:
    """Return whether Triton's kernels run here and agree with `BucketedAttention`; log why they do not."""
    fault, arguments = "", (q, k, v, layout, candidates_only)
    with torch.no_grad():
        expected = BucketedAttention.apply(*arguments).float()
        try:
            difference = float((attend_by_triton(*arguments).float() - expected).norm())
            # fp32 products may be in TF32, whose rounding is that of 11 bits.
            if not difference <= (2e-2 if q.dtype == torch.bfloat16 else 2e-3) * float(expected.norm()):
                fault = f"differ by {difference:.3g} here"
        except Exception as error:  # noqa: BLE001 (a compiler or a driver that does not fit fails in many ways)
            fault = f"fail here ({last_line(str(error), type(error).__name__)})"
    if fault:
        log.warning("sequences.hstu.attention=auto: bucketed, since Triton's kernels %s", fault)
    return not fault


def attend_by_triton(*arguments: Any) -> Tensor:
    """Attend by kernels for GPUs."""
    from extensions.sequences.attention_triton import TritonAttention  # Triton comes only with torch for GPUs

    out: Tensor = TritonAttention.apply(*arguments)
    return out


@dataclass(frozen=True)
class _Bucket:
    """A bucket of b sequences, padded to n positions and m queries: all positions, or the candidate alone.

    positions: [b, n] places of the keys among T; 0 for padding, which no query sees.
    query_rows: [b, m] rows of the queries among the given ones; 0 for padding.
    query_slots, key_slots: flat places in [b, m] and [b, n] without padding, sequence by sequence.
    last: [b, 1] place of the candidate in its sequence.
    """

    positions: Tensor
    query_rows: Tensor
    query_slots: Tensor
    key_slots: Tensor
    last: Tensor


def _make_buckets(layout: SequenceLayout, candidates_only: bool, device: torch.device) -> Iterator[_Bucket]:
    """Yield buckets by length: the longest sequence has LENGTHS_ALIKE times the shortest's or FEW_POSITIONS more."""
    lengths = torch.tensor(layout.lengths)
    starts = lengths.cumsum(0) - lengths
    order, shortest, edges = lengths.argsort(stable=True), 0, [0]
    for place, length in enumerate(lengths[order].tolist()):
        if place and length > max(LENGTHS_ALIKE * shortest, shortest + FEW_POSITIONS):
            edges.append(place)
        if place == edges[-1]:
            shortest = length
    for begin, end in pairwise([*edges, len(order)]):
        group = order[begin:end]
        places, stop = torch.arange(int(lengths[group].max())), lengths[group].unsqueeze(1)
        is_real = places < stop
        positions, key_slots = (starts[group].unsqueeze(1) + places) * is_real, is_real.flatten().nonzero().squeeze(1)
        rows, slots = (group.unsqueeze(1), torch.arange(len(group))) if candidates_only else (positions, key_slots)
        yield _Bucket(*(part.to(device) for part in (positions, rows, slots, key_slots, stop - 1)))


class BucketedAttention(torch.autograd.Function):
    """Attention over sequences of similar length, a few queries at a time, in bounded memory for any lengths.

    The backward computes scores again instead of storing them.

    Padded queries, keys and values are [b * H, m or n, width].
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
        """Return the attention as `attend` does; keep the arguments and the buckets for the backward."""
        ctx.save_for_backward(q, k, v)
        if candidates_only not in layout.products:
            layout.products[candidates_only] = list(_make_buckets(layout, candidates_only, q.device))
        ctx.layout, ctx.buckets = layout, layout.products[candidates_only]
        out = v.new_empty(q.shape[0], *v.shape[1:])
        for bucket in ctx.buckets:
            queries, keys, values = _gather_by_head(bucket, q, k, v)
            result = values.new_empty(*queries.shape[:2], values.shape[2])
            for start, stop, num_keys in _query_chunks(bucket, q.shape[1]):
                scores = _scaled_product(queries[:, start:stop], keys[:, :num_keys].mT, 1 / math.sqrt(q.shape[2]))
                # The backward computes scores again, so these may be overwritten.
                weights = torch.nn.functional.silu(scores, inplace=True)
                _zero_unseen(weights, bucket, start)
                result[:, start:stop] = _scaled_product(weights, values[:, :num_keys], 1 / layout.divisor)
            _scatter_rows(out, bucket.query_rows, bucket.query_slots, result)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Return the gradients of queries, keys and values; layout and flag have none."""
        q, k, v = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.empty_like(tensor) for tensor in (q, k, v))
        score_factor, weight_factor = 1 / math.sqrt(q.shape[2]), 1 / ctx.layout.divisor
        for bucket in ctx.buckets:
            queries, keys, values = _gather_by_head(bucket, q, k, v)
            # Padded queries must add nothing to the gradients of keys and values, so their gradients are 0.
            rows, slots = bucket.query_rows, bucket.query_slots
            padded = grad_outputs[0].new_zeros(rows.numel(), *grad_outputs[0].shape[1:])
            padded.index_copy_(0, slots, _select_rows(grad_outputs[0], rows.flatten()[slots]))
            grad = _fold_heads(padded.unflatten(0, rows.shape))
            # Gradients of the bucket. Keys and values collect theirs from all chunks; a query belongs to one chunk.
            bucket_q, bucket_k, bucket_v = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
            for start, stop, num_keys in _query_chunks(bucket, q.shape[1]):
                part, seen_keys = slice(start, stop), slice(num_keys)
                scores = _scaled_product(queries[:, part], keys[:, seen_keys].mT, score_factor)
                sigmoid = scores.sigmoid()
                _zero_unseen(sigmoid, bucket, start)
                weights = scores.mul_(sigmoid)
                bucket_v[:, seen_keys].baddbmm_(weights.mT, grad[:, part], alpha=weight_factor)
                # silu's derivative: sigmoid * (1 + scores * (1 - sigmoid)) = sigmoid + weights * (1 - sigmoid)
                slope = torch.addcmul(sigmoid, weights, 1 - sigmoid)
                grad_scores = _scaled_product(
                    grad[:, part], values[:, seen_keys].mT, weight_factor * score_factor
                ).mul_(slope)
                bucket_q[:, part] = grad_scores @ keys[:, seen_keys]
                bucket_k[:, seen_keys].baddbmm_(grad_scores.mT, queries[:, part])
            _scatter_rows(grad_q, bucket.query_rows, bucket.query_slots, bucket_q)
            _scatter_rows(grad_k, bucket.positions, bucket.key_slots, bucket_k)
            _scatter_rows(grad_v, bucket.positions, bucket.key_slots, bucket_v)
        return grad_q, grad_k, grad_v, None, None


def _scaled_product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Return `factor` * left [b, i, j] @ right [b, j, k]."""
    # The product applies the factor, which saves a pass over the scores.
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=factor)


def _select_rows(flat: Tensor, rows: Tensor) -> Tensor:
    """Return flat[rows], [*rows.shape, ...]. Indexing would copy single numbers, index_select copies whole rows."""
    return flat.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _gather_by_head(bucket: _Bucket, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a bucket's queries [b * H, m, A], keys [b * H, n, A] and values [b * H, n, V], padded with any row."""
    rows = (q, bucket.query_rows), (k, bucket.positions), (v, bucket.positions)
    queries, keys, values = (_fold_heads(_select_rows(flat, places)) for flat, places in rows)
    return queries, keys, values


def _fold_heads(padded: Tensor) -> Tensor:
    """Reshape [b, n, H, width] to [b * H, n, width]."""
    return padded.transpose(1, 2).flatten(0, 1)


def _query_chunks(bucket: _Bucket, heads: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of queries whose scores take at most CHUNK_BYTES, with the maximum number of keys that they see."""
    (b, n), m = bucket.positions.shape, bucket.query_rows.shape[1]
    rows = max(1, min(m, CHUNK_BYTES // max(1, 4 * b * heads * n)))
    for start in range(0, m, rows):
        stop = min(start + rows, m)
        # If all positions are queries, none sees a later one; candidates alone stand at the end, and may see all.
        yield start, stop, n if m < n else stop


def _zero_unseen(values: Tensor, bucket: _Bucket, start: int) -> None:
    """Set the values of keys that the queries from `start` on do not see to 0, in place."""
    if bucket.query_rows.shape[1] == bucket.positions.shape[1]:
        values[..., start:].tril_()
    else:  # candidates see all keys of their sequences
        is_seen = bucket.last >= torch.arange(values.shape[2], device=values.device)
        values.unflatten(0, (len(bucket.positions), -1)).mul_(is_seen[:, None, None])


def _scatter_rows(flat: Tensor, rows: Tensor, slots: Tensor, padded: Tensor) -> None:
    """Write padded rows [b * H, m, width] to `flat` [rows, H, width]: those at `slots` of [b, m], to `rows` [b, m]."""
    by_sequence = padded.unflatten(0, (len(rows), -1)).transpose(1, 2).flatten(0, 1)
    flat.index_copy_(0, rows.flatten()[slots], _select_rows(by_sequence, slots))


EPSILON, LAYER_EPSILON = 1e-5, 1e-6  # in the normalisation of perceptrons and of layers


class EventArch(TableArch):
    """Tables with a lookup per id; each key of ids is its own feature."""

    def __init__(self, tables: Sequence[TableSpec]) -> None:
        super().__init__()
        self.tables = list(tables)
        self.feature_of = {key: key for table in tables for key in table.keys}
        self.rows = row_collection(tables)

    def forward(self, ids: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return rows [ids, D] by key."""
        rows_of_tables: dict[str, JaggedTensor] = self.rows(ids)
        return rows_of_tables

    @property
    def collections(self) -> list[nn.Module]:
        """Return the collections of tables, sharded or not."""
        return [self.rows]


def schema_of(features: Features) -> EventSchema:
    """Return the schema of a dataset of events."""
    return msgspec.convert(features.schema, EventSchema)


def tables_of_events(config: AppConfig, features: Features) -> EventArch:
    """Make the tables of events, initially uniform in ±1/sqrt(rows); candidates share those of histories."""
    schema, tables = schema_of(features), []
    names = dict(zip(schema.sequence_tables, schema.candidate_keys, strict=True))
    for name, rows in features.num_embeddings.items():
        initial = TableInitRange(-1 / math.sqrt(rows), 1 / math.sqrt(rows))
        table_keys = (name, names[name]) if name in names else (name,)
        tables.append(
            TableSpec(name, table_keys, rows, config.model.embedding_dim, initial, "fp32", mean=False, by_id=True)
        )
    return EventArch(tables)


class SwishNorm(nn.Module):
    """x * sigmoid(LayerNorm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return x * self.norm(x).sigmoid()


def perceptron(num_in: int, hidden: int, num_out: int) -> nn.Sequential:
    """Return two linear layers, with swish of a norm between them and a norm after them."""
    return nn.Sequential(
        nn.Linear(num_in, hidden), SwishNorm(hidden), nn.Linear(hidden, num_out), nn.LayerNorm(num_out, eps=EPSILON)
    )


class HSTULayer(nn.Module):
    """A layer: pointwise projection, attention without softmax, gating, and the sum with the input."""

    def __init__(self, config: HSTUConfig) -> None:
        super().__init__()
        self._config = config
        heads, value_width, query_width = config.num_heads, config.hidden_dim, config.attention_dim
        self._widths = [heads * width for width in (value_width, value_width, query_width, query_width)]  # u, v, q, k
        self.input_norm = nn.LayerNorm(config.dim, eps=LAYER_EPSILON)
        self.projection = nn.Parameter(torch.empty(config.dim, sum(self._widths)))
        self.bias = nn.Parameter(torch.zeros(sum(self._widths)))
        self.output_norm = nn.LayerNorm(heads * value_width, eps=LAYER_EPSILON)
        self.output = nn.Parameter(torch.empty(3 * heads * value_width, config.dim))
        for weight in (self.projection, self.output):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, layout: SequenceLayout, candidates: Tensor | None = None) -> Tensor:
        """Map [T, G] to [T, G]; with `candidates` [B], places among T, compute only theirs, [B, G]."""
        config, normed = self._config, self.input_norm(x)
        if candidates is None:
            u, v, q, k = torch.addmm(self.bias, normed, self.projection).split(self._widths, dim=1)
        else:
            # The last layer's output is used at candidates alone, but their attention needs all keys and values.
            (u_weight, v_weight, q_weight, k_weight), biases = (
                part.split(self._widths, dim=-1) for part in (self.projection, self.bias)
            )
            v, k = torch.addmm(biases[1], normed, v_weight), torch.addmm(biases[3], normed, k_weight)
            x, normed = x.index_select(0, candidates), normed.index_select(0, candidates)
            u, q = torch.addmm(biases[0], normed, u_weight), torch.addmm(biases[2], normed, q_weight)
        q, k, v = (part.unflatten(1, (config.num_heads, -1)) for part in (q, k, v))
        attended = attend(config.attention, q, k, v, layout, candidates is not None).flatten(1)
        u = nn.functional.silu(u)
        gated = torch.cat([u, attended, u * self.output_norm(attended)], dim=1)
        return x + nn.functional.dropout(gated, config.linear_dropout, self.training) @ self.output


class HSTU(nn.Module):
    """The model. An event has the ids of an item and its attributes, and so has a candidate, in shared tables.

    sparse_arch: the tables.
    """

    is_set: Tensor

    def __init__(
        self, config: HSTUConfig, sparse_arch: nn.Module, embedding_dim: int, schema: EventSchema, num_tasks: int = 1
    ) -> None:
        super().__init__()
        self.sparse_arch, self._config, self._schema = sparse_arch, config, schema
        num_attributes, num_context, dim = len(schema.attributes), len(schema.context_tables), config.dim
        self.content = perceptron(embedding_dim, config.preprocessor_dim, dim)
        self.attributes = (
            perceptron(num_attributes * embedding_dim, config.preprocessor_dim, dim) if num_attributes else None
        )
        # Each kind of action has a learned row, and a candidate one for all, as its action is to be predicted.
        num_actions, self.actions = len(schema.actions), nn.ParameterDict()
        self.actions["rows"] = nn.Parameter(torch.empty(num_actions, config.action_dim).normal_(std=0.1))
        self.actions["candidate"] = nn.Parameter(torch.empty(1, num_actions * config.action_dim).normal_(std=0.1))
        # [2**num_actions, num_actions]: the kinds that each combination of bits sets.
        is_set = (torch.arange(1 << num_actions).unsqueeze(1) & 1 << torch.arange(num_actions)) > 0
        self.register_buffer("is_set", is_set, persistent=False)
        self.action = perceptron(num_actions * config.action_dim, config.preprocessor_dim, dim)
        self.context_weight = nn.Parameter(
            torch.empty(num_context, embedding_dim, dim).normal_(std=math.sqrt(2 / (embedding_dim + dim)))
        )
        self.context_bias = nn.Parameter(torch.zeros(num_context, dim))
        self.positions, self.ages = (
            nn.Parameter(torch.empty(rows, dim).uniform_(-bound, bound))
            for rows, bound in (
                (config.num_positions, config.position_bound or math.sqrt(1 / config.num_positions)),
                (config.num_time_buckets + 1, config.position_bound or math.sqrt(1 / config.num_time_buckets)),
            )
        )
        self.layers = nn.ModuleList(HSTULayer(config) for _ in range(config.num_layers))
        self.user = nn.Sequential(nn.Linear(dim + 4, dim), nn.LayerNorm(dim, eps=EPSILON))
        self.item = perceptron((1 + num_attributes) * embedding_dim, config.item_dim, dim)
        self.head = nn.Sequential(
            nn.Linear(dim, config.item_dim), SwishNorm(config.item_dim), nn.Linear(config.item_dim, num_tasks)
        )
        before_attention = [self.content, self.attributes, self.action, self.user]
        for parts, draw in (
            (before_attention, nn.init.xavier_normal_),
            ([self.item, self.head], nn.init.xavier_uniform_),
        ):
            for module in (module for part in parts if part is not None for module in part.modules()):
                if isinstance(module, nn.Linear):
                    draw(module.weight)
                    nn.init.zeros_(module.bias)

    def begin_step(self, seed: int, step: int, rank: int, rows: int, num_valid: int | None = None) -> None:
        """Seed a step's dropout by seed, step and rank alone, whatever the number of rows and the steps before."""
        if self._config.input_dropout or self._config.linear_dropout:
            # Each process draws for its own rows, so its rank belongs to the key.
            key = np.random.SeedSequence([seed, step, rank])
            torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def undo_step(self) -> None:
        """Do nothing, as the forward changes no state."""

    def feature_weights(self) -> list[nn.Parameter]:
        """Return the dense parameters that hold a weight for each id in place of tables: none."""
        return []

    def statistics(self) -> dict[str, Tensor]:
        """Return the statistics of batch norm, which the model lacks."""
        return {}

    def forward(self, sequences: Sequences, ids: KeyedJaggedTensor) -> Tensor:
        """Return a batch's logits [B, tasks] float32, a row for each candidate; ids: of all `EventLog.features`."""
        rows = {key: jagged.values() for key, jagged in self.sparse_arch(ids).items()}
        lengths = [len(self._schema.context_tables) + length + 1 for length in sequences.history_lengths]
        layout = SequenceLayout(lengths, sequences.divisor)
        x, candidates = self._position_vectors(rows, sequences, layout)
        x = nn.functional.dropout(x, self._config.input_dropout, self.training)
        for layer in self.layers[:-1]:
            x = layer(x, layout)
        last = self.layers[-1](x, layout, candidates)
        # The times of the day and of the week are angles; 3.14 is the reference's pi.
        hours = torch.div(sequences.candidate_times, 3600, rounding_mode="floor")
        days = torch.div(hours, 24, rounding_mode="floor")
        angles = [(number % period).float() / period * 2 * 3.14 for number, period in ((hours, 24), (days, 7))]
        waves = torch.stack([wave(angle) for angle in angles for wave in (torch.cos, torch.sin)], dim=1)
        user = self.user(torch.cat([last, waves], dim=1))
        item = self.item(torch.cat([rows[key] for key in self._schema.candidate_keys], dim=1))
        logits: Tensor = self.head(user * item)
        return logits.float()

    def _position_vectors(
        self, rows: Mapping[str, Tensor], sequences: Sequences, layout: SequenceLayout
    ) -> tuple[Tensor, Tensor]:
        """Return vectors [T, G] of all positions, and the places [B] of candidates among them.

        A position's vector is the sum of its content, of a vector for its number (see `_arrange_positions`) and of one
        for its age, the square root of the minutes before its sample's candidate.

        rows: [B, D] of a context key or a candidate's, [E, D] of a history's.
        """
        schema, device, num_context = self._schema, self.positions.device, len(self._schema.context_tables)
        context = torch.stack([rows[key] for key in schema.context_tables], dim=1)  # [B, C, D]
        context = torch.einsum("bcd,cdg->bcg", context, self.context_weight) + self.context_bias
        events = [
            torch.cat([rows[of_history], rows[of_candidate]])
            for of_history, of_candidate in zip(schema.sequence_tables, schema.candidate_keys, strict=True)
        ]
        x = self.content(events[0])
        if self.attributes is not None:
            x = x + self.attributes(torch.cat(events[1:], dim=1))
        # There are few combinations of actions, so each is computed once, not for each event; candidates have the last.
        combinations = (self.is_set.unsqueeze(2) * self.actions["rows"]).flatten(1)
        action_vectors = self.action(torch.cat([combinations, self.actions["candidate"]]))
        samples, last = len(sequences.candidate_times), len(self.is_set)
        action_rows = nn.functional.pad(sequences.actions.long(), (0, samples), value=last)
        x = x + nn.functional.embedding(action_rows, action_vectors)

        arranged = _arrange_positions(num_context, torch.tensor(sequences.history_lengths))
        order, candidates, distance = (part.to(device) for part in arranged)
        newest = sequences.candidate_times.repeat_interleave(
            torch.tensor(layout.lengths, device=device), output_size=sum(layout.lengths)
        )
        # Context has no time; with 0 it has the greatest age.
        times = torch.cat(
            [sequences.times.new_zeros(context.shape[0] * num_context), sequences.times, sequences.candidate_times]
        )[order]
        x = torch.cat([context.flatten(0, 1), x]).index_select(0, order) * math.sqrt(self._config.dim)
        minutes = (newest - times).float().clamp(min=1e-6) / 60
        age = minutes.sqrt().long().clamp(max=len(self.ages) - 1)
        position = nn.functional.embedding(distance.clamp(max=len(self.positions) - 1), self.positions)
        return x + position + nn.functional.embedding(age, self.ages), candidates


def _arrange_positions(num_context: int, histories: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Arrange [context of all; histories of all; candidates of all] to B sequences, on the host.

    Args:
        num_context: C. histories: [B] numbers of events.

    Returns the row [T] of each position; the places [B] of candidates; and each position's number [T]. Context counts
    from 0, then numbers count backwards: candidates have C, the newest event C + 1, the one before it C + 2.
    """
    samples, lengths = len(histories), histories + num_context + 1
    candidates = lengths.cumsum(0) - 1
    # Lengths are on the host, so indices are computed there and a GPU need not be waited for.
    sample = torch.arange(samples).repeat_interleave(lengths)
    place = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths)[sample]
    in_history = (histories.cumsum(0) - histories)[sample] + place - num_context
    order = torch.where(place < num_context, sample * num_context + place, samples * num_context + in_history)
    order[candidates] = samples * num_context + int(histories.sum()) + torch.arange(samples)
    distance = torch.where(place < num_context, place, 2 * num_context + histories[sample] - place)
    return order, candidates, distance


def build_hstu(config: AppConfig, tables: EventArch, features: Features) -> HSTU:
    """Build HSTU around its tables."""
    keys = keys_of_extension(config, SequencesConfig)
    return HSTU(keys.hstu, tables, config.model.embedding_dim, schema_of(features), 1 + len(keys.tasks))


def loss_factor(config: AppConfig) -> float:
    """Return the factor of the mean loss over samples and tasks, since losses of tasks are added."""
    keys = keys_of_extension(config, SequencesConfig)
    return keys.hstu.loss_weight * (1 + len(keys.tasks))


def bag_sizes(config: AppConfig, features: Features) -> dict[str, float]:
    """Return the ids per bag of each key, for a forecast that takes every history to be as long as possible."""
    schema, settings = schema_of(features), keys_of_extension(config, SequencesConfig)
    room = settings.hstu.max_seq_len - len(schema.context_tables) - 1
    length = float(min(settings.history_length, room))
    singles = (*schema.context_tables, *schema.candidate_keys)
    return {**dict.fromkeys(singles, 1.0), **dict.fromkeys(schema.sequence_tables, length)}
