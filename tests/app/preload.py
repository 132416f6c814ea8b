"""What the server that entry points are forked from does once for all of them: see conftest.forked.

It imports the commands and what they import later, composes their configurations once (ANTLR learns a grammar as it
parses), and hides what it holds from the collector, so that no fork walks through all of it nor copies its pages.
"""

import gc
import tempfile

import torch.utils.serialization  # noqa: F401

from app import trackers  # noqa: F401
from app.commands import COMMANDS
from app.config.app_config import CONFIG_DIR, AppConfig
from common.compose import compose_config, compose_partly
from common.extensions import load
from tests.app import conftest  # noqa: F401

for command in COMMANDS.values():
    load(command.function)
    if command.schema is not None:
        compose_partly(load(command.schema), command.config_dir, [], command.config)
compose_config(AppConfig, CONFIG_DIR, ["model.dense_arch=[32,16]", "run.name=x", "data.path=/a-b/c_0", "optimizer=sgd"])
tempfile.gettempdir()  # known, when a fork drops the variable that names it
gc.collect()
gc.freeze()
