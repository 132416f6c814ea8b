"""A run's model on one device, unsharded; its tables have a chosen precision, packed as FBGEMM reads them.

Shapes: B bags per feature, L ids, n rows of a table, d its width.
"""

from collections.abc import Sequence
from pathlib import Path

import fbgemm_gpu  # noqa: F401  (torch.ops.fbgemm)
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor, KeyedTensor

from app.checkpoint.saver import read_tensors
from app.config.app_config import AppConfig
from app.config.commands import BITS, SCALE_AND_BIAS_BYTES, TablePrecision
from app.model.dlrm import DLRM
from app.model.embeddings import SparseArch, TableSpec, make_sparse_arch
from app.sharding import planner
from common.errors import UserError
from data_prep.dataset.format import Manifest

_TYPES = {
    TablePrecision.fp16: SparseType.FP16,
    TablePrecision.int8: SparseType.INT8,
    TablePrecision.int4: SparseType.INT4,
}
PACKED = tuple(_TYPES)
Source = tuple[TableSpec, Tensor]  # a table to be packed and its values [n, d]


def packed_rows(weight: Tensor, precision: TablePrecision) -> tuple[Tensor, Tensor | None]:
    """Pack rows [n, d] into the bytes of their values [n, d * bits / 8] and, for integers, of scale and bias [n, 4].

    For a row x and b bits, FBGEMM keeps bias = fp16(min x), scale = fp16((max x - bias) / (2^b - 1)), or 1 if that is
    0, and the integers round((x - bias) / scale) within [0, 2^b - 1].
    """
    weight = weight.detach().float().contiguous()
    if precision is TablePrecision.fp16:
        _require_fp16(weight.half(), weight, precision)
        return weight.half().view(torch.uint8), None
    low, high = weight.amin(dim=1), weight.amax(dim=1)
    bias = low.half()
    # FBGEMM keeps scale and bias in fp16, where a value that is too large would become infinite.
    _require_fp16(torch.cat([bias, ((high - bias) / (2 ** BITS[precision] - 1)).half()]), weight, precision)
    fused = torch.ops.fbgemm.FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf(weight, BITS[precision])
    return fused[:, :-SCALE_AND_BIAS_BYTES], fused[:, -SCALE_AND_BIAS_BYTES:]


def _require_fp16(fp16_values: Tensor, weight: Tensor, precision: TablePrecision) -> None:
    """Raise UserError if values of a table's `weight`, converted to fp16, are infinite."""
    if not fp16_values.isfinite().all():
        raise UserError(
            f"tables={precision.value}: a table has values up to {weight.abs().max().item():.4g}, and fp16 "
            "ends at 65,504, which they, or of integers their rows' minimum and range, are kept in; use "
            "tables=fp32 or bf16"
        )


class _Lookup(nn.Module):
    """Tables with one kind of pooling, or with none."""

    def __init__(
        self, sources: Sequence[Source], precision: TablePrecision, pooling: PoolingMode, device: torch.device
    ) -> None:
        super().__init__()
        self.keys = [key for table, _ in sources for key in table.keys]
        owners = [number for number, (table, _) in enumerate(sources) for _ in table.keys]
        self.dims = [sources[owner][0].embedding_dim for owner in owners]
        location = EmbeddingLocation.HOST if device.type == "cpu" else EmbeddingLocation.DEVICE
        self.tables = IntNBitTableBatchedEmbeddingBagsCodegen(
            [("", *weight.shape, _TYPES[precision], location) for _, weight in sources],
            feature_table_map=owners,
            pooling_mode=pooling,
            device=device,
            bounds_check_mode=BoundsCheckMode.NONE,  # batches are checked when they are read
            output_dtype=SparseType.FP32,
        )
        self.tables.initialize_weights()
        for (_, weight), targets in zip(sources, self.tables.split_embedding_weights(), strict=True):
            for target, values in zip(targets, packed_rows(weight, precision), strict=True):
                if target is not None and values is not None:
                    target.copy_(values)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Look up bags under these keys, in this order: [B, sum of d] float32, or [L, d] without pooling."""
        # FBGEMM's operator for inference takes ids and offsets in int32.
        return self.tables(features.values().int(), features.offsets().int())


class PackedBags(nn.Module):
    """Takes the place of an EmbeddingBagCollection: tables whose lookup pools the rows."""

    def __init__(self, sources: Sequence[Source], precision: TablePrecision, device: torch.device) -> None:
        super().__init__()
        lookups = []
        # One of FBGEMM's operators has one kind of pooling for all its tables.
        for mean, pooling in ((False, PoolingMode.SUM), (True, PoolingMode.MEAN)):
            group = [source for source in sources if source[0].mean is mean]
            if group:
                lookups.append(_Lookup(group, precision, pooling, device))
        self.lookups = nn.ModuleList(lookups)
        self._keys = [lookup.keys for lookup in lookups]
        self._dims = [dim for lookup in lookups for dim in lookup.dims]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Return pooled vectors [B, sum of d] float32 by key."""
        parts = [lookup(_under(features, keys)) for lookup, keys in zip(self.lookups, self._keys, strict=True)]
        pooled = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return KeyedTensor([key for keys in self._keys for key in keys], self._dims, pooled)


class PackedRows(nn.Module):
    """Takes the place of an EmbeddingCollection: tables of one width, whose lookup returns the rows one by one."""

    def __init__(self, sources: Sequence[Source], precision: TablePrecision, device: torch.device) -> None:
        super().__init__()
        self.lookup = _Lookup(sources, precision, PoolingMode.NONE, device)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return rows [L of the key, d] float32 by key."""
        packed = _under(features, self.lookup.keys)
        rows, lengths, starts = self.lookup(packed), packed.lengths(), packed.offset_per_key()
        stride = packed.stride()
        return {
            key: JaggedTensor(rows[starts[i] : starts[i + 1]], lengths=lengths[i * stride : (i + 1) * stride])
            for i, key in enumerate(self.lookup.keys)
        }


def _under(features: KeyedJaggedTensor, keys: list[str]) -> KeyedJaggedTensor:
    """Return the bags under these keys, in this order."""
    feature_keys = features.keys()
    return features if feature_keys == keys else features.permute([feature_keys.index(key) for key in keys])


def make_whole_model(config: AppConfig, manifest: Manifest) -> DLRM:
    """Return the model that the configuration names, whole and on the CPU; its tables' values are not set."""
    multi_hot = planner.multi_hot_features(config.data.multi_hot, manifest)
    sparse_arch = make_sparse_arch(config.model, manifest.num_embeddings, multi_hot, initial=False)
    model = DLRM(config.model, len(manifest.schema["dense"]), len(manifest.num_embeddings), sparse_arch)
    # Tables are declared without memory, which a whole model needs here.
    for collection in sparse_arch.collections:
        collection.to_empty(device=torch.device("cpu"))
    return model


def load(
    checkpoint: Path, config: AppConfig, manifest: Manifest, precision: TablePrecision, device: torch.device
) -> DLRM:
    """Return a checkpoint's model, ready to score and whole on each process; a collective call.

    Raises:
        UserError: the checkpoint does not fit, or is damaged.
    """
    model = make_whole_model(config, manifest)
    read_tensors(checkpoint, {"model": model.state_dict()})
    return convert_tables(model, precision, device)


def convert_tables(model: DLRM, precision: TablePrecision, device: torch.device) -> DLRM:
    """Return the model on `device` with its tables' values rounded and kept as `precision` says; changed in place.

    FBGEMM's inference operator looks up fp16, int8 and int4. It lacks bf16, which is rounded and kept as fp32. fp32
    uses torch's own lookup.
    """
    arch = model.sparse_arch
    assert isinstance(arch, SparseArch)
    specs = {table.name: table for table in arch.tables}

    def sources(tables: nn.ModuleDict) -> list[Source]:
        return [(specs[name], table.get_parameter("weight")) for name, table in tables.items()]

    if precision in PACKED:
        if isinstance(arch.bags, EmbeddingBagCollection):
            arch.bags = PackedBags(sources(arch.bags.embedding_bags), precision, device)
        for name, rows in list(arch.rows.items()):
            assert isinstance(rows, EmbeddingCollection)
            arch.rows[name] = PackedRows(sources(rows.embeddings), precision, device)
    else:
        for collection in arch.collections:
            for parameter in collection.parameters():
                rounded = parameter.data.bfloat16() if precision is TablePrecision.bf16 else parameter.data
                parameter.data = rounded.float()
    return model.to(device).eval().requires_grad_(False)
