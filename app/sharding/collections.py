"""The collections of tables in a model: pooled ones (EmbeddingBagCollection) and id by id (EmbeddingCollection)."""

import re

from torch import nn
from torchrec import DataType, EmbeddingBagCollection, EmbeddingCollection

from app.sharding.plan import Table

_WEIGHT = re.compile(r"\.(?:embedding_bags|embeddings)\.(?P<table>.+)\.weight$")


def collections(model: nn.Module) -> dict[str, list[Table]]:
    """The tables of each collection of an unsharded model, by the collection's path."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection):
            configs, by_id = module.embedding_bag_configs(), False
        elif isinstance(module, EmbeddingCollection):
            configs, by_id = module.embedding_configs(), True
        else:
            continue
        found[path] = [
            Table(
                table.name,
                tuple(table.feature_names),
                table.num_embeddings,
                table.embedding_dim,
                by_id,
                table.data_type is DataType.FP32,
            )
            for table in configs
        ]
    return found


def table_types(model: nn.Module) -> list[Table]:
    """All tables of an unsharded model."""
    return [table for tables in collections(model).values() for table in tables]


def table_of(key: str) -> str | None:
    """The table whose weight a parameter's name means; None if it means none."""
    found = _WEIGHT.search(key)
    return found["table"] if found else None
