"""What the server that commands and workers are forked from does once for all of them: see tests.forks."""

import gc
from pathlib import Path

import data_prep
from common.compose import compose_config
from data_prep.config import PrepConfig
from data_prep.stages import parse  # noqa: F401
from tests import forks  # noqa: F401

compose_config(PrepConfig, Path(data_prep.__file__).parent / "conf", ["data.raw=/a-b/c_0", "data.path=x"])
gc.collect()
gc.freeze()
