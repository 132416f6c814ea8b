"""python -m app.reproduce: page and document, refusals, and what is left of it after kill -9 and a stop."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from common.errors import UserError
from extensions.reproduce import command
from tests.app.conftest import SMALL, Command, app_environment
from tests.app.run_files import events, summary
from tests.extensions.reproduce.test_figures import composed, write_seeds
from tests.fast_python import fast_python
from tests.waits import wait_until


def document(out: Path) -> dict[str, Any]:
    return json.loads((out / "reproduce.json").read_bytes())


@pytest.fixture
def overrides(dataset: Path) -> list[str]:
    own = [f"data.path={dataset}", "train.max_steps=120", "train.epochs=50", "checkpoint.every_steps=10"]
    return [*SMALL, *own, "record.tensorboard=false", "baselines=false"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["app.reproduce", *arguments])
    return command.main(composed(*arguments))


@pytest.mark.medium
def test_runs_that_are_done_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_seeds(tmp_path / "runs/quickstart", 3)
    assert call(monkeypatch, "seeds=3") == 0
    out = capsys.readouterr().out
    assert "3 of 3 seeds done." in out
    assert "AUC of test: mean 0.70200, 95% interval 0.69952 to 0.70448" in out
    page = (tmp_path / "runs/quickstart/reproduce.html").read_text()
    for words in ("quickstart at 3 seeds", "0.69952 to 0.70448", "none published", "python -m app.reproduce seeds=3"):
        assert words in page
    assert "fbgemm_gpu-cpu " in page
    reproduction = document(tmp_path / "runs/quickstart")
    assert [run["status"] for run in reproduction["runs"]] == ["completed"] * 3


@pytest.mark.medium
def test_other_arguments_do_not_mix_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_seeds(tmp_path / "runs/quickstart", 2)
    assert call(monkeypatch, "seeds=2", "train.epochs=2", "optimizer.lr=0.1") == 0
    assert call(monkeypatch, "optimizer.lr=0.1", "seeds=1", "train.epochs=2") == 0
    for other in ([], ["train.epochs=3"]):
        with pytest.raises(UserError, match=r"were made with optimizer\.lr=0\.1 train\.epochs=2; type these"):
            call(monkeypatch, "seeds=2", *other)
    with (
        FileLock(tmp_path / "runs/quickstart/.reproduce.lock"),
        pytest.raises(UserError, match="another process makes runs there"),
    ):
        call(monkeypatch, "seeds=2", "train.epochs=2", "optimizer.lr=0.1")


def started(tmp_path: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    words = [str(fast_python()), "-m", "app.reproduce", *arguments]
    with open(tmp_path / "log", "ab") as log:
        return subprocess.Popen(words, cwd=tmp_path, env=app_environment(), stdout=log, stderr=log)


def reproduced(tmp_path: Path, *arguments: str, status: int = 0) -> str:
    """Run the command to its end; return what it printed."""
    assert started(tmp_path, *arguments).wait(480) == status, (tmp_path / "log").read_text()
    return (tmp_path / "log").read_text()


@pytest.mark.slow("processes")
def test_killed_and_stopped_it_resumes_to_the_same_bits(run_app: Command, overrides: list[str], tmp_path: Path) -> None:
    """kill -9 in the second of two runs, then SIGTERM there: the first is left alone, no bit is another."""
    out = tmp_path / "runs/quickstart"
    arguments = ["seeds=2", *overrides]
    process = started(tmp_path, *arguments)
    wait_until((out / "seed_2/checkpoints/latest").exists, lambda: process.poll() is None)
    process.kill()
    process.wait()
    assert not (out / "seed_2/summary.json").exists() or summary(out / "seed_2")["status"] != "completed"
    first = {path: path.stat().st_mtime_ns for path in (out / "seed_1").rglob("*") if path.is_file()}

    process = started(tmp_path, *arguments)
    metrics = out / "seed_2/metrics.jsonl"
    wait_until(lambda: metrics.exists() and events(out / "seed_2", "resume"), lambda: process.poll() is None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75, (tmp_path / "log").read_text()
    assert summary(out / "seed_2")["status"] == "interrupted"
    assert [run["status"] for run in document(out)["runs"]] == ["completed", "interrupted"]

    printed = reproduced(tmp_path, *arguments)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert "2 of 2 seeds done." in printed
    run_app("train", *overrides, "train.seed=2", "run.name=whole")
    assert summary(out / "seed_2")["digest"] == summary(tmp_path / "runs/whole")["digest"]
    assert len({summary(out / f"seed_{seed}")["digest"]["parameters"] for seed in (1, 2)}) == 2
    evaluated = run_app("evaluate", "run=runs/whole", "split=test")
    (figure,) = [each for each in document(out)["figures"] if (each["split"], each["metric"]) == ("test", "auc")]
    assert figure["values"]["2"] == json.loads(evaluated.stdout)["auc"]
