"""recipe=own_table: when it is taken, its rules, and that its runs record what they worked with."""

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from app.config.app_config import table_values
from app.record.documents import read_config
from app.runtime.platform import Runtime
from data_prep.dataset.format import Manifest, Split
from data_prep.pipeline import preprocess
from tests.app.conftest import composed
from tests.app.in_process import train_here
from tests.app.run_files import summary
from tests.data_prep.conftest import config as data_config
from tests.error_lines import refused

TABLE = {"name": "test", "table": {"label": "label"}}


@pytest.fixture(scope="module")
def own_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("own_table")
    rows = [f"{i % 3 % 2},{i % 7},{i * 17 % 11},{i / 100}" for i in range(400)]
    (directory / "rows.csv").write_text("\n".join(["click,user,item,age", *rows, ""]))
    (directory / "schema.yaml").write_text("label: click\nsparse: [user, item]\ndense: [age]\n")
    paths = (f"data.raw={directory}/rows.csv", f"data.schema={directory}/schema.yaml", f"data.path={directory}/data")
    preprocess(data_config(*paths))
    return directory / "data"


@pytest.mark.medium
def test_it_is_taken_for_own_tables_alone_and_where_no_recipe_is_given(own_table: Path, dataset: Path) -> None:
    recipes = {
        (f"data.path={own_table}",): "own_table",
        (f"data.path={own_table}", "recipe=quickstart"): "quickstart",
        (f"data.path={own_table}", "recipe=meta_kaggle_2019"): "meta_kaggle_2019",
        (f"data.path={dataset}",): "quickstart",
        (f"data.path={dataset}", "recipe=own_table"): "own_table",
        ("data.raw=rows.csv", "data.path=new", "data.schema=auto"): "own_table",
        ("data.raw=day_0", "data.path=new"): "quickstart",
        ("data.path=missing",): "quickstart",
        (): "quickstart",
    }
    assert {given: composed(*given).published.recipe for given in recipes} == recipes
    typed = composed(f"data.path={own_table}", "model=lr", "train.global_batch_size=77")
    assert (typed.model.embedding_dim, typed.train.global_batch_size) == (1, 77)
    assert not [key for key in typed.by_table if key.startswith(("model.", "train."))]
    assert composed(f"data.path={own_table}", "train.eval_every_steps=5").train.eval_every_fraction is None


@pytest.mark.parametrize("given", ["model.interaction=cat", "model.numeric=dense_arch", "model.dense_arch=[16,8]"])
def test_a_key_of_its_model_changes_no_other(own_table: Path, given: str) -> None:
    path = f"data.path={own_table}"
    assert composed(path, "model.interaction=dcn", "model.numeric=vectors") == composed(path)
    wider = replace(composed(path), model=replace(composed(path).model, over_arch=[8, 1]))
    assert composed(path, "model.over_arch=[8,1]") == wider
    message = f"{given}: not with the model of recipe=own_table; give another model too: model=dlrm {given}"
    assert refused("not with", composed, path, given) == message
    composed(path, "model=dlrm", given)


@pytest.mark.parametrize(
    ("rows", "dense", "sizes", "rate", "expected"),  # a batch, widths, dropout, decay, rate of linear weights
    [
        (3_000, 1, {"a": 41, "b": 4}, 0.4, (32, [16], 0.5, 0.1, 10.0)),
        (85_000, 0, {"a": 20_000, "b": 9}, 0.02, (512, [16], 0.5, 1600 / 85_000, 10.0)),
        (85_000, 0, {"a": 2_000, "b": 9}, 0.4, (512, [64], 0.3, 1600 / 85_000, 10.0)),
        (85_000, 0, {"a": 20_000, "b": 9}, 0.4, (512, [4], 0.5, 1600 / 85_000, 10.0)),
        (50_000_000, 4, {f"c{i}": 100 for i in range(40)}, 0.5, (4096, [128, 128], 0.5, 0.000032, 0.5)),
        (40_000, 20, {"a": 4}, 0.5, (256, [128, 128], 0.2, 0.01, 20.0)),
        (20, 0, {"a": 3}, 0.5, (16, [64], 0.3, 0.1, 20.0)),
    ],
)
def test_rules(rows: int, dense: int, sizes: dict[str, int], rate: float, expected: tuple[Any, ...]) -> None:
    schema = {"label": "y", "dense": [f"n{i}" for i in range(dense)], "sparse": list(sizes)}
    manifest = Manifest(schema, TABLE, sizes, {"train": Split(rows, rate, [])}, [], rows, rate, "test")
    batch, deep, dropout, decay, linear = expected
    assert table_values(manifest) == {
        "train.global_batch_size": batch,
        "model.deep_arch": deep,
        "model.dropout": [dropout],
        "optimizer.sparse_weight_decay": decay,
        "model.linear": linear,
        "model.initial_logit": pytest.approx(log(rate / (1 - rate))),
    }
    large = table_values(replace(manifest, num_embeddings={**sizes, "large": 2_000_000}))
    assert (large["optimizer.name"], large["optimizer.sparse_weight_decay"]) == ("adagrad", 0.0)


@pytest.mark.medium
@pytest.mark.parametrize("deterministic", ["true", "layout"])
def test_a_run_records_the_values(runtime: Runtime, own_table: Path, tmp_path: Path, deterministic: str) -> None:
    keys = [f"data.path={own_table}", f"train.deterministic={deterministic}", "baselines=false", "model.deep_arch=[8]"]
    keys += ["checkpoint.every_steps=1"]
    first, whole = ([*keys, f"run.dir={tmp_path / name}"] for name in ("parts", "whole"))
    assert train_here(runtime, *first, "train.max_steps=2") == "completed"
    config = read_config(tmp_path / "parts")
    assert (config["by_table"], config["train"]["global_batch_size"], config["model"]["linear"]) == ([], 32, 10.0)
    assert (config["model"]["deep_arch"], config["model"]["dropout"]) == ([8], [0.5])
    recorded = composed(f"config={tmp_path / 'parts'}/config.yaml", "run.name=again")
    assert (recorded.published.recipe, recorded.by_table) == ("own_table", [])
    for keys in (first, whole):
        assert train_here(runtime, *keys, "train.max_steps=4") == "completed"
    assert summary(tmp_path / "parts")["digest"] == summary(tmp_path / "whole")["digest"]
