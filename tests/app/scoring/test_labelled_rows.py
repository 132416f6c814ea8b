"""`app.evaluate data.raw=FILE`: metrics of labelled new rows, held to scikit-learn and to the splits of the dataset."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score, root_mean_squared_error

from app.runtime.platform import Runtime
from common.errors import UserError
from tests.app.conftest import SMALL, Command
from tests.app.in_process import command_here, train_here
from tests.clickwork.conftest import SCHEMA, Trained, make_rows, train_on_table, write_csv
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare
from tests.error_lines import refused

TRAIN_ROWS = 772  # of the 900


@pytest.fixture(scope="module")
def trained(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_on_table(runtime, tmp_path_factory.mktemp("trained"))


def evaluated(runtime: Runtime, run: Path, *overrides: str) -> dict[str, Any]:
    out = run.parent / "evaluation.json"
    assert command_here(runtime, "evaluate", f"run={run}", f"out={out}", *overrides) == 0
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def recommended(runtime: Runtime, run: Path, file: Path, figure: str) -> np.ndarray:
    out = run.parent / "ranking.json"
    command_here(runtime, "recommend", f"run={run}", f"candidates={file}", f"out={out}", "top_k=null")
    ranking = json.loads(out.read_text())["ranking"]
    return np.array([each[figure] for each in sorted(ranking, key=lambda each: int(each["candidate"]))])


def test_metrics_are_those_of_scikit_learn(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    rows = make_rows(500, seed=1)
    write_csv(tmp_path / "new.csv", rows)
    figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv")
    labels = np.array([row["stars"] >= 4 for row in rows])
    probabilities = recommended(runtime, trained.run, tmp_path / "new.csv", "probability")
    assert figures["split"] == "new rows"
    assert figures["raw"] == f"{tmp_path}/new.csv"
    assert figures["samples"] == 500
    assert figures["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-6)
    assert figures["logloss"] == pytest.approx(log_loss(labels, probabilities), abs=1e-6)
    assert figures["accuracy"] == pytest.approx(accuracy_score(labels, probabilities > 0.5), abs=1e-12)
    assert figures["pr_auc"] == pytest.approx(average_precision_score(labels, probabilities), abs=1e-4)
    assert figures["base_rate"] == pytest.approx(labels.mean(), abs=1e-12)


def test_unknown_values_are_shares_of_rows(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    rows = make_rows(500, seed=1)
    rows[0]["genres"] = ["g0", "unheard"]
    write_csv(tmp_path / "new.csv", rows)
    figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv")
    known = {name: {row[name] for row in trained.rows[:TRAIN_ROWS]} for name in ("user", "item")}
    expected = {name: np.mean([row[name] not in values for row in rows]) for name, values in known.items()}
    assert figures["unknown"] == pytest.approx({**expected, "genres": 1 / 500})
    assert figures["unknown"]["user"] > 0.2


@pytest.mark.medium
def test_differences_are_to_the_runs_own_split(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    write_csv(tmp_path / "new.csv", make_rows(100, seed=1))
    for split, overrides in (("test", []), ("val", ["split=val"])):
        figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv", *overrides)
        own = evaluated(runtime, trained.run, f"split={split}")
        assert figures["own"].items() <= own.items() | {"step": figures["own"].get("step")}.items()
        assert figures["own"]["split"] == split
        assert {"auc", "logloss", "ne", "accuracy", "calibration"} <= figures["difference"].keys()
        for name, difference in figures["difference"].items():
            assert difference == figures[name] - own[name], name


@pytest.mark.medium
def test_the_rows_of_a_split_are_evaluated_as_it_is(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    own = evaluated(runtime, trained.run, "split=test")
    write_csv(tmp_path / "test.csv", trained.rows[-own["samples"] :])
    for tables in ("null", "int8"):
        figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/test.csv", f"tables={tables}")
        assert {name: value for name, value in figures["difference"].items() if value} == {}


@pytest.mark.medium
def test_rows_of_criteos_format(runtime: Runtime, tmp_path: Path) -> None:
    text = oracle.make_rows(400, seed=4)
    (tmp_path / "raw.tsv").write_bytes(text)
    prepare(f"data.raw={tmp_path}/raw.tsv", f"data.path={tmp_path}/data")
    train_here(runtime, *SMALL, f"data.path={tmp_path}/data", f"run.dir={tmp_path}/run", "train.max_steps=5")
    own = evaluated(runtime, tmp_path / "run")
    lines = text.splitlines(keepends=True)
    (tmp_path / "test.tsv").write_bytes(b"".join(lines[-own["samples"] :]))
    figures = evaluated(runtime, tmp_path / "run", f"data.raw={tmp_path}/test.tsv")
    assert set(figures["difference"].values()) == {0.0}


@pytest.mark.medium
def test_labels_that_are_numbers(runtime: Runtime, tmp_path: Path) -> None:
    schema = SCHEMA.replace('{column: stars, rule: ">= 4"}', "{column: stars, kind: number}")
    trained = train_on_table(runtime, tmp_path, "loss=mse", "train.monitor=rmse", schema=schema)
    rows = make_rows(100, seed=1)
    write_csv(tmp_path / "new.csv", rows)
    figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv")
    predictions = recommended(runtime, trained.run, tmp_path / "new.csv", "prediction")
    assert figures["rmse"] == pytest.approx(root_mean_squared_error([r["stars"] for r in rows], predictions), abs=1e-6)
    assert figures["difference"]["rmse"] == figures["rmse"] - figures["own"]["rmse"]


@pytest.mark.medium
def test_new_rows_are_all_rows_beside_a_sampled_dataset(runtime: Runtime, tmp_path: Path) -> None:
    trained = train_on_table(runtime, tmp_path, prepared=["data.sampling.negative_drop_rate=0.75"])
    rows = make_rows(200, seed=1)
    write_csv(tmp_path / "new.csv", rows)
    labels = np.array([row["stars"] >= 4 for row in rows])
    logits = recommended(runtime, trained.run, tmp_path / "new.csv", "logit")
    for overrides, shift in ([], 0.0), (["correct_sampling=true"], np.log(0.25)):
        figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv", *overrides)
        probabilities = 1 / (1 + np.exp(-(logits + shift)))
        assert figures["logloss"] == pytest.approx(log_loss(labels, probabilities), abs=1e-6)
        assert figures["calibration"] == pytest.approx(probabilities.sum() / labels.sum(), abs=1e-5)
        assert "calibration_of_all_rows" not in figures


@pytest.mark.medium
def test_weights_that_are_all_0_are_refused(runtime: Runtime, tmp_path: Path) -> None:
    schema = SCHEMA.replace("dense: [age, price]", "dense: [age]\nweight: price")
    trained = train_on_table(runtime, tmp_path, schema=schema)
    write_csv(tmp_path / "new.csv", [{**row, "price": 0} for row in make_rows(5, seed=1)])
    message = r"new\.csv: column price: all weights are 0; give a row with a weight above 0"
    refused(message, evaluated, runtime, trained.run, f"data.raw={tmp_path}/new.csv")


@pytest.mark.parametrize(
    ("change", "keys", "message"),
    [
        ({"stars": "many"}, [], "row 3, column stars: 'many'"),
        ({"stars": ""}, [], "row 3, column stars: no value"),
        ({"age": "old"}, [], "row 3, column age: 'old' is not a number"),
        ({}, ["split=tset"], "no split 'tset'"),
        ({}, ["keep_scores=5"], "keep_scores=5: has no effect with data.raw="),
    ],
)
def test_what_cannot_be_evaluated(
    runtime: Runtime, trained: Trained, tmp_path: Path, change: dict[str, Any], keys: list[str], message: str
) -> None:
    rows = make_rows(5, seed=1)
    rows[1] |= change
    write_csv(tmp_path / "new.csv", rows)
    refused(message, evaluated, runtime, trained.run, f"data.raw={tmp_path}/new.csv", *keys)


def test_files_that_cannot_be_evaluated(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "stars"} for row in make_rows(5, seed=1)]
    write_csv(tmp_path / "new.csv", rows)
    with pytest.raises(UserError, match="no column stars, which holds the labels; add it, or use"):
        evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv")
    refused("No such file", evaluated, runtime, trained.run, f"data.raw={tmp_path}/none.csv")


@pytest.mark.slow("processes")
def test_several_processes_evaluate_new_rows_together(
    runtime: Runtime, run_app: Command, trained: Trained, tmp_path: Path
) -> None:
    write_csv(tmp_path / "new.csv", make_rows(301, seed=1))
    alone = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv", "global_batch_size=100")
    keys = ["data.raw=new.csv", "global_batch_size=100", "out=x.json"]
    run_app("evaluate", f"run={trained.run}", *keys, processes=3)
    together = json.loads((tmp_path / "x.json").read_text())
    assert together["samples"] == 301
    assert together["unknown"] == alone["unknown"]
    for name in alone["difference"]:
        assert together[name] == pytest.approx(alone[name], abs=1e-6)
