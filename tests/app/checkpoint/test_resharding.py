"""A checkpoint goes on with other numbers of processes and other ways to spread the tables."""

from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import SMALL
from tests.app.group import train_group
from tests.app.run_files import losses, summary
from tests.once import made_once

COMMON = ["train.global_batch_size=48", "train.epochs=2"]  # 1, 2 and 3 processes have equal parts of 48 rows


def train(cwd: Path, dataset: Path, processes: int, *overrides: str) -> None:
    config = [*SMALL, f"data.path={dataset}", "run.name=x", "baselines=false", *overrides]
    assert train_group(config, processes, cwd) == [0] * processes, (cwd / "group.log").read_text()


@pytest.fixture
def whole(algorithm: str, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The optimizer's run of one process, not interrupted."""

    def make(cwd: Path) -> None:
        train(cwd, dataset, 1, *COMMON, f"optimizer={algorithm}", "train.max_steps=30")

    return made_once(tmp_path_factory, f"resharding_{algorithm}", make) / "runs/x"


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    ("algorithm", "first", "second"),
    [
        ("rowwise_adagrad", (2, "row_wise"), (1, "table_wise")),
        ("rowwise_adagrad", (3, "data_parallel"), (2, "table_row_wise")),
        ("adagrad", (2, "column_wise"), (3, "data_parallel")),
        ("sgd", (2, "table_column_wise"), (2, "grid_shard")),
    ],
)
def test_a_checkpoint_goes_on_elsewhere(
    algorithm: str, first: tuple[int, str], second: tuple[int, str], whole: Path, dataset: Path, tmp_path: Path
) -> None:
    for (processes, kind), steps in ((first, 15), (second, 30)):
        keys = [f"optimizer={algorithm}", f"train.max_steps={steps}", f"sharding.types={kind}"]
        train(tmp_path, dataset, processes, *COMMON, *keys)
    moved = tmp_path / "runs/x"
    assert summary(moved)["world_size"] == second[0]
    assert len(losses(moved)) == 30
    np.testing.assert_allclose(losses(moved), losses(whole), rtol=1e-5)
    assert summary(moved)["eval"]["auc"] == pytest.approx(summary(whole)["eval"]["auc"], rel=1e-5)
    log = (tmp_path / "group.log").read_text()
    assert "results agree with an uninterrupted run within rounding only" in log
