"""Labels that are numbers, from raw rows to a compared model; labels of one class alone; weights of rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from app.config.data import DataConfig, NegativesConfig
from app.runtime.platform import Runtime
from app.training import session
from app.training.predictor import refuse_one_class
from common.errors import UserError
from data_prep.dataset.format import load_manifest, open_shard
from data_prep.pipeline import preprocess
from tests.app.conftest import Command, Refusal, composed
from tests.app.in_process import command_here, train_here
from tests.app.run_files import events, summary
from tests.data_prep import oracle
from tests.data_prep.conftest import config as data_config
from tests.data_prep.conftest import prepare
from tests.once import made_once
from tests.oracles.click_metrics import expected_figures

ROWS = 700
TINY = ["recipe=quickstart", "model.embedding_dim=4", "model.dense_arch=[]", "model.interaction=cat"]
TINY += ["runtime.num_threads=1", "train.log_every_steps=1"]
MODEL = [*TINY, "loss=mse", "train.monitor=rmse"]
USUAL = ["model.over_arch=[16,1]", "train.global_batch_size=100", "optimizer=adam", "optimizer.lr=0.02"]


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


def arrays_of(root: Path, split: str, *names: str) -> list[Any]:
    """Arrays [rows, columns] of a split."""
    manifest = load_manifest(root)
    shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
    return [np.concatenate([getattr(shard, name) for shard in shards]) for name in names]


def rows_of(root: Path, split: str) -> tuple[Any, Any]:
    """Labels [rows] and ids [rows, 2]."""
    labels, ids = arrays_of(root, split, "labels", "sparse")
    return labels[:, 0].astype(np.float64), ids


class Linear:
    """A model of user and item with model.over_arch=[1], in float64, from the values that a run begins with."""

    def __init__(self, runtime: Runtime, root: Path, *overrides: str) -> None:
        this = session.build(composed(*overrides), runtime, root, load_manifest(root))
        values = {name: np.array(array, np.float64) for name, array in this.parameters()}
        self.tables = [values["t_user"], values["t_item"]]
        over_arch = [array for name, array in values.items() if name.startswith("over_arch")]
        [self.weight], [self.bias] = ([array for array in over_arch if array.ndim == ndim] for ndim in (2, 1))

    def vectors(self, ids: Any) -> Any:
        return np.concatenate([table[ids[:, column]] for column, table in enumerate(self.tables)], axis=1)

    def outputs(self, ids: Any) -> Any:
        return self.vectors(ids) @ self.weight[0] + self.bias[0]

    def step(self, ids: Any, slopes: Any, lr: float) -> None:
        """Descend on all rows at once, so that their order does not matter; slopes: of the loss by each output."""
        vectors, moves = self.vectors(ids), -lr * slopes[:, None] * self.weight
        for column, table in enumerate(self.tables):
            np.add.at(table, ids[:, column], moves[:, 4 * column : 4 * column + 4])
        self.weight, self.bias = self.weight - lr * slopes @ vectors, self.bias - lr * slopes.sum()


@pytest.mark.medium
def test_steps_and_errors_are_numpys(run_app: Command, ratings: Path, runtime: Runtime, tmp_path: Path) -> None:
    labels, ids = rows_of(ratings, "train")
    overrides = [*MODEL, "model.over_arch=[1]", f"train.global_batch_size={len(labels)}", "optimizer=sgd"]
    overrides += [f"data.path={ratings}", "run.name=x", "optimizer.lr=0.3", "train.epochs=6"]
    linear, losses = Linear(runtime, ratings, *overrides), []
    for _ in range(6):
        errors = linear.outputs(ids) - labels
        losses.append(np.square(errors).mean())
        linear.step(ids, 2 * errors / len(labels), 0.3)
    run_app("train", *overrides)
    windows = events(tmp_path / "runs/x", "train")
    assert [event["loss"] for event in windows] == pytest.approx(losses, rel=1e-5)
    assert {event["logloss"] for event in windows} == {event["accuracy"] for event in windows} == {None}
    truth, rows = rows_of(ratings, "val")
    errors = linear.outputs(rows) - truth
    figures = summary(tmp_path / "runs/x")["eval"]
    expected = {"rmse": np.sqrt(np.square(errors).mean()), "mae": np.abs(errors).mean(), "label_deviation": truth.std()}
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert {figures[name] for name in ("auc", "ne", "logloss", "accuracy", "calibration", "pr_auc", "ece")} == {None}


@pytest.mark.slow("processes")
def test_a_run_is_evaluated_ranked_and_verified(run_app: Command, ratings: Path, tmp_path: Path) -> None:
    run_app("train", *MODEL, *USUAL, f"data.path={ratings}", "run.name=x", "train.max_steps=60", "train.epochs=20")
    figures = summary(tmp_path / "runs/x")["eval"]
    assert figures["rmse"] < figures["label_deviation"] / 2
    for more, processes in (([], 2), (["exact_rows=0"], 1)):
        result = json.loads(run_app("evaluate", "run=runs/x", "split=val", *more, processes=processes).stdout)
        assert result["rmse"] == pytest.approx(figures["rmse"], rel=1e-6)
    (tmp_path / "new.csv").write_text("user,item\n3,4\n3,5\n3,unknown\n")
    run_app("recommend", "run=runs/x", "candidates=new.csv", "out=ranked.json")
    ranking = json.loads((tmp_path / "ranked.json").read_bytes())["ranking"]
    numbers = [entry["prediction"] for entry in ranking]
    assert numbers == sorted(numbers, reverse=True)
    assert json.loads(run_app("verify", "run=runs/x").stdout)["evaluation"] == {"rmse": 0.0}
    assert "Better than the labels&#39; mean: RMSE" in (tmp_path / "runs/x/report.html").read_text()


@pytest.mark.parametrize(
    ("override", "remedy"), [("loss=bce", "loss=mse"), ("train.monitor=auc", "train.monitor=rmse")]
)
def test_what_is_of_clicks_is_refused_with_what_to_give(
    refused_command: Refusal, ratings: Path, clicks: Path, override: str, remedy: str
) -> None:
    usual = ["run.name=x", *MODEL, "model.over_arch=[1]"]
    line = refused_command("train", *usual, f"data.path={ratings}", override)
    assert line.startswith(f"error: {override}: not of the labels of ")
    assert line.endswith(f"which are numbers (column rating); give {remedy}")
    line = refused_command("train", *WEIGHTED, f"data.path={clicks / 'weight'}", "run.name=x", "eval.group_by=user")
    assert line.startswith("error: eval.group_by=user: not of rows with sample weights, which ")


def test_a_train_split_of_one_class_is_refused(tmp_path: Path) -> None:
    lines = oracle.make_rows(60, seed=1).decode().splitlines(keepends=True)
    (tmp_path / "day_0").write_text("".join(f"{int(row >= 52)}{line[1:]}" for row, line in enumerate(lines)))
    manifest = prepare(f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/out")
    assert manifest.splits["train"].label_rate == 0
    with pytest.raises(UserError, match=r"every label of train is 0, so no model.*or give data.allow_degenerate=true"):
        refuse_one_class(DataConfig(), tmp_path, manifest)
    refuse_one_class(DataConfig(allow_degenerate=True), tmp_path, manifest)
    refuse_one_class(DataConfig(negatives=NegativesConfig(per_positive=1)), tmp_path, manifest)


CLICKS = [*TINY, "record.tensorboard=false", "baselines=false"]
WEIGHTED = [*CLICKS, *USUAL, "train.drop_last=false", "train.epochs=2"]


def make_clicks(directory: Path) -> None:
    """Write clicks of 20 users on 30 items, and datasets of them: with weights, with equal weights, and without."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 20, 900), rng.integers(0, 30, 900)
    odds = rng.normal(size=20)[users] + rng.normal(size=30)[items]
    clicks, weights = (rng.random(900) < 1 / (1 + np.exp(-odds))).astype(int), rng.choice([0, 0.25, 1, 9], 900)
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


def weights_of(root: Path, split: str) -> NDArray[np.float64]:
    [weights] = arrays_of(root, split, "weights")
    return weights[:, 0].astype(np.float64)


def test_weighted_steps_and_figures_are_numpys(runtime: Runtime, clicks: Path, runs: Path) -> None:
    root = clicks / "weight"
    (labels, ids), weights = rows_of(root, "train"), weights_of(root, "train")
    keys = [*CLICKS, f"data.path={root}", "run.name=x", "model.over_arch=[1]", f"train.global_batch_size={len(labels)}"]
    keys += ["optimizer=sgd", "optimizer.lr=0.5", "train.epochs=5", "checkpoint.keep_best=false"]
    linear, losses, accuracies = Linear(runtime, root, *keys), [], []
    for _ in range(5):
        accuracies.append(np.mean((linear.outputs(ids) > 0) == labels))
        preds = 1 / (1 + np.exp(-linear.outputs(ids)))
        losses.append(log_loss(labels, preds, sample_weight=weights))
        linear.step(ids, weights * (preds - labels) / weights.sum(), 0.5)
    assert train_here(runtime, *keys) == "completed"
    assert [event["loss"] for event in events(runs / "x", "train")] == pytest.approx(losses, rel=1e-5)
    assert [event["accuracy"] for event in events(runs / "x", "train")] == pytest.approx(accuracies, rel=1e-5)
    truth, rows = rows_of(root, "val")
    expected = expected_figures(truth, linear.outputs(rows), weights_of(root, "val"))
    figures = summary(runs / "x")["eval"]
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.medium
def test_new_rows_are_weighted(runtime: Runtime, clicks: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(runtime, *WEIGHTED, f"data.path={clicks / 'weight'}", "run.name=x")
    lines = (clicks / "clicks.csv").read_text().splitlines()
    (runs.parent / "new.csv").write_text("\n".join([lines[0], *lines[-100:], ""]))
    (runs.parent / "without.csv").write_text("user,item,click\n3,4,1\n")
    command_here(runtime, "recommend", "run=runs/x", "candidates=new.csv", "top_k=100", "out=ranked.json")
    ranking = json.loads((runs.parent / "ranked.json").read_bytes())["ranking"]
    preds = {int(each["candidate"]): each["probability"] for each in ranking}
    logits = np.array([np.log(preds[row] / (1 - preds[row])) for row in range(1, 101)])
    columns = np.array([line.split(",") for line in lines[-100:]], float)
    assert f"{ranking[0]['probability']:.6f}" in capsys.readouterr().out
    command_here(runtime, "evaluate", "run=runs/x", "data.raw=new.csv")
    figures = json.loads(capsys.readouterr().out)
    expected = expected_figures(columns[:, 2], logits, columns[:, 3])
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    command_here(runtime, "recommend", "run=runs/x", "candidates=without.csv")  # reads neither weights nor labels
    with pytest.raises(UserError, match="no column weight, which holds the sample weights; add it"):
        command_here(runtime, "evaluate", "run=runs/x", "data.raw=without.csv")


@pytest.mark.slow("processes")
def test_processes_change_no_bit_and_a_run_is_replayed(run_app: Command, clicks: Path, tmp_path: Path) -> None:
    layout = [*WEIGHTED, f"data.path={clicks / 'weight'}", "train.deterministic=layout", "train.micro_batch_size=25"]
    for name, processes in (("one", 1), ("two", 2)):
        run_app("train", *layout, f"run.name={name}", processes=processes)
    one, two = (summary(tmp_path / f"runs/{name}") for name in ("one", "two"))
    assert (one["digest"], one["eval"]) == (two["digest"], two["eval"])
    binned = [
        json.loads(run_app("evaluate", "run=runs/one", "split=val", "exact_rows=0", processes=processes).stdout)
        for processes in (1, 2)
    ]
    assert binned[0]["auc"] == binned[1]["auc"] == pytest.approx(one["eval"]["auc"], abs=binned[0]["auc_error"])
    assert json.loads(run_app("verify", "run=runs/two").stdout)["verdict"] == "identical"
