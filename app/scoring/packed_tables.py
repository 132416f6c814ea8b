"""Lookup in tables as FBGEMM's inference operator reads them: fp16, or integers with a scale and a bias each row.

Shapes: B bags a feature, L ids, n rows of a table, d its width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fbgemm_gpu  # noqa: F401  (torch.ops.fbgemm)
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from app.config.serving import BITS, SCALE_AND_BIAS_BYTES, TablePrecision

_TYPES = {
    TablePrecision.fp16: SparseType.FP16,
    TablePrecision.int8: SparseType.INT8,
    TablePrecision.int4: SparseType.INT4,
}
PACKED = tuple(_TYPES)


@dataclass(frozen=True)
class Source:
    """A table to be packed: the keys of ids that index it, and its values [n, d]."""

    keys: tuple[str, ...]
    weight: Tensor
    mean: bool


def packed_rows(weight: Tensor, precision: TablePrecision) -> tuple[Tensor, Tensor | None]:
    """[n, d] to the bytes of its values [n, d * bits / 8] and, of integers, those of scale and bias, [n, 4].

    Of a row x with b bits, FBGEMM keeps bias = fp16(min x), scale = fp16((max x - bias) / (2^b - 1)), 1 where that
    is 0, and the integers round((x - bias) / scale) within [0, 2^b - 1].
    """
    weight = weight.detach().float().contiguous()
    if precision is TablePrecision.fp16:
        return weight.half().view(torch.uint8), None
    fused = torch.ops.fbgemm.FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf(weight, BITS[precision])
    return fused[:, :-SCALE_AND_BIAS_BYTES], fused[:, -SCALE_AND_BIAS_BYTES:]


class _Lookup(nn.Module):
    """Tables of one pooling, or of none.

    The operator is called directly: FBGEMM's module around it keeps a scripted counter, which torch.export refuses.
    The module lays out the tables, so that the layout is FBGEMM's own for each device.
    """

    weights: Tensor

    def __init__(
        self, sources: Sequence[Source], precision: TablePrecision, pooling: PoolingMode, device: torch.device
    ) -> None:
        super().__init__()
        self.keys = [key for source in sources for key in source.keys]
        owners = [number for number, source in enumerate(sources) for _ in source.keys]
        self.dims = [sources[owner].weight.shape[1] for owner in owners]
        self._pooling = pooling
        place = EmbeddingLocation.HOST if device.type == "cpu" else EmbeddingLocation.DEVICE
        layout = IntNBitTableBatchedEmbeddingBagsCodegen(
            [("", *source.weight.shape, _TYPES[precision], place) for source in sources],
            feature_table_map=owners,
            pooling_mode=pooling,
            device=device,
            output_dtype=SparseType.FP32,
        )
        layout.initialize_weights()
        for source, places in zip(sources, layout.split_embedding_weights(), strict=True):
            for there, values in zip(places, packed_rows(source.weight, precision), strict=True):
                if there is not None and values is not None:
                    there.copy_(values)
        self.register_buffer("weights", layout.weights_host if device.type == "cpu" else layout.weights_dev)
        for name in ("weights_uvm", "weights_placements", "weights_offsets", "weights_tys", "D_offsets"):
            self.register_buffer(name, getattr(layout, name))
        self._sizes: dict[str, Any] = {
            name: getattr(layout, name)
            for name in ("total_D", "max_int2_D", "max_int4_D", "max_int8_D", "max_float16_D", "max_float32_D",
                         "output_dtype", "row_alignment")
        }  # fmt: skip

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Bags under these keys, in this order, to [B, sum of d] float32, or [L, d] without pooling."""
        return torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function(
            dev_weights=self.weights,
            uvm_weights=self.weights_uvm,
            weights_placements=self.weights_placements,
            weights_offsets=self.weights_offsets,
            weights_tys=self.weights_tys,
            D_offsets=self.D_offsets,
            indices=features.values().int(),
            offsets=features.offsets().int(),
            pooling_mode=self._pooling.value,
            indice_weights=None,
            **self._sizes,
        )


class PackedBags(nn.Module):
    """In place of an EmbeddingBagCollection: tables whose rows are pooled where they lie."""

    def __init__(self, sources: Sequence[Source], precision: TablePrecision, device: torch.device) -> None:
        super().__init__()
        lookups = []
        for mean, pooling in ((False, PoolingMode.SUM), (True, PoolingMode.MEAN)):
            group = [source for source in sources if source.mean is mean]
            if group:
                lookups.append(_Lookup(group, precision, pooling, device))
        self.lookups = nn.ModuleList(lookups)
        self._keys = [lookup.keys for lookup in lookups]
        self._dims = [dim for lookup in lookups for dim in lookup.dims]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """[B, sum of d] float32 by key."""
        parts = [lookup(_under(features, keys)) for lookup, keys in zip(self.lookups, self._keys, strict=True)]
        pooled = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return KeyedTensor([key for keys in self._keys for key in keys], self._dims, pooled)


class PackedRows(nn.Module):
    """In place of an EmbeddingCollection: tables, all of one width, whose rows come one by one."""

    def __init__(self, sources: Sequence[Source], precision: TablePrecision, device: torch.device) -> None:
        super().__init__()
        self.lookup = _Lookup(sources, precision, PoolingMode.NONE, device)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """[L of the key, d] float32 by key."""
        wanted = _under(features, self.lookup.keys)
        rows, lengths, starts = self.lookup(wanted), wanted.lengths(), wanted.offset_per_key()
        stride = wanted.stride()
        return {
            key: JaggedTensor(rows[starts[i] : starts[i + 1]], lengths=lengths[i * stride : (i + 1) * stride])
            for i, key in enumerate(self.lookup.keys)
        }


def _under(features: KeyedJaggedTensor, keys: list[str]) -> KeyedJaggedTensor:
    """The bags under these keys, in this order."""
    there = features.keys()
    return features if there == keys else features.permute([there.index(key) for key in keys])
