"""`data`: the dataset, and how it is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from app.config.model import published_tables
from common.keys import key
from data_prep import config as preparation
from data_prep.config import SEEDS, implied_values, split_file_faults, unused_group_faults
from data_prep.dataset.multi_hot import Distribution, MultiHot, parse_sizes
from data_prep.dataset.options import DataSource

FILES = ("raw", "train", "val", "test", "checksums")  # data_prep's keys for files of the user's own


# When to compare shards with their checksums; `auto` does if they have at most 4 GiB.
VerifyData: TypeAlias = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class MultiHotConfig:
    """Expansion of ids to bags while they are read, as in MLPerf v2's multi-hot data (docs/data.md)."""

    decides_bits: ClassVar[bool] = True

    sizes: Any = key(
        None,
        "expand ids to bags as they are read: a list with the ids per bag of each feature, or mlperf_v2; null: one id "
        "per bag",
    )
    distribution: Distribution | None = key(
        None, "distribution of a bag's further ids; null: uniform", only_with="sizes"
    )
    seed: int | None = key(None, "seed of their draws; null: 0, as in the reference", within=SEEDS, only_with="sizes")
    directory: str | None = key(
        None, "directory of the bags of all ids; null: <data.path>/multi_hot", only_with="sizes", decides_bits=False
    )

    def bags(self, num_features: int | None = None) -> MultiHot | None:
        """Return the settings of bags in place of ids; None without sizes. Raise UserError for invalid values.

        num_features: features of a dataset, each of which needs a size; None: any number of sizes is right.
        """
        if self.sizes is None:
            return None
        sizes = parse_sizes("data.multi_hot.sizes", self.sizes, num_features)
        return MultiHot(tuple(sizes), self.distribution or "uniform", self.seed or 0)


@dataclass(frozen=True)
class NegativesConfig:
    """Rows of label 0, drawn anew in each epoch for a train split that has only positives (docs/data.md)."""

    decides_bits: ClassVar[bool] = True

    per_positive: int | None = key(None, "negatives drawn for each row of the train split; null: none", at_least=1)
    user: str | None = key(None, "column of the users", is_name=True, only_with="per_positive")
    item: str | None = key(
        None,
        "column of the items; items that a user has in train are not drawn",
        is_name=True,
        only_with="per_positive",
    )

    def faults(self) -> Iterator[str]:
        if self.per_positive is not None and (self.user is None or self.item in (None, self.user)):
            yield (
                f"data.negatives.per_positive={self.per_positive}: needs two columns; give data.negatives.user=COLUMN "
                "and data.negatives.item=COLUMN"
            )

    @property
    def rows_per_positive(self) -> int:
        """Rows of an epoch for each row of the split, which is counted too."""
        return 1 + (self.per_positive or 0)


@dataclass(frozen=True)
class DataConfig(preparation.DataConfig):
    """The dataset, what it is made from (data_prep's keys), and how it is read."""

    decides_bits: ClassVar[bool] = False  # the dataset's digest covers what makes a dataset

    default_path: str | None = key(None, "data.path if neither it nor files are given; null: the source's own")
    default_source: DataSource | None = key(
        DataSource.synthetic, "data.source if neither it nor data.path nor files are given"
    )
    scale: Literal["full", "tiny"] = key(
        "full", "tiny: the recipe's values under `tiny` in place of its own", is_common=True
    )
    published_tables: str | None = key(
        None, "published table sizes to build the model without data (train.max_steps=0)"
    )
    multi_hot: MultiHotConfig = field(default_factory=MultiHotConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    verify: VerifyData = key("auto", "when to compare shards with their checksums; auto: up to 4 GiB of them")
    shuffle: bool = key(True, "reorder the training split in every epoch", decides_bits=True)
    shuffle_block_rows: int = key(
        65_536, "rows of a block, which are read in one piece; blocks are permuted", at_least=1, decides_bits=True
    )
    shuffle_window_blocks: int = key(
        4,
        "blocks of a window, in which rows are permuted; a process holds its rows of two windows",
        at_least=1,
        decides_bits=True,
    )

    def faults(self) -> Iterator[str]:
        yield from split_file_faults(self)
        if self.source is not None or own_files(self) is not None:
            yield from unused_group_faults(self)
        self.multi_hot.bags()
        if self.published_tables is not None:
            published_tables(self.published_tables)


def own_files(data: DataConfig) -> str | None:
    """Return the first given key that names the user's own files, with its value, as typed; None without one."""
    names = (name for name in FILES if getattr(data, name) is not None)
    return next((f"data.{name}={getattr(data, name)}" for name in names), None)


def implied_data(composed: Any, given: Sequence[str]) -> dict[str, Any]:
    """Return the source and path of a composed configuration that names no dataset, and its source's ready-made values.

    composed: the configuration. given: dotted keys of the command line and of files.
    """
    data = composed.data
    has_files = own_files(data) is not None
    # The default source counts only where nothing says which dataset is meant.
    is_default = data.source is None and data.path is None and not has_files
    source = data.default_source if is_default else data.source
    values = implied_values(data, source, given)
    if is_default and source is not None:
        values["data.source"] = source.name
    if data.path is None and data.default_path is not None and (source is not None or not has_files):
        values["data.path"] = data.default_path
    return values


def preprocessing(data: DataConfig) -> preparation.DataConfig:
    """Return the configuration with which data_prep makes the dataset."""
    values = {field.name: getattr(data, field.name) for field in fields(preparation.DataConfig)}
    if data.negatives.per_positive is not None and not data.source_kind.generator:
        values["allow_degenerate"] = True  # the rows may be positives only
    return preparation.DataConfig(**values)


def part_size(rows: int, world_size: int, micro_batch: int | None) -> int:
    """Return the rows that each process takes of a batch: an equal part, or whole micro-batches, rounded up."""
    unit = micro_batch or 1
    return -(-rows // (unit * world_size)) * unit
