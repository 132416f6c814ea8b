"""The configuration of a job that another program starts: ready-made values, then that program's own."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError
from common.help import groups_of, keys_of
from data_prep.config.keys import DataConfig

# The only argument of `python -m data_prep` where its configuration is a pickled PrepConfig on standard input.
PICKLED = "--pickled"
CONFIG_DIRECTORY = Path(__file__).parents[1] / "conf"


def compose_data(source: str, given: Mapping[str, Mapping[str, Any]]) -> DataConfig:
    """The defaults, the values of data=`source`, then the given ones in turn; keys whose value is None are skipped.

    Args:
        given: nested values by the prefix under which the user knows their keys, e.g. {"data.prep": {"workers": 2}}.

    Raises:
        UserError: an unknown source or key, or a value of the wrong type.
    """
    sources = groups_of(CONFIG_DIRECTORY)["data"]
    if source not in sources:
        raise UserError(f"data.source={source}: must be one of {', '.join(sources)}")
    config = OmegaConf.merge(DataConfig, OmegaConf.load(CONFIG_DIRECTORY / "data" / f"{source}.yaml"))
    for prefix, values in given.items():
        for key, value in values.items():
            try:
                config = config if value is None else OmegaConf.merge(config, {key: value})
            except OmegaConfBaseException as error:
                named = error.full_key or key
                close = difflib.get_close_matches(named, [known for known, *_ in keys_of(DataConfig)], n=1)
                remedy = f"did you mean {prefix}.{close[0]}?" if close else "docs/data.md lists the keys"
                raise UserError(f"{prefix}.{named}: {str(error).splitlines()[0]}; {remedy}") from error
    return OmegaConf.to_object(config)  # type: ignore[return-value]
