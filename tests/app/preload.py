"""What the server that entry points are forked from does once for all of them: see conftest.forked.

It imports them, composes a configuration once (ANTLR learns a grammar as it parses), and hides what it holds from the
collector, so that no fork walks through all of it nor copies its pages.
"""

import gc

from app import evaluate, export, launch, recommend, train, verify  # noqa: F401
from app.config import CONFIG_DIR, AppConfig
from common.compose import compose_config

compose_config(AppConfig, CONFIG_DIR, ["model.dense_arch=[32,16]", "run.name=x", "data.path=/a-b/c_0", "optimizer=sgd"])
gc.collect()
gc.freeze()
