"""`data`: which dataset, and how it is read."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar

from app.config.published import published_tables
from app.kinds.models import ModelKind, model_for
from common.errors import UserError
from common.keys import key, keys_of
from data_prep.config import keys
from data_prep.config.checks import refuse_given_splits
from data_prep.config.compose import compose_data
from data_prep.config.keys import SyntheticConfig
from data_prep.dataset.manifest import SPLITS
from data_prep.dataset.options import DataSource

FILES = ("raw", "train", "val", "test", "checksums")  # of the user's own, by data_prep's keys
FOR_RAW = ("encoding", "frequency_threshold", "max_ind_range", "schema", "workers")


class VerifyData(Enum):
    """Times to compare shards with their checksums: `auto` does if there are at most 4 GiB of them."""

    auto = "auto"
    always = "always"
    never = "never"


class DataScale(Enum):
    """full: the data as they are; tiny: with the recipe's values under `tiny` in place of its own."""

    full = "full"
    tiny = "tiny"


@dataclass(frozen=True)
class MultiHotConfig(keys.MultiHotConfig):
    """Ids expanded to bags while they are read, as MLPerf v2's multi-hot data has them (docs/data.md)."""

    directory: str | None = key(
        None, "where the bags of all ids are kept; null: <data.path>/multi_hot", decides_bits=False
    )


@dataclass(frozen=True)
class NegativesConfig:
    """Rows of label 0 for a train split of positives alone, drawn anew in each epoch (docs/data.md)."""

    per_positive: int | None = key(None, "rows drawn for each of the train split; null: none", at_least=1)
    user: str | None = key(None, "column of the users", is_name=True, only_with=("per_positive",))
    item: str | None = key(
        None,
        "column of the items; those that a user has in train are not drawn",
        is_name=True,
        only_with=("per_positive",),
    )

    @property
    def rows_per_positive(self) -> int:
        """Rows of an epoch for each of the split, itself included."""
        return 1 + (self.per_positive or 0)


@dataclass(frozen=True)
class DataConfig:
    """The dataset, the raw rows it is made from, and how it is read."""

    decides_bits: ClassVar[bool] = False  # what makes a dataset is compared by the dataset's digest

    path: str | None = key(None, "dataset directory; null without data.raw or data.train: default_path", is_common=True)
    raw: Any = key(
        None, "raw files (a path, a glob or a list) to preprocess into data.path if it is not there yet", is_common=True
    )
    train: Any = key(
        None, "in place of data.raw: the files of the train split (a path, a glob or a list)", is_common=True
    )
    val: Any = key(None, "beside data.train: the files of the val split; null: it has no rows", is_common=True)
    test: Any = key(None, "beside data.train: the files of the test split; null: it has no rows")
    checksums: Any = key(None, "MD5 that files of data.train, data.val and data.test must have: {NAME: MD5, …}")
    default_path: str = key("data/synthetic", "data.path where neither is given")
    source: str | None = key(
        None,
        "make data.path from synthetic, criteo_kaggle, synthetic_events, yambda_50m, …; null: default_source where no "
        "file is given",
        is_common=True,
    )
    default_source: str | None = key("synthetic", "data.source where neither data.path nor any file is given")
    scale: DataScale = key(DataScale.full, "tiny: the recipe's values under `tiny` in place of its own", is_common=True)
    default_prep: dict[str, Any] = key({}, "further keys of data_prep, of data.default_source alone")
    published_tables: str | None = key(None, "sizes for building the model where there is no data (train.max_steps=0)")
    prep: dict[str, Any] = key({}, "further keys of data_prep: data.KEY is data.prep.KEY")
    encoding: str | None = key(None, "as of data_prep (docs/data.md), as are the next four; null: its default")
    frequency_threshold: int | None = key(None, "as of data_prep; null: its default", at_least=0)
    max_ind_range: int | None = key(None, "as of data_prep; null: its default", within=f"[1, {keys.MAX_TABLE_ROWS}]")
    schema: str | None = key(
        None, "as of data_prep: YAML file that describes your own table; null: Criteo's rows", is_common=True
    )
    allow_degenerate: bool = key(False, "as of data_prep: train although labels are of one class")
    workers: int | None = key(None, "as of data_prep: number of processes; null: its default", at_least=1)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    verify: VerifyData = key(VerifyData.auto, "when to compare shards with their checksums; auto: up to 4 GiB of them")
    shuffle: bool = key(True, "reorder the training split in every epoch", decides_bits=True)
    shuffle_block_rows: int = key(
        65_536, "rows read in one piece; blocks are permuted …", at_least=1, decides_bits=True
    )
    shuffle_window_blocks: int = key(
        4,
        "… and rows are permuted within this number of blocks (a process holds its own twice)",
        at_least=1,
        decides_bits=True,
    )
    shuffle_lanes: int = key(
        1,
        "processes that permute windows apart from each other: give about as many as there are",
        at_least=1,
        only_with=("shuffle",),
        decides_bits=True,
    )


def _keys_of_data_prep() -> Iterator[str]:
    """data_prep's keys, and groups of keys, that DataConfig has no field for."""
    field_names = {each.name for each in fields(DataConfig)}
    for name, *_ in keys_of(keys.DataConfig):
        if name.partition(".")[0] not in field_names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


OTHER_TEXTS = {f"data.prep.{key}" for key, *_, kind in keys_of(keys.DataConfig) if kind in (str, str | None, list[str])}
OTHER_NAMES = {f"data.{key}": f"data.prep.{key}" for key in _keys_of_data_prep()}
INSTEAD = {f"data={source.value}": f"data.source={source.value}" for source in DataSource} | {
    "data=criteo_kaggle": "data.source=criteo_kaggle",
    "data=criteo_1tb": "data.source=criteo_1tb data.days=[0]",
    "data=custom": "data.raw=FILES data.schema=FILE",
    "data=local": "data.raw=FILES",
    "data=events": "data.raw=FILES data.schema=FILE",
    **{f"data=yambda{size}": f"data.source=yambda{size or '_50m'}" for size in ("", "_50m", "_500m", "_5b")},
}


def own_files(data: DataConfig) -> str | None:
    """The first given key that names files of the user's own, with its value, as it is typed; None: there is none."""
    names = (name for name in FILES if getattr(data, name) is not None)
    return next((f"data.{name}={getattr(data, name)}" for name in names), None)


def source_of(data: DataConfig) -> str | None:
    """What data_prep makes the dataset from; None: the dataset must be there."""
    if own_files(data) is not None:
        return "local"
    return data.source or (data.default_source if data.path is None else None)


def require_eval_split(data: DataConfig, split: str) -> None:
    """Refuse to evaluate a split that no files are given for, before a dataset is made. Raises UserError."""
    files = {name: getattr(data, name) for name in SPLITS}
    if data.train is None or files.get(split, split) is not None:
        return
    usable = next(name for name in ("test", "val", "train") if files[name] is not None)
    raise UserError(f"eval.split={split}: data.{split} is not given; give it, or eval.split={usable}")


def require_source(data: DataConfig, model: ModelKind) -> None:
    """Refuse to make a dataset of a kind that the model does not learn from. Raises UserError."""
    source_kind, required_kind = preprocessing(data).source.kind.makes, model.learns_from
    if source_kind is not None and source_kind is not required_kind:
        raise UserError(
            f"data.source={source_of(data)}: makes {source_kind.name}, and {model.label} learns from "
            f"{required_kind.name}; give {model.instead_of_source or model_for(source_kind)}"
        )


def preprocessing(data: DataConfig) -> keys.DataConfig:
    """The configuration with which data_prep makes the dataset, but for `path`.

    Raises:
        UserError: a key of data.prep that data_prep does not have, or a value of the wrong type.
    """
    if (own_key := next((name for name in FILES if name in data.prep), None)) is not None:
        raise UserError(f"data.prep.{own_key}: is data.{own_key} here; give data.{own_key}={data.prep[own_key]}")
    source = source_of(data)
    settings = {key: getattr(data, key) for key in (*FILES, *FOR_RAW)}
    settings["allow_degenerate"] = data.allow_degenerate
    if source is None:  # a dataset that is there may have an encoding that data_prep does not make
        settings["encoding"] = None
    if source in (None, "synthetic"):
        settings["synthetic"] = vars(data.synthetic)
    default = data.default_prep if source is not None and source == data.default_source else {}
    prepared = compose_data(source or "local", {"data": settings, "data.default_prep": default, "data.prep": data.prep})
    if data.negatives.per_positive is not None and not prepared.source.kind.generator:
        prepared = replace(prepared, allow_degenerate=True)  # the rows may hold positives alone
    return prepared


def validate_data(data: DataConfig) -> None:
    """Raises UserError for invalid values."""
    refuse_given_splits(preprocessing(data))
    if data.multi_hot.bags() is None and data.multi_hot.directory is not None:
        raise UserError("data.multi_hot.directory: has no effect without data.multi_hot.sizes; leave it out")
    negatives = data.negatives
    if negatives.per_positive is not None and (negatives.user is None or negatives.item in (None, negatives.user)):
        raise UserError(
            f"data.negatives.per_positive={negatives.per_positive}: needs two columns; give data.negatives.user=COLUMN "
            "and data.negatives.item=COLUMN"
        )
    if data.published_tables is not None:
        published_tables(data.published_tables)
