"""Keys of `python -m app.reproduce`."""

from dataclasses import dataclass
from pathlib import Path

from app.config import AppConfig, validate_new_run
from app.config.train import validate_new_name
from common.errors import UserError
from common.keys import key


@dataclass(frozen=True)
class ReproduceConfig(AppConfig):
    """Configuration of `python -m app.reproduce`: a run's, with its seeds and directory."""

    seeds: int = key(5, "number of runs, with train.seed from 1 on", at_least=1)
    out: str = key("runs/${run.name}", "directory of the runs, reproduce.json and reproduce.html", is_name=True)
    processes: int | None = key(None, "processes of each run, started by app.launch; null: one", at_least=1)


def validate_reproduce(config: ReproduceConfig) -> None:
    """Raise UserError for invalid values."""
    validate_new_run(config)
    try:
        validate_new_name(f"{Path(config.out).resolve().name}_seed_{config.seeds}")
    except UserError as error:
        fault = str(error).partition(": ")[2].partition(";")[0]
        raise UserError(
            f"out={config.out}: names the runs by its last part, and {fault}; choose a plain one"
        ) from error
