"""Declaration of tables for TorchRec, on the meta device: no memory until they are sharded."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    PoolingType,
)

from app.config.tables import Storage
from app.model.embeddings.spec import Table

_DATA_TYPES = {Storage.fp32: DataType.FP32, Storage.fp16: DataType.FP16, Storage.bf16: DataType.BF16}


def bag_collection(tables: Sequence[Table]) -> EmbeddingBagCollection:
    """Tables whose rows are pooled where they lie."""
    configs = [
        EmbeddingBagConfig(
            name=table.name,
            feature_names=list(table.keys),
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            data_type=_DATA_TYPES[table.storage],
            pooling=PoolingType.MEAN if table.mean else PoolingType.SUM,
            init_fn=_leave_as_is,
        )
        for table in tables
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def row_collection(tables: Sequence[Table]) -> EmbeddingCollection:
    """Tables, all of one width, whose rows come one by one."""
    configs = [
        EmbeddingConfig(
            name=table.name,
            feature_names=list(table.keys),
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            data_type=_DATA_TYPES[table.storage],
            init_fn=_leave_as_is,
        )
        for table in tables
    ]
    return EmbeddingCollection(tables=configs, device=torch.device("meta"))


def _leave_as_is(weight: Tensor) -> Tensor:
    """TorchRec draws initial values in an order that depends on the layout; they are filled in afterwards."""
    return weight
