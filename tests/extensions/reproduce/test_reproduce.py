"""python -m app.reproduce: page and document, refusals, and what is left of it after kill -9, a stop, a failed seed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from common.errors import UserError
from extensions.reproduce import command
from extensions.reproduce.seeds import place_of
from tests.app.conftest import SMALL, Command, Refusal, app_environment
from tests.app.run_files import events, summary
from tests.extensions.reproduce.runs import composed, write_seeds
from tests.fast_python import fast_python


def document(out: Path) -> dict[str, Any]:
    return json.loads((out / "reproduce.json").read_bytes())


@pytest.fixture
def overrides(dataset: Path) -> list[str]:
    own = [f"data.path={dataset}", "train.max_steps=300", "train.epochs=50", "checkpoint.every_steps=20"]
    return [*SMALL, *own, "record.tensorboard=false", "baselines=false"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["app.reproduce", *arguments])
    return command.main(composed(*arguments))


def test_runs_that_are_done_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_seeds(tmp_path / "runs/quickstart", 3)
    (tmp_path / "registry").mkdir()
    assert call(monkeypatch, "seeds=3", "registry=registry") == 0
    out = capsys.readouterr().out
    assert "3 of 3 seeds done." in out
    assert "AUC of test: mean 0.70200, 95% interval 0.69952 to 0.70448" in out
    page = (tmp_path / "runs/quickstart/reproduce.html").read_text()
    for words in ("quickstart at 3 seeds", "0.69952 to 0.70448", "none published", "python -m app.reproduce seeds=3"):
        assert words in page
    assert "fbgemm_gpu-cpu " in page
    reproduction = document(tmp_path / "runs/quickstart")
    assert [run["status"] for run in reproduction["runs"]] == ["completed"] * 3
    (copy,) = (tmp_path / "registry").iterdir()
    assert copy.read_bytes() == (tmp_path / "runs/quickstart/reproduce.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param(["optimizer.lr=0.5"], r"the recipe was changed (optimizer.lr=0.5)", marks=pytest.mark.slow),
        (["data.scale=tiny"], "data.scale=tiny is not the recipe itself"),
    ],
)
def test_a_registry_takes_the_recipe_itself_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_seeds(tmp_path / "runs/x", 2)
    (tmp_path / "registry").mkdir()
    assert call(monkeypatch, "seeds=2", "out=runs/x", "registry=registry", *arguments) == 0
    assert f"registry=registry: not written, as {reason}\n" in capsys.readouterr().out
    assert not list((tmp_path / "registry").iterdir())


def test_without_slurm_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="sbatch, Slurm's command, is not here"):
        call(monkeypatch, "seeds=2", 'sbatch="--nodes=1"')
    assert not list((tmp_path / "runs/quickstart").glob("reproduce.*"))


def test_other_arguments_have_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    other = "quickstart-train.epochs_3-optimizer.lr_0.1"
    for name in ("quickstart", other):
        write_seeds(tmp_path / "runs" / name, 2)
    assert call(monkeypatch, "seeds=2") == 0
    for _ in range(2):
        assert call(monkeypatch, "seeds=2", "train.epochs=3", "optimizer.lr=0.1") == 0
        assert f"runs/quickstart has runs with no further keys; these go to runs/{other}\n" in capsys.readouterr().out
    assert document(tmp_path / "runs/quickstart")["arguments"] == []
    assert document(tmp_path / "runs" / other)["arguments"] == ["train.epochs=3", "optimizer.lr=0.1"]
    assert len(place_of(["train.epochs=3"] * 20, Path("runs/a")).name) < 64


@pytest.mark.slow
def test_other_arguments_do_not_mix_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_seeds(tmp_path / "runs/quickstart", 2)
    assert call(monkeypatch, "seeds=2", "train.epochs=2", "optimizer.lr=0.1") == 0
    assert call(monkeypatch, "optimizer.lr=0.1", "seeds=1", "train.epochs=2") == 0
    with pytest.raises(UserError, match=r"were made with optimizer\.lr=0\.1 train\.epochs=2; type these"):
        call(monkeypatch, "seeds=2", "train.epochs=3", "out=runs/quickstart")
    with (
        FileLock(tmp_path / "runs/quickstart/.reproduce.lock"),
        pytest.raises(UserError, match="another process makes runs there"),
    ):
        call(monkeypatch, "seeds=2", "train.epochs=2", "optimizer.lr=0.1")


def test_a_recipe_edited_between_seeds_is_refused_and_the_remedy_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, command = tmp_path / "mine.yaml", ["seeds=2", "recipe=mine.yaml"]
    before = "defaults:\n  - override /optimizer: adam\nrun.name: mine\ntrain.max_steps: 50\n"
    recipe.write_text(before)
    write_seeds(tmp_path / "runs/mine", 2)
    assert call(monkeypatch, *command) == 0
    before = f"# a comment changes nothing\n{before}"
    for old, new in (("max_steps: 50", "max_steps: 60"), ("adam", "sgd")):
        recipe.write_text(before.replace(old, new))
        with pytest.raises(UserError) as caught:
            call(monkeypatch, *command)
        message = str(caught.value)
        assert message.startswith("out=runs/mine: recipe=mine.yaml has changed since its runs were made (")
        assert new.replace(": ", "=") in message
        (copy,) = re.findall(r"take the change back: (\S+) is", message)
        recipe.write_text(Path(copy).read_text())
        assert call(monkeypatch, *command) == 0
    (tmp_path / "runs/mine/reproduce.recipe.yaml").unlink()
    with pytest.raises(UserError, match="of which older versions kept no copy; give another out, or if"):
        call(monkeypatch, *command)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["seeds=0"], "seeds=0: must be at least 1"),
        (["train.seed=1"], "train.seed=1: not of a reproduction"),
        (["run.dir=x"], "run.dir=x: not of a reproduction"),
        (["out=.a"], "out=.a: names the runs by its last part, and a name with '.' at its beginning is not taken"),
        (["registry=nowhere"], "registry=nowhere: is no directory"),
        (["sbatch=", "processes=2"], "processes=2: has no effect with sbatch"),
        (["train.epochs=0"], "train.epochs=0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    refused: Refusal, tmp_path: Path, arguments: list[str], words: str
) -> None:
    line = refused("reproduce", *arguments)
    assert words in line
    assert "\n" not in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_dataset_that_is_not_there_is_said_once_and_leaves_nothing(run_app: Command, tmp_path: Path) -> None:
    process = run_app("reproduce", "recipe=meta_kaggle_2019", "seeds=3", status=2)
    assert process.stderr.count("no dataset here") == 1
    assert not list((tmp_path / "runs/meta_kaggle_2019").glob("reproduce.*"))


def started(tmp_path: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    with open(tmp_path / "log", "ab") as log:
        return subprocess.Popen(
            [str(fast_python()), "-m", "app.reproduce", *arguments],
            cwd=tmp_path,
            env=app_environment(),
            stdout=log,
            stderr=log,
        )


def wait_until_saved(run: Path, process: "subprocess.Popen[bytes]") -> None:
    """Until the run has a checkpoint before its end."""
    deadline = time.monotonic() + 240
    while not (run / "checkpoints/latest").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_and_stopped_it_resumes_to_the_same_bits(run_app: Command, overrides: list[str], tmp_path: Path) -> None:
    """kill -9 in the second of two runs, then SIGTERM there: the first is left alone, no bit is another."""
    out = tmp_path / "runs/quickstart"
    arguments = ["seeds=2", *overrides]
    process = started(tmp_path, *arguments)
    wait_until_saved(out / "seed_2", process)
    process.kill()
    process.wait()
    assert not (out / "seed_2/summary.json").exists() or summary(out / "seed_2")["status"] != "completed"
    first = {path: path.stat().st_mtime_ns for path in (out / "seed_1").rglob("*") if path.is_file()}

    process = started(tmp_path, *arguments)
    deadline = time.monotonic() + 240
    while not (out / "seed_2/metrics.jsonl").exists() or not events(out / "seed_2", "resume"):
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75, (tmp_path / "log").read_text()
    assert summary(out / "seed_2")["status"] == "interrupted"
    assert [run["status"] for run in document(out)["runs"]] == ["completed", "interrupted"]

    completed = run_app("reproduce", *arguments)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert "2 of 2 seeds done." in completed.stdout
    run_app("train", *overrides, "train.seed=2", "run.name=whole")
    assert summary(out / "seed_2")["digest"] == summary(tmp_path / "runs/whole")["digest"]
    assert len({summary(out / f"seed_{seed}")["digest"]["parameters"] for seed in (1, 2)}) == 2
    evaluated = run_app("evaluate", "run=runs/whole", "split=test")
    (figure,) = [each for each in document(out)["figures"] if (each["split"], each["metric"]) == ("test", "auc")]
    assert figure["values"]["2"] == json.loads(evaluated.stdout)["auc"]


@pytest.mark.slow
def test_a_failed_seed_leaves_the_others(run_app: Command, overrides: list[str], tmp_path: Path) -> None:
    """One whose directory is something else's; a run beside them, in the recipe's own directory, is not hindered."""
    out = tmp_path / "runs/quickstart"
    (out / "seed_2").mkdir(parents=True)
    (out / "seed_2/mine.txt").touch()
    few = [*overrides, "train.max_steps=10"]
    process = run_app("reproduce", "seeds=2", *few, status=1)
    assert "contains mine.txt and is not a run's directory" in process.stderr
    assert "1 of 2 seeds done." in process.stdout
    assert "Seed 2: not begun, ended with exit status 2 before it began" in process.stdout
    assert "Seed 2: not begun" in (out / "reproduce.html").read_text()
    run_app("train", *few)
    assert (out / "summary.json").exists()


@pytest.mark.slow
def test_jobs_of_slurm_are_to_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("sbatch", "echo $# 12"), ("squeue", "true")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_seeds(tmp_path / "runs/quickstart", 1)
    assert call(monkeypatch, "seeds=2", 'sbatch="--nodes=1"') == 75
    out = capsys.readouterr().out
    assert "seed 2: submitted as job" in out
    assert "Not finished: seed 2; the same command resumes there." in out
