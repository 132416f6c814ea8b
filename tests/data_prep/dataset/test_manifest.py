"""Whatever is wrong with a manifest, each of its readers says so in one line that names it and the key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.data.split import SplitShards
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from data_prep.verify import verify_dataset
from tests.damage import damaged
from tests.data_prep.conftest import prepare
from tests.data_prep.tables import paths

# Values of the right kind, which nothing else in the dataset repeats; and `extra`, which nobody reads.
TEXTS = ["encoding.table.delimiter", "encoding.table.names.4", "encoding.table.separators.0.1", "sources.0.name"]
TEXTS += ["encoding.table.vectors.0.separator", "tool_version"]  # names.4 is of a column that is not used
DELETED = ["encoding.table.names.4", "encoding.table.quoting", "encoding.table.transforms.1", "extra"]
DELETED += ["encoding.table.transforms.2", "encoding.table.vectors.0.separator"]
NUMBERS = ["encoding.dense_fits.size.0", *(f"encoding.dense_range.0.low.{column}" for column in range(4))]
ACCEPTED = {(key, "'x'") for key in TEXTS} | {(key, "deleted") for key in DELETED} | {(key, "-1") for key in NUMBERS}
ACCEPTED |= {("encoding.table.rule", "None"), ("extra.surprise", "added")}
SCHEMA = """
label: rating >= 4
delimiter: "|"
quoting: none
dense: [age, {column: size, transform: standard}, {column: place, vector: 2, separator: " "}]
sparse: [item, {column: tags, separator: ","}]
"""


def read_all(root: Path) -> None:
    manifest = load_manifest(root)
    for name, split in manifest.splits.items():
        SplitShards(root, manifest, name).read([(0, split.rows)], np.arange(split.rows))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A table with all that a manifest can tell of: a rule, a range, a fit, a vector, multi-hot features."""
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(1, 6)}|{rng.integers(99)}|{rng.integers(9)}|{','.join(map(str, rng.integers(0, 5, size)))}||"
        f"{rng.integers(50)}|{rng.integers(9)} {rng.integers(9)}"
        for size in rng.integers(0, 4, 60)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["rating|age|item|tags|more|size|place", *rows]) + "\n")
    prepare(*paths(tmp_path, SCHEMA), "data.dense_transform=minmax")
    return tmp_path / "out"


def refusal(read: Callable[..., Any], root: Path) -> str | None:
    """What is said of a dataset; None if nothing is wrong with it. All but a UserError is a failure."""
    try:
        read(root)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.medium
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_any_key_deleted_added_or_of_another_value(dataset: Path, step: int) -> None:
    path = dataset / "manifest.json"
    accepted, num_refusals, tried = set(), 0, list(damaged({**json.loads(path.read_text()), "extra": {}}))[::step]
    for key, change, document in tried:
        path.write_text(json.dumps(document))
        reason = refusal(verify_dataset, dataset)
        if reason is None:
            accepted.add((key, change))
        else:
            num_refusals += 1
            assert reason.startswith((f"{path}: ", f"{dataset}/")), (key, change)
            assert "manifest" in reason, (key, change)
            assert key.split(".")[0] in reason or ".npy: " in reason, (key, change)
        for message in (reason, refusal(read_all, dataset), refusal(Encoder.load, dataset)):
            assert "\n" not in (message or ""), (key, change)
    assert accepted == ACCEPTED & {(key, change) for key, change, _ in tried}
    assert num_refusals > 700 // step
