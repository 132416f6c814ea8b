"""runtime.compile=dense: the losses of eager training, and the promises of any run."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import SMALL, Command, ended, forked
from tests.app.run_files import losses
from tests.error_lines import error_line

COMPILED = "runtime.compile=dense"


@pytest.mark.slow("tool")
@pytest.mark.parametrize(("interaction", "batch"), [("dot", 1024), ("dcn", 64)])
def test_ten_steps_have_the_losses_of_eager_ones(
    interaction: str, batch: int, run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    """Within 1e-6, relative; a large batch goes through oneDNN both ways."""
    for name in ("none", "dense"):
        keys = [*SMALL, f"data.path={dataset}", f"run.name={name}", f"model.interaction={interaction}"]
        keys += [f"train.global_batch_size={batch}", "train.max_steps=10", "train.epochs=100"]
        keys += [f"runtime.compile={name}"]
        run_app("train", *keys)
    eager, compiled = losses(tmp_path / "runs/none"), losses(tmp_path / "runs/dense")
    assert len(eager) == 10
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)


@pytest.mark.slow("tool")
def test_a_killed_run_resumes_and_replays_to_the_same_bits(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    """The replay is an undisturbed run."""
    overrides = [*SMALL, f"data.path={dataset}", COMPILED, "checkpoint.every_steps=9", "train.max_steps=30"]
    overrides += ["checkpoint.asynchronous=false"]
    killed = ended(
        forked("train", *overrides, "run.name=parts", cwd=tmp_path, processes=2, fault="in the step:14"), tmp_path
    )
    assert killed.returncode == -9
    resumed = run_app("train", *overrides, "run.name=parts", processes=2)
    assert "resume: from" in resumed.stderr
    result = run_app("verify", "run=runs/parts", processes=2)
    assert json.loads(result.stdout)["verdict"] == "identical"
    eager = run_app("train", *overrides, "run.name=parts", "train.max_steps=31", "runtime.compile=none", processes=2)
    assert "(compile dense then, none now: results agree" in eager.stderr


@pytest.mark.slow("tool")
def test_without_a_compiler_it_is_refused(dataset: Path, tmp_path: Path) -> None:
    without = {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    process = ended(
        forked("train", *SMALL, f"data.path={dataset}", COMPILED, cwd=tmp_path, environment=without), tmp_path
    )
    assert process.returncode == 2
    assert "runtime.compile=dense: torch.compile does not work on this machine" in error_line(process.stderr)
    assert "give runtime.compile=none" in error_line(process.stderr)
