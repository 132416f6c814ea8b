"""The installed command where the training stack was not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.command import REMEDIES
from tests.app.conftest import REPOSITORY
from tests.error_lines import error_line


@pytest.mark.parametrize(
    "missing", ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fbgemm_gpu", "torchrec", "isal"))]
)
def test_a_missing_part_of_the_stack_is_one_line_with_its_remedy(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(name={missing!r})\n")  # in place of the package
    command = [sys.executable, "-m", "app", "train"]
    process = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
    )
    assert process.returncode == 2, process.stderr
    assert error_line(process.stderr) == f"error: {missing} is not installed beside clickwork; {REMEDIES[missing]}"
