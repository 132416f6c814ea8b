"""`python -m app.verify` tells a run that replays from one that does not, and where."""

import hashlib
import io
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.checkpoint import FileSystemReader

from tests.app.conftest import REPOSITORY, Command
from tests.app.run_files import rewrite_state

Verify = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def verified(run_app: Command) -> Verify:
    """Return what is reported of runs/run, and what is printed."""

    def verify(*overrides: str, **keywords: Any) -> tuple[dict[str, Any], str]:
        process = run_app("verify", *(overrides or ("run=runs/run",)), **keywords)
        return json.loads(process.stdout), process.stderr

    return verify


@pytest.mark.medium
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_replays_to_the_same_bits(processes: int, run_app: Command, verified: Verify, small: list[str]) -> None:
    """Though it was stopped half-way, was evaluated and kept checkpoints."""
    overrides = [*small, "run.name=run", "train.eval_every_steps=15", "checkpoint.every_steps=9"]
    for steps in (20, 40):
        run_app("train", *overrides, f"train.max_steps={steps}", processes=processes)
    report, _ = verified(processes=processes)
    assert (report["verdict"], report["steps"]) == ("identical", 40)
    assert (report["losses"], report["tensors"]) == (None, {})
    assert report["compared_at"][-1] == 40
    assert len(report["compared_at"]) >= 2
    assert not [line for line in report["changed_since"] if "WORLD_SIZE" in line or "world_size" in line]


@pytest.mark.medium
def test_another_learning_rate_is_found(run_app: Command, verified: Verify, small: list[str], tmp_path: Path) -> None:
    run_app("train", *small, "run.name=run", "train.max_steps=20")
    path = tmp_path / "runs/run/config.yaml"
    config = yaml.safe_load(path.read_text())
    config["optimizer"]["lr"] *= 1.5
    path.write_text(yaml.safe_dump(config))
    report, err = verified(status=1)
    assert (report["verdict"], report["tensors_at_step"]) == ("different", 20)
    assert report["losses"]["first_step"] == 2  # the first loss comes before the first update
    assert "losses differ from step 2 on" in err
    assert set(report["tensors"]) >= {"t_cat_0", "over_arch.0.weight", "optimizer's t_cat_0.momentum1"}
    assert next(iter(report["tensors"])) == "t_cat_0"
    assert len(report["tensors"]["t_cat_0"]["first_element"]) == 2


@pytest.mark.slow("processes")
def test_another_number_of_processes_is_tolerated(run_app: Command, verified: Verify, small: list[str]) -> None:
    overrides = [*small, "run.name=run", "train.max_steps=20", "optimizer=sgd"]
    run_app("train", *overrides, processes=2)
    report, err = verified()
    assert report["verdict"] == "equal within tolerance"
    assert 0 < report["largest_difference"] < 1e-4
    assert "start with NPROC=2" in err
    assert "world_size: 2 then, 1 now" in report["changed_since"]


@pytest.mark.slow("processes")
def test_bits_are_equal_until_processes_changed(run_app: Command, verified: Verify, small: list[str]) -> None:
    """Two processes, then one: a replay by two has the bits of the first part, and says so."""
    overrides = [*small, "run.name=run", "sharding.types=row_wise", "checkpoint.keep=9", "train.eval_every_steps=5"]
    for steps, processes in ((10, 2), (20, 1)):
        run_app("train", *overrides, f"train.max_steps={steps}", processes=processes)
    report, err = verified(processes=2)
    assert (report["verdict"], report["bits_can_be_equal_until"]) == ("equal within tolerance", 10)
    assert report["changed_since"] == ["steps from 11 on: world_size: 1 then, 2 now"]
    assert min(report["losses"]["first_step"], report["tensors_at_step"]) > 10
    assert 10 in report["compared_at"]
    assert "no recorded condition has changed" not in err


@pytest.mark.slow("processes")
def test_the_first_difference_is_named(run_app: Command, verified: Verify, small: list[str], tmp_path: Path) -> None:
    """Somebody changed one value of one table in the checkpoint of step 20, sums and all; steps 10 and 30 are whole."""
    overrides = [*small, "run.name=run", "train.max_steps=30", "checkpoint.every_steps=10"]
    overrides += ["checkpoint.keep=9", "checkpoint.keep_best=false", "optimizer=sgd"]
    run_app("train", *overrides)
    change_one_value(tmp_path / "runs/run/checkpoints/step_00000020")
    report, err = verified(status=1)
    assert (report["compared_at"], report["losses"], report["tensors_at_step"]) == ([10, 20, 30], None, 20)
    assert list(report["tensors"]) == ["t_cat_2"]
    assert report["tensors"]["t_cat_2"]["first_element"] == [7, 3]
    assert "at step 20 (of the checkpoints, 10, 20, 30) the first tensor that differs is t_cat_2" in err


def change_one_value(checkpoint: Path) -> None:
    """Add 1 to element [7, 3] of the table of cat_2, in place, and make the sums of files good again."""
    storage = FileSystemReader(checkpoint).read_metadata().storage_data
    (info,) = [storage[each] for each in storage if re.fullmatch(r"model\..*\.t_cat_2\.weight", each.fqn)]
    file = checkpoint / info.relative_path
    content = bytearray(file.read_bytes())
    tensor = torch.load(io.BytesIO(content[info.offset : info.offset + info.length]), weights_only=True)
    raw = tensor.numpy().tobytes()
    at = content.index(raw) + 4 * (7 * tensor.shape[1] + 3)
    content[at : at + 4] = struct.pack("<f", float(tensor[7, 3]) + 1)
    file.write_bytes(content)
    state = json.loads((checkpoint / "state.json").read_bytes())
    state["files"][file.name]["sha256"] = hashlib.sha256(content).hexdigest()
    rewrite_state(checkpoint, state)


@pytest.mark.medium
def test_the_golden_run_replays(verified: Verify) -> None:
    """tests/golden/run is the record of a run made once (`make golden`): to the bit on its kind of machine and stack,
    within the tolerance elsewhere."""
    golden = REPOSITORY / "tests/golden"
    report, err = verified(f"run={golden}/run", f"data.path={golden}/data")
    assert (report["steps"], report["compared_at"]) == (24, [])
    assert report["evaluation"].keys() == {"logloss", "auc"}
    elsewhere = [line for line in report["changed_since"] if line.startswith(("versions ", "hardware cpu"))]
    assert report["verdict"] == "identical" or elsewhere, err
    assert report["largest_difference"] < 1e-4
