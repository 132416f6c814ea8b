"""The recipe mlperf_v4: its parameters, tiny form and grid of evaluations."""

import json
from pathlib import Path

import pytest

from app.config.app_config import validate
from app.config.model import published_tables
from app.config.train import TrainConfig, evaluation_steps
from app.training import meta_build
from app.training.state import RunLength
from tests.app.conftest import Command, composed

YAMBDA = {"train": 2_290_835_423, "val": 2_058_204}  # samples


def test_the_recipe_has_the_parameters_of_its_source() -> None:
    config = composed("recipe=mlperf_v4")
    validate(config)
    assert sum(published_tables("mlperf_v4").rows.values()) == 293_051_712
    assert meta_build.parameter_counts(meta_build.meta_model(config))["total"] == 293_051_712 * 512 + 15_243_057
    assert config.run.name == config.published.recipe == "mlperf_v4"
    tiny = composed("recipe=mlperf_v4", "data.scale=tiny")
    validate(tiny)
    assert vars(tiny.model) == vars(config.model)


@pytest.mark.slow("processes")
def test_the_recipe_trains_tiny(run_app: Command, tmp_path: Path) -> None:
    """Stopped and resumed; generated events have no such crosses as Yambda's."""
    overrides = ["recipe=mlperf_v4", "data.scale=tiny", "train.log_every_steps=1", "eval.global_batch_size=512"]
    overrides += ["run.name=tiny", "data.synthetic_events.users=50", "train.target_auc=null"]
    for steps in (2, 4):
        process = run_app("train", *overrides, "runtime.num_threads=2", f"train.max_steps={steps}")
    assert "resume: from runs/tiny/checkpoints/step_00000002, step 2" in process.stderr
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_bytes())
    assert (summary["status"], summary["steps"]) == ("completed", 4)
    assert len(json.loads((tmp_path / "runs/tiny/manifest.json").read_bytes())["tables"]) == 7


@pytest.mark.parametrize(("batch", "every", "blocks"), [(8192, 280, 25), (16_384, 140, 31), (32_768, 70, 41)])
def test_the_grid_of_dlrmv4_is_the_rules(batch: int, every: int, blocks: int) -> None:
    """By hand: 2,290,835.423 samples in whole steps; the rules name the block of the first evaluation."""
    train = composed("recipe=mlperf_v4", f"train.global_batch_size={batch}").train
    assert evaluation_steps(train, YAMBDA["train"]) == (every, blocks * every)
    assert every * batch == 2_293_760
    length = length_of(train)
    steps, step = [], 0
    while step < (blocks + 2) * every:
        step = length.next_evaluation(step)
        steps.append(step)
    assert steps == [blocks * every, (blocks + 1) * every, (blocks + 2) * every]
    assert length.next_evaluation(length.total_steps - 1) == length.total_steps


def length_of(train: TrainConfig) -> RunLength:
    """Return the length of a run over all of Yambda's samples."""
    steps, (every, first) = YAMBDA["train"] // train.global_batch_size, evaluation_steps(train, YAMBDA["train"])
    return RunLength(steps, steps, train, first, every)
