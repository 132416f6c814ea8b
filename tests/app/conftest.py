"""Fixtures of the training side."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import runtime
from app.config import RuntimeConfig
from tests.app.datasets import write_dataset

REPOSITORY = Path(__file__).parent.parent.parent
SMALL = ["model.dense_arch=[32,16]", "model.over_arch=[32,1]", "train.global_batch_size=64",
         "train.log_every_steps=1", "runtime.num_threads=1", "runtime.platform=cpu"]  # fmt: skip

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def here() -> Iterator[runtime.Runtime]:
    """This test process as world size 1 of the distributed path."""
    yield runtime.start(RuntimeConfig(num_threads=1), seed=0, deterministic=True)
    runtime.stop()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset in shards of several sizes."""
    root = tmp_path_factory.mktemp("dataset")
    write_dataset(root)
    return root


@pytest.fixture
def run_app(tmp_path: Path) -> Command:
    """Run `python -m app.<name>` in a process of its own, in tmp_path, on `processes` processes."""

    def run(name: str, *overrides: str, processes: int = 1) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            app_command(name, *overrides, processes=processes),
            cwd=tmp_path, env=app_environment(), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    return run


def app_command(name: str, *overrides: str, processes: int = 1) -> list[str]:
    """The command line; several processes meet through a file-free store on a free port."""
    python = [sys.executable, "-m"]
    if processes > 1:
        python += ["torch.distributed.run", "--nproc-per-node", str(processes), "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "-m"]  # fmt: skip
    return [*python, f"app.{name}", *overrides]


def app_environment() -> dict[str, str]:
    """The environment with this checkout importable and no leftovers of a launcher."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**environment, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
