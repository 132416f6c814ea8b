"""The model that a configuration names: DLRM over rows, or HSTU over events."""

from collections.abc import Collection, Mapping

from app.config import ModelConfig
from app.model.dlrm import DLRM
from app.model.embeddings import SparseArch, make_sparse_arch
from app.model.hstu import HSTU, EventArch, EventKeys, make_event_arch
from data_prep.dataset.event_schema import EventSchema


def make_tables(
    config: ModelConfig,
    num_embeddings: Mapping[str, int],
    events: EventSchema | None,
    multi_hot: Collection[str] | None = None,
    initial: bool = True,
) -> SparseArch | EventArch:
    """The model's tables, on the meta device. `events`: of a dataset of events; others as `make_sparse_arch` has them.

    Raises:
        UserError: as `make_sparse_arch` does.
    """
    if events is None:
        return make_sparse_arch(config, num_embeddings, multi_hot, initial)
    return make_event_arch(config, num_embeddings, EventKeys.of(events))


def make_model(
    config: ModelConfig,
    tables: SparseArch | EventArch,
    num_dense: int,
    num_sparse: int,
    events: EventSchema | None,
    num_tasks: int = 1,
) -> DLRM | HSTU:
    """The model around its tables; the numbers of dense and sparse features are of rows."""
    if events is None or config.hstu is None:
        return DLRM(config, num_dense, num_sparse, tables)
    return HSTU(config.hstu, tables, config.embedding_dim, EventKeys.of(events), num_tasks)
