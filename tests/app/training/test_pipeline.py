"""The pipeline changes when ids travel and nothing else: every run has the bits of one without it."""

from pathlib import Path

import pytest
import torch

from app.config import Pipeline
from app.training.data_loader import uses_pipeline
from tests.app.conftest import SMALL, ended, forked
from tests.app.group import run_whole
from tests.app.run_files import losses, summary

STEPS = 35  # 31 make an epoch: the pipeline runs empty there, at evaluations and at the end
LAYOUTS = {
    "row_wise": ["sharding.types=row_wise"],
    "table_wise": ["sharding.types=table_wise", "train.eval_every_steps=null"],
    "mixed": [
        "sharding.types=column_wise",
        "+sharding.tables.cat_1.types=data_parallel",
        "+sharding.tables.cat_3.types=table_wise",
    ],
    "bags": ["sharding.types=row_wise", "optimizer=rowwise_adagrad"],
    "bags_by_id": [
        "+model.tables.overrides.tags.kind=qr",
        "+model.tables.overrides.tags.qr_collisions=3",
        "+model.tables.overrides.genres.pooling=weighted",
        "sharding.types=table_wise",
    ],
}


@pytest.mark.slow("examples")
@pytest.mark.parametrize(
    ("world_size", "layouts"), [(1, ["bags"]), (2, ["table_wise", "bags"]), (2, ["row_wise", "mixed", "bags_by_id"])]
)
def test_the_bits_are_the_same(
    world_size: int, layouts: list[str], dataset: Path, ragged: Path, tmp_path: Path
) -> None:
    """Over an epoch's end and evaluations, with one id a bag and many, pooled and id by id."""
    names = [(layout, pipeline) for layout in layouts for pipeline in ("none", "sparse_dist")]
    results = run_whole(
        [
            [
                *SMALL,
                f"data.path={ragged if 'bags' in layout else dataset}",
                f"run.name={layout}_{pipeline}",
                f"run.dir={tmp_path}/{layout}_{pipeline}",
                f"train.max_steps={STEPS}",
                "train.eval_every_steps=15",
                f"train.pipeline={pipeline}",
                *LAYOUTS[layout],
            ]
            for layout, pipeline in names
        ],
        world_size,
        tmp_path / "results.json",
    )
    for layout, plain, piped in zip(layouts, results[::2], results[1::2], strict=True):
        assert plain["steps"] == piped["steps"] == STEPS
        assert plain["digest"] == piped["digest"], layout
        assert plain["eval"] == piped["eval"], layout


@pytest.mark.slow("processes")
def test_a_stop_loses_no_batch(dataset: Path, tmp_path: Path) -> None:
    """Batches that were under way when a signal came are read again, once."""
    common = [*SMALL, f"data.path={dataset}", f"train.max_steps={STEPS}", "sharding.types=row_wise"]
    piped, run = [*common, "run.name=piped", "train.pipeline=sparse_dist"], tmp_path / "runs/piped"
    plain = ended(forked("train", *common, "run.name=plain", cwd=tmp_path, processes=2), tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert "pipeline: none" in plain.stderr
    stopped = ended(forked("train", *piped, cwd=tmp_path, processes=2, fault="SIGTERM in the step:15"), tmp_path)
    assert stopped.returncode == 75, stopped.stderr
    assert "pipeline: sparse_dist" in stopped.stderr
    assert summary(run)["steps"] == 20  # processes ask each other every 10 steps
    process = ended(forked("train", *piped, cwd=tmp_path, processes=2), tmp_path)
    assert process.returncode == 0, process.stderr
    assert losses(run) == losses(tmp_path / "runs/plain")
    assert summary(run)["digest"] == summary(tmp_path / "runs/plain")["digest"]


def test_auto_means_several_processes_with_a_gpu_each() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert [uses_pipeline(Pipeline.auto, device, size) for device in (cpu, gpu) for size in (1, 2)] == [
        False,
        False,
        False,
        True,
    ]
    assert uses_pipeline(Pipeline.sparse_dist, cpu, 1)
    assert not uses_pipeline(Pipeline.none, gpu, 8)
