"""Keys of `clickwork interchange`."""

from dataclasses import dataclass, field
from enum import Enum

from common.keys import MISSING, key
from data_prep.dataset.options import DenseTransform


class ExchangeFormat(Enum):
    """Formats of other programs: see extensions/exchange/__main__.py."""

    npy = "npy"
    bin = "bin"


@dataclass(frozen=True)
class DatasetConfig:
    """The dataset to export, or to make from imported files."""

    path: str = key(MISSING, "the dataset's directory", example="data/criteo")
    dense_transform: DenseTransform | None = key(None, "imports of bin: how integers become numbers; null: log1p")


@dataclass(frozen=True)
class ExchangeConfig:
    """The other program's files."""

    to: str | None = key(None, "directory to export to")
    source: str | None = key(None, "directory to import from")
    format: ExchangeFormat = key(ExchangeFormat.npy, "format of the other program's files")


@dataclass(frozen=True)
class InterchangeConfig:
    """Configuration of `clickwork interchange`."""

    data: DatasetConfig = field(default_factory=DatasetConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
