"""`python -m app.train`, but process 1 is killed in step 35, and, started again at step 25, in step 45."""

import os

from app import train
from app.config import CONFIG_DIR, AppConfig
from app.runtime import platform
from app.training import session
from common.cli import run_command
from tests.app import inject

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        step = {"0": 35, "1": 20}[os.environ["TORCHELASTIC_RESTART_COUNT"]]
        inject.at_call(session.Session, "begin_step", step, inject.kill)
    platform.leave(run_command(train.main, AppConfig, CONFIG_DIR))
