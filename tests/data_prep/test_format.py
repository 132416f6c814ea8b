"""The contract on disk: what is written is read back; what is not whole or not ours is refused by name and key."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.data.split import SplitShards
from common.errors import UserError
from common.files import digest_file
from data_prep.dataset.format import load_manifest, open_shard, shard_path, verify_shard
from data_prep.encoding import Encoder
from data_prep.verify import verify_dataset
from tests.app.datasets import NUM_DENSE, write_dataset, write_ragged_dataset
from tests.data_prep.conftest import prepare, write_rows
from tests.data_prep.tables import paths, write
from tests.error_lines import refused

OTHER_VALUES: tuple[Any, ...] = (None, [], {}, "x", -1)


def damaged(document: Any) -> Iterator[tuple[str, str, Any]]:
    """The dotted name of a key, what became of it ("deleted", "added", or its value's repr), and the document then."""
    for place in [(), *_places(document)]:
        if isinstance(_at(document, place), dict):
            yield from _changed(document, (*place, "surprise"), "added", 1)
        if place:
            yield from _changed(document, place, "deleted", None)
            for value in OTHER_VALUES:
                yield from _changed(document, place, repr(value), value)


def _changed(document: Any, place: tuple[Any, ...], change: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    variant = copy.deepcopy(document)
    parent = _at(variant, place[:-1])
    if change == "deleted":
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    if variant != document:
        yield ".".join(map(str, place)), change, variant


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*place, key)
        yield from _places(value[key], (*place, key))


@pytest.mark.parametrize("kind", ["labels", "dense", "sparse"])
def test_a_shard_cut_changed_or_gone_is_named(kind: str, tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 100})
    (shard,) = manifest.splits["train"].shards
    path = shard_path(tmp_path, "train", shard.name, kind)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x40]))
    refused(rf"{kind}\.npy: sha256", verify_shard, tmp_path, "train", shard)
    path.write_bytes(whole[:-1])
    message = rf"{kind}\.npy: \d+ bytes, but the manifest says {len(whole)}"
    refused(message, open_shard, tmp_path, "train", shard, manifest)
    path.unlink()
    refused(rf"{kind}\.npy: file not readable", open_shard, tmp_path, "train", shard, manifest)
    refused(rf"{kind}\.npy: file not readable", verify_shard, tmp_path, "train", shard)


DENSE = np.zeros((10, NUM_DENSE), np.float32)


@pytest.mark.parametrize(
    ("array", "cut", "message"),
    [
        (DENSE, 8, "file not readable"),
        (DENSE.astype(object), 0, "file not readable"),
        (np.asfortranarray(DENSE), 0, "column by column"),
        (DENSE.ravel(), 0, r"float32 \(50,\), but the manifest says float32 \(10, 5\)"),
    ],
    ids=["cut short", "objects", "by column", "flat"],
)
def test_a_shard_that_is_no_such_array_is_named(array: Any, cut: int, message: str, tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 10})
    (shard,) = manifest.splits["train"].shards
    path = shard_path(tmp_path, "train", shard.name, "dense")
    with open(path, "wb") as file:
        np.save(file, array)
    path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - cut)])
    shard.files["dense"] = digest_file(path)
    refused(rf"dense\.npy: {message}", open_shard, tmp_path, "train", shard, manifest)


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
def with_all(tmp_path: Path) -> Path:
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
def test_any_key_deleted_added_or_of_another_value(with_all: Path, step: int) -> None:
    path = with_all / "manifest.json"
    accepted, num_refusals, tried = set(), 0, list(damaged({**json.loads(path.read_text()), "extra": {}}))[::step]
    for key, change, document in tried:
        path.write_text(json.dumps(document))
        reason = refusal(verify_dataset, with_all)
        if reason is None:
            accepted.add((key, change))
        else:
            num_refusals += 1
            assert reason.startswith((f"{path}: ", f"{with_all}/")), (key, change)
            assert "manifest" in reason, (key, change)
            assert key.split(".")[0] in reason or ".npy: " in reason, (key, change)
        for message in (reason, refusal(read_all, with_all), refusal(Encoder.load, with_all)):
            assert "\n" not in (message or ""), (key, change)
    assert accepted == ACCEPTED & {(key, change) for key, change, _ in tried}
    assert num_refusals > 700 // step


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    prepare(*write_rows(tmp_path, 100, seed=4), "data.chunk_bytes=10000")
    return tmp_path / "out"


def change(root: Path, edit: Callable[..., Any]) -> None:
    path = root / "manifest.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def change_array(root: Path, number: int, kind: str, index: Any, value: float) -> None:
    """Change one value of a shard of train, and the sum that the manifest gives."""
    path = root / "train" / f"{number:05}.{kind}.npy"
    array = np.load(path)
    array[index] = value
    np.save(path, array)
    digest = digest_file(path)
    files = {kind: {"bytes": digest.bytes, "sha256": digest.sha256}}
    change(root, lambda document: document["splits"]["train"]["shards"][number]["files"].update(files))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["vocabulary", "texts and bags"])
def test_one_changed_byte_of_any_file(tmp_path: Path, kind: str) -> None:
    if kind == "texts and bags":
        write(tmp_path / "rows.csv", {"label": [0, 1] * 40, "user": [*"abcd"] * 20, "tags": ["x|y", "z"] * 40})
        keys = paths(tmp_path, "label: label\nsparse: [user, {column: tags, separator: '|'}]\n")
    else:
        keys = write_rows(tmp_path, 60, seed=4)
    change_bytes(keys, tmp_path / "out")


def change_bytes(keys: list[str], root: Path, encodes: bool = True) -> None:
    """Make a dataset and change a byte of a file of each kind: verification names it, and so does an encoder."""
    prepare(*keys, f"data.path={root}")
    one_of_each = {(path.parent, re.sub(r"\d+", "", path.name)): path for path in sorted(root.rglob("*.npy"))}
    assert len(one_of_each) > 6
    for path in one_of_each.values():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refused(rf"{path.relative_to(root)}: .*sha256 .*again", verify_dataset, root)
        if "vocab" in path.parts and "texts" not in path.name and "offsets" not in path.name and encodes:
            refused(rf"{path.name}: sha256 .* the file changed", Encoder.load, root)
        path.write_bytes(whole)
    verify_dataset(root)


RANGES: list[Any] = [("labels", (3, 0), 2, "label"), ("dense", (3, 5), np.nan, "int_5")]
RANGES += [("sparse", (3, 7), -1, "cat_7"), ("sparse", (3, 7), 10**6, "cat_7")]


@pytest.mark.parametrize(("kind", "index", "value", "column"), RANGES)
def test_values_out_of_range(dataset: Path, kind: str, index: tuple[int, int], value: float, column: str) -> None:
    change_array(dataset, 0, kind, index, value)
    refused(rf"train/00000\.{kind}\.npy: row 4, column {column}: value out of range", verify_dataset, dataset)


BAGS = [
    ("values", 11, 30, r"00001\.values\.npy: row \d+, column tags: value out of range"),
    ("values", -1, -1, r"00001\.values\.npy: row 70, column genres: value out of range"),
    ("offsets", 5, 10_000, r"00001\.offsets\.npy: row 5, column tags: value out of range"),
]


@pytest.mark.parametrize(("kind", "place", "value", "message"), BAGS)
def test_bags_are_checked_too(tmp_path: Path, kind: str, place: int, value: int, message: str) -> None:
    write_ragged_dataset(tmp_path, {"train": 140})
    change(tmp_path, lambda document: document.update(label_rate=document["splits"]["train"]["label_rate"]))
    verify_dataset(tmp_path)
    change_array(tmp_path, 1, kind, place, value)
    refused(message, verify_dataset, tmp_path)
