"""`clickwork.Run` and `clickwork.compare`: what the run's files and its report hold."""

import html
import json
import re
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
from tests.clickwork.conftest import TRAIN, Trained, make_rows, write_csv

WRITTEN = re.compile(r"Written [\d-]+ [\d:]+ UTC from the files in <code>[^\n]*</code>")


@pytest.fixture(scope="module")
def run(trained: Trained) -> clickwork.Run:
    return clickwork.Run(trained.run)


@pytest.fixture(scope="module")
def other(runtime: Runtime, trained: Trained) -> Path:
    """A run of the same data with another rate."""
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


def test_metrics_are_the_events(trained: Trained, run: clickwork.Run) -> None:
    events = [json.loads(line) for line in (trained.run / "metrics.jsonl").read_text().splitlines()]
    table = run.metrics
    assert table.num_rows == len(events)
    for name in ("event", "step", "logloss", "auc", "samples_per_second"):
        assert table[name].to_pylist() == [event.get(name) for event in events], name
    assert set(table.column_names) >= {name for event in events for name in event}


def shown(page: str) -> str:
    """The page inside the frame."""
    match = re.search(r'srcdoc="([^"]*)"', page)
    assert match is not None
    return html.unescape(match[1])


def test_a_notebook_shows_the_report(runtime: Runtime, trained: Trained, run: clickwork.Run, tmp_path: Path) -> None:
    command_here(runtime, "report", f"runs=[{trained.run}]", f"out={tmp_path}/page.html")
    page = run._repr_html_()
    assert WRITTEN.sub("", shown(page)) == WRITTEN.sub("", (tmp_path / "page.html").read_text())
    assert 'data-chart="auc"' in shown(page)
    assert html.unescape(page).startswith(f"<code>{run!r}</code><iframe ")


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


@pytest.mark.medium
def test_what_a_run_refuses(trained: Trained, run: clickwork.Run, tmp_path: Path) -> None:
    row = make_rows(1, 0)[0]
    bare = {name: value for name, value in row.items() if name != "stars"}
    cases: list[tuple[Any, str]] = [
        (lambda: clickwork.Run(tmp_path), "not a run's directory"),
        (lambda: clickwork.compare([trained.run]), "give two runs or more"),
        (lambda: clickwork.compare([trained.run, run]), "names a run twice"),
        (lambda: run.evaluate({**row, "stars": "many"}, platform="cpu"), "table: row 1, column stars: 'many'"),
        (lambda: run.evaluate([row], split="tset", platform="cpu"), "no split 'tset'"),
        (lambda: run.evaluate([], platform="cpu"), "table: no rows"),
        (lambda: run.evaluate([bare], platform="cpu"), "table: no column stars, which holds the labels"),
    ]
    for call, message in cases:
        with pytest.raises(clickwork.Error, match=message):
            call()


def test_a_run_in_the_making_has_no_summary(trained: Trained, tmp_path: Path) -> None:
    for name in ("config.yaml", "manifest.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((trained.run / name).read_bytes())
    run = clickwork.Run(tmp_path)
    assert run.summary is None
    assert run.curves is None
    assert "unfinished" in repr(run)
    assert run._repr_html_().startswith("<code>")
