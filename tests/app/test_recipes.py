"""Recipes: each composes, has its published number of parameters, trains tiny and goes on where it was."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from app import outline
from app.config import CONFIG_DIR, AppConfig
from app.config.published_tables import PUBLISHED_TABLES
from app.validation import validate
from common.cli import compose_config
from common.errors import UserError
from tests.app.conftest import Command

RECIPES = sorted(path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml"))
PUBLISHED = [name for name in RECIPES if name != "quickstart"]


def perceptron(*widths: int) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))


def cross(width: int, layers: int, rank: int) -> int:
    """Two matrices of low rank and a bias a layer (Wang et al. 2020)."""
    return layers * (2 * width * rank + width)


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
}


def test_every_recipe_is_counted_here() -> None:
    assert set(PARAMETERS) == set(PUBLISHED)


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_recipe_composes_and_has_its_parameters(recipe: str) -> None:
    config = compose_config(AppConfig, CONFIG_DIR, [f"recipe={recipe}"])
    validate(config)
    assert config.run.name == config.published.recipe == recipe
    assert outline.parameter_counts(outline.meta_model(config))["total"] == PARAMETERS[recipe]
    tiny = compose_config(AppConfig, CONFIG_DIR, [f"recipe={recipe}", "data.scale=tiny", "train.log_every_steps=3"])
    validate(tiny)
    assert tiny.run.name == f"{recipe}_tiny"
    assert tiny.train.log_every_steps == 3
    assert vars(tiny.model) == vars(config.model)
    assert tiny.optimizer.name is config.optimizer.name


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_header_gives_source_hardware_result_and_tolerance(recipe: str) -> None:
    text = (CONFIG_DIR / f"recipe/{recipe}.yaml").read_text()
    header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert "Hardware: " in header
    if recipe != "quickstart":
        assert re.search(r"Published: .*Tolerance: ", header)
        assert set(yaml.safe_load(text)["published"]) >= {"recipe"}


def test_published_sizes_add_up() -> None:
    """To the totals that their sources give."""
    totals = {name: sum(tables.values()) for name, tables in PUBLISHED_TABLES.items()}
    assert totals == {"dac_sample": 34_405, "criteo_kaggle": 33_762_577, "deepspark_3day": 4_057_300,
                      "mlperf_v1": 187_767_399, "mlperf_v2": 204_184_588}  # fmt: skip


def test_without_data_a_run_is_built_and_counted(run_app: Command, tmp_path: Path) -> None:
    """97 GiB of tables, on a machine that has none of them, in an arithmetic that this machine has not."""
    done = run_app("train", "recipe=amd_2026", "train.max_steps=0")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/amd_2026/summary.json").read_bytes())
    assert (summary["status"], summary["steps"]) == ("completed", 0)
    assert summary["parameters"]["total"] == PARAMETERS["amd_2026"]
    assert summary["memory"]["host_peak_bytes"] < 4 << 30
    assert summary["eval"]["auc"] is None
    manifest = json.loads((tmp_path / "runs/amd_2026/manifest.json").read_bytes())
    assert {table["type"] for table in manifest["plan"].values()} == {"table_wise"}
    assert sum(table["bytes"] for table in manifest["tables"].values()) == 204_184_588 * 128 * 4


def test_a_recipe_without_its_data_says_what_to_do(run_app: Command) -> None:
    done = run_app("train", "recipe=mlperf_v2")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "data.scale=tiny" in done.stderr
    assert "data.raw=" in done.stderr


def test_a_recipe_without_tiny_values_refuses_the_scale() -> None:
    with pytest.raises(UserError, match="does not say what it would be"):
        compose_config(AppConfig, CONFIG_DIR, ["data.scale=tiny", "~recipe", "run.name=x"])
