"""The directory of a reproduction whose runs are there already."""

import json
from pathlib import Path
from typing import Any

from app.config.app_config import CONFIG_DIR
from common.compose import compose_config
from extensions.reproduce.command import ReproduceConfig, Seed, seeds_of
from tests.app.report.runs import write_run


def composed(*overrides: str) -> ReproduceConfig:
    return compose_config(ReproduceConfig, CONFIG_DIR, overrides, "reproduce")


def write_seeds(out: Path, count: int, *overrides: str, **of_run: Any) -> list[Seed]:
    """The runs of seeds 1 to `count`, each with figures of its test split; `of_run`: as of `write_run`."""
    seeds = seeds_of(out, count)
    for seed in seeds:
        directory = write_run(seed.directory, *overrides, seed=seed.number, **of_run)
        write_test(directory, 0.7 + seed.number / 1000)
    return seeds


def write_test(directory: Path, auc: float) -> None:
    """test.json as evaluate writes it."""
    content = {"run": str(directory), "split": "test", "samples": 100, "auc": auc, "logloss": 0.5, "ne": 0.9}
    (directory / "test.json").write_text(json.dumps(content))


def edit(path: Path, **values: Any) -> None:
    """Set keys of a JSON document, as before its test split was evaluated."""
    test = path.with_name("test.json").read_text()
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **values}), encoding="utf-8")
    path.with_name("test.json").write_text(test)
