"""The model that a configuration names, and its tables: DLRM, or a model that an extension adds."""

from torch import nn

from app.config import AppConfig
from app.model.dlrm import DLRM
from app.model.embeddings import TableArch, make_sparse_arch
from app.model.tables import Features


def make_tables(config: AppConfig, features: Features, initial: bool = True) -> TableArch:
    """Return the model's tables, on the meta device. initial: read initial row weights from their files."""
    if (parts := config.model.parts) is not None:
        return parts.tables(config, features)
    return make_sparse_arch(config.model, features.num_embeddings, features.multi_hot, initial)


def make_model(config: AppConfig, tables: TableArch, features: Features) -> nn.Module:
    """Return the model around its tables."""
    if (parts := config.model.parts) is not None:
        return parts.model(config, tables, features)
    return DLRM(config.model, features.num_dense, len(features.num_embeddings), tables)
