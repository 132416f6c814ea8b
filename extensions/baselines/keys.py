"""Keys of `python -m app.baselines`."""

from dataclasses import dataclass, field

from app.config.commands import DatasetConfig
from common.keys import MISSING, key


@dataclass(frozen=True)
class BaselinesConfig:
    """Configuration of `python -m app.baselines`."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    data: DatasetConfig = field(default_factory=DatasetConfig)
    rows: int | None = key(
        None, "maximum rows of each split, in blocks chosen by a hash of their number; null: all", at_least=10_000
    )
    seconds: float | None = key(None, "time for all baselines; an unfinished baseline is null; null: no limit", above=0)
