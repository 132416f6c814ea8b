"""runtime.compile=dense: the losses of eager training, and the promises of any run."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import Command
from tests.app.run_files import losses
from tests.error_lines import error_line

COMPILED = "runtime.compile=dense"


@pytest.mark.slow("tool")
@pytest.mark.parametrize(("interaction", "batch"), [("dot", 1024), ("dcn", 64)])
def test_losses_are_eager(interaction: str, batch: int, run_app: Command, small: list[str], tmp_path: Path) -> None:
    """Within 1e-6, relative; a large batch goes through oneDNN both ways."""
    for name in ("none", "dense"):
        keys = [*small, f"run.name={name}", f"model.interaction={interaction}"]
        keys += [f"train.global_batch_size={batch}", "train.max_steps=10", "train.epochs=100"]
        keys += [f"runtime.compile={name}"]
        run_app("train", *keys)
    eager, compiled = losses(tmp_path / "runs/none"), losses(tmp_path / "runs/dense")
    assert len(eager) == 10
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)


@pytest.mark.slow("tool")
def test_a_killed_run_resumes_and_replays_to_the_same_bits(run_app: Command, small: list[str]) -> None:
    """The replay is an undisturbed run."""
    overrides = [*small, COMPILED, "checkpoint.every_steps=9", "train.max_steps=30", "checkpoint.asynchronous=false"]
    overrides += ["run.name=parts"]
    run_app("train", *overrides, processes=2, fault="in the step:14", status=-9)
    assert "resume: from" in run_app("train", *overrides, processes=2).stderr
    result = run_app("verify", "run=runs/parts", processes=2)
    assert json.loads(result.stdout)["verdict"] == "identical"
    eager = run_app("train", *overrides, "train.max_steps=31", "runtime.compile=none", processes=2)
    assert "(compile dense then, none now: results agree" in eager.stderr


@pytest.mark.slow("tool")
def test_without_a_compiler_it_is_refused(run_app: Command, small: list[str], tmp_path: Path) -> None:
    without = {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    process = run_app("train", *small, COMPILED, environment=without, status=2)
    assert "runtime.compile=dense: torch.compile does not work on this machine" in error_line(process.stderr)
    assert "give runtime.compile=none" in error_line(process.stderr)
