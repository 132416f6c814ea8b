"""Encodings that repeat what others published leave some choices: what then differs is said."""

import sys

from data_prep.config.presets import RULES, Rules
from data_prep.dataset.options import Encoding

REPEATED = {
    Encoding.torchrec: "TorchRec's",
    Encoding.torchrec_fixed: "TorchRec's",
    Encoding.dlrm_kaggle: "facebookresearch/dlrm's",
    Encoding.amd_blog: "AMD's",
}


def departures(rules: Rules) -> list[str]:
    """The choices, as key=value, by which rows are not those that the encoding repeats."""
    if rules.encoding not in REPEATED:
        return []
    usual = RULES[rules.encoding]
    choices = {
        "data.dense_transform": (rules.dense.value, usual.dense.value),
        "data.split.method": (rules.split.value, usual.split.value),
        "data.max_ind_range": (rules.max_ind_range, usual.max_ind_range),
        "data.max_categories": (rules.max_categories, usual.max_categories),
        "data.sampling.negative_drop_rate": (rules.negative_drop_rate, usual.negative_drop_rate),
    }
    return [f"{key}={chosen}" for key, (chosen, published) in choices.items() if chosen != published]


def tell_departures(rules: Rules) -> None:
    """One line on stderr, where there are any."""
    found = departures(rules)
    if found:
        whose = REPEATED[rules.encoding]
        print(
            f"data.encoding={rules.encoding.value}: not {whose} rows any more, by {', '.join(found)}", file=sys.stderr
        )
