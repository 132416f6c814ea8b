"""`model`: the architecture and its tables (docs/models.md); `published`: figures that a recipe promises."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias

from app.config.kinds import ModelKind, ModelParts, PublishedTables, TableForms, model_kinds
from common.compose import convert_override
from common.errors import UserError
from common.extensions import add_key_groups, rows_of_extensions
from common.keys import MISSING, check_keys, key, shown

# Combinations of a bag's rows.
Pooling: TypeAlias = Literal["sum", "mean"]
# Storage type of a table's values; arithmetic is fp32.
Storage: TypeAlias = Literal["fp32", "fp16", "bf16"]


@add_key_groups
@dataclass(frozen=True)
class TableConfig:
    """Settings of a table. Null: in an override, model.tables' value; in model.tables, the default given here."""

    pooling: Pooling | None = key(None, "combination of a bag's rows; null: sum")
    # Initial values: uniform as in TorchRec or facebookresearch/dlrm, or normal.
    init: Literal["torchrec", "facebookresearch", "normal"] | None = key(None, "initial values; null: torchrec")
    init_std: float | None = key(None, "normal: its standard deviation; null: 0.01", above=0)
    storage: Storage | None = key(None, "storage type of values; null: fp32")


@add_key_groups
@dataclass(frozen=True)
class TableOverride(TableConfig):
    """Settings of one table, beside model.tables' own."""


@add_key_groups
@dataclass(frozen=True)
class TablesConfig(TableConfig):
    """Settings of all tables, and which are exceptions."""

    shared: dict[str, list[str]] = key({}, "features of each shared table, by the table's name")
    overrides: dict[str, Any] = key({}, "keys of TableOverride by feature or shared table")


DEFAULTS = TableConfig(pooling="sum", init="torchrec", init_std=0.01, storage="fp32")
SETTINGS = [item.name for item in fields(TableConfig)]


def override_of(tables: TablesConfig, name: str) -> TableOverride:
    """Return the settings under `model.tables.overrides.<name>`; all null if there are none."""
    override = tables.overrides.get(name, {})
    # A configuration holds a mapping, and code may give the class itself.
    if isinstance(override, TableOverride):
        return override
    return convert_override(TableOverride, override, f"model.tables.overrides.{name}")


def settings_of(tables: TablesConfig, name: str | None = None) -> TableOverride:
    """Return the settings in force for a table with an override, or for tables without one."""
    override = TableOverride() if name is None else override_of(tables, name)
    levels = [override, tables, DEFAULTS]
    values = {key: next((v for level in levels if (v := getattr(level, key)) is not None), None) for key in SETTINGS}
    return replace(override, **values)


def table_faults(tables: TablesConfig, embedding_dim: int) -> Iterator[str]:
    """Yield messages of table settings that cannot work or would do nothing."""
    paths = {"model.tables": None, **{f"model.tables.overrides.{name}": name for name in tables.overrides}}
    levels = {path: tables if name is None else override_of(tables, name) for path, name in paths.items()}
    resolved = {path: settings_of(tables, name) for path, name in paths.items()}
    for path, level in levels.items():
        # A setting for all tables has a use if only one table, with its override, uses it.
        users = resolved.values() if level is tables else [resolved[path]]
        if level.init_std is not None and all(table.init != "normal" for table in users):
            yield f"{path}.init_std={level.init_std}: has no effect without init=normal"
        check_keys(level, f"{path}.")
    for forms in rows_of_extensions(TableForms):
        yield from forms.faults(levels, resolved, embedding_dim)


MAX_WIDTH = 1_000_000


# Combinations of the features' vectors (docs/models.md). dot: their pairwise products; cat: their concatenation (both
# Naumov et al. 2019); dcn: DCN v2 of low rank (Wang et al. 2020), or of full rank; projection: products of two learned
# projections (TorchRec's DLRM_Projection); scalar_pairs: products of all pairs of the vectors' elements, also with
# themselves (AMD's blog of 2024); sum: of all elements, which makes vectors of one element a logistic regression.
Interaction: TypeAlias = Literal["dot", "cat", "dcn", "projection", "scalar_pairs", "sum"]
# Initial values of linear layers. torch: weights and biases uniform in ±1/sqrt(inputs), as in torch and TorchRec;
# facebookresearch: normal weights of variance 2 / (inputs + outputs) and biases of variance 1 / outputs; xavier_normal:
# these weights, biases 0 (FuxiCTR's).
DenseInit: TypeAlias = Literal["torch", "facebookresearch", "xavier_normal"]


@dataclass(frozen=True)
class ModelConfig:
    """DLRM (Naumov et al. 2019), whose dense_arch ends with the width of all vectors; or an extension's model."""

    interaction: Interaction = key("dot", "how the features' vectors are combined")
    interaction_itself: bool = key(
        False, "dot: include each vector's product with itself", only_with={"interaction": "dot"}
    )
    mixes_samples: bool = key(
        False,
        "scalar_pairs: repeat the defect of AMD's blog, which joins vectors of different samples",
        only_with={"interaction": "scalar_pairs"},
    )
    dense_final_relu: bool = key(True, "a ReLU after dense_arch's last layer too")
    numeric: Literal["dense_arch", "vectors"] = key(
        "dense_arch", "vectors of dense features: one by dense_arch, or one for each feature"
    )
    embedding_dim: int = key(
        MISSING,
        "D, the width of every feature's vector: a multiple of 4 (FBGEMM), or any with sharding.types=data_parallel; "
        "MLPerf's 128 of model=dlrm_dcn takes 33 times the operations per sample of model=dlrm",
        at_least=1,
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
        only_with={"interaction": "dcn"},
    )
    dcn_full_rank: bool = key(
        False, "dcn: whole matrices instead of dcn_low_rank_dim", only_with={"interaction": "dcn"}
    )
    dcn_num_layers: int | None = key(None, "dcn: cross layers; null: 3", at_least=1, only_with={"interaction": "dcn"})
    dcn_low_rank_dim: int | None = key(
        None,
        "dcn: rank of their matrices; null: a quarter of their width (F + 1) * D",
        at_least=1,
        only_with={"interaction": "dcn", "dcn_full_rank": False},
    )
    projection_branch1: list[int] | None = key(
        None,
        "projection: widths of the first branch's layers, the last a multiple of D; null: one of 16 * D",
        only_with={"interaction": "projection"},
    )
    projection_branch2: list[int] | None = key(
        None,
        "projection: widths of the second branch's layers; null: one of 16 * D",
        only_with={"interaction": "projection"},
    )
    dense_init: DenseInit = key("torch", "initial values of linear layers")
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

    def faults(self) -> Iterator[str]:
        """Yield messages of settings that cannot work or would do nothing."""
        dim, dense, over = self.embedding_dim, self.dense_arch, self.over_arch
        # Another model would ignore DLRM's settings.
        if self.kind.parts is not None:
            defaults = vars(ModelConfig(embedding_dim=dim, dense_arch=[], over_arch=[], name=self.name))
            for name in (name for name, value in defaults.items() if getattr(self, name) != value):
                yield f"model.{name}: is DLRM's and has no effect with model={self.name}; leave it out"
            return
        if self.numeric == "vectors" and dense:
            yield f"model.dense_arch={dense}: has no effect with model.numeric=vectors; give model.dense_arch=[]"
        if not dense and self.interaction in ("projection", "scalar_pairs"):
            yield (
                f"model.dense_arch=[]: model.interaction={self.interaction} needs its vector; give widths that "
                f"end with model.embedding_dim={dim}"
            )
        if self.interaction == "sum" and over:
            yield (
                f"model.over_arch={over}: has no effect with model.interaction=sum, which is the logit but for a bias; "
                "give model.over_arch=[]"
            )
        yield from self._width_faults()
        yield from self._dropout_faults()
        yield from table_faults(self.tables, dim)

    def _width_faults(self) -> Iterator[str]:
        """Yield messages of layers whose last width does not fit what follows them: vectors of D, or the logit."""
        dim = self.embedding_dim
        stacks = {
            "dense_arch": self.dense_arch or None,
            "over_arch": None if self.interaction == "sum" else self.over_arch,
            "deep_arch": self.deep_arch,
            "projection_branch1": self.projection_branch1,
            "projection_branch2": self.projection_branch2,
        }
        for name, widths in ((name, widths) for name, widths in stacks.items() if widths is not None):
            setting = f"model.{name}={widths}"
            if not widths or not 1 <= min(widths) <= max(widths) <= MAX_WIDTH:
                yield f"{setting}: must be a list of widths from 1 to {MAX_WIDTH}, such as [512,256,16]"
            if name == "dense_arch" and widths[-1] != dim:
                yield f"{setting}: its last width must be model.embedding_dim={dim}"
            if name == "over_arch" and widths[-1] != 1:
                yield f"{setting}: its last width must be 1 (the logit)"
            if name.startswith("projection") and widths[-1] % dim:
                yield f"{setting}: its last width must be a multiple of model.embedding_dim={dim}"

    def _dropout_faults(self) -> Iterator[str]:
        """Yield messages of dropout rates that are not one for all hidden layers, nor one for each."""
        over = {"model.over_arch": self.over_arch[:-1], "model.deep_arch": self.deep_arch}
        for name, rates, stacks in (
            ("dropout", self.dropout, over),
            ("dense_dropout", self.dense_dropout, {"model.dense_arch": self.dense_arch[:-1]}),
        ):
            setting = f"model.{name}={shown(rates)}"
            hidden = {name: len(widths) for name, widths in stacks.items() if widths}
            if any(rates) and not hidden:
                first = next(iter(stacks))
                yield f"{setting}: has no effect without a hidden layer; add one before the last of {first}"
            for stack, layers in hidden.items():
                if len(rates) not in (0, 1, layers):
                    yield f"{setting}: {stack} has {layers} hidden layers; give one rate for all, or {layers}"


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


_CRITEO = [f"cat_{i}" for i in range(26)]


def _even_table_sizes(columns: list[str], values: int) -> dict[str, int]:
    """Return tables of these columns, whose numbers of values are known only in total; each has a row for unknown ones.

    How the values are divided among the columns does not change the number of parameters.
    """
    per_column, remainder = divmod(values, len(columns))
    return {column: per_column + 1 + (number < remainder) for number, column in enumerate(columns)}


PUBLISHED_TABLES: dict[str, dict[str, int]] = {
    # AMD's blog of 2024, which prints its model: the columns of dac_sample with at most 10,000 values.
    "dac_sample": {
        "cat_0": 541, "cat_1": 497, "cat_4": 145, "cat_5": 12, "cat_6": 7623, "cat_7": 257, "cat_8": 3,
        "cat_10": 3799, "cat_12": 2796, "cat_13": 26, "cat_14": 5238, "cat_16": 10, "cat_17": 2548, "cat_18": 1303,
        "cat_19": 4, "cat_21": 11, "cat_22": 14, "cat_24": 51, "cat_25": 9527
    },
    # Criteo's Display Advertising Challenge: the values of its 45,840,617 training rows.
    "criteo_kaggle": dict(zip(_CRITEO, (
        1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
        5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572
    ), strict=True)),
    # Deep-Spark/DeepSparkHub, dlrm/config/official_config.json: a tenth of days 0 and 1.
    "deepspark_3day": dict(zip(_CRITEO, (
        932209, 18814, 13624, 6862, 18488, 3, 6242, 1229, 49, 654428, 96850, 69004, 10, 2134, 7345, 60, 4, 918, 14,
        984280, 320932, 838408, 76380, 8906, 74, 33
    ), strict=True)),
    # Criteo 1TB with hashes modulo 40,000,000 and then counted (MLPerf 0.7 to 2.1).
    "mlperf_v1": dict(zip(_CRITEO, (
        39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4,
        976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36
    ), strict=True)),
    # Criteo 1TB counted and then capped at 40,000,000 (MLPerf 3.0 to 6.0; AMD's benchmark).
    "mlperf_v2": dict(zip(_CRITEO, (
        40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4,
        976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36
    ), strict=True)),
    # reczoo/Datasets: the values of the training split, according to the parameters that reczoo/BARS logs.
    "criteo_x1": _even_table_sizes([f"C{i}" for i in range(1, 27)], 2_086_277),
    "avazu_x1": _even_table_sizes([f"feat_{i}" for i in range(1, 23)], 1_298_577),
    "movielenslatest_x1": _even_table_sizes(["user_id", "item_id", "tag_id"], 90_236),
    "kgcn_lastfm": {"user": 1_871, "item": 3_811},  # values of its training split and a row for unknown ones
    "ncf_movielens_1m": {"user": 6_041, "item": 3_705},  # likewise
    "tfrs_movielens_100k": {  # likewise
        "movie_id": 1_652, "user_id": 944, "user_gender": 3, "user_zip_code": 796, "user_occupation_text": 22,
        "bucketized_user_age": 8
    },
    "frappe_x1": _even_table_sizes(["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather",
                                    "country", "city"], 5_379)
}  # fmt: skip


NUM_DENSE = 13  # number of dense features in Criteo's rows …
WITHOUT_DENSE = (  # … and datasets without any
    "avazu_x1",
    "movielenslatest_x1",
    "frappe_x1",
    "kgcn_lastfm",
    "ncf_movielens_1m",
    "tfrs_movielens_100k",
)


@dataclass(frozen=True)
class PublishedConfig:
    """Figures to compare a run with; null if there are none. They do not affect training.

    A run on other data is not measured by them: the report compares only if `train_rows` and `md5` agree.
    """

    decides_bits: ClassVar[bool] = False

    recipe: str | None = key(None, "the recipe's name")
    source: str | None = key(None, "author, place and date of the publication, and its line or table")
    data: str | None = key(None, "the data it was measured on")
    train_rows: int | None = key(
        None, "rows of its training split; null: comparable with a run on any data", at_least=1
    )
    model: str | None = key(
        None, "the measured model if it is another; its figures are then compared, but not required"
    )
    hardware: str | None = key(None, "hardware and precision it was measured with")
    auc: float | None = key(None, "AUC of the evaluated split", within="[0, 1]")
    logloss: float | None = key(None, "logloss of the evaluated split, in nats", above=0)
    test_auc: float | None = key(None, "AUC of the test split, if training evaluates another", within="[0, 1]")
    test_logloss: float | None = key(None, "logloss of the test split, in nats", above=0)
    rmse: float | None = key(None, "RMSE of the evaluated split, if labels are numbers", above=0)
    hr_at_10: float | None = key(None, "HR@10 of the evaluated split over groups of eval.group_by", within="[0, 1]")
    ndcg_at_10: float | None = key(None, "NDCG@10 of the evaluated split over these groups", within="[0, 1]")
    md5: list[str] = key([], "MD5 of the files that it was measured on, of train, val and test; []: any files")
    accuracy: float | None = key(None, "accuracy at a threshold of 0.5", within="[0, 1]")
    samples_per_second: float | None = key(None, "throughput over all devices", above=0)
    num_devices: int | None = key(None, "number of devices with that throughput", at_least=1)
    parameters: int | None = key(None, "number of parameters of the whole model", at_least=1)
    tolerance: float | None = key(
        None, "largest absolute difference of these figures that counts as reproduced", within="[0, 1]"
    )
    least_auc: float | None = key(None, "minimum AUC that the recipe promises on any machine", within="[0, 1]")


def published_tables(name: str) -> PublishedTables:
    """Return the table sizes of a publication, the core's or an extension's. Raises UserError for an unknown name."""
    added = {row.name: row for row in rows_of_extensions(PublishedTables)}
    if name in PUBLISHED_TABLES:
        return PublishedTables(name, PUBLISHED_TABLES[name], 0 if name in WITHOUT_DENSE else NUM_DENSE)
    if name not in added:
        raise UserError(f"data.published_tables={name}: must be one of {', '.join((*PUBLISHED_TABLES, *added))}")
    return added[name]
