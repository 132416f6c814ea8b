"""`clickwork.prepare`, `train`, `Run` and `compare`: the commands, and what files and reports hold; the import."""

import html
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import log_loss, roc_auc_score

import clickwork
from app.runtime.platform import Runtime
from tests.app.in_process import command_here, train_here
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
    # A slow stream, as a notebook's, so that the signal comes in the middle of a line.
    code = f"""import sys, time, clickwork
flush = sys.stdout.flush
sys.stdout.flush = lambda: (flush(), time.sleep(0.05))
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


WRITTEN = re.compile(r"Written [\d-]+ [\d:]+ UTC from the files in <code>[^\n]*</code>")


@pytest.fixture(scope="module")
def run(trained: Trained) -> clickwork.Run:
    return clickwork.Run(trained.run)


@pytest.fixture(scope="module")
def other(runtime: Runtime, trained: Trained) -> Path:
    directory = trained.directory / "other"
    keys = [f"data.path={trained.directory}/data", f"run.dir={directory}", "run.name=other", "optimizer.lr=0.5"]
    assert train_here(runtime, *TRAIN, *keys) == "completed"
    return directory


def test_properties_are_the_files_of_the_run(trained: Trained, run: clickwork.Run) -> None:
    summary = json.loads((trained.run / "summary.json").read_text())
    assert run.summary == summary
    assert run.config == yaml.safe_load((trained.run / "config.yaml").read_text())
    assert run.curves is not None
    assert run.curves["roc"] == json.loads((trained.run / "curves.json").read_text())["roc"]
    assert repr(run).endswith(f"/run': completed, step 9, val auc {summary['eval']['auc']:.5f})")


def shown(page: str) -> str:
    match = re.search(r'srcdoc="([^"]*)"', page)
    assert match is not None
    return html.unescape(match[1])


@pytest.mark.medium
def test_evaluation_of_a_table_is_that_of_the_command(
    runtime: Runtime, trained: Trained, run: clickwork.Run, tmp_path: Path
) -> None:
    rows = make_rows(300, seed=1)
    write_csv(tmp_path / "new.csv", rows)
    command_here(runtime, "evaluate", f"run={trained.run}", f"data.raw={tmp_path}/new.csv", f"out={tmp_path}/out.json")
    truth = json.loads((tmp_path / "out.json").read_text())
    figures = run.evaluate(pd.DataFrame(rows), platform="cpu")
    assert json.loads(json.dumps(figures)).items() <= truth.items()
    assert figures["own"]["step"] == figures["step"] == truth["own"]["step"] == 9
    labels = np.array([row["stars"] >= 4 for row in rows])
    probabilities = clickwork.load(trained.run, platform="cpu").predict(rows)
    assert figures["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-6)
    assert figures["logloss"] == pytest.approx(log_loss(labels, probabilities.astype(float)), abs=1e-6)


def test_runs_are_compared_as_by_the_report(
    trained: Trained, other: Path, runtime: Runtime, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command_here(runtime, "report", f"runs=[{trained.run},{other}]", f"out={tmp_path}/page.html")
    *sentences, path = capsys.readouterr().out.splitlines()
    comparison = clickwork.compare([clickwork.Run(trained.run), other])
    assert path == f"{tmp_path}/page.html"
    assert repr(comparison).splitlines() == comparison.sentences == sentences
    table = comparison.table.to_pydict()
    assert table["Run"] == ["A: quickstart", "B: other"]
    assert table["Status"] == ["completed"] * 2
    assert WRITTEN.sub("", shown(comparison._repr_html_())) == WRITTEN.sub("", (tmp_path / "page.html").read_text())


HEAVY = ("torch", "numpy", "pyarrow", "hydra", "msgspec", "numba", "jinja2")


def python(code: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_import_takes_no_library(tmp_path: Path) -> None:
    code = f"import sys, clickwork; print([name for name in {HEAVY} if name in sys.modules])"
    process = python(code, tmp_path)
    assert (process.stdout, process.stderr) == ("[]\n", "")
