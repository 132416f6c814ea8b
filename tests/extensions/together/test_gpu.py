"""Commands and extensions on a run of a GPU, beside the same on the CPU: `pytest -m gpu` on a machine with one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clickwork
from tests.app.test_gpu import command, importable
from tests.clickwork.conftest import SCHEMA, TRAIN, make_rows, write_csv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
__all__ = ["importable"]

ROWS = make_rows(900, seed=0)
NEW_ROWS = make_rows(50, seed=1)
KEYS = [*(key for key in TRAIN if not key.startswith("runtime.")), "runtime.platform=cuda", "eval.split=test"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an own table, its dataset in data and a run of the GPU in run."""
    path = tmp_path_factory.mktemp("gpu")
    write_csv(path / "raw.csv", ROWS)
    (path / "schema.yaml").write_text(SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=":")
        paths = ["data.raw=raw.csv", "data.schema=schema.yaml", "data.path=data", "data.split.method=fraction"]
        command("data_prep", *paths, cwd=path)
        command("app.train", *KEYS, "data.path=data", "run.dir=run", cwd=path)
    return path


def output_of(name: str, *arguments: str, cwd: Path) -> Any:
    return json.loads(command(f"app.{name}", *arguments, cwd=cwd))


def logits_of(directory: Path, platform: str) -> Any:
    return clickwork.load(directory / "run", platform=platform).predict(NEW_ROWS, logits=True)


def test_the_scores_of_new_rows_are_the_cpus(directory: Path) -> None:
    np.testing.assert_allclose(logits_of(directory, "cuda"), logits_of(directory, "cpu"), atol=1e-5)


def test_an_evaluation_is_the_cpus(directory: Path) -> None:
    on_gpu, on_cpu = (
        output_of("evaluate", "run=run", f"runtime.platform={platform}", cwd=directory) for platform in ("cuda", "cpu")
    )
    assert on_gpu["auc"] == pytest.approx(on_cpu["auc"], abs=1e-5)
    assert on_gpu["logloss"] == pytest.approx(on_cpu["logloss"], rel=1e-5)


def test_a_replay_is_identical(directory: Path) -> None:
    assert output_of("verify", "run=run", cwd=directory)["verdict"] == "identical"


def test_a_ranking_is_the_cpus(directory: Path) -> None:
    (directory / "rows.json").write_text(json.dumps(NEW_ROWS))
    rankings = []
    for platform in ("cuda", "cpu"):
        command(
            "app.recommend",
            *("run=run", "candidates=rows.json", f"out={platform}.json", f"runtime.platform={platform}"),
            cwd=directory,
        )
        ranking = json.loads((directory / f"{platform}.json").read_text())["ranking"]
        rankings.append({candidate["candidate"]: candidate["logit"] for candidate in ranking})
    assert rankings[0] == pytest.approx(rankings[1], abs=1e-5)


def test_an_exported_directory_gives_the_gpus_scores(directory: Path) -> None:
    command("app.export", "run=run", "out=exported", cwd=directory)
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in NEW_ROWS))
    command_line = [sys.executable, "exported/score.py", "rows.jsonl"]
    process = subprocess.run(command_line, cwd=directory, capture_output=True, text=True, check=True)
    scores = [float(line) for line in process.stdout.splitlines() if line[:1].isdigit()]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits_of(directory, "cuda"))), atol=1e-5)


def test_importances_are_the_cpus(directory: Path) -> None:
    figures = []
    for platform in ("cuda", "cpu"):
        keys = ["run=run", "rows=90", "repeats=2", f"runtime.platform={platform}"]
        features = json.loads(command("app.importance", *keys, cwd=directory))["features"]
        figures.append({feature["name"]: feature["loss"] for feature in features})
    assert figures[0] == pytest.approx(figures[1], abs=1e-3)


def test_seeds_are_reproduced(directory: Path) -> None:
    keys = [key for key in KEYS if not key.startswith("recipe=")]
    command("app.reproduce", "recipe=quickstart", "seeds=2", "out=seeds", "data.path=data", *keys, cwd=directory)
    assert len(json.loads((directory / "seeds/reproduce.json").read_text())["runs"]) == 2
