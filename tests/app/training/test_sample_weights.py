"""Sample weights, from raw rows to the loss, the metrics and a replay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from app.runtime.platform import Runtime
from app.training import session
from common.errors import UserError
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.pipeline import preprocess
from tests.app.conftest import Command, Refusal, composed
from tests.app.in_process import command_here, train_here
from tests.app.run_files import summary
from tests.data_prep.conftest import config as data_config
from tests.once import made_once
from tests.oracles.click_metrics import expected_figures

ROWS = 900
MODEL = ["recipe=quickstart", "model.embedding_dim=4", "model.dense_arch=[]", "model.interaction=cat"]
MODEL += ["runtime.num_threads=1", "train.log_every_steps=1", "record.tensorboard=false", "baselines=false"]
SMALL = [*MODEL, "model.over_arch=[16,1]", "train.global_batch_size=100", "optimizer=adam", "optimizer.lr=0.02"]
SMALL += ["train.drop_last=false", "train.epochs=2"]


def make_clicks(directory: Path) -> None:
    """Write clicks of 20 users on 30 items, and datasets of them: with weights, with equal weights, and without."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 20, ROWS), rng.integers(0, 30, ROWS)
    odds = rng.normal(size=20)[users] + rng.normal(size=30)[items]
    clicks, weights = (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(int), rng.choice([0, 0.25, 1, 9], ROWS)
    lines = [f"{a},{b},{c},{w},2.5" for a, b, c, w in zip(users, items, clicks, weights, strict=True)]
    (directory / "clicks.csv").write_text("\n".join(["user,item,click,weight,equal", *lines, ""]))
    for name, key in (("weight", "weight: weight"), ("equal", "weight: equal"), ("without", "weight: null")):
        schema = directory / f"{name}.yaml"
        schema.write_text(f"label: click\nsparse: [user, item]\n{key}\n")
        keys = [f"data.raw={directory}/clicks.csv", f"data.schema={schema}", f"data.path={directory}/{name}"]
        preprocess(data_config(*keys, "data.split.method=fraction"))


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "weighted_clicks", make_clicks)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def rows_of(root: Path, split: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return labels [rows], ids [rows, 2] and weights [rows]."""
    manifest = load_manifest(root)
    [shard] = (open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards)
    assert shard.weights is not None
    return shard.labels[:, 0].astype(np.float64), np.array(shard.sparse), shard.weights[:, 0].astype(np.float64)


def test_steps_and_figures_are_those_of_a_few_lines_of_numpy(runtime: Runtime, clicks: Path, runs: Path) -> None:
    """Train by gradient descent on all rows at once, so that their order does not matter."""
    root = clicks / "weight"
    labels, ids, weights = rows_of(root, "train")
    keys = [*MODEL, f"data.path={root}", "run.name=x", "model.over_arch=[1]", f"train.global_batch_size={len(labels)}"]
    keys += ["optimizer=sgd", "optimizer.lr=0.5", "train.epochs=5", "checkpoint.keep_best=false"]
    config = composed(*keys)
    start = dict(session.build(config, runtime, root, load_manifest(root)).parameters())
    parameters = {name: np.array(values, np.float64) for name, values in start.items()}
    tables = [parameters[name] for name in ("t_user", "t_item")]
    [weight] = [values[0] for name, values in parameters.items() if name.startswith("over_arch") and values.ndim == 2]
    [bias] = [values for name, values in parameters.items() if name.startswith("over_arch") and values.ndim == 1]
    losses = []
    for _ in range(5):
        vectors = np.concatenate([table[ids[:, column]] for column, table in enumerate(tables)], axis=1)
        preds = 1 / (1 + np.exp(-(vectors @ weight + bias[0])))
        losses.append(log_loss(labels, preds, sample_weight=weights))
        slope = weights * (preds - labels) / weights.sum()
        for column, table in enumerate(tables):
            np.add.at(table, ids[:, column], -0.5 * (slope[:, None] * weight)[:, 4 * column : 4 * column + 4])
        weight, bias = weight - 0.5 * slope @ vectors, bias - 0.5 * slope.sum()

    assert train_here(runtime, *keys) == "completed"
    events = [json.loads(line) for line in (runs / "x/metrics.jsonl").read_text().splitlines()]
    assert [event["loss"] for event in events if event["event"] == "train"] == pytest.approx(losses, rel=1e-5)
    truth, rows, of_rows = rows_of(root, "val")
    vectors = np.concatenate([table[rows[:, column]] for column, table in enumerate(tables)], axis=1)
    expected = expected_figures(truth, vectors @ weight + bias[0], of_rows)
    figures = summary(runs / "x")["eval"]
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_equal_weights_change_no_bit(runtime: Runtime, clicks: Path, runs: Path) -> None:
    for name in ("equal", "without"):
        train_here(runtime, *SMALL, f"data.path={clicks / name}", f"run.name={name}")
    weighted, plain = (summary(runs / name) for name in ("equal", "without"))
    assert weighted["digest"] == plain["digest"]
    for name in ("auc", "ne", "logloss", "accuracy", "pr_auc", "ece", "calibration", "base_rate"):
        assert weighted["eval"][name] == pytest.approx(plain["eval"][name], rel=1e-12), name


def test_new_rows_are_weighted(runtime: Runtime, clicks: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(runtime, *SMALL, f"data.path={clicks / 'weight'}", "run.name=x")
    lines = (clicks / "clicks.csv").read_text().splitlines()
    (runs.parent / "new.csv").write_text("\n".join([lines[0], *lines[-100:], ""]))
    (runs.parent / "without.csv").write_text("user,item,click\n3,4,1\n")
    command_here(runtime, "recommend", "run=runs/x", "candidates=new.csv", "top_k=100", "out=ranked.json")
    ranking = json.loads((runs.parent / "ranked.json").read_bytes())["ranking"]
    preds = {int(each["candidate"]): each["probability"] for each in ranking}
    logits = np.array([np.log(preds[row] / (1 - preds[row])) for row in range(1, 101)])
    columns = np.array([line.split(",") for line in lines[-100:]], float)
    capsys.readouterr()
    command_here(runtime, "evaluate", "run=runs/x", "data.raw=new.csv")
    figures = json.loads(capsys.readouterr().out)
    expected = expected_figures(columns[:, 2], logits, columns[:, 3])
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    command_here(runtime, "recommend", "run=runs/x", "candidates=without.csv")  # reads neither weights nor labels
    with pytest.raises(UserError, match="no column weight, which holds the sample weights; add it"):
        command_here(runtime, "evaluate", "run=runs/x", "data.raw=without.csv")


@pytest.mark.parametrize("given", ["eval.group_by=user", "eval.keep_scores=100"])
def test_what_would_ignore_weights_is_refused(run_app: Command, refused: Refusal, clicks: Path, given: str) -> None:
    keys = [*SMALL, f"data.path={clicks / 'weight'}", "run.name=x", "train.max_steps=1"]
    line = refused("train", *keys, given)
    assert line.startswith(f"error: {given}: not of rows with sample weights, which ")
    run_app("train", *keys, given, line.rsplit("; give ", 1)[1])


@pytest.mark.slow("processes")
def test_processes_change_no_bit_and_a_run_is_replayed(run_app: Command, clicks: Path, tmp_path: Path) -> None:
    layout = [*SMALL, f"data.path={clicks / 'weight'}", "train.deterministic=layout", "train.micro_batch_size=25"]
    as_usual = ["train.deterministic=false", "train.micro_batch_size=null"]
    for name, processes, *more in (("one", 1), ("two", 2), ("usual", 1, *as_usual)):
        run_app("train", *layout, f"run.name={name}", *more, processes=processes)
    one, two, usual = (summary(tmp_path / f"runs/{name}") for name in ("one", "two", "usual"))
    assert (one["digest"], one["eval"]) == (two["digest"], two["eval"])
    assert one["eval"]["ne"] == pytest.approx(usual["eval"]["ne"], rel=1e-4)
    bounded = [
        json.loads(run_app("evaluate", f"run=runs/{name}", "split=val", "exact_rows=0", processes=processes).stdout)
        for name, processes in (("one", 1), ("one", 2), ("usual", 2))
    ]
    assert bounded[0]["auc"] == bounded[1]["auc"] == pytest.approx(one["eval"]["auc"], abs=bounded[0]["auc_error"])
    assert bounded[2]["logloss"] == pytest.approx(usual["eval"]["logloss"], rel=1e-6)
    assert json.loads(run_app("verify", "run=runs/two").stdout)["verdict"] == "identical"
