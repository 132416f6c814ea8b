"""Which checkpoint evaluate, recommend and export take, and that they say so."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from app.checkpoint.files import checkpoint_name, find_checkpoint, point_to_best, whole_checkpoints
from app.config import RuntimeConfig
from app.runtime.platform import Runtime
from app.training import resume
from common.errors import UserError
from tests.app.conftest import Command


@pytest.fixture
def run(uninterrupted: Path, tmp_path: Path) -> Path:
    """A run of two checkpoints, of steps 48 and 60, of which the first is the best."""
    copy = tmp_path / "runs/x"
    shutil.copytree(uninterrupted, copy)
    checkpoints = copy / "checkpoints"
    assert {path.name for path in whole_checkpoints(checkpoints)} >= {checkpoint_name(48), checkpoint_name(60)}
    point_to_best(checkpoints, checkpoint_name(48))
    return copy


def damage(run: Path, step: int) -> None:
    (run / "checkpoints" / checkpoint_name(step) / "state.json").write_bytes(b"{")


@pytest.mark.parametrize(
    ("choice", "step"), [(None, 48), ("best", 48), ("last", 60), ("latest", 60), ("60", 60), ("48", 48)]
)
def test_each_name_has_its_checkpoint(run: Path, choice: str | None, step: int) -> None:
    assert find_checkpoint(run, choice) == str(run / "checkpoints" / checkpoint_name(step))


def test_a_path_is_one_too_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "kept"
    shutil.copytree(run / "checkpoints" / checkpoint_name(60), elsewhere)
    assert find_checkpoint(run, str(elsewhere)) == str(elsewhere)


def test_without_a_best_it_is_the_last(run: Path) -> None:
    point_to_best(run / "checkpoints", None)
    assert Path(find_checkpoint(run, None)).name == checkpoint_name(60)
    with pytest.raises(UserError, match=r"^checkpoint=best: .*keeps none .* use checkpoint=last"):
        find_checkpoint(run, "best")


def test_a_damaged_one_is_skipped_with_a_warning_and_refused_by_name(
    run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("clickwork"), "propagate", True)
    damage(run, 48)
    assert Path(find_checkpoint(run, None)).name == checkpoint_name(60)
    assert "skipped the best" in caplog.text
    for choice in ("best", "48"):
        with pytest.raises(UserError, match="damaged"):
            find_checkpoint(run, choice)


@pytest.mark.parametrize("choice", ["7", "600"])
def test_a_step_without_one_is_refused_with_those_there_are(run: Path, choice: str) -> None:
    with pytest.raises(UserError, match=rf"^checkpoint={choice}: .* has no checkpoint of this step; .*48, 60$"):
        find_checkpoint(run, choice)


def test_the_choice_is_logged(
    run: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("clickwork"), "propagate", True)
    config = resume.trained_config(run, RuntimeConfig(), None)
    with caplog.at_level("INFO", "clickwork"):
        checkpoint = resume.open_checkpoint(run, None, config.data.path, runtime)
        checkpoint.log_choice()
    assert checkpoint.about == {"checkpoint": checkpoint_name(48), "step": 48, "best": True, "last": False}
    assert "step_00000048, step 48, the best of the run; the last is step_00000060 (checkpoint=last)" in caplog.text


def test_a_command_s_json_says_which_it_took(run: Path, run_app: Command) -> None:
    for overrides, step in (([], 48), (["checkpoint=60"], 60)):
        process = run_app("evaluate", f"run={run}", "split=val", *overrides)
        about = json.loads(process.stdout)
        assert (about["step"], about["best"], about["last"]) == (step, step == 48, step == 60)
