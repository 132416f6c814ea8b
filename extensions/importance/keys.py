"""Keys of `python -m app.importance`."""

from dataclasses import dataclass, field

from app.config.commands import CHECKPOINT, DatasetConfig
from app.config.train import RuntimeConfig
from common.keys import MISSING, key


@dataclass(frozen=True)
class ImportanceConfig:
    """Configuration of `clickwork importance`."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    split: str | None = key(None, "split whose rows are scored; null: the run's eval.split", example="test")
    rows: int = key(20_000, "maximum rows, in blocks chosen by a hash of their number", at_least=1)
    repeats: int = key(5, "permutations of each feature", at_least=2)
    seed: int = key(1, "seed of the permutations", at_least=0)
    seconds: float | None = key(300.0, "time after which no further feature is begun; null: no limit", above=0)
    slices: list[str] = key([], "categorical columns; metrics by value of each", example="[user]")
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    data: DatasetConfig = field(default_factory=DatasetConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: the run's unless given
