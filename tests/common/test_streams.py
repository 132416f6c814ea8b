"""What libraries in C write to standard output, and what we do."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import ctypes, sys
from common.signals import discard_native_stdout

c = ctypes.CDLL(None)
c.puts(b"native before")
print("before")
with discard_native_stdout():
    c.puts(b"native meanwhile")
    print("python meanwhile", file=sys.stderr)
c.puts(b"native after")
print("after")
"""


def test_native_output_is_dropped_only_meanwhile() -> None:
    """Into a pipe: there C keeps its output until its buffer is full, or it is told not to."""
    process = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(process.stdout.splitlines()) == ["after", "before", "native after", "native before"]
    assert process.stderr == "python meanwhile\n"
