"""Datasets and runs as kills and accidents leave them."""

import json
from pathlib import Path

import pytest

from app.checks import files
from app.checks.check import Verdict
from tests.app.conftest import Command
from tests.app.datasets import write_dataset

FEW = {"train": 40, "val": 5, "test": 5}


def test_datasets(tmp_path: Path) -> None:
    assert files.check_dataset(tmp_path).verdict is Verdict.warn
    write_dataset(tmp_path, rows=FEW)
    check = files.check_dataset(tmp_path)
    assert check.verdict is Verdict.ok
    assert "train 40, val 5, test 5" in check.found
    shard = tmp_path / "train" / "00000.sparse.npy"
    shard.write_bytes(shard.read_bytes()[:-1])
    check = files.check_dataset(tmp_path)
    assert check.verdict is Verdict.fail
    assert str(shard) in check.found
    shard.unlink()
    assert "missing" in files.check_dataset(tmp_path).found
    (tmp_path / "manifest.json").write_text("{}")
    assert files.check_dataset(tmp_path).verdict is Verdict.fail


def test_runs(run_app: Command, small: list[str], tmp_path: Path) -> None:
    (check,) = files.check_runs(tmp_path / "runs")
    assert check.verdict is Verdict.ok
    run_app("train", *small, "run.name=a", "train.max_steps=3")
    run = tmp_path / "runs" / "a"
    assert files.check_run(run).verdict is Verdict.ok
    summary = json.loads((run / "summary.json").read_bytes())
    for status, verdict in (("interrupted", Verdict.warn), ("failed", Verdict.warn), ("completed", Verdict.ok)):
        (run / "summary.json").write_text(json.dumps({**summary, "status": status}))
        assert files.check_run(run).verdict is verdict, status
    (run / "summary.json").unlink()
    check = files.check_run(run)
    assert (check.verdict, check.remedy) == (Verdict.warn, "the same command resumes it")
    (run / "checkpoints" / "step_00000003" / "state.json").unlink()
    assert files.check_run(run).verdict is Verdict.fail
    (run / "manifest.json").unlink()
    assert files.check_run(run).verdict is Verdict.warn


def test_all_datasets_under_a_directory(tmp_path: Path) -> None:
    (check,) = files.check_datasets(tmp_path / "data")
    assert (check.verdict, check.found) == (Verdict.ok, "none yet")
    for name in ("one", "tiny/two"):
        write_dataset(tmp_path / "data" / name, rows=FEW)
    (tmp_path / "data/tiny/two/val/00000.dense.npy").unlink()
    (tmp_path / "data/begun/.work").mkdir(parents=True)
    (tmp_path / "data/theirs").mkdir()
    (tmp_path / "data/theirs/manifest.json").write_text('{"format": "webpack"}')
    verdicts = {check.name.rpartition("/")[2]: check.verdict for check in files.check_datasets(tmp_path / "data")}
    assert verdicts == {"begun": Verdict.warn, "one": Verdict.ok, "two": Verdict.fail}


def test_no_advice_removes_a_run(tmp_path: Path) -> None:
    """A run whose run.dir lies deeper, and files of others."""
    for path, text in (
        ("a/b/manifest.json", '{"format": "clickwork-run"}'),
        ("a/b/summary.json", '{"status": "completed", "steps": 3}'),
        ("mine/thesis.tex", ""),
        ("begun/log.txt", ""),
    ):
        (tmp_path / "runs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / path).write_text(text)
    checks = {check.name: check for check in files.check_runs(tmp_path / "runs")}
    assert checks[f"runs in {tmp_path}/runs/a"].found == f"1; runs={tmp_path}/runs/a lists them"
    result = {name.rpartition("/")[2]: check.remedy for name, check in checks.items()}
    assert result == {"a": None, "begun": "remove the directory, or train again", "mine": "move it out of here"}


@pytest.mark.slow("processes")
def test_a_broken_dataset_fails_the_doctor_and_json_says_so(tmp_path: Path, run_app: Command) -> None:
    write_dataset(tmp_path / "data", rows=FEW)
    (tmp_path / "data" / "val" / "00000.dense.npy").write_bytes(b"")
    process = run_app("doctor", "data.path=data", "json=true", "out=doctor.json", status=1)
    document = json.loads(process.stdout)
    assert document == json.loads((tmp_path / "doctor.json").read_bytes())
    assert document["fail"] == 1
    (bad,) = [check for check in document["checks"] if check["verdict"] == "fail"]
    assert "00000.dense.npy: 0 bytes" in bad["found"]
    assert bad["remedy"]
    assert {"name", "verdict", "found", "remedy"} == set(bad)
