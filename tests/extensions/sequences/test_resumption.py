"""The contract of resumption (tests/app/training/test_resumption.py) for HSTU on a log of events."""

from pathlib import Path

import pytest

from app.runtime.platform import Runtime
from tests.app.in_process import train_here
from tests.app.run_files import events
from tests.app.training.test_resumption import BASE, FACTORS, disturb, spoil
from tests.data_prep.conftest import prepare
from tests.error_lines import refused
from tests.extensions.sequences.test_commands import DROPOUT, TINY
from tests.once import made_once


def write_log(root: Path) -> None:
    log = ["data.source=synthetic_events", "data.synthetic_events.users=60", "data.synthetic_events.items=100"]
    prepare(*log, f"data.path={root}/data")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("number", "course"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] > 0)) for case in enumerate(FACTORS["course"])],
)
def test_a_disturbed_run_has_the_bits_of_an_undisturbed_one(
    number: int,
    course: str,
    runtime: Runtime,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if course == "skipped steps":
        spoil(monkeypatch)
    root = made_once(tmp_path_factory, "resumption_events", write_log) / "data"
    saving = list(FACTORS["saving"].values())[number % 2]
    overrides = [f"data.path={root}", *BASE, *TINY, *DROPOUT, *FACTORS["course"][course], *saving]
    disturb(number, course, overrides, runtime, capsys)


@pytest.mark.medium
def test_a_run_begins_with_another_runs_parameters_on_the_same_log(runtime: Runtime, tmp_path: Path) -> None:
    """The first evaluation is the other run's last; ids of another log are of other items."""
    write_log(tmp_path)
    keys = [*BASE, *TINY, "train.max_steps=4"]
    train_here(runtime, *keys, f"data.path={tmp_path}/data", f"run.dir={tmp_path}/x")
    start = [f"checkpoint.warm_start_from={tmp_path}/x", "eval.before_training=true", f"run.dir={tmp_path}/y"]
    assert train_here(runtime, *keys, f"data.path={tmp_path}/data", *start) == "completed"
    last, first = events(tmp_path / "x", "eval")[-1], events(tmp_path / "y", "eval")[0]
    assert (first["step"], first["auc"]) == (0, last["auc"])
    prepare("data.source=synthetic_events", "data.synthetic_events.users=50", f"data.path={tmp_path}/other")
    remedy = "start from a run on the same dataset"
    refused(remedy, train_here, runtime, *keys, f"data.path={tmp_path}/other", f"run.dir={tmp_path}/z", start[0])
