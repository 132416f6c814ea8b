"""The model that a configuration names, and its tables, by the functions in its row of app.kinds.models."""

from torch import nn

from app.config import ModelConfig
from app.model.dlrm import DLRM
from app.model.embeddings import SparseArch, TableArch, make_sparse_arch
from app.model.tables import Features
from common.command import load


def make_tables(config: ModelConfig, features: Features, initial: bool = True) -> TableArch:
    """The model's tables, on the meta device. initial: read initial row weights from their files.

    Raises:
        UserError: as `make_sparse_arch` does.
    """
    tables: TableArch = load(config.kind.tables)(config, features, initial)
    return tables


def make_model(config: ModelConfig, tables: TableArch, features: Features) -> nn.Module:
    """The model around its tables."""
    model: nn.Module = load(config.kind.model)(config, tables, features)
    return model


def tables_of_rows(config: ModelConfig, features: Features, initial: bool) -> SparseArch:
    """Those of DLRM."""
    return make_sparse_arch(config, features.num_embeddings, features.multi_hot, initial)


def dlrm(config: ModelConfig, tables: TableArch, features: Features) -> DLRM:
    """DLRM around its tables."""
    return DLRM(config, features.num_dense, len(features.num_embeddings), tables)
