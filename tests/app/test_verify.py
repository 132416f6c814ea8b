"""`python -m app.verify` tells a run that replays from one that does not, and where."""

import hashlib
import io
import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
import yaml
from torch.distributed.checkpoint import FileSystemReader

from tests.app.conftest import REPOSITORY, SMALL, Command
from tests.app.run_files import rewrite_state


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_replays_to_the_same_bits(processes: int, run_app: Command, dataset: Path) -> None:
    """Though it was stopped half-way, was evaluated and kept checkpoints."""
    overrides = [*SMALL, f"data.path={dataset}", "run.name=run", "train.eval_every_steps=15"]
    overrides += ["checkpoint.every_steps=9"]
    for steps in (20, 40):
        run_app("train", *overrides, f"train.max_steps={steps}", processes=processes)
    result = run_app("verify", "run=runs/run", processes=processes)
    report = json.loads(result.stdout)
    assert report["verdict"] == "identical"
    assert report["steps"] == 40
    assert report["losses"] is None
    assert report["tensors"] == {}
    assert report["compared_at"][-1] == 40
    assert len(report["compared_at"]) >= 2
    assert not [line for line in report["changed_since"] if "WORLD_SIZE" in line or "world_size" in line]


def test_another_learning_rate_is_found_out(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    run_app("train", *SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=20")
    path = tmp_path / "runs/run/config.yaml"
    config = yaml.safe_load(path.read_text())
    config["optimizer"]["lr"] *= 1.5
    path.write_text(yaml.safe_dump(config))
    result = run_app("verify", "run=runs/run", status=1)
    report = json.loads(result.stdout)
    assert report["verdict"] == "different"
    assert report["losses"]["first_step"] == 2  # the first loss comes before the first update
    assert "losses differ from step 2 on" in result.stderr
    assert report["tensors_at_step"] == 20
    assert set(report["tensors"]) >= {"t_cat_0", "over_arch.0.weight", "optimizer's t_cat_0.momentum1"}
    assert next(iter(report["tensors"])) == "t_cat_0"
    assert len(report["tensors"]["t_cat_0"]["first_element"]) == 2


@pytest.mark.slow("processes")
def test_another_number_of_processes_is_within_tolerance(run_app: Command, dataset: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=20", "optimizer=sgd"]
    run_app("train", *overrides, processes=2)
    result = run_app("verify", "run=runs/run")
    report = json.loads(result.stdout)
    assert report["verdict"] == "equal within tolerance"
    assert 0 < report["largest_difference"] < 1e-4
    assert "start with NPROC=2" in result.stderr
    assert "world_size: 2 then, 1 now" in report["changed_since"]


@pytest.mark.slow("processes")
def test_bits_are_equal_up_to_where_the_processes_changed(run_app: Command, dataset: Path) -> None:
    """Two processes, then one: a replay by two has the bits of the first part, and says so."""
    overrides = [*SMALL, f"data.path={dataset}", "run.name=run", "sharding.types=row_wise", "checkpoint.keep=9"]
    overrides += ["train.eval_every_steps=5"]
    for steps, processes in ((10, 2), (20, 1)):
        run_app("train", *overrides, f"train.max_steps={steps}", processes=processes)
    result = run_app("verify", "run=runs/run", processes=2)
    report = json.loads(result.stdout)
    assert report["verdict"] == "equal within tolerance"
    assert report["bits_can_be_equal_until"] == 10
    assert report["changed_since"] == ["steps from 11 on: world_size: 1 then, 2 now"]
    assert report["losses"]["first_step"] > 10
    assert report["tensors_at_step"] > 10
    assert 10 in report["compared_at"]
    assert "no recorded condition has changed" not in result.stderr


@pytest.mark.slow("processes")
def test_the_checkpoint_and_the_tensor_of_the_first_difference_are_named(
    run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    """Somebody changed one value of one table in the checkpoint of step 20, sums and all; steps 10 and 30 are whole."""
    overrides = [*SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=30", "checkpoint.every_steps=10"]
    overrides += ["checkpoint.keep=9", "checkpoint.keep_best=false", "optimizer=sgd"]
    run_app("train", *overrides)
    path = tmp_path / "runs/run/checkpoints/step_00000020"
    change_one_value(path, ".t_cat_2.weight", row=7, column=3)
    result = run_app("verify", "run=runs/run", status=1)
    report = json.loads(result.stdout)
    assert report["compared_at"] == [10, 20, 30]
    assert report["losses"] is None
    assert report["tensors_at_step"] == 20
    assert list(report["tensors"]) == ["t_cat_2"]
    assert report["tensors"]["t_cat_2"]["first_element"] == [7, 3]
    assert "at step 20 (of the checkpoints, 10, 20, 30) the first tensor that differs is t_cat_2" in result.stderr


def change_one_value(checkpoint: Path, name: str, row: int, column: int) -> None:
    """Add 1 to one element of a checkpoint's tensor, in place, and make its sums good again."""
    reader = FileSystemReader(checkpoint)
    metadata = reader.read_metadata()
    (index,) = [index for index in metadata.storage_data if index.fqn.endswith(name) and "model." in index.fqn[:6]]
    info = metadata.storage_data[index]
    file = checkpoint / info.relative_path
    content = bytearray(file.read_bytes())
    tensor = torch.load(io.BytesIO(content[info.offset : info.offset + info.length]), weights_only=True)
    raw = tensor.numpy().tobytes()
    at = content.index(raw) + 4 * (row * tensor.shape[1] + column)
    content[at : at + 4] = struct.pack("<f", float(tensor[row, column]) + 1)
    file.write_bytes(content)
    state = json.loads((checkpoint / "state.json").read_bytes())
    state["files"][file.name]["sha256"] = hashlib.sha256(content).hexdigest()
    rewrite_state(checkpoint, state)


@pytest.mark.slow("processes")
def test_a_record_without_checkpoints_is_verified_by_its_figures(
    run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=20", "train.log_every_steps=7"]
    run_app("train", *overrides)
    shutil.rmtree(tmp_path / "runs/run/checkpoints")
    result = run_app("verify", "run=runs/run")
    assert json.loads(result.stdout)["verdict"] == "identical"
    assert json.loads(result.stdout)["same_digests"] == {"parameters": True, "losses": True}
    path = tmp_path / "runs/run/metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["event"] == "train" and line["step"] == 14:
            line["loss"] *= 1.01
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run_app("verify", "run=runs/run", status=1)
    assert json.loads(result.stdout)["losses"]["first_step"] == 14


def test_the_golden_run_replays(run_app: Command) -> None:
    """tests/golden/run is the record of a run made once (`make golden`): to the bit on its kind of machine and stack,
    within the tolerance elsewhere."""
    golden = REPOSITORY / "tests/golden"
    result = run_app("verify", f"run={golden}/run", f"data.path={golden}/data")
    report = json.loads(result.stdout)
    assert report["steps"] == 24
    assert report["compared_at"] == []
    assert report["evaluation"].keys() == {"logloss", "auc"}
    elsewhere = [line for line in report["changed_since"] if line.startswith(("versions ", "hardware cpu"))]
    assert report["verdict"] == "identical" or elsewhere, result.stderr
    assert report["largest_difference"] < 1e-4
