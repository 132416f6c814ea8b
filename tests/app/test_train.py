"""`python -m app.train` as a user runs it: what it writes, how it ends, that it goes on where it was."""

import csv
import json
from pathlib import Path

import pytest

from tests.app.conftest import Command, ended, forked
from tests.app.datasets import NUM_EMBEDDINGS
from tests.app.run_files import events, losses, summary

SUMMARY_KEYS = {"status", "version", "steps", "samples", "world_size", "parameters", "train", "eval", "last", "events"}
SUMMARY_KEYS |= {"throughput", "memory", "power", "seconds", "digest", "best", "phase_seconds", "covers"}
SUMMARY_KEYS |= {"baselines", "no_baselines", "tables", "early_stop", "error"}


@pytest.mark.medium
def test_a_run_and_its_directory(run_app: Command, small: list[str], tmp_path: Path) -> None:
    overrides = [*small, "run.name=one", "train.epochs=2", "train.eval_every_steps=30", "checkpoint.every_steps=25"]
    run_app("train", *overrides)
    run = tmp_path / "runs/one"
    figures = summary(run)
    assert set(figures) == SUMMARY_KEYS
    assert figures["status"] == "completed"
    assert (figures["steps"], figures["samples"], figures["world_size"]) == (62, 62 * 64, 1)
    dense = (5 * 32 + 32) + (32 * 16 + 16) + ((16 + 10) * 32 + 32) + (32 + 1)
    embedding = sum(NUM_EMBEDDINGS.values()) * 16
    assert figures["parameters"] == {"embedding": embedding, "dense": dense, "total": embedding + dense}
    assert figures["eval"]["auc"] > 0.65
    assert figures["eval"]["samples"] == 501
    assert figures["throughput"]["samples_per_second"] > 0
    assert [event["step"] for event in events(run, "eval")] == [30, 60, 62]
    assert {event["step"] for event in events(run, "checkpoint")} >= {25, 50, 62}
    assert all(event["write_seconds"] > 0 and event["stall_seconds"] > 0 for event in events(run, "checkpoint"))
    assert [event["step"] for event in events(run, "train")] == list(range(1, 63))
    assert figures["train"]["logloss"] == pytest.approx(losses(run)[-1])
    assert (run / "checkpoints/latest").read_text() == "step_00000062"
    manifest = json.loads((run / "manifest.json").read_bytes())
    assert manifest["world_size"] == 1
    assert manifest["versions"]["torch"]
    assert manifest["argv"][1:] == [*overrides, "baselines=false"]
    assert {entry["type"] for entry in manifest["plan"].values()} == {"table_wise"}
    (row,) = csv.DictReader((run / "results.csv").open())
    assert float(row["Recommendations/s (mean)"]) == figures["throughput"]["samples_per_second"]
    assert (row["Global Batch Size"], row["World Size"], row["Precision"]) == ("64", "1", "fp32")
    assert (row["Device"], row["Commit"]) == (manifest["hardware"]["cpu"], manifest["code"]["git_sha"] or "")
    repeat = run_app("train", *overrides)
    assert "completed already" in repeat.stderr
    assert summary(run) == figures
    scored = run_app("evaluate", "run=runs/one", "split=val", "runtime.num_threads=1")
    assert json.loads(scored.stdout)["auc"] == figures["eval"]["auc"]


@pytest.mark.slow("processes")
def test_same_seed_same_bits_and_another_seed_others(run_app: Command, small: list[str], tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        run_app("train", *small, f"run.name={name}", f"train.seed={seed}", "train.max_steps=40")
    a, b, c = (summary(tmp_path / "runs" / name)["digest"] for name in "abc")
    assert a == b
    assert a["parameters"] != c["parameters"]
    assert a["losses"] != c["losses"]


@pytest.mark.medium
@pytest.mark.parametrize("further", [[], ["checkpoint.every_steps=null", "train.eval_every_steps=null"]])
def test_zero_steps_builds_the_run(further: list[str], run_app: Command, small: list[str], tmp_path: Path) -> None:
    run_app("train", *small, "run.name=zero", "train.max_steps=0", *further)
    figures = summary(tmp_path / "runs/zero")
    assert (figures["status"], figures["steps"]) == ("completed", 0)
    assert figures["parameters"]["embedding"] == sum(NUM_EMBEDDINGS.values()) * 16
    assert set(figures["eval"].values()) == {None}
    assert figures["train"]["logloss"] is figures["throughput"]["samples_per_second"] is None


def test_a_global_batch_that_does_not_divide(small: list[str], tmp_path: Path) -> None:
    forks = forked("train", *small, "train.global_batch_size=63", cwd=tmp_path, processes=2)
    forks[0].join(240)
    forks[1].terminate()  # as torchrun does
    process = ended(forks, tmp_path)
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("error: train.global_batch_size=63: not divisible by the 2 processes") == 1
