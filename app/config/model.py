"""`model`: the architecture."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from common.errors import UserError

MOST_WIDTH = 1_000_000


class Interaction(Enum):
    """dot: pairwise products of the features' vectors; cat: their concatenation (Naumov et al. 2019)."""

    dot = "dot"
    cat = "cat"


@dataclass
class ModelConfig:
    """Naumov et al. 2019. The last width of dense_arch is the tables' dimension."""

    interaction: Interaction = Interaction.dot
    interaction_itself: bool = False  # dot: a vector's product with itself too
    embedding_dim: int = MISSING  # D, of every table; a multiple of 4 (FBGEMM)
    dense_arch: list[int] = MISSING  # widths of its layers, the last being D
    over_arch: list[int] = MISSING  # widths of its layers, the last being 1


def validate_model(model: ModelConfig) -> None:
    """Raises UserError for values that cannot work."""
    widths = {"model.dense_arch": model.dense_arch, "model.over_arch": model.over_arch}
    for key, layers in widths.items():
        if not layers or not 1 <= min(layers) <= max(layers) <= MOST_WIDTH:
            raise UserError(f"{key}={layers}: must be a list of widths from 1 to {MOST_WIDTH}, such as [512,256,16]")
    if model.embedding_dim < 4 or model.embedding_dim % 4:
        raise UserError(f"model.embedding_dim={model.embedding_dim}: must be a multiple of 4 (FBGEMM)")
    if model.dense_arch[-1] != model.embedding_dim:
        raise UserError(
            f"model.dense_arch={model.dense_arch}: its last width must be model.embedding_dim={model.embedding_dim}"
        )
    if model.over_arch[-1] != 1:
        raise UserError(f"model.over_arch={model.over_arch}: its last width must be 1 (the logit)")
    if model.interaction_itself and model.interaction is not Interaction.dot:
        raise UserError(
            f"model.interaction_itself=true: has no meaning with model.interaction={model.interaction.value}; "
            "use model.interaction=dot"
        )
