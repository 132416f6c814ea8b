"""Fixtures of the pretended device."""

from pathlib import Path

import pytest

from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.once import made_once
from tests.pretend_cuda import device
from tests.pretend_cuda.runs import command, train

ROWS = {"train": 1_000, "val": 200, "test": 20}


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two pretended GPUs."""
    if reason := device.why_not():
        pytest.skip(reason)
    made_once(tmp_path_factory, "pretend_cuda_library", lambda directory: device.library())


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One id a bag."""
    return made_once(tmp_path_factory, "pretend_cuda_dataset", lambda root: write_dataset(root, ROWS))


@pytest.fixture(scope="session")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags of none to many ids."""
    return made_once(tmp_path_factory, "pretend_cuda_ragged", lambda root: write_ragged_dataset(root, ROWS))


@pytest.fixture(scope="session")
def runs(machine: None, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the quick tests look at: refusals, and runs: cpu, cuda, adagrad (with counts of its steps)."""

    def make(directory: Path) -> None:
        command("tests.pretend_cuda.programs", directory / "refusals", "refusals")
        train(directory / "cpu", dataset, "cpu")
        train(directory / "cuda", dataset, "cuda")
        counts = {"PRETEND_CUDA_COUNTS": str(directory / "counts")}
        train(directory / "adagrad", dataset, "cuda", "optimizer=adagrad", environment=counts)

    return made_once(tmp_path_factory, "pretend_cuda_runs", make)
