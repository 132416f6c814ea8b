"""Ready-made values of a source, which the values of a user or a recipe override."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from common.extensions import directories_of_values
from data_prep.dataset.options import GENERATORS, DataSource

# `python -m data_prep` with only this argument reads a pickled PrepConfig from standard input.
PICKLED = "--pickled"
CONFIG_DIRECTORY = Path(__file__).parents[1] / "conf"


def ready_made(data: Any, source: DataSource | None, given: Sequence[str]) -> dict[str, Any]:
    """Return the values that a source implies, and which keys of generators are given, by dotted key.

    Args:
        data: the composed values of `data`; given: dotted keys from the command line and from files.
    """
    keys = [key.removeprefix("data.") for key in given if key.startswith(tuple(f"data.{name}." for name in GENERATORS))]
    values = {"generator_settings": list(dict.fromkeys(keys))} if keys else {}
    if source is not None:
        paths = [path / "sources" / f"{source.value}.yaml" for path in directories_of_values(CONFIG_DIRECTORY)]
        ready = yaml.safe_load(next(path for path in paths if path.exists()).read_text(encoding="utf-8"))
        values |= {key: value for key, value in ready.items() if key == "remote" or data[key] is None}
    return {f"data.{key}": value for key, value in values.items()}
