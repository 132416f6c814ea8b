"""`model`: the architecture."""

from dataclasses import dataclass, field
from enum import Enum

from app.config.hstu import HSTUConfig
from app.config.tables import TablesConfig, validate_tables
from common.errors import UserError
from common.keys import MISSING, key

MAX_WIDTH = 1_000_000


class Interaction(Enum):
    """Combinations of the features' vectors: see docs/models.md.

    dot: their pairwise products; cat: their concatenation (both Naumov et al. 2019); dcn: DCN v2 of low rank (Wang et
    al. 2020); projection: products of two learned projections (TorchRec's DLRM_Projection); scalar_pairs: products of
    all pairs of the vectors' elements, each with itself too (AMD's blog of 2024).
    """

    dot = "dot"
    cat = "cat"
    dcn = "dcn"
    projection = "projection"
    scalar_pairs = "scalar_pairs"


class DenseInit(Enum):
    """Initial values of linear layers.

    torch: weights and biases uniform in ±1/sqrt(inputs), torch's own and TorchRec's; facebookresearch: weights normal
    with variance 2 / (inputs + outputs), biases with 1 / outputs.
    """

    torch = "torch"
    facebookresearch = "facebookresearch"


@dataclass(frozen=True)
class ModelConfig:
    """DLRM (Naumov et al. 2019), whose dense_arch ends with the width of all vectors; or HSTU, over events."""

    interaction: Interaction = key(Interaction.dot, "how the features' vectors are combined")
    interaction_itself: bool = key(
        False, "dot: a vector's product with itself too", only_with=("interaction", Interaction.dot)
    )
    mixes_samples: bool = key(
        False,
        "scalar_pairs: the blog's defect, vectors of one sample stand in other samples' rows",
        only_with=("interaction", Interaction.scalar_pairs),
    )
    dense_final_relu: bool = key(True, "a ReLU after dense_arch's last layer too")
    embedding_dim: int = key(MISSING, "D, of every feature's vector; a multiple of 4 (FBGEMM)")
    dense_arch: list[int] = key(MISSING, "widths of its layers, the last being D; HSTU has none")
    over_arch: list[int] = key(MISSING, "widths of its layers, the last being 1; HSTU has none")
    dcn_num_layers: int | None = key(
        None, "dcn: cross layers; null: 3", at_least=1, only_with=("interaction", Interaction.dcn)
    )
    dcn_low_rank_dim: int | None = key(
        None,
        "dcn: rank of their matrices; null: a quarter of their width (F + 1) * D",
        at_least=1,
        only_with=("interaction", Interaction.dcn),
    )
    projection_branch1: list[int] | None = key(
        None,
        "projection: widths of a branch's layers, the last a multiple of D …",
        only_with=("interaction", Interaction.projection),
    )
    projection_branch2: list[int] | None = key(
        None, "… null: one layer of 16 * D", only_with=("interaction", Interaction.projection)
    )
    dense_init: DenseInit = key(DenseInit.torch, "of linear layers")
    tables: TablesConfig = field(default_factory=TablesConfig)
    hstu: HSTUConfig | None = key(None, "the sequence model, over a dataset of events; null: DLRM, over rows")


def validate_model(model: ModelConfig) -> None:
    """Raises UserError for values that cannot work."""
    if model.embedding_dim < 4 or model.embedding_dim % 4:
        raise UserError(f"model.embedding_dim={model.embedding_dim}: must be a multiple of 4 (FBGEMM)")
    if model.hstu is not None:
        _validate_beside_hstu(model)
        return
    _require_widths("model.dense_arch", model.dense_arch)
    _require_widths("model.over_arch", model.over_arch)
    if model.dense_arch[-1] != model.embedding_dim:
        raise UserError(
            f"model.dense_arch={model.dense_arch}: its last width must be model.embedding_dim={model.embedding_dim}"
        )
    if model.over_arch[-1] != 1:
        raise UserError(f"model.over_arch={model.over_arch}: its last width must be 1 (the logit)")
    _validate_branches(model)
    validate_tables(model.tables, model.embedding_dim)


def _validate_beside_hstu(model: ModelConfig) -> None:
    """DLRM's own settings would do nothing."""
    usual = ModelConfig(embedding_dim=model.embedding_dim, dense_arch=[], over_arch=[], hstu=model.hstu)
    for name, value in vars(usual).items():
        if getattr(model, name) != value:
            raise UserError(f"model.{name}: is DLRM's and has no effect with model.hstu; leave it out, and give "
                            "model=hstu for the sequence model")  # fmt: skip


def require_dlrm(model: ModelConfig, what: str) -> None:
    """Refuse what only DLRM can do. Raises UserError."""
    if model.hstu is not None:
        raise UserError(f"model=hstu: {what} is for DLRM alone so far; train, evaluate, recommend, plan and verify "
                        "know HSTU")  # fmt: skip


def require_own_scores(model: ModelConfig, what: str) -> None:
    """Refuse what needs a sample's logit to depend on this sample alone. Raises UserError."""
    if model.mixes_samples:
        raise UserError(
            f"model.mixes_samples=true: {what} has no meaning, since a sample's logit depends on the other "
            "rows of its batch and its place among them; train with model.mixes_samples=false"
        )


def _validate_branches(model: ModelConfig) -> None:
    for name in ("projection_branch1", "projection_branch2"):
        widths = getattr(model, name)
        if widths is None:
            continue
        _require_widths(f"model.{name}", widths)
        if widths[-1] % model.embedding_dim:
            raise UserError(
                f"model.{name}={widths}: its last width must be a multiple of model.embedding_dim={model.embedding_dim}"
            )


def _require_widths(key: str, widths: list[int]) -> None:
    if not widths or not 1 <= min(widths) <= max(widths) <= MAX_WIDTH:
        raise UserError(f"{key}={widths}: must be a list of widths from 1 to {MAX_WIDTH}, such as [512,256,16]")
