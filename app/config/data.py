"""`data`: which dataset, and how it is read."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from app.config.checks import require_at_least


class VerifyData(Enum):
    """When to compare shards with their sums: `auto` does if there are at most 4 GiB of them."""

    auto = "auto"
    always = "always"
    never = "never"


@dataclass
class SyntheticConfig:
    """The day made where no data is given; the planted truth is described in docs/data.md."""

    rows: int | None = None  # rows of the raw day; null: data_prep's default
    seed: int | None = None  # of its generator


@dataclass
class DataConfig:
    """Where the dataset is, or what to make it from, and how it is read."""

    path: str | None = None  # dataset directory; null with data.raw null: the synthetic day is made
    raw: Any = None  # raw files (a path, a glob or a list) to preprocess into data.path if it is not there yet
    default_path: str = "data/synthetic"  # data.path where neither is given
    encoding: str | None = None  # the next four are handed to data_prep; null: its default
    frequency_threshold: int | None = None
    max_ind_range: int | None = None
    workers: int | None = None
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    verify: VerifyData = VerifyData.auto
    shuffle: bool = True  # reorder the training split in every epoch
    shuffle_block_rows: int = 65_536  # rows read in one piece; blocks are permuted …
    shuffle_window_blocks: int = 4  # … and rows are permuted within so many blocks (all are in memory twice)


def validate_data(data: DataConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least(
        {
            "data.shuffle_block_rows": (data.shuffle_block_rows, 1),
            "data.shuffle_window_blocks": (data.shuffle_window_blocks, 1),
        }
    )
