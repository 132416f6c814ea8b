"""Recipes: each composes, has its published number of parameters, trains tiny; recipe=own_table and its rules."""

import itertools
import json
import re
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from app.config.app_config import CONFIG_DIR, table_values, validate
from app.config.model import PUBLISHED_TABLES
from app.model.embeddings import parameter_counts
from app.record.documents import read_config
from app.runtime.platform import Runtime
from app.training import meta_build
from data_prep.dataset.format import Manifest, Split
from data_prep.dataset.options import DataSource
from data_prep.pipeline import preprocess
from tests.app.conftest import Command, Train, composed
from tests.app.in_process import train_here
from tests.app.run_files import events, summary
from tests.data_prep.conftest import config as data_config
from tests.error_lines import refused

RECIPES = sorted(path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml"))
OWN = ("own_table", "quickstart")  # published by nobody
PUBLISHED = [name for name in RECIPES if name not in OWN]
RESUMED = ("bars_criteo_x1", "meta_kaggle_2019")
# Of a kind with others, and trained by tests/test_bytes.py or where they are exported.
OF_A_KIND = (
    "amd_blog_2024_fixed",
    "deepspark_3day",
    "mlperf_v1",
    "amd_2026",
    "bars_avazu_x1",
    "bars_movielenslatest_x1",
)
TRAINED = [name for name in PUBLISHED if name not in OF_A_KIND]
QUARTERS = ["train.eval_every_steps=null", "train.eval_every_fraction=0.25"]


def perceptron(*widths: int) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))


# reczoo/BARS: parameters as logged (of DNN counting the perceptron once), validation and test AUC, and settings.
MODELS = ("dlrm", "dcnv2", "crossnetv2", "dnn", "lr")
BARS: dict[str, list[tuple[int, float, float, str]]] = {
    "criteo_x1": [
        (21_664_241, 0.813497, 0.813804, "dot [400,400,400,10] [400,400,400,1] bn 0.2 1e-05"),
        (22_018_021, 0.813887, 0.814195, "dcn 3 [500,500,500] 0.1 1e-05"),
        (21_626_001, 0.812447, 0.812727, "dcn 5 1e-05"),
        (21_340_761, 0.813374, 0.813668, "cat [400,400,400,1] 0.1 1e-05"),
        (2_086_317, 0.788466, 0.788625, "sum 5e-07"),
    ],
    "avazu_x1": [
        (13_402_391, 0.745650, 0.763934, "dot [400,400,400,1] bn 0.3 0.01"),
        (13_641_311, 0.746875, 0.765607, "dcn 5 [400,400,400] bn 0.2 0.05"),
        (13_180_691, 0.747329, 0.762511, "dcn 4 0.0001"),
        (13_395_591, 0.746336, 0.763827, "cat [400,400,400,1] 0.1 0.01"),
        (1_298_600, 0.735522, 0.751625, "sum 5e-07"),
    ],
    "movielenslatest_x1": [
        (1_238_391, 0.969119, 0.969071, "cat [400,400,400,1] bn 0.2 0.01"),
        (1_243_071, 0.969117, 0.969098, "dcn 5 [400,400,400] bn 0.2 0.01"),
        (909_861, 0.960746, 0.960600, "dcn 8 0.001"),
        (1_238_391, 0.967808, 0.967764, "cat [400,400,400,1] bn 0.4 0.005"),
        (90_240, 0.934752, 0.934189, "sum 5e-06"),
    ],
    "frappe_x1": [
        (417_891, 0.985190, 0.983995, "cat [400,400,400,1] bn 0.4 0.1"),
        (458_391, 0.984840, 0.984478, "dcn 4 [400,400,400] bn 0.4 0.05"),
        (94_391, 0.973658, 0.972914, "dcn 4 0.001"),
        (417_891, 0.984869, 0.983323, "cat [400,400,400,1] bn 0.2 0.05"),
        (5_390, 0.937734, 0.935584, "sum 1e-05"),
    ],
}
BARS_ROWS = {"criteo_x1": 33_003_326, "avazu_x1": 28_300_276, "movielenslatest_x1": 1_404_801, "frappe_x1": 202_027}
CONFIGURATIONS = [(name, model, number) for name in BARS for number, model in enumerate(MODELS)]

# From the sources' own descriptions, not from our configuration.
MLPERF_V2 = 204_184_588 * 128 + perceptron(13, 512, 256, 128) + perceptron(27 * 128, 1024, 1024, 512, 256, 1)
MLPERF_V2 += 3 * (2 * 27 * 128 * 512 + 27 * 128)  # a layer: two matrices of rank 512 and a bias (Wang et al. 2020)
PARAMETERS = {
    "amd_blog_2024": 2_195_553,
    "amd_blog_2024_fixed": 2_195_553,
    "meta_kaggle_2019": 33_762_577 * 16 + perceptron(13, 512, 256, 64, 16) + perceptron(16 + 351, 512, 256, 1),
    "deepspark_3day": 4_057_300 * 64 + perceptron(13, 512, 256, 64) + perceptron(64 + 351, 512, 512, 256, 1),
    "mlperf_v1": 187_767_399 * 128 + perceptron(13, 512, 256, 128) + perceptron(128 + 351, 1024, 1024, 512, 256, 1),
    "mlperf_v2": MLPERF_V2,
    "amd_2026": MLPERF_V2,
    "kgcn_lastfm": (1_871 + 3_811) * 16 + perceptron(32, 400, 400, 400, 1) + 3 * 2 * 400,
    "ncf_movielens_1m": (6_041 + 3_705) * 32 + perceptron(64, 32, 16, 8, 1),
    "tfrs_movielens_100k": 3_425 * 32 + 193 * 192 + perceptron(192, 192, 192, 1),
    **{f"bars_{name}": bars[0][0] for name, bars in BARS.items()},
}


def test_every_recipe_is_counted_here() -> None:
    missing, gone = set(PUBLISHED) - set(PARAMETERS), set(PARAMETERS) - set(PUBLISHED)
    assert not missing, f"tests/app/config/test_recipes.py: PARAMETERS needs its source's number for {missing}"
    assert not gone, f"tests/app/config/test_recipes.py: PARAMETERS has {gone}, and app/conf/recipe has no such file"


@pytest.mark.medium
@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_recipe_composes_and_has_its_parameters(recipe: str) -> None:
    config = composed(f"recipe={recipe}")
    validate(config)
    tables = config.data.published_tables
    assert tables in PUBLISHED_TABLES, (
        f"app/conf/recipe/{recipe}.yaml: data.published_tables={tables} is no row of PUBLISHED_TABLES in "
        "app/config/model.py; add the sizes of its tables there"
    )
    assert config.run.name == config.published.recipe == recipe
    assert parameter_counts(meta_build.meta_model(config))["total"] == PARAMETERS[recipe]
    tiny = composed(f"recipe={recipe}", "data.scale=tiny", "train.log_every_steps=3")
    validate(tiny)
    assert (tiny.run.name, tiny.train.log_every_steps) == (f"{recipe}_tiny", 3)
    assert vars(tiny.model) == vars(config.model)
    assert tiny.optimizer.name is config.optimizer.name


@pytest.mark.medium
@pytest.mark.parametrize(("name", "model", "number"), CONFIGURATIONS)
def test_a_configuration_of_bars_is_as_published(name: str, model: str, number: int) -> None:
    parameters, val, test, settings = BARS[name][number]
    config = composed(f"recipe=bars_{name}", f"model={model}")
    validate(config)
    model_config, optimizer, train = config.model, config.optimizer, config.train
    assert parameter_counts(meta_build.meta_model(config))["total"] == parameters
    assert config.published.parameters == parameters
    assert (config.published.auc, config.published.test_auc) == (val, test)
    assert config.published.train_rows == BARS_ROWS[name]
    assert config.run.name == f"bars_{name}" + (f"_{model}" if model != "dlrm" else "")
    parts: list[Any] = [model_config.interaction, model_config.dcn_num_layers, model_config.dense_arch]
    parts += [model_config.over_arch, model_config.deep_arch, "bn" if model_config.batch_norm else None]
    parts += [*model_config.dropout, optimizer.sparse_weight_decay]
    fields = [str(part).replace(" ", "") for part in parts if part not in (None, [], [1])]
    assert " ".join(fields) == settings
    assert model_config.embedding_dim == (1 if model == "lr" else 10)
    assert model_config.dense_init == "xavier_normal"
    assert (model_config.tables.init, model_config.tables.init_std) == ("normal", 1e-4)
    assert model_config.numeric == ("dense_arch" if model == "dlrm" else "vectors")
    assert (optimizer.name.value, optimizer.lr, optimizer.eps) == ("adam", 1e-3, 1e-8)
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (0.9, 0.999, 0.0)
    assert (optimizer.max_grad_norm, optimizer.clip_tables) == (10.0, True)
    assert (train.seed, train.global_batch_size, train.epochs, train.drop_last) == (2021, 4096, 100, False)
    assert (train.monitor, train.early_stop_patience, train.eval_every_fraction) == ("auc", 2, 1.0)
    cuts = config.schedule
    assert (cuts.name.value, cuts.factor, cuts.patience, cuts.threshold, cuts.min_lr) == ("plateau", 0.1, 0, 1e-6, 1e-6)


def test_without_data_a_run_is_built_and_counted(run_app: Command, tmp_path: Path) -> None:
    """49 GiB of fp16 tables, on a machine that has none of them, in an arithmetic that this machine has not."""
    run_app("train", "recipe=amd_2026", "train.max_steps=0", "model.tables.storage=fp16")
    figures = summary(tmp_path / "runs/amd_2026")
    assert (figures["status"], figures["steps"], figures["eval"]["auc"]) == ("completed", 0, None)
    assert figures["parameters"]["total"] == PARAMETERS["amd_2026"]
    assert figures["memory"]["host_peak_bytes"] < 4 << 30
    manifest = json.loads((tmp_path / "runs/amd_2026/manifest.json").read_bytes())
    assert {table["type"] for table in manifest["plan"].values()} == {"table_wise"}
    assert sum(table["bytes"] for table in manifest["tables"].values()) == 204_184_588 * 128 * 2


# By the source of a recipe's tiny form.
FEWER = {DataSource.random: "data.random.rows=3000", DataSource.synthetic: "data.synthetic.rows=3000"}


# The models are as large as published, on three thousand rows: a minute for all of them.
@pytest.mark.slow("processes")
@pytest.mark.parametrize("recipe", TRAINED)
def test_a_recipe_trains_tiny(recipe: str, run_app: Command, tmp_path: Path) -> None:
    tiny = composed(f"recipe={recipe}", "data.scale=tiny")
    overrides = [f"recipe={recipe}", "data.scale=tiny", "train.log_every_steps=1", "eval.global_batch_size=512"]
    overrides += ["run.name=tiny", FEWER[tiny.data.source], "train.target_auc=null", "runtime.num_threads=2"]
    parts = (2, 4) if recipe in RESUMED else (4,)
    for steps in parts:
        process = run_app("train", *overrides, f"train.max_steps={steps}")
    assert ("resume: from runs/tiny/checkpoints/step_00000002, step 2" in process.stderr) == (len(parts) > 1)
    run = tmp_path / "runs/tiny"
    figures = summary(run)
    assert (figures["status"], figures["steps"]) == ("completed", 4)
    assert figures["eval"]["samples"] > 0
    assert [event["step"] for event in events(run, "train")] == [1, 2, 3, 4]
    features = json.loads((run / "manifest.json").read_bytes())["tables"]
    published = composed(f"recipe={recipe}").data.published_tables
    assert len(features) == len(PUBLISHED_TABLES[str(published)])
    if recipe.startswith("amd_blog"):
        figures_of_test = r"test accuracy = \d\d\.\d\d%, avg loss = 0\.\d{6}, AUC = 0\.\d+; always guessing"
        assert re.search(figures_of_test, process.stderr)
        assert re.search(r"train accuracy = \d\d\.\d\d%, avg loss = ", process.stderr)


def test_a_run_stops_at_an_accuracy(train: Train) -> None:
    train("train.epochs=2", *QUARTERS, "train.target_accuracy=0.4", status="target_reached")
    assert summary(Path("runs/x"))["steps"] == 7


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
