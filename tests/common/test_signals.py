"""Signals of a launcher's end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCHER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
PROCESS = """
import os, time
from common import signals

signals.end_with_parent()
stop = signals.StopRequest("stopping", lambda: "nothing is saved")
print(os.getpid(), flush=True)
while not stop:
    time.sleep(0.01)
time.sleep(0.6)
print("ended in order", flush=True)
"""


@pytest.mark.medium
def test_a_launcher_s_end_that_is_reported_twice_is_one_request() -> None:
    """As the kernel does of a launcher with several threads, which end one after another."""
    command = [sys.executable, "-c", LAUNCHER, PROCESS]
    launcher = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.kill()
    time.sleep(0.2)
    os.kill(pid, signal.SIGTERM)
    assert launcher.stdout.readline() == "ended in order\n"
    launcher.wait()
