"""Means, intervals and verdicts of a reproduction, against NumPy and SciPy; which arguments it takes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from app.config.app_config import CONFIG_DIR
from app.record.directory import ChildRun
from app.report.read import read_run
from common.compose import compose_config
from common.errors import UserError
from extensions.reproduce.command import (
    ReproduceConfig,
    Reproduction,
    changed_keys,
    seeds_of,
    summarise,
    training_arguments,
)
from tests.app.report.runs import write_run
from tests.error_lines import refused


def composed(*overrides: str) -> ReproduceConfig:
    return compose_config(ReproduceConfig, CONFIG_DIR, overrides, "reproduce")


def write_seeds(out: Path, count: int, *overrides: str, **of_run: Any) -> dict[int, ChildRun]:
    """The runs of seeds 1 to `count`, each with figures of its test split; `of_run`: as of `write_run`."""
    seeds = seeds_of(out, count)
    for seed, child in seeds.items():
        directory = write_run(child.directory, *overrides, seed=seed, **of_run)
        write_test(directory, 0.7 + seed / 1000)
    return seeds


def write_test(directory: Path, auc: float) -> None:
    """test.json as evaluate writes it."""
    content = {"run": str(directory), "split": "test", "samples": 100, "auc": auc, "logloss": 0.5, "ne": 0.9}
    (directory / "test.json").write_text(json.dumps(content))


PUBLISHED = ["published.source=A", "published.data=B", "published.tolerance=0.001"]


def summarised(seeds: dict[int, ChildRun], *overrides: str) -> Reproduction:
    arguments = [override for override in overrides if not override.startswith(("seeds=", "published."))]
    config = composed("run.name=x", *overrides)
    return summarise(config, arguments, seeds, {})


def said(reproduction: Reproduction) -> str:
    return "\n".join(sentence for _, sentence in reproduction.verdict)


@pytest.mark.medium
def test_figures_are_those_of_numpy_and_scipy(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 5)
    reproduction = summarised(seeds, "published.test_auc=0.7031", *PUBLISHED)
    by_name = {(figure["split"], figure["metric"]): figure for figure in reproduction.figures}
    assert set(by_name) == {(split, metric) for split in ("val", "test") for metric in ("auc", "logloss", "ne")}
    tested = np.array([0.701, 0.702, 0.703, 0.704, 0.705])
    evaluated = np.array([read_run(child.directory).evaluation.auc for child in seeds.values()])
    for split, values in (("test", tested), ("val", evaluated)):
        figure = by_name[split, "auc"]
        reach = stats.t.ppf(0.975, 4) * values.std(ddof=1) / np.sqrt(5)
        expected = [values.mean(), values.std(ddof=1), values.mean() - reach, values.mean() + reach]
        assert [figure[name] for name in ("mean", "std", "low", "high")] == pytest.approx(expected, rel=1e-9)
        assert list(figure["values"].values()) == values.tolist()
    assert [by_name["test", "auc"][name] for name in ("published", "inside")] == [0.7031, True]
    assert by_name["val", "auc"]["published"] is None
    assert reproduction.seconds == 60.0
    assert reproduction.joules is None
    assert "Reproduced: AUC of test: published 0.70310 lies inside, mean 0.70300" in said(reproduction)
    assert "energy: not measured" in said(reproduction)


@pytest.mark.parametrize(
    ("published", "kind", "words"),
    [
        (0.70596 + 1e-3 + 1e-6, "bad", "the mean is worse by 0.00396"),
        pytest.param(0.70096 - 1e-3 - 1e-5, "plain", "the mean is better by", marks=pytest.mark.slow),
        pytest.param(0.7049 + 1e-3, "good", "Reproduced", marks=pytest.mark.slow),
    ],
)
def test_a_published_figure_is_inside_with_the_tolerance_or_not(
    tmp_path: Path, published: float, kind: str, words: str
) -> None:
    """The interval is 0.703 ± 0.00196; the tolerance widens it by 0.001."""
    reproduction = summarised(write_seeds(tmp_path, 5), f"published.test_auc={published}", *PUBLISHED)
    ((verdict_kind, sentence),) = [entry for entry in reproduction.verdict if "published" in entry[1]]
    assert (verdict_kind, words in sentence) == (kind, True), sentence


def test_another_dataset_than_the_recipes_is_named_and_gets_no_verdict(tmp_path: Path) -> None:
    keys = ["published.auc=0.7", "published.train_rows=33003326", *PUBLISHED]
    reproduction = summarised(write_seeds(tmp_path, 2), *keys)
    text = said(reproduction)
    assert "(B, 33,003,326 training rows; here 10,000), so this run is not held to them; the dataset is data/x" in text
    assert all(figure["inside"] is None for figure in reproduction.figures)
    assert "eproduced:" not in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.max_steps=7", "The recipe was changed (train.max_steps=7)"),
        ("data.scale=tiny", "tiny form on generated rows"),
        ("train.log_every_steps=7", ""),
    ],
)
def test_a_changed_recipe_gets_no_verdict(tmp_path: Path, override: str, words: str) -> None:
    reproduction = summarised(write_seeds(tmp_path, 2), "published.test_auc=0.7", *PUBLISHED, override)
    assert (words in said(reproduction), "eproduced:" in said(reproduction)) == (True, not words)


def test_seeds_of_two_configurations_get_no_verdict(tmp_path: Path) -> None:
    first, second = write_seeds(tmp_path / "a", 1), write_seeds(tmp_path / "b", 2, "optimizer.lr=0.5")
    reproduction = summarised({1: first[1], 2: second[2]}, "published.test_auc=0.7", *PUBLISHED)
    assert "The runs were not made alike; they differ in optimizer.lr." in said(reproduction)
    assert "The configurations of the seeds differ (optimizer.lr), so there is no verdict." in said(reproduction)
    assert all(figure["inside"] is None for figure in reproduction.figures)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("train.seed=3", "each run has its own"),
        ("run.dir=x", "out=DIR"),
        ("checkpoint.resume=never", "give another out=DIR"),
    ],
)
def test_what_each_run_has_of_its_own_is_refused(argument: str, words: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(argument)}: not of a reproduction: .*{words}"):
        training_arguments(["recipe=quickstart", argument])


@pytest.mark.parametrize("key", ["train.seed", "seeds"])
def test_a_files_own_seed_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{key}: 3\ntrain.epochs: 2\n")
    refused(re.escape(key), training_arguments, [f"config={path}"])


@pytest.mark.medium
def test_arguments_of_training_are_handed_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train.epochs: 2\nruntime.num_threads: 1\n")
    training_keys = ["recipe=quickstart", "optimizer=adam", "optimizer.lr=0.1", "train.log_every_steps=3"]
    arguments = ["seeds=3", "out=x", "processes=2", f"config={path}", *training_keys]
    words = ["train.epochs=2", "runtime.num_threads=1", *training_keys]
    assert training_arguments(arguments) == words
    assert {"train.epochs=2", "optimizer.name=adam", "optimizer.lr=0.1"} <= set(changed_keys(words))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["optimizer=sgd"], "optimizer.name=sgd"),
        (["model=dlrm_dcn"], "model.interaction=dcn"),
        (["train.eval_every_steps=7"], "train.eval_every_steps=7"),
    ],
)
def test_every_key_that_changes_a_recipe_is_named(arguments: list[str], key: str) -> None:
    assert key in changed_keys(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["recipe=bars_frappe_x1", "model=dcnv2"],
        ["data.path=x", "record.tensorboard=false", "checkpoint.every_steps=7", "eval.keep_scores=7", "baselines=true"],
    ],
)
def test_what_leaves_the_recipe_as_it_is_is_not_named(arguments: list[str]) -> None:
    assert changed_keys(arguments) == []
