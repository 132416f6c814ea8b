"""Which runs are exported, and from where."""

import json
from pathlib import Path

import pytest

from app.runtime.platform import Runtime
from common.errors import UserError
from common.keys import to_plain
from extensions.export.command import main
from extensions.export.documents import ExportConfig
from tests.app.conftest import SMALL, Command, composed, ended, forked
from tests.app.in_process import command_here, train_here
from tests.app.scoring.test_sampling import CORRECTED
from tests.app.scoring.test_sampling import place as place
from tests.app.test_secrets import ARGUMENTS, ENVIRONMENT, planted
from tests.pretend_cuda.conftest import dataset as dataset
from tests.pretend_cuda.conftest import machine as machine
from tests.pretend_cuda.conftest import runs as runs
from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import command


def test_scores_that_depend_on_other_rows_are_not_exported(tmp_path: Path) -> None:
    mixed = ["model.interaction=scalar_pairs", "model.mixes_samples=true"]
    config = composed(*SMALL, *mixed, "run.name=x")
    (tmp_path / "config.yaml").write_text(json.dumps(to_plain(config)))
    with pytest.raises(UserError, match=r"mixes_samples=true: export has no meaning"):
        main(ExportConfig(run=str(tmp_path), out=f"{tmp_path}/served"))


@pytest.mark.medium
def test_a_correction_of_data_that_need_none_is_refused(runtime: Runtime, dataset: Path, tmp_path: Path) -> None:
    run = [*SMALL, f"data.path={dataset}", "run.name=z", f"run.dir={tmp_path}/z", "train.max_steps=2"]
    assert train_here(runtime, *run, "record.tensorboard=false") == "completed"
    with pytest.raises(
        UserError, match=r"correct_sampling=true: .* kept every row with label 0, and the run has no loss"
    ):
        command_here(runtime, "export", f"run={tmp_path}/z", f"out={tmp_path}/served", CORRECTED)
    assert not (tmp_path / "served").exists()


@pytest.mark.slow("processes")
def test_no_secret_is_in_the_file_and_the_run_s_environment_is_set(
    run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=one", "train.max_steps=10", *ARGUMENTS]
    overrides.append("+environment.variables.A_VARIABLE=7")
    process = ended(forked("train", *overrides, cwd=tmp_path, environment=ENVIRONMENT), tmp_path)
    assert process.returncode == 0, process.stderr
    assert "A_VARIABLE=7" in run_app("export", "run=runs/one", "out=served").stderr
    assert planted(tmp_path) == []


@pytest.mark.slow("processes")
def test_a_run_of_a_gpu(machine: Machine, runs: Path, tmp_path: Path) -> None:
    command(machine, "export", tmp_path, f"run={runs}/cuda/run", f"out={tmp_path}/served")
    assert (tmp_path / "served/score.py").exists()
