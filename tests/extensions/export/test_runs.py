"""Exports of runs of many kinds: the program scores what training, evaluate and recommend score."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from app.config import DataConfig
from app.data.split import SplitReader
from app.runtime.platform import Runtime
from common.errors import UserError
from common.keys import to_plain
from data_prep.dataset.format import load_manifest
from data_prep.encoding.encoder import Encoder
from data_prep.encoding.new_rows import read_new_rows
from extensions.export.command import main
from extensions.export.keys import ExportConfig
from tests.app.conftest import SMALL, Command, composed, ended, forked
from tests.app.in_process import command_here, train_here
from tests.app.run_files import summary
from tests.app.scoring.test_same_row import drawn_model, inputs_of
from tests.app.scoring.test_sampling import CORRECTED, KEPT, raw_rows
from tests.app.scoring.test_sampling import place as place
from tests.app.test_secrets import ARGUMENTS, ENVIRONMENT, planted
from tests.app.training.test_field_models import BRIEF, REGULARISED
from tests.app.training.test_number_labels import MODEL, make_ratings, rows_of
from tests.pretend_cuda.conftest import dataset as dataset
from tests.pretend_cuda.conftest import machine as machine
from tests.pretend_cuda.conftest import runs as runs
from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import command

DRAWS = [0, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]


def logits_of(path: Path, *inputs: torch.Tensor) -> Any:
    return torch.export.load(path).module()(*inputs).detach().numpy()


def test_scores_that_depend_on_other_rows_are_not_exported(tmp_path: Path) -> None:
    mixed = ["model.interaction=scalar_pairs", "model.mixes_samples=true"]
    config = composed(*SMALL, *mixed, "run.name=x")
    (tmp_path / "config.yaml").write_text(json.dumps(to_plain(config)))
    with pytest.raises(UserError, match=r"mixes_samples=true: export has no meaning"):
        main(ExportConfig(run=str(tmp_path), out=f"{tmp_path}/m.pt2"))


@pytest.mark.parametrize("seed", DRAWS)
def test_drawn_tables(seed: int, runtime: Runtime, tmp_path: Path) -> None:
    """The tables of tests/app/scoring/test_same_row.py: a file scores the rows as evaluate does."""
    _, table, keys, _, rows, expected = drawn_model(random.Random(seed), seed, runtime, tmp_path)
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/model.pt2")
    logits = logits_of(tmp_path / "model.pt2", *inputs_of(table, tmp_path / "data", rows, keys))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)


def test_corrected_logits_are_those_of_the_ranking(
    runtime: Runtime, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    lines = [row.split("\t", 1)[1] for row in raw_rows()[:1000]]
    (tmp_path / "c.tsv").write_text("".join(f"{line}\n" for line in lines))
    arguments = [f"candidates={tmp_path}/c.tsv", "top_k=null", f"out={tmp_path}/ranking.json", CORRECTED]
    assert command_here(runtime, "recommend", "run=runs/x", *arguments) == 0
    ranking = {each["candidate"]: each for each in json.loads((tmp_path / "ranking.json").read_text())["ranking"]}
    assert command_here(runtime, "export", "run=runs/x", f"out={tmp_path}/x.pt2", CORRECTED) == 0
    torch.export.load(tmp_path / "x.pt2", extra_files=(about := {"clickwork.json": ""}))
    assert json.loads(about["clickwork.json"])["kept_share"] == KEPT
    encoder = Encoder.load(Path("data"))
    rows = read_new_rows(tmp_path / "c.tsv", encoder.shape(encoder.input_columns))
    block = encoder.encode(encoder.parse_columns(rows.columns, rows.name, rows.numbers))
    ids = torch.from_numpy(block.sparse.astype(np.int64))
    logits = logits_of(tmp_path / "x.pt2", torch.from_numpy(block.dense), ids)
    expected = [ranking[str(number)]["logit"] for number in range(1, 1001)]
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_a_correction_of_data_that_need_none_is_refused(runtime: Runtime, dataset: Path, tmp_path: Path) -> None:
    run = [*SMALL, f"data.path={dataset}", "run.name=z", f"run.dir={tmp_path}/z", "train.max_steps=2"]
    assert train_here(runtime, *run, "record.tensorboard=false") == "completed"
    with pytest.raises(
        UserError, match=r"correct_sampling=true: .* kept every row with label 0, and the run has no loss"
    ):
        command_here(runtime, "export", f"run={tmp_path}/z", f"out={tmp_path}/z.pt2", CORRECTED)
    assert not (tmp_path / "z.pt2").exists()


@pytest.mark.slow("processes")
def test_predicted_numbers(runtime: Runtime, tmp_path: Path) -> None:
    make_ratings(tmp_path)
    keys = [*MODEL, "model.over_arch=[16,1]", "train.global_batch_size=100", "optimizer=adam", "optimizer.lr=0.02"]
    keys += [f"data.path={tmp_path}/data", "run.name=x", f"run.dir={tmp_path}/run", "train.max_steps=12"]
    assert train_here(runtime, *keys) == "completed"
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/model.pt2")
    labels, ids = rows_of(tmp_path / "data", "val")
    preds = logits_of(tmp_path / "model.pt2", torch.zeros(len(ids), 0), torch.from_numpy(np.array(ids)).long())
    rmse = summary(tmp_path / "run")["eval"]["rmse"]
    assert np.sqrt(np.square(preds - labels).mean()) == pytest.approx(rmse, rel=1e-5)


@pytest.mark.slow("processes")
def test_statistics_of_batch_norm(runtime: Runtime, dataset: Path, tmp_path: Path) -> None:
    keys = [*SMALL, *REGULARISED, *BRIEF, f"data.path={dataset}", "run.name=x", f"run.dir={tmp_path}/run"]
    assert train_here(runtime, *keys) == "completed"
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/model.pt2")
    rows = load_manifest(dataset).splits["val"].rows
    batch = next(SplitReader(dataset, load_manifest(dataset), "val", DataConfig(), 0, 1).eval_batches(rows))
    ids = batch.sparse_features.values().view(len(batch.sparse_features.keys()), -1).T.long()
    logits = logits_of(tmp_path / "model.pt2", batch.dense_features, ids).astype(np.float64)
    logloss = summary(tmp_path / "run")["eval"]["logloss"]
    assert log_loss(batch.labels.numpy(), 1 / (1 + np.exp(-logits))) == pytest.approx(logloss, rel=1e-6)


@pytest.mark.slow("processes")
def test_no_secret_is_in_the_file_and_the_run_s_environment_is_set(
    run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=one", "train.max_steps=10", *ARGUMENTS]
    overrides.append("+environment.variables.A_VARIABLE=7")
    process = ended(forked("train", *overrides, cwd=tmp_path, environment=ENVIRONMENT), tmp_path)
    assert process.returncode == 0, process.stderr
    assert "A_VARIABLE=7" in run_app("export", "run=runs/one", "out=m.pt2").stderr
    assert planted(tmp_path) == []


@pytest.mark.slow("processes")
def test_a_run_of_a_gpu(machine: Machine, runs: Path, tmp_path: Path) -> None:
    command(machine, "export", tmp_path, f"run={runs}/cuda/run", f"out={tmp_path}/model.pt2")
    assert torch.export.load(tmp_path / "model.pt2") is not None
