"""Given splits whose values are spelled in different ways: a value of val and test has the id that it has in train."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.dataset.format import load_manifest
from tests.data_prep.conftest import load_split, prepare, seeds
from tests.data_prep.tables import write
from tests.error_lines import refused

# Of each column its abstract values, and how a file of JSON lines may write one.
SPELLINGS: dict[str, dict[str, Any]] = {
    "integer": {"int": int, "float": float, "text": str, "point": lambda value: f"{value}.0"},
    "truth": {
        "bool": bool,
        "int": int,
        "title": lambda value: str(bool(value)),
        "lower": lambda value: str(bool(value)).lower(),
        "digit": lambda value: str(int(value)),
    },
    "tags": {"list": list, "joined": "|".join},
}
VALUES: dict[str, list[Any]] = {
    "integer": [2, 3, 5, 7, 11],
    "truth": [False, True],
    "tags": [("a", "b"), ("a",), ("c", "d", "a"), ("d",)],
}
TYPED = {"integer": ("int", "float"), "truth": ("bool", "int"), "tags": ("list",)}
ROWS = {"train": 60, "val": 20, "test": 20}


def outcome(column: str, train: str, other: str) -> str:
    """Fate of values spelled as `other` in a dataset whose train split spells them as `train`.

    same: they are the values of train; unknown: text that train does not have; refused: they have no one spelling.
    """
    if column == "tags":
        return "same"
    plain = {"integer": "text", "truth": "digit"}[column]
    if other in TYPED[column]:
        if train in TYPED[column] or train == plain or column == "integer":
            return "same"
        return "same" if other == "bool" else "refused"
    spelled_train = plain if train in TYPED[column] else train
    if other == spelled_train:
        return "same"
    return "refused" if train in TYPED[column] else "unknown"


class Case:
    """Drawn rows of each split, and the spelling of each column in each."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rows: dict[str, list[dict[str, Any]]] = {
            split: [{column: rng.choice(values) for column, values in VALUES.items()} for _ in range(count)]
            for split, count in ROWS.items()
        }
        self.spellings = {split: {column: rng.choice([*hows]) for column, hows in SPELLINGS.items()} for split in ROWS}
        self.spellings["train"]["tags"] = "list"  # text in train is one value
        for split in ("val", "test"):  # two thirds are of a kind that is taken
            for column in VALUES:
                if outcome(column, self.spellings["train"][column], self.spellings[split][column]) == "refused":
                    self.spellings[split][column] = rng.choice([*TYPED[column], self.spellings["train"][column]])

    def outcome(self, split: str, column: str) -> str:
        return outcome(column, self.spellings["train"][column], self.spellings[split][column])

    @property
    def is_refused(self) -> bool:
        return any(self.outcome(split, column) == "refused" for split in ("val", "test") for column in VALUES)

    def write(self, directory: Path) -> None:
        for split, rows in self.rows.items():
            columns = {"label": [number % 2 for number in range(len(rows))]}
            for column, how in self.spellings[split].items():
                columns[column] = [SPELLINGS[column][how](row[column]) for row in rows]
            write(directory / f"{split}.jsonl", columns)
        schema = {"label": "label", "sparse": list(VALUES)}
        (directory / "schema.yaml").write_text(json.dumps(schema))


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
