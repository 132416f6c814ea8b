"""Labels that are numbers, from raw rows to a compared model; labels of one class alone."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import DataConfig
from app.config.data import NegativesConfig
from app.data.shards import SplitShards
from app.runtime.platform import Runtime
from app.training import session
from app.training.labels import refuse_one_class
from common.errors import OwnError, UserError
from common.extensions import absence
from data_prep.dataset.format import load_manifest, open_shard, shard_path
from data_prep.pipeline import preprocess
from tests.app.conftest import Command, Refusal, composed
from tests.app.run_files import summary
from tests.data_prep import oracle
from tests.data_prep.conftest import config as data_config
from tests.data_prep.conftest import prepare
from tests.once import made_once

ROWS, TRAIN = 700, 600
MODEL = ["loss=mse", "train.monitor=rmse", "model.embedding_dim=4", "model.dense_arch=[]", "model.interaction=cat"]
MODEL += ["runtime.num_threads=1", "train.log_every_steps=1", "recipe=quickstart"]


def make_ratings(directory: Path) -> None:
    """Ratings of 20 users for 30 items: a number of either, and noise."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 20, ROWS), rng.integers(0, 30, ROWS)
    ratings = 3 + rng.normal(size=20)[users] + rng.normal(size=30)[items] + rng.normal(0, 0.3, ROWS)
    lines = [f"{user},{item},{rating:.3f}" for user, item, rating in zip(users, items, ratings, strict=True)]
    (directory / "ratings.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    (directory / "ratings.yaml").write_text("label: {column: rating, kind: number}\nsparse: [user, item]\n")
    paths = [f"data.raw={directory}/ratings.csv", f"data.schema={directory}/ratings.yaml"]
    preprocess(data_config(*paths, f"data.path={directory}/data", "data.split.method=fraction"))


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "ratings", make_ratings) / "data"


def train(run_app: Command, root: Path, name: str, *overrides: str, processes: int = 1) -> str:
    usual = ["model.over_arch=[16,1]", "train.global_batch_size=100", "optimizer=adam", "optimizer.lr=0.02"]
    keys = [*MODEL, *usual, f"data.path={root}", f"run.name={name}", *overrides]
    process = run_app("train", *keys, processes=processes)
    return process.stderr


def rows_of(root: Path, split: str) -> tuple[Any, Any]:
    """Labels [rows] and ids [rows, 2]."""
    manifest = load_manifest(root)
    shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
    labels = np.concatenate([shard.labels[:, 0] for shard in shards]).astype(np.float64)
    return labels, np.concatenate([shard.sparse for shard in shards])


def test_steps_and_errors_are_numpys(run_app: Command, ratings: Path, runtime: Runtime, tmp_path: Path) -> None:
    """Gradient descent on all rows at once, so that their order does not matter."""
    labels, ids = rows_of(ratings, "train")
    overrides = [*MODEL, "model.over_arch=[1]", f"train.global_batch_size={len(labels)}", "optimizer=sgd"]
    overrides += [f"data.path={ratings}", "run.name=x", "optimizer.lr=0.3", "train.epochs=6"]
    config = composed(*overrides)
    start = dict(session.build(config, runtime, ratings, load_manifest(ratings)).parameters())
    parameters = {name: np.array(values, np.float64) for name, values in start.items()}
    tables = [parameters[name] for name in ("t_user", "t_item")]
    [weight] = [values[0] for name, values in parameters.items() if name.startswith("over_arch") and values.ndim == 2]
    [bias] = [values for name, values in parameters.items() if name.startswith("over_arch") and values.ndim == 1]

    def predict(rows: Any) -> tuple[Any, Any]:
        vectors = np.concatenate([table[rows[:, column]] for column, table in enumerate(tables)], axis=1)
        return vectors, vectors @ weight + bias[0]

    losses = []
    for _ in range(6):
        vectors, preds = predict(ids)
        slope = 2 * (preds - labels) / len(labels)
        losses.append(np.square(preds - labels).mean())
        of_vectors = slope[:, None] * weight
        for column, table in enumerate(tables):
            np.add.at(table, ids[:, column], -0.3 * of_vectors[:, 4 * column : 4 * column + 4])
        weight, bias = weight - 0.3 * slope @ vectors, bias - 0.3 * slope.sum()

    run_app("train", *overrides)
    events = [json.loads(line) for line in (tmp_path / "runs/x/metrics.jsonl").read_text().splitlines()]
    windows = [event for event in events if event["event"] == "train"]
    assert [event["loss"] for event in windows] == pytest.approx(losses, rel=1e-5)
    assert {event["logloss"] for event in windows} == {event["accuracy"] for event in windows} == {None}
    truth, rows = rows_of(ratings, "val")
    errors = predict(rows)[1] - truth
    figures = summary(tmp_path / "runs/x")["eval"]
    expected = {"rmse": np.sqrt(np.square(errors).mean()), "mae": np.abs(errors).mean(), "label_deviation": truth.std()}
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert {figures[name] for name in ("auc", "ne", "logloss", "accuracy", "calibration", "pr_auc", "ece")} == {None}


@pytest.mark.slow("processes")
def test_a_run_is_evaluated_ranked_verified_and_compared(run_app: Command, ratings: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        for steps, name in ((12, "short"), (36, "long")):
            keys = ["train.eval_every_steps=4", f"train.seed={seed}", f"train.max_steps={steps}"]
            text = train(run_app, ratings, f"{name}{seed}", *keys)
    assert re.search(r"evaluation +RMSE 0\.\d+, MAE 0\.\d+ \(val", text)
    assert "AUC" not in text
    figures = summary(tmp_path / "runs/long1")
    assert figures["best"]["monitor"] == "rmse"
    assert figures["eval"]["rmse"] == figures["best"]["value"] < figures["eval"]["label_deviation"] / 2

    results = [
        json.loads(run_app("evaluate", "run=runs/long1", "split=val", *more, processes=processes).stdout)
        for more, processes in (((), 1), ((), 2), (("tables=fp32",), 1), (("exact_rows=0",), 1))
    ]
    for result in results:
        assert result["rmse"] == pytest.approx(figures["eval"]["rmse"], rel=1e-6)
        assert result["auc"] is None
    assert results[0]["rmse"] == pytest.approx(results[1]["rmse"], rel=1e-7)  # products of other batches

    (tmp_path / "new.csv").write_text("user,item\n3,4\n3,5\n3,unknown\n")
    ranked = run_app("recommend", "run=runs/long1", "candidates=new.csv", "out=ranked.json")
    assert "prediction" in ranked.stdout
    ranking = json.loads((tmp_path / "ranked.json").read_bytes())["ranking"]
    numbers = [entry["prediction"] for entry in ranking]
    assert numbers == sorted(numbers, reverse=True)
    assert {*ranking[0]} == {"rank", "candidate", "prediction", "out_of_vocabulary"}

    verified = run_app("verify", "run=runs/short1")
    assert json.loads(verified.stdout)["evaluation"] == {"rmse": 0.0}

    page = (tmp_path / "runs/long1/report.html").read_text()
    assert "Better than the labels&#39; mean: RMSE" in page
    assert "majority class" not in page
    runs = ",".join(f"runs/{name}{seed}" for name in ("short", "long") for seed in (1, 2))
    compared = run_app("report", f"runs=[{runs}]", "out=compare.html")
    assert re.search(r"RMSE: B \(long1.*\) is −", compared.stdout + compared.stderr)
    assert "AUC" not in compared.stdout


@pytest.mark.slow("processes")
def test_two_processes_have_the_figures_of_one(run_app: Command, ratings: Path, tmp_path: Path) -> None:
    train(run_app, ratings, "one", "train.epochs=2")
    train(run_app, ratings, "two", "train.epochs=2", processes=2)
    alone, together = (summary(tmp_path / f"runs/{name}")["eval"] for name in ("one", "two"))
    for metric in ("rmse", "mae"):
        assert alone[metric] == pytest.approx(together[metric], rel=1e-4)
    assert alone["label_deviation"] == pytest.approx(together["label_deviation"], rel=1e-12)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("loss=bce", "loss=mse"),
        pytest.param("loss.threshold=0.1", "loss.threshold=0.0", marks=pytest.mark.slow),
        ("train.monitor=auc", "train.monitor=rmse"),
        pytest.param("train.target_auc=0.8", "train.target_auc=null", marks=pytest.mark.slow),
        pytest.param("train.target_accuracy=0.8", "train.target_accuracy=null", marks=pytest.mark.slow),
        pytest.param("eval.keep_scores=100", "eval.keep_scores=0", marks=pytest.mark.slow),
        *([] if absence("baselines") else [("baselines=true", "baselines=false")]),
    ],
)
def test_what_is_of_clicks_is_refused_with_what_to_give(
    run_app: Command, refused: Refusal, ratings: Path, override: str, remedy: str
) -> None:
    usual = [f"data.path={ratings}", "run.name=x", "train.max_steps=1", *MODEL, "model.over_arch=[1]"]
    line = refused("train", *usual, override)
    assert line.startswith(f"error: {override}: not of the labels of ")
    assert line.endswith(f"which are numbers (column rating); give {remedy}")
    run_app("train", *usual, override, remedy)


def test_a_number_that_is_not_finite_is_found_when_it_is_read(ratings: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(ratings, tmp_path / "copy"))
    manifest = load_manifest(root)
    [shard] = manifest.splits["train"].shards
    path = shard_path(root, "train", shard.name, "labels")
    labels = np.load(path)
    labels[41] = np.inf
    np.save(path, labels)
    shards = SplitShards(root, manifest, "train")
    with pytest.raises(OwnError, match=r"row 41, label: is not a finite number"):
        shards.read([(0, 100)], np.arange(100))
    rows = shards.read([(100, 200)], np.arange(100)[::-1].copy())
    np.testing.assert_array_equal(rows.labels, labels[100:200, 0][::-1])


def test_rmse_of_clicks_is_refused(refused: Refusal, dataset: Path) -> None:
    line = refused("train", f"data.path={dataset}", "run.name=x", "train.max_steps=1", "train.monitor=rmse")
    assert line.endswith("which are clicks, 0 or 1 (column label); give train.monitor=auc")


def test_a_train_split_of_one_class_is_refused(tmp_path: Path) -> None:
    lines = oracle.make_rows(60, seed=1).decode().splitlines(keepends=True)
    (tmp_path / "day_0").write_text("".join(f"{int(row >= 52)}{line[1:]}" for row, line in enumerate(lines)))
    manifest = prepare(f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/out")
    assert manifest.splits["train"].label_rate == 0
    with pytest.raises(UserError, match=r"every label of train is 0, so no model.*or give data.allow_degenerate=true"):
        refuse_one_class(DataConfig(), tmp_path, manifest)
    refuse_one_class(DataConfig(allow_degenerate=True), tmp_path, manifest)
    refuse_one_class(DataConfig(negatives=NegativesConfig(per_positive=1)), tmp_path, manifest)
    splits = manifest.splits | {"train": replace(manifest.splits["train"], label_rate=0.5)}
    refuse_one_class(DataConfig(), tmp_path, replace(manifest, splits=splits))
