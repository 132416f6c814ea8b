"""A process's memory, as the system counts it."""

import subprocess
import sys

import pytest

# Five times 200 MB in blocks of 40 MB, written to and freed: page faults once the first round has been through.
BLOCKS = """
import resource
import sys

import numpy as np

from common.machine import keep_freed_memory


def blocks():
    return [np.ones(40_000_000, np.uint8) for _ in range(5)] and None


def faults():
    blocks()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


given_back = faults()
if not keep_freed_memory():
    sys.exit("not glibc")
print(given_back, faults())
"""


@pytest.mark.medium
def test_large_blocks_are_used_again() -> None:
    """A page of 4 KiB (or a huge one) is faulted in each time it is fresh; kept memory has its pages."""
    process = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=False)
    if process.stderr.strip() == "not glibc":
        pytest.skip("only glibc's allocator is set to keep memory")
    assert process.returncode == 0, process.stderr
    fresh_faults, reused_faults = map(int, process.stdout.split())
    assert fresh_faults > 1000  # of 244,000 pages, 500 where they are huge
    assert reused_faults < fresh_faults / 5
