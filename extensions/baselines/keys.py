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
        None, "of a larger split at most this number of rows, blocks by a hash of theirs; null: all", at_least=10_000
    )
    seconds: float | None = key(
        None, "for all baselines, of which those not finished are null; null: no limit", above=0
    )
