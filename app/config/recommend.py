"""The configuration of `python -m app.recommend`."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from app.config.checks import require_at_least
from app.config.runtime import RuntimeConfig
from common.errors import UserError

OUT_SUFFIXES = (".json", ".csv")


@dataclass
class RecommendConfig:
    """Which run scores which candidates, and how many of them are wanted."""

    run: str = MISSING  # the run's directory
    candidates: str = MISSING  # TSV, CSV, Parquet, JSON lines, or a JSON object of one user and the candidates
    user: str | None = None  # a file of one row, in any of these forms: the columns that the candidates lack
    id_column: str = "id"  # names the candidates, if there is such a column; else they are numbered from 1
    top_k: int | None = 10  # how many to show, best first; null: all
    out: str | None = None  # also write them to this .json or .csv file
    checkpoint: str | None = None  # null: the run's newest
    data_path: str | None = None  # null: where the run found its dataset
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: those of the run unless given


def validate_recommend(config: RecommendConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least({"top_k": (config.top_k, 1)})
    if config.out is not None and not config.out.endswith(OUT_SUFFIXES):
        raise UserError(f"out={config.out}: the name must end in {' or '.join(OUT_SUFFIXES)}")
