"""`clickwork.prepare` and `clickwork.train`: the commands, in processes of their own."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import clickwork
from tests.clickwork.conftest import SCHEMA, TRAIN, Trained, make_rows, write_csv
from tests.fast_python import fast_python
from tests.waits import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with rows and a schema, and with a package of the same name as one of ours."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "clicks.csv", make_rows(400, seed=0))
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "app.py").write_text("raise SystemExit('not this one')")
    return tmp_path


@pytest.mark.slow("processes")
def test_a_dataset_and_a_run_are_made(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(fast_python()))
    schema = here / "schema.yaml"
    dataset = clickwork.prepare(["data.workers=1"], raw="clicks.csv", schema=schema, path="data/a b")
    assert dataset.path == Path("data/a b")
    assert sum(split.rows for split in dataset.splits.values()) == 400
    run = clickwork.train([*TRAIN, 'data.path="data/a b"', "run.name=ads"])
    assert run.path == Path("runs/ads")
    assert run.summary is not None
    assert run.summary["status"] == "completed"
    assert json.loads((here / "runs/ads/summary.json").read_text()) == run.summary
    printed = capfd.readouterr()
    assert "data/a b: 400 rows (train" in printed.out
    assert "step 9" in printed.out
    assert printed.err == ""


@pytest.mark.slow("processes")
def test_the_words_of_a_commands_error_are_those_of_the_exception(here: Path) -> None:
    with pytest.raises(clickwork.Error) as error:
        clickwork.prepare(raw="none.csv", schema="schema.yaml", path="data")
    command = [sys.executable, "-m", "data_prep", "data.raw=none.csv", "data.schema=schema.yaml", "data.path=data"]
    (here / "app.py").unlink()
    process = subprocess.run(
        command, cwd=here, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert f"error: {error.value}\n" == process.stderr
    assert error.value.status == process.returncode == 2


def test_keys_that_do_not_compose_are_refused_before_a_process_starts(here: Path) -> None:
    with pytest.raises(clickwork.Error, match=r"data\.rwa"):
        clickwork.prepare(rwa="clicks.csv")
    with pytest.raises(clickwork.Error, match=r"train\.epoch"):
        clickwork.train(["train.epoch=3"])
    with pytest.raises(clickwork.Error, match=r"train\.epochs"):
        clickwork.train(["train.epochs=0"])
    overrides: Any
    for overrides in ("train.epochs=1", {"train.epochs": 1}):
        with pytest.raises(clickwork.Error, match=r"give a list of keys, such as"):
            clickwork.train(overrides)


@pytest.mark.medium
def test_a_run_is_usable_from_any_directory(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dataset's path counts from where it was started, as its own does."""
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(trained.run, base / "runs/ads")
    shutil.copytree(trained.directory / "data", base / "data/ads")
    config = yaml.safe_load((base / "runs/ads/config.yaml").read_text())
    config["data"]["path"] = "data/ads"
    (base / "runs/ads/config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(elsewhere)
    rows = trained.rows[:5]
    expected = clickwork.load(trained.run, platform="cpu").predict(rows)
    assert clickwork.load("../base/runs/ads", platform="cpu").predict(rows).tolist() == expected.tolist()
    (base / "data").rename(base / "moved")
    with pytest.raises(clickwork.Error, match=r"data/ads: no dataset here, and .* give data.path=DATASET"):
        clickwork.load("../base/runs/ads")
    moved = clickwork.load("../base/runs/ads", data="../base/moved/ads", platform="cpu")
    assert moved.predict(rows).tolist() == expected.tolist()


@pytest.mark.slow("processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_ends_with_its_caller_and_with_a_checkpoint(here: Path, number: signal.Signals) -> None:
    """The stop button of a notebook sends one signal to the process that called; a restart kills it."""
    (here / "app.py").unlink()
    code = f"""import clickwork
clickwork.prepare(raw="clicks.csv", schema="schema.yaml", path="data")
try:
    clickwork.train({[*TRAIN, "data.path=data", "run.name=ads", "train.max_steps=1000000"]!r})
except clickwork.Error as error:
    print("status", error.status, error)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=here, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    metrics = here / "runs/ads/metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"train"' in metrics.read_text(), lambda: process.poll() is None)
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert process.returncode == 0, out
        said = "status 75 train was interrupted, with a checkpoint; the same call resumes it"
        assert out.splitlines()[-1] == said
    summary = here / "runs/ads/summary.json"
    wait_until(summary.exists)
    assert json.loads(summary.read_text())["status"] == "interrupted"
    assert list((here / "runs/ads/checkpoints").glob("step_*"))
