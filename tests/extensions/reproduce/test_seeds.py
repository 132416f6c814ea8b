"""Which arguments a reproduction takes, and its document."""

import os
import re
import time
from pathlib import Path

import pytest

from app.record.directory import figures_of_test
from common.errors import UserError
from extensions.reproduce.command import (
    ReproduceConfig,
    changed_keys,
    seeds_of,
    training_arguments,
)
from tests.app.conftest import composed
from tests.common.test_keys import OF_RUNS
from tests.error_lines import refused
from tests.extensions.reproduce.runs import write_seeds, write_test
from tests.key_limits import ONE, check_limits


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("train.seed=3", "each run has its own"),
        ("+train.seed=3", "each run has its own"),
        ("run.dir=x", "out=DIR"),
        ("run.name=x", "named by their seeds"),
        ("checkpoint.resume=never", "give another out=DIR"),
        ("checkpoint.overwrite=true", "nothing is overwritten"),
    ],
)
def test_what_each_run_has_of_its_own_is_refused(argument: str, words: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(argument)}: not of a reproduction: .*{words}"):
        training_arguments(["recipe=quickstart", argument])


@pytest.mark.parametrize("key", ["train.seed", "seeds"])
def test_a_files_own_seed_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{key}: 3\ntrain.epochs: 2\n")
    refused(f"mine.yaml: has {re.escape(key)}, which is not taken from a file", training_arguments, [f"config={path}"])


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
        (["schedule=cosine"], "schedule.name=cosine"),
        (["loss=mse"], "loss.name=mse"),
        (["model=dlrm_dcn"], "model.interaction=dcn"),
        (["recipe=meta_kaggle_2019", "eval.split=val"], "eval.split=val"),
        (["train.eval_every_steps=7"], "train.eval_every_steps=7"),
        (["checkpoint.keep_best=false"], "checkpoint.keep_best=false"),
        (["runtime.precision=bf16"], "runtime.precision=bf16"),
        (["published.tolerance=0.5"], "published.tolerance=0.5"),
        (["data.synthetic.rows=20000"], "data.synthetic.rows=20000"),
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


def test_figures_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    (seed,) = write_seeds(tmp_path, 1)
    assert figures_of_test(seed.directory) is not None
    later = time.time() + 10
    os.utime(seed.directory / "summary.json", (later, later))
    assert figures_of_test(seed.directory) is None
    os.utime(seed.directory / "summary.json", (1, 1))
    write_test(seed.directory, 0.75)
    assert (seed.directory / "test.json").read_text()
    figures = figures_of_test(seed.directory)
    assert figures is not None
    assert figures.auc == 0.75


@pytest.mark.parametrize("out", [" a", "runs/'a'", 'runs/"a"', "runs/it's", "runs/a\\"])
def test_a_run_is_where_its_path_says_whatever_is_in_it(out: str) -> None:
    [seed] = seeds_of(Path(out), 1)
    override = next(each for each in seed.overrides if each.startswith("run.dir="))
    assert composed(override).run.dir == f"{out}/seed_1"


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ReproduceConfig, {**OF_RUNS, "seeds": ONE, "processes": ONE})
