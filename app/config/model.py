"""`model`: the architecture."""

from dataclasses import dataclass, field
from enum import Enum

from app.config.tables import TablesConfig, validate_tables
from app.kinds.models import ModelKind, ModelParts, model_kinds
from common.errors import UserError
from common.keys import MISSING, key, shown

MAX_WIDTH = 1_000_000


class Interaction(Enum):
    """Combinations of the features' vectors: see docs/models.md.

    dot: their pairwise products; cat: their concatenation (both Naumov et al. 2019); dcn: DCN v2 of low rank (Wang et
    al. 2020), or of full rank; projection: products of two learned projections (TorchRec's DLRM_Projection);
    scalar_pairs: products of all pairs of the vectors' elements, also with themselves (AMD's blog of 2024); sum: the
    sum of all elements, which makes vectors of one element a logistic regression.
    """

    dot = "dot"
    cat = "cat"
    dcn = "dcn"
    projection = "projection"
    scalar_pairs = "scalar_pairs"
    sum = "sum"


class Numeric(Enum):
    """Form of dense features: one vector by dense_arch, or a vector each, the number times a learned vector."""

    dense_arch = "dense_arch"
    vectors = "vectors"


class DenseInit(Enum):
    """Initial values of linear layers.

    torch: weights and biases uniform in ±1/sqrt(inputs), as in torch and TorchRec; facebookresearch: normal weights of
    variance 2 / (inputs + outputs) and biases of variance 1 / outputs; xavier_normal: these weights, biases 0
    (FuxiCTR's).
    """

    torch = "torch"
    facebookresearch = "facebookresearch"
    xavier_normal = "xavier_normal"


@dataclass(frozen=True)
class ModelConfig:
    """DLRM (Naumov et al. 2019), whose dense_arch ends with the width of all vectors; or an extension's model."""

    interaction: Interaction = key(Interaction.dot, "how the features' vectors are combined")
    interaction_itself: bool = key(
        False, "dot: include each vector's product with itself", only_with=("interaction", Interaction.dot)
    )
    mixes_samples: bool = key(
        False,
        "scalar_pairs: repeat the defect of AMD's blog, which joins vectors of different samples",
        only_with=("interaction", Interaction.scalar_pairs),
    )
    dense_final_relu: bool = key(True, "a ReLU after dense_arch's last layer too")
    numeric: Numeric = key(Numeric.dense_arch, "vectors of dense features: one by dense_arch, or one for each feature")
    embedding_dim: int = key(
        MISSING,
        "D, the width of every feature's vector: a multiple of 4 (FBGEMM), or any with sharding.types=data_parallel; "
        "MLPerf's 128 of model=dlrm_dcn takes 33 times the operations per sample of model=dlrm",
        is_common=True,
    )
    dense_arch: list[int] = key(MISSING, "widths of its layers, the last being D; []: none, without dense features")
    over_arch: list[int] = key(MISSING, "widths of its layers, the last being 1; [] for sum")
    batch_norm: bool = key(False, "batch norm in each hidden layer of dense_arch, over_arch and deep_arch")
    dropout: list[float] = key(
        [],
        "dropout rate after each hidden layer of over_arch and deep_arch: one for all, as 0.2, or one a layer, as "
        "[0.3,0.2]",
        within="[0, 1)",
    )
    dense_dropout: list[float] = key(
        [], "dropout rate after hidden layers of dense_arch, as for dropout", within="[0, 1)"
    )
    deep_arch: list[int] | None = key(
        None,
        "dcn: widths of a perceptron beside the cross layers, whose output joins theirs; null: none",
        only_with=("interaction", Interaction.dcn),
    )
    dcn_full_rank: bool = key(
        False, "dcn: whole matrices instead of dcn_low_rank_dim", only_with=("interaction", Interaction.dcn)
    )
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
        "projection: widths of the first branch's layers, the last a multiple of D; null: one of 16 * D",
        only_with=("interaction", Interaction.projection),
    )
    projection_branch2: list[int] | None = key(
        None,
        "projection: widths of the second branch's layers; null: one of 16 * D",
        only_with=("interaction", Interaction.projection),
    )
    dense_init: DenseInit = key(DenseInit.torch, "initial values of linear layers")
    linear: float | None = key(
        None,
        "add this times the sum of the first elements of the categories' vectors to the logit: a logistic regression "
        "of their values; null: none",
        above=0,
    )
    initial_logit: float | None = key(None, "bias of the logit before the first step; null: by dense_init")
    tables: TablesConfig = field(default_factory=TablesConfig)
    name: str = key("dlrm", "dlrm, or a model that an extension adds; set by model=NAME")

    @property
    def kind(self) -> ModelKind:
        """Kind of model that `name` selects. Raises UserError for an unknown name."""
        kinds = model_kinds()
        if self.name not in kinds:
            raise UserError(f"model.name={self.name}: must be one of {', '.join(kinds)}")
        return kinds[self.name]

    @property
    def parts(self) -> ModelParts | None:
        """Functions of the extension; None for DLRM."""
        return self.kind.parts and self.kind.parts()


def validate_model(model: ModelConfig) -> None:
    """Raise UserError for values that cannot work."""
    if model.embedding_dim < 1:
        raise UserError(f"model.embedding_dim={model.embedding_dim}: must be at least 1")
    if model.kind.parts is not None:
        _refuse_settings_of_dlrm(model)
        return
    _validate_dense_arch(model)
    _validate_over_arch(model)
    _validate_dropout(
        "model.dropout",
        model.dropout,
        [("model.over_arch", model.over_arch[:-1]), ("model.deep_arch", model.deep_arch or [])],
    )
    _validate_dropout("model.dense_dropout", model.dense_dropout, [("model.dense_arch", model.dense_arch[:-1])])
    if model.dcn_full_rank and model.dcn_low_rank_dim is not None:
        raise UserError(f"model.dcn_low_rank_dim={model.dcn_low_rank_dim}: has no effect with model.dcn_full_rank=true")
    _validate_branches(model)
    validate_tables(model.tables, model.embedding_dim)


def _refuse_settings_of_dlrm(model: ModelConfig) -> None:
    """Raise UserError if settings of DLRM are given for another model, which would ignore them."""
    usual = ModelConfig(embedding_dim=model.embedding_dim, dense_arch=[], over_arch=[], name=model.name)
    for name, value in vars(usual).items():
        if getattr(model, name) != value:
            raise UserError(f"model.{name}: is DLRM's and has no effect with model={model.name}; leave it out")


def require_dlrm(model: ModelConfig, operation: str) -> None:
    """Raise UserError if the model is not DLRM, which alone supports `operation`."""
    if model.kind.commands:
        raise UserError(f"{model.kind.label}: {operation} is for DLRM alone so far; {model.kind.commands}")


def require_own_scores(model: ModelConfig, operation: str) -> None:
    """Raise UserError if a logit depends on other samples, too, so that `operation` has no meaning."""
    if model.mixes_samples:
        raise UserError(
            f"model.mixes_samples=true: {operation} has no meaning, since a sample's logit depends on the other "
            "rows of its batch and its place among them; train with model.mixes_samples=false"
        )


def _validate_dense_arch(model: ModelConfig) -> None:
    if model.numeric is Numeric.vectors and model.dense_arch:
        raise UserError(
            f"model.dense_arch={model.dense_arch}: has no effect with model.numeric=vectors; give model.dense_arch=[]"
        )
    if model.dense_arch:
        _require_widths("model.dense_arch", model.dense_arch)
        if model.dense_arch[-1] != model.embedding_dim:
            raise UserError(
                f"model.dense_arch={model.dense_arch}: its last width must be model.embedding_dim={model.embedding_dim}"
            )
    elif model.interaction in (Interaction.projection, Interaction.scalar_pairs):
        raise UserError(
            f"model.dense_arch=[]: model.interaction={model.interaction.value} needs its vector; give "
            f"widths that end with model.embedding_dim={model.embedding_dim}"
        )


def _validate_over_arch(model: ModelConfig) -> None:
    if model.interaction is Interaction.sum:
        if model.over_arch:
            raise UserError(
                f"model.over_arch={model.over_arch}: has no effect with model.interaction=sum, which is the "
                "logit but for a bias; give model.over_arch=[]"
            )
        return
    _require_widths("model.over_arch", model.over_arch)
    if model.over_arch[-1] != 1:
        raise UserError(f"model.over_arch={model.over_arch}: its last width must be 1 (the logit)")
    if model.deep_arch is not None:
        _require_widths("model.deep_arch", model.deep_arch)


def _validate_dropout(key: str, rates: list[float], stacks: list[tuple[str, list[int]]]) -> None:
    """Check the rates for the hidden layers of these stacks, given as key and widths."""
    hidden = [(name, widths) for name, widths in stacks if widths]
    if any(rates) and not hidden:
        raise UserError(
            f"{key}={shown(rates)}: has no effect without a hidden layer; add one before the last of {stacks[0][0]}"
        )
    for name, widths in hidden:
        if len(rates) > 1 and len(rates) != len(widths):
            raise UserError(
                f"{key}={shown(rates)}: {name} has {len(widths)} hidden layers; give one rate for all, or {len(widths)}"
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
