"""Keys that would have no effect are refused: whoever sets one expects something of it."""

from common.errors import UserError
from data_prep.config.keys import DataConfig, SplitConfig
from data_prep.dataset.options import DataSource, SplitMethod

SEEDED = (SplitMethod.random, SplitMethod.scikit_learn)
GROUPS = {"synthetic": DataSource.synthetic, "remote": DataSource.remote}


def refuse_idle_choices(data: DataConfig) -> None:
    """Raises UserError for a key that has no effect beside the others; which splits are used is seen later."""
    usual = DataConfig()
    for group, source in GROUPS.items():
        here, there = vars(getattr(data, group)), vars(getattr(usual, group))
        for key, value in here.items():
            if data.source is not source and value != there[key]:
                raise UserError(f"data.{group}.{key}: has no effect with data={data.source.value}; leave it out")
    if data.sampling.seed != usual.sampling.seed and not data.sampling.negative_drop_rate:
        raise UserError("data.sampling.seed: has no effect without data.sampling.negative_drop_rate; leave it out")


def refuse_idle_split_keys(split: SplitConfig, method: SplitMethod) -> None:
    """Raises UserError for a key of the split that has no effect with its method."""
    usual = SplitConfig()
    if split.seed != usual.seed and method not in SEEDED:
        raise UserError(f"data.split.seed: has no effect with data.split.method={method.value}; leave it out")
    if split.held_out != usual.held_out and method is SplitMethod.last_day:
        raise UserError("data.split.held_out: has no effect with data.split.method=last_day; use fraction, or leave it")
