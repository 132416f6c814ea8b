"""Keys of `python -m app.tune`."""

from dataclasses import dataclass
from typing import Any

from app.config import AppConfig, validate_new_run
from common.errors import UserError
from common.keys import key
from extensions.tune.space import space_of

# Keys that may not be searched, with the reason.
NOT_SEARCHED = {
    "data.": "all trials read one dataset; prepare others, and tune on each",
    "run.": "each trial has its own directory",
    "checkpoint.": "it does not change what is learned",
    "record.": "it does not change what is learned",
    "eval.": "trials must be measured alike",
    "train.seed": "finalists are compared over seeds=N",
    "train.monitor": "trials must be measured alike",
}


@dataclass(frozen=True)
class TuneConfig(AppConfig):
    """Configuration of `python -m app.tune`: a run's, with the settings to search."""

    search: dict[str, Any] = key(
        {}, "values to try of each dotted key: a list, or [low,high] with a fraction or an exponent for all between"
    )
    trials: int = key(20, "settings to try; the first is the configuration as it is", at_least=1)
    finalists: int = key(2, "the best settings, which are trained at every seed beside the first", at_least=1)
    seeds: int = key(3, "seeds of each finalist, from train.seed on", at_least=2)
    out: str = key("runs/tune", "directory of the trials, tune.db, tune.json and tune.html", is_name=True)


def validate_tune(config: TuneConfig) -> None:
    """Raise UserError for invalid values."""
    validate_new_run(config)
    if not config.search:
        raise UserError("search: no key is searched; give for instance search.optimizer.lr=[1e-3,1e-1]")
    for name in space_of(config.search):
        for prefix, reason in NOT_SEARCHED.items():
            if name.startswith(prefix):
                raise UserError(f"search.{name}: is not searched: {reason}")
    if config.eval.split == "test":
        raise UserError("eval.split=test: trials are judged on val, and test is scored once; leave eval.split out")
