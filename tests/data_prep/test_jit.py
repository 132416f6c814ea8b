import os
import subprocess
import sys
from pathlib import Path

from tests.data_prep.conftest import REPOSITORY

PROGRAM = """
from data_prep.jit import compile_notice
from data_prep.kernels import compile_kernels

with compile_notice("the parser"):
    compile_kernels()
with compile_notice("nothing"):
    compile_kernels()
"""


def test_compiling_is_told_once_and_loading_never(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, env=environment, capture_output=True, text=True,
                       check=True).stderr
        for _ in range(2)
    ]  # fmt: skip
    assert told == ["compiling the parser (once; the result is cached) ...\n", ""]
