"""The programs of `examples/`, run."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest

import clickwork
from app.runtime.platform import Runtime
from tests.blocks import differences
from tests.clickwork.notebook import NOTEBOOK, executed, without_frames
from tests.data_prep.conftest import prepare
from tests.fast_python import fast_python

EXAMPLES = NOTEBOOK.parent
# Lines of stages and rates, and of a choice that they decide.
OF_A_MACHINE = re.compile(r" rows/s|B/s| in \d|peak memory|throughput|time  |Speed|Choice|IPKernelApp")
LOSSES = re.compile(r"epoch (\d): test logloss (\S+), of the base rate (\S+)")


def run_program(path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")


def printed(notebook: Any) -> list[list[str]]:
    return [
        [output.get("text") or output["data"].get("text/plain", "") for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


@pytest.mark.slow("examples")
def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    kept, notebook = nbformat.read(NOTEBOOK, as_version=4), executed(tmp_path)
    pages = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "data" in output and "<iframe" in output.data.get("text/html", "")
    ]
    assert len(pages) == 2  # the run's, and that of two
    assert all("uPlot" in page for page in pages)
    assert [len(texts) for texts in printed(kept)] == [len(texts) for texts in printed(without_frames(notebook))]
    for shown, texts in zip(printed(kept), printed(notebook), strict=True):
        lines = "\n".join(line for line in "\n".join(shown).splitlines() if not OF_A_MACHINE.search(line))
        assert differences(lines, "\n".join(texts)) == []


@pytest.mark.medium
def test_a_model_of_ones_own_learns(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(50, size=6000), rng.integers(40, size=6000)
    logits = rng.normal(size=50)[users] + 2 * rng.normal(size=40)[items]
    clicked = (rng.random(6000) < 1 / (1 + np.exp(-logits))).astype(int)
    pd.DataFrame({"clicked": clicked, "user": users, "item": items, "age": users % 7}).to_csv(tmp_path / "a.csv")
    (tmp_path / "a.yaml").write_text("label: clicked\ndense: [age]\nsparse: [user, item]\n")
    prepare(f"data.raw={tmp_path}/a.csv", f"data.schema={tmp_path}/a.yaml", f"data.path={tmp_path}/data")
    run_program(EXAMPLES / "own_model.py", monkeypatch, f"{tmp_path}/data", "4")
    figures = [(int(epoch), float(loss), float(base)) for epoch, loss, base in LOSSES.findall(capsys.readouterr().out)]
    assert [epoch for epoch, *_ in figures] == [0, 1, 2, 3]
    assert figures[-1][1] < figures[0][1]
    assert figures[-1][1] < 0.9 * figures[-1][2]


@pytest.mark.slow("processes")
def test_a_recipe_outside_the_package_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(fast_python()))
    keys = ["data.scale=tiny", "train.max_steps=3", "data.synthetic.rows=3000", "baselines=false"]
    run = clickwork.train([f"recipe={EXAMPLES}/crosses.yaml", *keys])
    assert run.summary is not None
    assert run.summary["steps"] == 3
    assert run.config["model"]["interaction"] == "dcn"


@pytest.mark.medium
def test_movielens_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated rows in the format of the published files: titles have commas and quotes, a film may have no genre."""
    rng = np.random.default_rng(0)
    genres = ["Action|Crime", "Comedy", "(no genres listed)", "Drama|Romance|War"]
    films = [f'{movie},"Film, The ""{movie}"" ({1950 + movie})",{genres[movie % 4]}' for movie in range(1, 31)]
    (tmp_path / "movies.csv").write_text("\n".join(["movieId,title,genres", *films]) + "\n")
    ratings = pd.DataFrame(
        {
            "userId": rng.integers(1, 40, 1000),
            "movieId": rng.integers(1, 31, 1000),
            "rating": rng.integers(1, 11, 1000) / 2,
            "timestamp": rng.choice(np.arange(964_000_000, 1_500_000_000, 1000), 1000, replace=False),
        }
    )
    ratings.to_csv(tmp_path / "ratings.csv", index=False)
    run_program(EXAMPLES / "movielens/join.py", monkeypatch, str(tmp_path))
    keys = [f"data.raw={tmp_path}/clicks.parquet", f"data.schema={EXAMPLES}/movielens/schema.yaml"]
    prepare(*keys, f"data.path={tmp_path}/data", "data.split.method=fraction")
    dataset = clickwork.Dataset(tmp_path / "data")
    truth = ratings.sort_values("timestamp")
    for name, start in (("train", 0), ("test", 1000 - dataset.splits["test"].rows)):
        [batch] = dataset.batches(name)
        rows = truth.iloc[start : start + len(batch.labels)]
        assert batch.labels.tolist() == (rows["rating"] >= 4).astype(int).tolist()
        weekdays = [str(number) for number in pd.to_datetime(rows["timestamp"], unit="s").dt.day_of_week]
        if name == "train":
            assert dataset.values("movieId", batch.sparse[:, 1]) == [str(movie) for movie in rows["movieId"]]
            assert dataset.values("timestamp_weekday", batch.sparse[:, 2]) == weekdays
        bags = batch.bags["genres"]
        for place, movie in enumerate(rows["movieId"]):
            ids = bags.values[bags.offsets[place] : bags.offsets[place + 1]]
            assert dataset.values("genres", ids) == genres[movie % 4].split("|")
