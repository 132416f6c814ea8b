"""Fixtures of the pretended device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.once import made_once
from tests.pretend_cuda import build
from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import train

ROWS = {"train": 1_000, "val": 200, "test": 20}


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Two pretended GPUs."""
    if reason := build.why_not():
        pytest.skip(reason)
    made_once(tmp_path_factory, "pretend_cuda_library", lambda directory: build.library())
    machine = Machine()
    yield machine
    machine.close()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One id a bag."""
    return made_once(tmp_path_factory, "pretend_cuda_dataset", lambda root: write_dataset(root, ROWS))


@pytest.fixture(scope="session")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags of none to many ids."""
    return made_once(tmp_path_factory, "pretend_cuda_ragged", lambda root: write_ragged_dataset(root, ROWS))


@pytest.fixture(scope="session")
def runs(machine: Machine, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the quick tests look at, made by one of the processes that run tests.

    refusals, and runs: cpu, cuda, adagrad (with counts of its steps).
    """

    def make(directory: Path) -> None:
        process = machine.run("tests.pretend_cuda.refusals", cwd=directory / "refusals")
        assert process.returncode == 0, process.stderr
        train(machine, directory / "cpu", dataset, "cpu")
        train(machine, directory / "cuda", dataset, "cuda")
        train(
            machine,
            directory / "adagrad",
            dataset,
            "cuda",
            "optimizer=adagrad",
            environment={"PRETEND_CUDA_COUNTS": str(directory / "counts")},
        )

    return made_once(tmp_path_factory, "pretend_cuda_runs", make)
