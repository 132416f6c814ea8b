"""The contract on disk: what is written is read back; what is not whole or not ours is refused by name and key."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.data.split import SplitShards
from common.errors import UserError
from common.files import digest_file, write_atomically
from data_prep.dataset.format import (
    BLOCK_ROWS,
    load_manifest,
    open_shard,
    rows_of_blocks,
    sampled_blocks,
    sampled_row_numbers,
    save_manifest,
    shard_path,
    verify_shard,
)
from data_prep.encoding.encoder import Encoder
from data_prep.verify import verify_dataset
from tests.app.datasets import NUM_DENSE, NUM_EMBEDDINGS, write_dataset
from tests.damage import damaged
from tests.data_prep.conftest import prepare
from tests.data_prep.tables import paths
from tests.error_lines import refused

F = len(NUM_EMBEDDINGS)


def test_a_manifest_survives_its_file_and_saving_again_changes_no_byte(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path)
    assert load_manifest(tmp_path) == manifest
    before = (tmp_path / "manifest.json").read_bytes()
    save_manifest(tmp_path, manifest)
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_its_digest_follows_the_data_alone(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "a")
    same = write_dataset(tmp_path / "b")
    same.extra["peak"], same.tool_version = 5, "other"
    assert same.digest == manifest.digest
    assert write_dataset(tmp_path / "c", seed=1).digest != manifest.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format_version=99), "format_version 99, but this version reads 5; preprocess again"),
        (lambda d: d.update(format="parquet"), "not a dataset of this tool"),
        (lambda d: d.pop("splits"), "key 'splits' is missing; preprocess again"),
        (lambda d: d.update(surprise=1), "'surprise' is unknown; another version .* may have written it; use that"),
        (lambda d: d["splits"]["train"]["shards"].append(d["splits"]["train"]["shards"][0] | {"rows": 0}), "one name"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train": 10})
    path = tmp_path / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert str(path) in refused(message, load_manifest, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_manifest_cut_short_or_gone_is_refused(content: bytes, tmp_path: Path) -> None:
    refused("no dataset here", load_manifest, tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    refused(r"manifest\.json", load_manifest, tmp_path)


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


def test_a_shard_of_another_shape_is_named(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 100})
    (shard,) = manifest.splits["train"].shards
    other = replace(manifest, schema={**manifest.schema, "dense": list("abcdef")})
    message = r"dense\.npy: float32 \(100, 5\), but the manifest says float32 \(100, 6\)"
    refused(message, open_shard, tmp_path, "train", shard, other)


DENSE = np.zeros((10, NUM_DENSE), np.float32)


@pytest.mark.parametrize(
    ("array", "cut", "message"),
    [
        (DENSE, 8, "file not readable"),
        (DENSE, 1 << 20, "file not readable"),
        (DENSE.astype(object), 0, "file not readable"),
        ({"dense": DENSE}, 0, "file not readable"),
        (np.asfortranarray(DENSE), 0, "column by column"),
        (DENSE.astype(">f4"), 0, r">f4 \(10, 5\), but the manifest says float32"),
        (DENSE.ravel(), 0, r"float32 \(50,\), but the manifest says float32 \(10, 5\)"),
    ],
    ids=["cut short", "empty", "objects", "archive", "by column", "big-endian", "flat"],
)
def test_a_shard_that_is_no_such_array_is_named(array: Any, cut: int, message: str, tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 10})
    (shard,) = manifest.splits["train"].shards
    path = shard_path(tmp_path, "train", shard.name, "dense")
    with open(path, "wb") as file:
        if isinstance(array, dict):
            np.savez(file, **array)
        else:
            np.save(file, array)
    path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - cut)])
    shard.files["dense"] = digest_file(path)
    refused(rf"dense\.npy: {message}", open_shard, tmp_path, "train", shard, manifest)


def test_an_atomic_write_replaces_all_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "new/file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert digest_file(path).bytes == 3


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


def sampled_rows(rows: int, share: float, number: int) -> NDArray[np.int64]:
    return rows_of_blocks(sampled_blocks(rows, share, number, BLOCK_ROWS))


def test_the_sample_is_a_function_of_a_row_s_number() -> None:
    first, second = (sampled_rows(100_000, 0.3, 7) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert 0.2 < len(first) / 100_000 < 0.4
    blocks = sorted({int(row) // 256 for row in first})
    rows = [row for block in blocks for row in range(block * 256, block * 256 + 256) if row < 100_000]
    assert sorted(first.tolist()) == rows
    assert sampled_rows(1_000, 1.0, 0).tolist() == list(range(1_000))


def test_numbers_of_a_sample_are_those_of_its_shards() -> None:
    shard_rows = [700, 0, 2_000, 513]
    by_shard = [sampled_rows(rows, 1_000 / sum(shard_rows), number) for number, rows in enumerate(shard_rows)]
    starts = (0, 700, 700, 2_700)
    rows = [start + row for start, part in zip(starts, by_shard, strict=True) for row in part.tolist()]
    assert sampled_row_numbers(shard_rows, 1_000).tolist() == rows[:1_000]
    assert sampled_row_numbers(shard_rows, None).tolist() == list(range(3_213))
    assert sampled_row_numbers(shard_rows, 3_213).tolist() == list(range(3_213))
