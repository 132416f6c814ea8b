"""Runs with tables of every kind over bags of any size: interrupted, replayed, on two processes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import SMALL, Command, Refusal
from tests.app.datasets import RAGGED_EMBEDDINGS, write_ragged_dataset
from tests.app.run_files import losses, summary

# user and item have one id a row, genres two, tags none to many
KINDS = ["+model.tables.overrides.user.kind=qr", "+model.tables.overrides.user.qr_operation=concat"]
KINDS += ["+model.tables.overrides.tags.kind=qr", "+model.tables.overrides.tags.pooling=mean"]
KINDS += ["+model.tables.overrides.item.kind=mixed_dimension", "model.tables.alpha=0.6"]
KINDS += ["+model.tables.overrides.item.storage=fp16", "+model.tables.overrides.genres.pooling=weighted"]
KINDS += ["train.global_batch_size=32"]
SIZES = {"t_user_q": (10, 8), "t_user_r": (4, 8), "t_tags_q": (8, 16), "t_tags_r": (4, 16), "t_item": (60, 4)}
SIZES |= {"t_genres": (9, 16)}


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bags")
    write_ragged_dataset(root, {"train": 1_000, "val": 101, "test": 10})
    return root


@pytest.mark.slow("processes")
def test_two_processes_with_three_sharding_types_train_as_one(run_app: Command, bags: Path, tmp_path: Path) -> None:
    types = {"t_user_q": "column_wise", "t_user_r": "row_wise", "t_tags_q": "row_wise", "t_tags_r": "column_wise"}
    types |= {"t_item": "row_wise", "t_genres": "column_wise"}
    overrides = [*SMALL, *KINDS, f"data.path={bags}", "train.max_steps=40", "model.interaction=projection"]
    overrides += [*(f"+sharding.tables.{table}.types={kind}" for table, kind in types.items())]
    for name, processes in (("alone", 1), ("pair", 2)):
        run_app("train", *overrides, f"run.name={name}", processes=processes)
    alone, pair = tmp_path / "runs/alone", tmp_path / "runs/pair"
    plan = json.loads((pair / "manifest.json").read_bytes())["plan"]
    assert {name: entry["type"] for name, entry in plan.items()} == types
    np.testing.assert_allclose(losses(pair), losses(alone), rtol=2e-5)
    result = run_app("evaluate", "run=runs/pair", "split=val", "runtime.num_threads=1")
    assert json.loads(result.stdout)["logloss"] == pytest.approx(summary(pair)["eval"]["logloss"], abs=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+model.tables.overrides.tags.kind=qr", "sharding=data_parallel"], "t_tags_q is looked up id by id"),
        (
            ["+model.tables.overrides.tags.kind=qr", "optimizer=adam"],
            "optimizer=adam: FBGEMM lacks it on cpu, and torch updates no table that is looked up id by id, such as "
            "t_tags_q; use optimizer=sgd or adagrad or rowwise_adagrad",
        ),
        (["model.tables.storage=fp16", "sharding=data_parallel"], "t_user is not stored as fp32"),
        (["model.tables.storage=bf16"], "FBGEMM trains no bf16 tables"),
        (["+model.tables.overrides.color.kind=qr"], "no sparse feature color; it has " + ", ".join(RAGGED_EMBEDDINGS)),
        (["+model.tables.overrides.tags.kidn=qr"], "kidn"),
        (["model.tables.kind=round"], "plain, qr, mixed_dimension"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    overrides: list[str], message: str, refused_command: Refusal, bags: Path
) -> None:
    assert message in refused_command("train", *SMALL, f"data.path={bags}", "run.name=no", *overrides)
