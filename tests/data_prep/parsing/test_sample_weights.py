"""Sample weights of a user's own table: stored exactly, beside their rows; other values are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.dataset.format import load_manifest, open_shard
from tests.data_prep.conftest import SPLITS, prepare, sums
from tests.data_prep.tables import HASHED, paths, refused_table, write

SCHEMA = "label: label\ndense: [price]\nsparse: [user, {column: tags, separator: '|'}]\nweight: weight\n"
SINGLE = SCHEMA.replace("{column: tags, separator: '|'}", "tags")
NUMBERS = SINGLE.replace("label: label", "label: {column: price, kind: number}").replace("[price]", "[weight_again]")
ROWS = 600
# Each with another way from a chunk to a shard.
WAYS = [
    pytest.param(SINGLE, ["data.split.method=fraction", *HASHED], id="whole-chunks"),
    pytest.param(SINGLE, ["data.split.method=random", "data.chunk_bytes=4000"], id="scattered"),
    pytest.param(NUMBERS, ["data.split.method=random", "data.chunk_bytes=4000"], id="scattered-numbers-as-labels"),
    pytest.param(SCHEMA, ["data.split.method=random", "data.chunk_bytes=4000"], id="bags"),
]


def columns() -> dict[str, list[Any]]:
    """Return a table whose prices equal its weights; float32 rounds neither 0.1 + 0.2 nor 1e-30 to itself."""
    weights = [[0.0, 0.5, 1.0, 0.1 + 0.2, 1e-30, 3e38, 7.25][row % 7] for row in range(ROWS)]
    names = [f"u{row % 5}" for row in range(ROWS)]
    labels = [row % 2 for row in range(ROWS)]
    prices = dict.fromkeys(("price", "weight", "weight_again"), weights)
    return {"label": labels, "user": names, "tags": names, **prices}


@pytest.mark.medium
@pytest.mark.parametrize(("schema", "keys"), WAYS)
def test_rows_keep_their_weights_and_workers_change_no_byte(tmp_path: Path, schema: str, keys: list[str]) -> None:
    write(tmp_path / "rows.csv", columns())
    for workers, out in ((1, "out"), (2, "other")):
        usual = [*paths(tmp_path, schema, out=out), "data.dense_transform=raw", f"data.workers={workers}"]
        prepare(*usual, *(key for key in keys if key != "data.dense_transform=raw"))
    manifest, other = load_manifest(tmp_path / "out"), load_manifest(tmp_path / "other")
    assert manifest.digest == other.digest
    assert sums(tmp_path / "out") == sums(tmp_path / "other")
    assert manifest.schema["weight"] == "weight"
    weights = {}
    for split in SPLITS:
        shards = [open_shard(tmp_path / "out", split, shard, manifest) for shard in manifest.splits[split].shards]
        weights[split] = np.concatenate([each.weights for each in shards])
        np.testing.assert_array_equal(weights[split], np.concatenate([each.dense for each in shards]))
        if schema is NUMBERS:
            np.testing.assert_array_equal(weights[split], np.concatenate([each.labels for each in shards]))
    expected = np.sort(np.array(columns()["weight"], np.float32))
    np.testing.assert_array_equal(np.sort(np.concatenate(list(weights.values()))[:, 0]), expected)
    assert manifest.encoding["mean_weight"] == pytest.approx(weights["train"].mean(dtype=np.float64), rel=1e-14)


@pytest.mark.parametrize(
    ("schema", "keys", "fault"),
    [
        (SCHEMA, [], "column weight: every weight of train is 0, so its rows count for nothing; correct the column"),
        (SCHEMA.replace("price", "weight"), [], "column weight is named twice; a column has one use"),
        (SCHEMA.replace("weight: weight", "weight: absent"), [], "row 1: no column absent"),
        (SCHEMA, ["data.sampling.negative_drop_rate=0.5"], "not defined for the sample weights"),
    ],
)
def test_a_weight_that_cannot_be_used_is_refused(tmp_path: Path, schema: str, keys: list[str], fault: str) -> None:
    refused_table(tmp_path, {**columns(), "weight": [0] * ROWS}, schema, fault, *keys)
