"""Operators that a training step sends to the device, and waits of the host for them."""

from pathlib import Path

import pytest

from tests.pretend_cuda.counting import read_steps
from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import train_several

CASES = {
    "bags": [],
    "bags, column-wise": ["sharding.types=column_wise"],
    "cat": ["model.interaction=cat"],
    "dcn": ["model=dlrm_dcn", "model.embedding_dim=16", "model.dense_arch=[32,16]", "model.over_arch=[32,1]"],
    "bf16": ["runtime.precision=bf16"],
    "fp16 tables": ["model.tables.storage=fp16"],
    "row-wise Adagrad": ["optimizer=rowwise_adagrad"],
}
LOGGED_STEP = 5  # after it the loop reads the losses of the steps before it


@pytest.mark.medium
def test_operators_and_waits_of_a_step(runs: Path) -> None:
    """DLRM with dot products, two layers each way, Adagrad: see README.md for what a wait is."""
    steps = read_steps(Path(f"{runs}/counts.0"))
    assert len(steps) == 14
    step = steps[2]  # from the end of step 2 to that of step 3
    assert sum(step["sent"].values()) == 60
    assert {name: count for name, count in step["sent"].items() if "_foreach_" in name} == {
        f"aten::_foreach_{name}": 1
        for name in ("add_.Scalar", "addcdiv_.Scalar", "addcmul_.Scalar", "mul.ScalarList", "norm.Scalar", "sqrt")
    }  # Adagrad over all dense parameters, 32 operators one by one; and whether their gradients are finite, 8
    assert [number for number, step in enumerate(steps) if step["waits"]] == [0, LOGGED_STEP, 2 * LOGGED_STEP]
    # The norm of the gradients is read after the sums, for which the device was waited for.
    assert steps[LOGGED_STEP]["waits"] == {"aten::_local_scalar_dense": 1, "aten::copy_": 1, "synchronize": 1}


@pytest.mark.slow("processes")
def test_no_step_waits(machine: Machine, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {
        case: [*overrides, "train.log_every_steps=50", f"data.path={ragged if 'bags' in case else dataset}"]
        for case, overrides in CASES.items()
    }
    counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/counts"}
    train_several(machine, tmp_path / "runs", dataset, "cuda", cases, environment=counts)
    steps = read_steps(tmp_path / "counts.0")
    for number, case in enumerate(CASES):
        waits = [step["waits"] for step in steps[14 * number : 14 * (number + 1)]]
        after_warm_up = {"aten::copy_": 1, "synchronize": 1}  # step 10
        assert waits[1:] == [{}] * 9 + [after_warm_up] + [{}] * 3, case
