"""A run's model on one device, unsharded, its tables in a precision of choice."""

from pathlib import Path

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, PoolingType

from app.checkpoint.model_state import read_tensors
from app.config import AppConfig
from app.config.serving import TablePrecision
from app.model.dlrm import DLRM
from app.model.embeddings.sparse_arch import SparseArch, make_sparse_arch
from app.scoring.packed_tables import PACKED, PackedBags, PackedRows, Source
from app.sharding import from_config
from data_prep.dataset.format import Manifest


def unsharded(config: AppConfig, manifest: Manifest) -> DLRM:
    """The model that the configuration names, whole, on the CPU; its tables' values are not set.

    Raises:
        UserError: the dataset does not fit the configuration.
    """
    nowhere = torch.device("meta")  # tables are stored there as asked, whatever FBGEMM trains on this device
    multi_hot = from_config.multi_hot_features(config, manifest)
    sparse_arch = make_sparse_arch(config.model, manifest.num_embeddings, nowhere, multi_hot)
    model = DLRM(config.model, len(manifest.schema["dense"]), len(manifest.num_embeddings), sparse_arch)
    for collection in collections(model):
        collection.to_empty(device=torch.device("cpu"))
    return model


def load(
    checkpoint: Path, config: AppConfig, manifest: Manifest, precision: TablePrecision, device: torch.device
) -> DLRM:
    """A checkpoint's model, ready to score; a collective call, and each process has the whole model.

    Raises:
        UserError: the checkpoint does not fit, or is damaged.
    """
    model = unsharded(config, manifest)
    read_tensors(checkpoint, {"model": model.state_dict()})
    return in_precision(model, precision, device)


def in_precision(model: DLRM, precision: TablePrecision, device: torch.device) -> DLRM:
    """The model with its tables' values rounded and kept as `precision` says, on `device`; its own tables are gone.

    fp16, int8 and int4 are looked up by FBGEMM's inference operator. bf16, which that has not, is rounded and kept as
    fp32. fp32 is torch's own lookup.
    """
    arch = model.sparse_arch
    assert isinstance(arch, SparseArch)
    if precision in PACKED:
        if isinstance(arch.bags, EmbeddingBagCollection):
            arch.bags = PackedBags(_bag_sources(arch.bags), precision, device)
        for name, rows in list(arch.rows.items()):
            assert isinstance(rows, EmbeddingCollection)
            arch.rows[name] = PackedRows(_row_sources(rows), precision, device)
    else:
        for collection in collections(model):
            for parameter in collection.parameters():
                rounded = parameter.data.bfloat16() if precision is TablePrecision.bf16 else parameter.data
                parameter.data = rounded.float()
    return model.to(device).eval().requires_grad_(False)


def collections(model: DLRM) -> list[nn.Module]:
    """The modules whose parameters are tables."""
    arch = model.sparse_arch
    assert isinstance(arch, SparseArch)
    return [*([] if arch.bags is None else [arch.bags]), *arch.rows.values()]


def _bag_sources(bags: EmbeddingBagCollection) -> list[Source]:
    return [
        Source(tuple(table.feature_names), bags.embedding_bags[table.name].weight, table.pooling is PoolingType.MEAN)
        for table in bags.embedding_bag_configs()
    ]


def _row_sources(rows: EmbeddingCollection) -> list[Source]:
    return [
        Source(tuple(table.feature_names), rows.embeddings[table.name].weight, mean=False)
        for table in rows.embedding_configs()
    ]
