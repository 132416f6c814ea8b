"""`data`: which dataset, and how it is read."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from app.config.checks import require_at_least
from app.config.published import published_tables
from common.errors import UserError
from data_prep.dataset.multi_hot import Distribution, MultiHot


class VerifyData(Enum):
    """When to compare shards with their sums: `auto` does if there are at most 4 GiB of them."""

    auto = "auto"
    always = "always"
    never = "never"


class DataScale(Enum):
    """full: the data as they are; tiny: what the recipe says under `tiny`, in place of its own values."""

    full = "full"
    tiny = "tiny"


@dataclass
class SyntheticConfig:
    """The day made where no data is given; the planted truth is described in docs/data.md."""

    rows: int | None = None  # over all days; null, here and below: data_prep's default
    seed: int | None = None  # of its generator
    days: int | None = None  # the last one is held out, where there are several
    click_rate: float | None = None
    max_cardinality: int | None = None  # distinct values of the largest column
    difficulty: float | None = None  # above 1, labels are noisier
    interaction: float | None = None  # strength of what pairs of columns add
    drift: float | None = None  # angle in radians by which the truth turns from day to day
    direct: bool | None = None  # straight to shards, without raw files


@dataclass
class MultiHotConfig:
    """Ids expanded to bags while they are read, as MLPerf v2's multi-hot data has them (docs/data.md)."""

    sizes: Any = None  # ids per bag of every feature, a list, or mlperf_v2 for its own; null: one id a bag
    distribution: Distribution | None = None  # of a bag's further ids; null: uniform
    seed: int | None = None  # of their draws; null: 0
    directory: str | None = None  # where the bags of all ids are kept; null: <data.path>/multi_hot


@dataclass
class DataConfig:
    """Where the dataset is, or what to make it from, and how it is read."""

    path: str | None = None  # dataset directory; null with data.raw null: default_path
    raw: Any = None  # raw files (a path, a glob or a list) to preprocess into data.path if it is not there yet
    default_path: str = "data/synthetic"  # data.path where neither is given; made from `source` if it is not there
    source: str | None = "synthetic"  # data_prep's data=…: synthetic, random, criteo_kaggle, criteo_1tb; null: none
    scale: DataScale = DataScale.full
    published_tables: str | None = None  # sizes for building the model where there is no data (train.max_steps=0)
    prep: dict[str, Any] = field(default_factory=dict)  # further keys for data_prep as they are, without their data.
    encoding: str | None = None  # the next five are handed to data_prep; null: its default
    frequency_threshold: int | None = None
    max_ind_range: int | None = None
    schema: str | None = None  # YAML file that says how to read a table of one's own; null: Criteo's rows
    workers: int | None = None
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    verify: VerifyData = VerifyData.auto
    shuffle: bool = True  # reorder the training split in every epoch
    shuffle_block_rows: int = 65_536  # rows read in one piece; blocks are permuted …
    shuffle_window_blocks: int = 4  # … and rows are permuted within so many blocks (all are in memory twice)


def multi_hot_bags(data: DataConfig) -> MultiHot | None:
    """The bags that ids are expanded to, if any. Raises UserError for values that cannot work."""
    chosen = data.multi_hot
    return MultiHot.of("data.multi_hot", chosen.sizes, chosen.distribution, chosen.seed)


def validate_data(data: DataConfig) -> None:
    """Raises UserError for values that cannot work."""
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
