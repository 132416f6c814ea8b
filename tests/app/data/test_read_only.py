"""A finished dataset on a read-only disk: a run finds it, trains on it and evaluates on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runtime.platform import Runtime
from tests.app.conftest import SMALL, mounted_disk, remount
from tests.app.in_process import command_here, train_here
from tests.error_lines import refused

SOURCE = ["data.source=synthetic", "data.synthetic.rows=3000"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path, "64m") as disk:
        yield disk


@pytest.mark.medium
def test_a_dataset_on_a_read_only_disk_is_used(
    disk: Path, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = [*SMALL, *SOURCE, f"data.path={disk}/data", "record.tensorboard=false", "train.max_steps=3"]
    assert train_here(runtime, *base, "run.name=before") == "completed"
    remount(disk, "ro")
    assert train_here(runtime, *base, "run.name=after") == "completed"
    assert command_here(runtime, "evaluate", "run=runs/after", "split=val") == 0
    assert command_here(runtime, "verify", "run=runs/after") == 0
    other = [each.replace("rows=", "rows=1") for each in base]
    refused(r"data: (another dataset is there|.*rows is)", train_here, runtime, *other, "run.name=other")
    with pytest.raises(SystemExit):  # data_prep, in a process of its own, says why
        train_here(runtime, *base, f"data.path={disk}/new", "run.name=new")
