"""`python -m app.train`, but process 1 is killed in step 49, and, started again at step 25, in step 49.

That is as late as it can be before the next save, since a save ends while further steps are made.
"""

import os

from app.commands import COMMANDS
from app.training import session
from common.cli import run
from tests.app import inject

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        step = {"0": 49, "1": 24}[os.environ["TORCHELASTIC_RESTART_COUNT"]]
        inject.at_call(session.Session, "begin_step", step, inject.kill)
    run(COMMANDS["train"])
