"""What a training step sends to the device, and where the host waits for it."""

from pathlib import Path

from tests.pretend_cuda.counting import read_steps

LOGGED_STEP = 5  # after it the loop reads the losses of the steps before it


def test_operators_and_waits_of_a_step(runs: Path) -> None:
    """DLRM with dot products, two layers each way, Adagrad: see README.md for what a wait is."""
    steps = read_steps(Path(f"{runs}/counts.0"))
    assert len(steps) == 14
    step = steps[2]  # from the end of step 2 to that of step 3
    assert step["waits"] == {"Stream.synchronize": 1, "aten::copy_": 2}
    assert sum(step["sent"].values()) == 79
    assert {name: count for name, count in step["sent"].items() if "_foreach_" in name} == {
        f"aten::_foreach_{name}": 1
        for name in ("add_.Scalar", "addcdiv_.Scalar", "addcmul_.Scalar", "mul.ScalarList", "sqrt")
    }  # Adagrad over all dense parameters; one by one they were 32 operators
    assert steps[LOGGED_STEP]["waits"]["synchronize"] == 1
