"""Exports of the tiny form of every recipe: logits as evaluate's."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.data.split import SplitReader
from app.runtime.platform import Runtime
from data_prep.dataset.format import load_manifest
from data_prep.dataset.options import DataSource
from data_prep.synthetic import days_directory
from tests.app.config.test_recipes import FEWER, PUBLISHED
from tests.app.conftest import composed
from tests.app.in_process import command_here, train_here
from tests.app.scoring.test_same_row import Model
from tests.error_lines import refused
from tests.extensions.export.test_directories import row_keys, score_files

REFUSED = {"amd_blog_2024": "mixes_samples=true: export has no meaning"}
ALWAYS = ("amd_blog_2024", "meta_kaggle_2019", "mlperf_v2")  # an export of 26 features takes ten seconds
RECIPES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow("examples")) for name in PUBLISHED]


def tiny_run(recipe: str, directory: Path) -> list[str]:
    source = composed(f"recipe={recipe}", "data.scale=tiny").data.source
    assert source is not None
    run = [f"recipe={recipe}", "data.scale=tiny", FEWER[source], "train.max_steps=4", "train.target_auc=null"]
    run += [
        f"data.source={source.name}",
        f"data.path={directory}/data",
        f"run.dir={directory}/run",
        "runtime.num_threads=2",
    ]
    run += ["runtime.num_threads=2"]
    return [*run, "eval.global_batch_size=512", "record.tensorboard=false", "baselines=false", "runtime.precision=fp32"]


def encoded_rows(root: Path, split: str, data: Any) -> tuple[Any, list[Any]]:
    """Dense features [B, N] of a split, and of each feature the ids of its bags [B, M]."""
    manifest = load_manifest(root)
    rows = manifest.splits[split].rows
    batch = next(SplitReader(root, manifest, split, data, 0, 1).eval_batches(rows))
    bags = [batch.sparse_features[name] for name in manifest.num_embeddings]
    return batch.dense_features.numpy(), [each.values().view(rows, -1).numpy() for each in bags]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_s_tiny_form(recipe: str, runtime: Runtime, tmp_path: Path) -> None:
    overrides = tiny_run(recipe, tmp_path)
    assert train_here(runtime, *overrides) == "completed"
    arguments = ["export", f"run={tmp_path}/run", f"out={tmp_path}/served"]
    if recipe in REFUSED:
        refused(REFUSED[recipe], command_here, runtime, *arguments)
        return
    command_here(runtime, *arguments)
    config = composed(*overrides)
    split = "test"
    expected = Model(runtime, tmp_path).evaluate(split)
    dense, bags = encoded_rows(tmp_path / "data", split, config.data)
    manifest = load_manifest(tmp_path / "data")
    if config.data.source is DataSource.random:
        columns = dict(zip(manifest.schema["dense"], dense.T, strict=True))
        columns |= {name: each[:, 0] for name, each in zip(manifest.num_embeddings, bags, strict=True)}
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
        [result] = score_files(tmp_path / "served", tmp_path / "rows.parquet")
        require_parity(recipe, result["logits"], expected)
        return
    results = score_files(tmp_path / "served", *sorted(days_directory(config.data, tmp_path / "data").glob("*.tsv")))
    logits = {key: each for result in results for key, each in zip(result["keys"], result["logits"], strict=True)}
    single = [ids for ids in bags if ids.shape[1] == 1]
    inputs = {"ids": np.concatenate(single, axis=1).astype(np.int64), "dense_features": dense}
    names = zip(manifest.num_embeddings, bags, strict=True)
    inputs |= {f"ids_{name}": ids.astype(np.int64) for name, ids in names if ids.shape[1] > 1}
    require_parity(recipe, [logits[key] for key in row_keys(inputs)], expected)


def require_parity(recipe: str, logits: Any, expected: Any) -> None:
    """Compare logits with those of evaluate; print the largest difference."""
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    largest = np.abs(np.asarray(logits) - np.asarray(expected)).max()
    print(f"| `{recipe}` | {len(expected):,} | {largest:.1e} |")
