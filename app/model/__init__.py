"""DLRM (Naumov et al. 2019, arXiv:1906.00091) and its relatives: architecture only; wrapping is elsewhere."""

from app.model.dlrm import DLRM
from app.model.interaction import (
    CatInteraction,
    DCNInteraction,
    DotInteraction,
    ProjectionInteraction,
    ScalarPairsInteraction,
    mlp,
)

__all__ = [
    "DLRM",
    "CatInteraction",
    "DCNInteraction",
    "DotInteraction",
    "ProjectionInteraction",
    "ScalarPairsInteraction",
    "mlp",
]
