"""What the tests of data_prep share: the real rows, the command line, datasets as arrays."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.compose import compose_config
from data_prep.config import CONFIG_DIRECTORY, DataConfig, PrepConfig
from data_prep.dataset.format import Manifest, load_manifest, open_shard
from data_prep.pipeline import preprocess
from tests.data_prep import oracle
from tests.data_prep.mirror import Mirror
from tests.forks import run_module

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "tests/golden/reference"  # rows, and what other programs make of them
# Criteo's rows may not be redistributed: whoever has some can have them tried besides.
REAL_ROWS = os.environ.get("CLICKWORK_REAL_ROWS")
SPLITS = ("train", "val", "test")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="session", params=[str(REFERENCE / "rows.tsv"), *([REAL_ROWS] if REAL_ROWS else [])])
def rows(request: pytest.FixtureRequest) -> Path:
    """A file of rows in Criteo's format: generated, and real ones where CLICKWORK_REAL_ROWS names a file."""
    return Path(request.param)


@pytest.fixture
def criteo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`torchrec.datasets.criteo`, with what it asks of iopath, which it does not install: opening local files."""
    module = pytest.importorskip("torchrec.datasets.criteo")
    manager = SimpleNamespace(open=open, set_strict_kwargs_checking=lambda strict: None)
    file_io = ModuleType("iopath.common.file_io")
    vars(file_io)["PathManagerFactory"] = lambda: SimpleNamespace(get=lambda key: manager)
    for name in ("iopath", "iopath.common"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "iopath.common.file_io", file_io)
    return module


@pytest.fixture
def mirror() -> Iterator[Any]:
    server = Mirror()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def config(*overrides: str) -> DataConfig:
    """As the command line gives it, but for one worker unless it says otherwise: starting others takes time."""
    return compose_config(PrepConfig, CONFIG_DIRECTORY, ["data.workers=1", *overrides]).data


def prepare(*overrides: str) -> Manifest:
    """Prepare a dataset in this process, with one worker unless the command line says otherwise."""
    return preprocess(config(*overrides))


def seeds(fast: int, count: int) -> list[Any]:
    """Seeds of draws, those after the first few for the slow tests alone."""
    return [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= fast)) for seed in range(count)]


def write_rows(directory: Path, rows: int = 60, seed: int = 0) -> list[str]:
    """Write drawn rows in Criteo's format; the keys that name them, and a dataset `out` beside them."""
    (directory / "rows.tsv").write_bytes(oracle.make_rows(rows, seed))
    return [f"data.raw={directory}/rows.tsv", f"data.path={directory}/out"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("data_prep", *arguments, cwd=REPOSITORY)


def load_split(root: Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """labels [rows], dense, sparse of a split, all shards."""
    manifest = load_manifest(root)
    shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
    if not shards:
        return (
            np.zeros(0, np.int32),
            np.zeros((0, len(manifest.schema["dense"])), manifest.dense_dtype),
            np.zeros((0, len(manifest.schema["sparse"]) - len(manifest.ragged)), np.int32),
        )
    labels = np.concatenate([shard.labels[:, 0] for shard in shards])
    return labels, np.concatenate([s.dense for s in shards]), np.concatenate([s.sparse for s in shards])


def load_rows(root: Path) -> list[NDArray[Any]]:
    """The same of all splits, one after the other."""
    return [np.concatenate(parts) for parts in zip(*(load_split(root, split) for split in SPLITS), strict=True)]


def sums(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*.npy"))}
