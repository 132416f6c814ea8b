"""A run on a user's own table, trained once, for the tests of the Python interface."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from app.runtime.platform import Runtime
from tests.app.conftest import runtime as runtime
from tests.app.in_process import train_here
from tests.data_prep.conftest import prepare

ROWS = 900
SCHEMA = """label: {column: stars, rule: ">= 4"}
dense: [age, price]
sparse: [user, item, {column: genres, separator: "|"}]
"""
TRAIN = ["model.embedding_dim=8", "model.dense_arch=[8]", "model.over_arch=[8,1]", "train.global_batch_size=64"]
TRAIN += ["train.max_steps=9", "eval.split=val", "record.tensorboard=false", "runtime.num_threads=1"]
TRAIN += ["runtime.platform=cpu", "baselines=false", "recipe=quickstart"]


class Trained(NamedTuple):
    """A run in `directory`/run on the rows of its raw.csv, which `directory`/data was made from."""

    directory: Path
    rows: list[dict[str, Any]]

    @property
    def run(self) -> Path:
        return self.directory / "run"


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Ratings; users from u40 on are of seeds above 0 alone."""
    rng = np.random.default_rng(seed)
    return [
        {
            "stars": int(rng.integers(1, 6)),
            "age": int(rng.integers(10, 80)) if rng.random() < 0.9 else None,
            "price": round(float(rng.random() * 20), 2),
            "user": f"u{rng.integers(40 + 20 * seed)}",
            "item": int(rng.integers(30)),
            "genres": [f"g{genre}" for genre in rng.choice(7, rng.integers(0, 4), replace=False)],
        }
        for _ in range(count)
    ]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "genres": "|".join(row["genres"])} for row in rows)


def train_on_table(
    runtime: Runtime, directory: Path, *keys: str, schema: str = SCHEMA, prepared: Sequence[str] = ()
) -> Trained:
    rows = make_rows(ROWS, seed=0)
    write_csv(directory / "raw.csv", rows)
    (directory / "schema.yaml").write_text(schema)
    paths = [f"data.raw={directory}/raw.csv", f"data.schema={directory}/schema.yaml", f"data.path={directory}/data"]
    prepare(*paths, "data.split.method=fraction", *prepared)
    assert train_here(runtime, *TRAIN, f"data.path={directory}/data", f"run.dir={directory}/run", *keys) == "completed"
    return Trained(directory, rows)


@pytest.fixture(scope="session")
def trained(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_on_table(runtime, tmp_path_factory.mktemp("trained"))
