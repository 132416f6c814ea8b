"""Exported directories: score.py, on raw rows, gives what evaluate and recommend give, without our code."""

import random
from pathlib import Path

import numpy as np
import pytest

from app.runtime.platform import Runtime
from data_prep.dataset.format import load_manifest
from tests.app.in_process import command_here
from tests.app.scoring.test_same_row import ROWS, drawn_keys, trained
from tests.extensions.export.serving import score_files
from tests.oracles.own_tables import RAW_KINDS, drawn_table, objects_of, write_lines, write_raw

FAST, ALL = 2, 9
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FAST)) for seed in range(ALL)]
INTERACTIONS: list[list[str]] = [
    [],
    ["model.interaction=dcn", "model.batch_norm=true", "model.over_arch=[4,1]"],
    ["model.interaction=projection", "model.tables.pooling=mean"],
    ["model.interaction=scalar_pairs", "model.tables.pooling=weighted"],
    ["model.interaction=cat", "model.tables.kind=qr", "model.tables.min_rows=2"],
    ["model.numeric=vectors", "model.dense_arch=[]"],
    ["model.tables.kind=mixed_dimension", "model.tables.min_rows=2", "model.tables.dim=4"],
]


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_tables(seed: int, runtime: Runtime, tmp_path: Path) -> None:
    """Rows of drawn tables, in every form of file, through drawn models."""
    draw = random.Random(seed)
    raw = RAW_KINDS[seed % len(RAW_KINDS)]
    table, keys = drawn_table(draw, raw, ROWS), drawn_keys(draw)
    write_raw(table, tmp_path / f"rows.{raw}")
    overrides = [f"data.{key}={value}" for key, value in keys.items()]
    model_keys = INTERACTIONS[seed % len(INTERACTIONS)]
    model = trained(runtime, tmp_path, f"rows.{raw}", table.schema(), *overrides, model_keys=model_keys)
    split = draw.choice(["train", "val"])
    expected = model.evaluate(split)
    first = 0 if split == "train" else load_manifest(tmp_path / "data").splits["train"].rows
    rows = list(range(first, first + len(expected)))
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/served")
    files = [tmp_path / f"part.{raw}", tmp_path / "typed.jsonl"]
    write_raw(table, files[0], rows)
    write_lines(files[1], objects_of(rows, table.read))
    for result in score_files(tmp_path / "served", *files):
        if "error" in result:
            assert table.is_ambiguous
            assert any(column.name in result["error"] for column in table.read)
        else:
            np.testing.assert_allclose(result["logits"], expected, rtol=0, atol=1e-5)
