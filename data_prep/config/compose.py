"""The configuration of a job that another program starts: ready-made values, then that program's own."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.compose import ConversionError, convert
from common.errors import UserError
from common.help import groups_of
from common.keys import keys_of
from data_prep.config.keys import DataConfig

# The only argument of `python -m data_prep` where its configuration is a pickled PrepConfig on standard input.
PICKLED = "--pickled"
CONFIG_DIRECTORY = Path(__file__).parents[1] / "conf"


def compose_data(source: str, values_by_prefix: Mapping[str, Mapping[str, Any]]) -> DataConfig:
    """The defaults, the values of data=`source`, then `values_by_prefix` in turn; keys whose value is None are skipped.

    Args:
        values_by_prefix: nested values by the prefix of their keys for the user, e.g. {"data.prep": {"workers": 2}}.

    Raises:
        UserError: an unknown source or key, or a value of the wrong type.
    """
    sources = groups_of(CONFIG_DIRECTORY)["data"]
    if source not in sources:
        raise UserError(f"data.source={source}: must be one of {', '.join(sources)}")
    levels = [("", "", yaml.safe_load((CONFIG_DIRECTORY / "data" / f"{source}.yaml").read_text()))]
    for prefix, values in values_by_prefix.items():
        levels += [(prefix, key, {key: value}) for key, value in values.items() if value is not None]
    try:
        return convert(DataConfig, *(values for *_, values in levels))
    except ConversionError:
        for end, (prefix, key, _) in enumerate(levels, start=1):
            _refuse(prefix, key, [values for *_, values in levels[:end]])
        raise


def _refuse(prefix: str, key: str, levels: list[Any]) -> None:
    """Raises UserError if the last of the levels, the values of one key, does not fit."""
    try:
        convert(DataConfig, *levels)
    except ConversionError as error:
        wrong_key = error.key or key
        close = difflib.get_close_matches(wrong_key, [name for name, *_ in keys_of(DataConfig)], n=1)
        remedy = f"did you mean {prefix}.{close[0]}?" if close else "docs/data.md lists the keys"
        raise UserError(f"{prefix}.{wrong_key}: {error}; {remedy}") from error
