"""`python -m app.train`, but before torchrun has started it again process 1 is killed in step 35."""

import os

from app import run, runtime, train
from app.config import CONFIG_DIR, AppConfig
from common.cli import run_command
from tests.app import inject

if __name__ == "__main__":
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        inject.at_call(run.optimizer, "set_learning_rate", 35, inject.kill)
    runtime.leave(run_command(train.main, AppConfig, CONFIG_DIR))
