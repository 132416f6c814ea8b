import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_prep.conftest import REPOSITORY

PROGRAM = """
import numpy as np
from data_prep.lookup import encode_hash
from common.jit import compile_notice

with compile_notice("the parser"):
    encode_hash(np.ones((1, 1), np.uint32), 2)
with compile_notice("nothing"):
    encode_hash(np.ones((1, 1), np.uint32), 2)
"""


@pytest.mark.slow("tool")
def test_compiling_is_told_once_and_loading_never(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("compiling the parser (once; the result is cached) ...\n", ""):
        process = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
        assert process.stderr == expected
