"""The contract on disk: what is written is read back; what is not whole or not ours is refused by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.files import digest_file, write_atomically
from data_prep.dataset.format import ROW_KINDS, load_manifest, open_shard, save_manifest, shard_path, verify_shard
from tests.app.datasets import NUM_DENSE, NUM_EMBEDDINGS, write_dataset
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


def test_arrays_have_the_contracts_shapes_and_types(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 10})
    (shard,) = manifest.splits["train"].shards
    arrays = open_shard(tmp_path, "train", shard, manifest)
    layout = {kind: (array.shape, array.dtype) for kind, array in arrays._asdict().items() if kind in ROW_KINDS}
    kinds = {"labels": ((10, 1), np.int32), "dense": ((10, NUM_DENSE), np.float32), "sparse": ((10, F), np.int32)}
    assert layout == kinds
    assert (tmp_path / "train/00000.labels.npy").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format_version=99), "format_version 99, but this version reads 5; preprocess again"),
        (lambda d: d.update(format="parquet"), "not a dataset of this tool"),
        (lambda d: d.pop("splits"), "key 'splits' is missing; preprocess again"),
        (lambda d: d.update(surprise=1), "'surprise' is unknown; another version .* may have written it; use that"),
        (lambda d: d["splits"]["train"].update(rows=11), "split 'train' has 11 rows, but its shards have others"),
        (lambda d: d["num_embeddings"].update(cat_1=0), r"key 'num_embeddings\.cat_1' is 0: expected `int` >= 1"),
        (lambda d: d["num_embeddings"].pop("cat_1"), "different sparse features"),
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
    """Even if its size is the one that the manifest gives."""
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
