"""`data`: which dataset, and how it is read."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from app.config.checks import require_at_least
from app.config.published import published_tables
from common.errors import UserError
from data_prep.config import keys
from data_prep.config.compose import compose_data
from data_prep.config.keys import SyntheticConfig
from data_prep.dataset.multi_hot import MultiHot

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


@dataclass
class MultiHotConfig(keys.MultiHotConfig):
    """Ids expanded to bags while they are read, as MLPerf v2's multi-hot data has them (docs/data.md)."""

    directory: str | None = None  # where the bags of all ids are kept; null: <data.path>/multi_hot


@dataclass
class DataConfig:
    """The dataset, the raw rows it is made from, and how it is read."""

    path: str | None = None  # dataset directory; null with data.raw null: default_path
    raw: Any = None  # raw files (a path, a glob or a list) to preprocess into data.path if it is not there yet
    default_path: str = "data/synthetic"  # data.path where neither is given; made from `source` if it is not there
    source: str | None = "synthetic"  # data_prep's data=…: synthetic, random, criteo_kaggle, criteo_1tb; null: none
    scale: DataScale = DataScale.full
    published_tables: str | None = None  # sizes for building the model where there is no data (train.max_steps=0)
    prep: dict[str, Any] = field(default_factory=dict)  # further keys of `python -m data_prep`, without "data."
    encoding: str | None = None  # as of data_prep (docs/data.md), as are the next four; null: its default
    frequency_threshold: int | None = None  # as of data_prep; null: its default
    max_ind_range: int | None = None  # as of data_prep; null: its default
    schema: str | None = None  # as of data_prep: YAML file that describes your own table; null: Criteo's rows
    workers: int | None = None  # as of data_prep: number of processes; null: its default
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    verify: VerifyData = VerifyData.auto
    shuffle: bool = True  # reorder the training split in every epoch
    shuffle_block_rows: int = 65_536  # rows read in one piece; blocks are permuted …
    shuffle_window_blocks: int = 4  # … and rows are permuted within this number of blocks (all are in memory twice)


def multi_hot_bags(data: DataConfig) -> MultiHot | None:
    """The bags that ids are expanded to, if any. Raises UserError for values that cannot work."""
    chosen = data.multi_hot
    return MultiHot.of("data.multi_hot", chosen.sizes, chosen.distribution, chosen.seed)


def preprocessing(data: DataConfig) -> keys.DataConfig:
    """The configuration with which data_prep makes the dataset, but for `path`.

    Raises:
        UserError: a key of data.prep that data_prep does not have, or a value of the wrong type.
    """
    source = (data.source if data.raw is None else None) or "local"
    is_made = data.raw is not None or data.path is None  # else these keys are compared with the dataset that is there
    own = {key: getattr(data, key) for key in ("raw", *FOR_RAW)} if is_made else {}
    if source == "synthetic" and is_made:
        own["synthetic"] = vars(data.synthetic)
    return compose_data(source, {"data": own, "data.prep": data.prep})


def validate_data(data: DataConfig) -> None:
    """Raises UserError for invalid values."""
    preprocessing(data)
    if multi_hot_bags(data) is None and data.multi_hot.directory is not None:
        raise UserError("data.multi_hot.directory: has no effect without data.multi_hot.sizes; leave it out")
    if data.published_tables is not None:
        published_tables(data.published_tables)
    require_at_least(
        {
            "data.shuffle_block_rows": (data.shuffle_block_rows, 1),
            "data.shuffle_window_blocks": (data.shuffle_window_blocks, 1),
        }
    )
