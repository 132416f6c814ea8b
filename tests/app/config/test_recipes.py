"""Recipes: each composes, has its published number of parameters, trains tiny and goes on where it was."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.app_config import CONFIG_DIR, validate
from app.config.model import PUBLISHED_TABLES, DenseInit, TableInit
from app.training import meta_build
from data_prep.dataset.options import DataSource
from tests.app.conftest import Command, Refusal, Train, composed
from tests.app.run_files import events, summary
from tests.error_lines import error_line, refused

RECIPES = sorted(path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml"))
OWN = ("own_table", "quickstart")  # published by nobody
PUBLISHED = [name for name in RECIPES if name not in OWN]
RESUMED = ("bars_criteo_x1", "meta_kaggle_2019")
OF_A_KIND = ("amd_blog_2024_fixed", "deepspark_3day", "mlperf_v1")  # with others, and trained by tests/test_bytes.py
TRAINED = [name for name in PUBLISHED if name not in OF_A_KIND]
QUARTERS = ["train.eval_every_steps=null", "train.eval_every_fraction=0.25"]


def perceptron(*widths: int) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))


def cross(width: int, layers: int, rank: int) -> int:
    """Two matrices of low rank and a bias a layer (Wang et al. 2020)."""
    return layers * (2 * width * rank + width)


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
MLPERF_V2 = 204_184_588 * 128 + perceptron(13, 512, 256, 128) + cross(27 * 128, 3, 512)
MLPERF_V2 += perceptron(27 * 128, 1024, 1024, 512, 256, 1)
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
    assert meta_build.parameter_counts(meta_build.meta_model(config))["total"] == PARAMETERS[recipe]
    tiny = composed(f"recipe={recipe}", "data.scale=tiny", "train.log_every_steps=3")
    validate(tiny)
    assert (tiny.run.name, tiny.train.log_every_steps) == (f"{recipe}_tiny", 3)
    assert vars(tiny.model) == vars(config.model)
    assert tiny.optimizer.name is config.optimizer.name


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_header_gives_source_hardware_result_and_tolerance(recipe: str) -> None:
    text = (CONFIG_DIR / f"recipe/{recipe}.yaml").read_text()
    header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert "Hardware: " in header
    if recipe not in OWN:
        assert re.search(r"Published: .*Tolerance: ", header)
        assert set(yaml.safe_load(text)["published"]) >= {"recipe"}


def test_a_set_that_is_not_written_yet_is_named_with_its_command(refused_command: Refusal) -> None:
    command = "python -m data_prep.published name=kgcn_lastfm fetches and writes it"
    assert refused_command("train", "recipe=kgcn_lastfm").endswith(command)


@pytest.mark.medium
@pytest.mark.parametrize(("name", "model", "number"), CONFIGURATIONS)
def test_a_configuration_of_bars_is_as_published(name: str, model: str, number: int) -> None:
    parameters, val, test, settings = BARS[name][number]
    config = composed(f"recipe=bars_{name}", f"model={model}")
    validate(config)
    model_config, optimizer, train = config.model, config.optimizer, config.train
    assert meta_build.parameter_counts(meta_build.meta_model(config))["total"] == parameters
    assert config.published.parameters == parameters
    assert (config.published.auc, config.published.test_auc) == (val, test)
    assert config.published.train_rows == BARS_ROWS[name]
    assert config.run.name == f"bars_{name}" + (f"_{model}" if model != "dlrm" else "")
    parts: list[Any] = [model_config.interaction.value, model_config.dcn_num_layers, model_config.dense_arch]
    parts += [model_config.over_arch, model_config.deep_arch, "bn" if model_config.batch_norm else None]
    parts += [*model_config.dropout, optimizer.sparse_weight_decay]
    fields = [str(part).replace(" ", "") for part in parts if part not in (None, [], [1])]
    assert " ".join(fields) == settings
    assert model_config.embedding_dim == (1 if model == "lr" else 10)
    assert model_config.dense_init is DenseInit.xavier_normal
    assert (model_config.tables.init, model_config.tables.init_std) == (TableInit.normal, 1e-4)
    assert model_config.numeric.value == ("dense_arch" if model == "dlrm" else "vectors")
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


def test_a_recipe_without_its_data_says_what_to_do(run_app: Command) -> None:
    process = run_app("train", "recipe=mlperf_v2", status=2)
    assert "data.scale=tiny" in error_line(process.stderr)
    assert "data.raw=" in process.stderr


def test_a_recipe_without_tiny_values_refuses_the_scale(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("run: {name: own}\n")
    refused("has no tiny form", composed, "data.scale=tiny", f"recipe={tmp_path}/own.yaml")


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
    if recipe == "meta_kaggle_2019":
        assert re.search(r"step 4/4 epoch 0 loss 0\.\d+ accuracy", process.stderr)


def test_a_run_stops_at_an_accuracy(train: Train) -> None:
    train("train.epochs=2", *QUARTERS, "train.target_accuracy=0.4", status="target_reached")
    assert summary(Path("runs/x"))["steps"] == 7
