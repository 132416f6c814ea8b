"""Given splits in mixed forms: a value of val and test has the id that the same value has in train."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.dataset.format import load_manifest
from tests.data_prep.conftest import load_split, prepare, seeds
from tests.error_lines import refused
from tests.oracles.given_splits import VALUES, Case

CASES = 8


def ids_of(root: Path, split: str) -> dict[str, list[Any]]:
    """The ids of each row by column, those of a bag as a tuple."""
    manifest = load_manifest(root)
    _, _, single = load_split(root, split)
    [shard] = manifest.splits[split].shards
    values, offsets = (np.load(root / split / f"{shard.name}.{kind}.npy") for kind in ("values", "offsets"))
    bags = [tuple(bag.tolist()) for bag in np.split(values, offsets[1:-1])]
    return {"integer": single[:, 0].tolist(), "truth": single[:, 1].tolist(), "tags": bags}


@pytest.mark.medium
@pytest.mark.parametrize("part", seeds(2, 4))
def test_a_value_has_its_id_in_every_split(part: int, tmp_path: Path) -> None:
    for seed in range(part * CASES, (part + 1) * CASES):
        case, directory = Case(seed), tmp_path / str(seed)
        directory.mkdir()
        case.write(directory)
        files = [f"data.{split}={directory}/{split}.jsonl" for split in case.rows]
        overrides = [*files, f"data.schema={directory}/schema.yaml", f"data.path={directory}/out"]
        if case.is_refused:
            refused(r"row 1, column (integer|truth): .*(spelling|spelled otherwise)", prepare, *overrides)
            continue
        prepare(*overrides)
        train = ids_of(directory / "out", "train")
        for column in VALUES:
            pairs = {(row[column], number) for row, number in zip(case.rows["train"], train[column], strict=True)}
            id_of = dict(pairs)
            assert len(id_of) == len(pairs) == len(set(id_of.values())), (seed, column)
            for split in ("val", "test"):
                is_same = case.outcome(split, column) == "same"
                expected = [id_of[row[column]] if is_same else 0 for row in case.rows[split]]
                assert ids_of(directory / "out", split)[column] == expected, (seed, split, column)
