"""Every array of the golden files of TorchRec and facebookresearch/dlrm, against the same array made by us."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.config.data import DataConfig
from app.data.split import SplitReader
from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from data_prep.parsing.criteo import parse_bytes
from data_prep.stages.place import inverse_permutation
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import REFERENCE, SPLITS, load_rows, load_split, prepare

KINDS = ("labels", "dense", "sparse")
DAYS = {0: slice(0, 400), 1: slice(400, 800), 2: slice(800, 999)}
TRAIN_ROWS = 800
ROWS = REFERENCE / "rows.tsv"


def assert_all_equal(arrays: dict[str, Any], golden: Any, rounded: set[str] | tuple[()] = ()) -> None:
    """Compare each array of a golden file; `rounded`: those computed in another library's floating point."""
    assert set(arrays) == set(golden.files)
    for name in golden.files:
        expected, actual = golden[name], np.asarray(arrays[name])
        assert actual.shape == expected.shape, name
        if name in rounded:
            np.testing.assert_allclose(actual, expected, rtol=2.5e-7, err_msg=name)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=name)


def load_all(root: Path) -> dict[str, NDArray[Any]]:
    labels, dense, sparse = load_rows(root)
    return {"labels": labels[:, None], "dense": dense, "sparse": sparse}


def permutation(rows: int, root: Path) -> NDArray[np.int64]:
    """NumPy's legacy permutation with seed 0, in windows."""
    places = inverse_permutation(rows, 0, root.with_name("places"), window_rows=500)
    return np.argsort(np.concatenate(list(places)))


def unshuffled(rows: NDArray[Any], train_rows: int) -> NDArray[Any]:
    """Rows as they were before the permutation of the first `train_rows`."""
    result = rows.copy()
    result[np.random.RandomState(0).permutation(train_rows)] = rows[:train_rows]
    return result


def by_day(name: str, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name.format(day=day): rows[part] for day, part in DAYS.items()}


def torchrec_steps(raw: str, root: Path) -> dict[str, Any]:
    """What TorchRec's three steps write of the days, and the permutation, all at frequency threshold 3."""
    overrides = ["data.encoding=torchrec", "data.frequency_threshold=3", "data.chunk_bytes=20000"]
    manifest = prepare(raw, f"data.path={root}", *overrides)
    verify_dataset(root)
    assert len(load_split(root, "val")[0]) == 100
    arrays: dict[str, Any] = {
        "shuffle_perm_n2": permutation(TRAIN_ROWS, root),
        "raw_int_min_per_day": [min(bounds["low"]) for bounds in manifest.encoding["dense_range"]],
    }
    padded = permutation(len(load_all(root)["labels"]), root)[:TRAIN_ROWS]
    for kind, rows in load_all(root).items():
        arrays |= by_day(f"shuffle_n2_day{{day}}_{kind}", rows)
        in_order = unshuffled(rows, TRAIN_ROWS)
        if kind != "sparse":
            arrays |= by_day(f"day{{day}}_{kind}", in_order)
        # told of the last day's rows as well, TorchRec mixes as many rows of zeros into the train split
        with_zeros = np.concatenate([in_order[:TRAIN_ROWS], np.zeros_like(in_order[TRAIN_ROWS:])])
        mixed = np.concatenate([with_zeros[padded], in_order[TRAIN_ROWS:]])
        arrays |= by_day(f"shuffle_n3_day{{day}}_{kind}", mixed)
    return arrays


def contiguous_ids(raw: str, root: Path, threshold: int) -> dict[str, NDArray[Any]]:
    overrides = ["data.encoding=torchrec_fixed", f"data.frequency_threshold={threshold}"]
    manifest = prepare(raw, f"data.path={root}", *overrides)
    ids = unshuffled(load_all(root)["sparse"], TRAIN_ROWS)
    assert list(manifest.num_embeddings.values()) == (ids.max(axis=0) + 1).tolist()
    unknown = manifest.extra["out_of_vocabulary"]
    for column, feature in enumerate(manifest.schema["sparse"]):
        assert sum(unknown[split][feature] for split in SPLITS) == (ids[:, column] == 1).sum()
    return by_day(f"contig_t{threshold}_day{{day}}", ids)


def as_one_file(root: Path) -> dict[str, NDArray[Any]]:
    """The rows as one file, whose smallest integer shifts all of them."""
    prepare(f"data.raw={ROWS}", f"data.path={root}", "data.encoding=torchrec_fixed")
    rows = load_all(root)
    train_rows = len(load_split(root, "train")[0])
    values = parse_bytes(ROWS.read_bytes(), "rows").sparse
    arrays: dict[str, Any] = {f"all_{kind}": unshuffled(rows[kind], train_rows) for kind in ("labels", "dense")}
    return {**arrays, "all_sparse": values, **by_day("day{day}_sparse", values)}


def hashed_batches(raw: str, root: Path) -> dict[str, Any]:
    """The first and the last batch of 128 of the first two days, values modulo 1000."""
    overrides = ["data.encoding=hash", "data.max_ind_range=1000", "data.dense_transform=torchrec"]
    prepare(raw, f"data.path={root}", *overrides)
    first, *_, last = batches_of(root, 128)
    values = {
        "b0_dense": first.dense_features,
        "b0_labels": first.labels,
        "b0_values": first.sparse_features.values(),
        "last_values": last.sparse_features.values().reshape(26, 128)[:, : last.num_valid].reshape(-1),
    }
    return {f"pipe_hash1000_{name}": value for name, value in values.items()}


def batches_of(root: Path, size: int) -> Iterator[Any]:
    """The batches of train, in order, as our reader gives them."""
    return SplitReader(root, load_manifest(root), "train", DataConfig(), rank=0, world_size=1).eval_batches(size)


@pytest.mark.medium
def test_torchrec(tmp_path: Path) -> None:
    lines = ROWS.read_bytes().splitlines(keepends=True)
    for day, part in DAYS.items():
        (tmp_path / f"day_{day}").write_bytes(b"".join(lines[part]))
    raw = f"data.raw={tmp_path}/day_?"
    arrays = torchrec_steps(raw, tmp_path / "steps")
    for threshold in (0, 2, 3):
        arrays |= contiguous_ids(raw, tmp_path / f"ids_{threshold}", threshold)
    arrays |= as_one_file(tmp_path / "one") | hashed_batches(raw, tmp_path / "hashed")
    assert_all_equal(arrays, np.load(REFERENCE / "torchrec_criteo.npz"))


@pytest.mark.medium
def test_dlrm_kaggle(tmp_path: Path) -> None:
    golden = np.load(REFERENCE / "dlrm_kaggle.npz")
    root, raw = tmp_path / "out", tmp_path / "raw"
    overrides = [f"data.raw={ROWS}", "data.encoding=dlrm_kaggle"]
    manifest = prepare(*overrides, f"data.path={root}")
    verify_dataset(root)
    prepare(*overrides, f"data.path={raw}", "data.dense_transform=integers")
    encoder = Encoder.load(root)
    block = parse_bytes(ROWS.read_bytes(), "rows", missing=np.int32(0))
    encoded = encoder.encode(encoder.parse(ROWS.read_bytes(), "rows"))
    arrays: dict[str, Any] = {
        "X_int": np.maximum(block.dense, 0),  # negatives are 0 there
        "X_cat_raw_int32": block.sparse.view(np.int32),
        "y": block.labels,
        "X_cat": encoded.sparse,
        "X_cat_int64": encoded.sparse,
        "X_int_log1p_f32": encoded.dense,
        "counts": list(manifest.num_embeddings.values()),
    }
    for column, feature in enumerate(manifest.schema["sparse"]):
        arrays[f"dict_{column}"] = np.load(root / "vocab" / f"{feature}.npy").view(np.int32)
    for split in SPLITS:
        labels, dense, sparse = load_split(root, split)
        integers = np.maximum(load_split(raw, split)[1], 0)
        arrays |= {f"{split}_y": labels, f"{split}_X_cat": sparse, f"{split}_X_int": integers}
        np.testing.assert_array_equal(dense, np.log(golden[f"{split}_X_int"].astype(np.float32) + 1))
    batch = next(batches_of(root, 128))
    offsets = batch.sparse_features.offsets().numpy()
    arrays |= {
        "train_b0_X": batch.dense_features,  # there by torch.log
        "train_b0_T": batch.labels[:, None],
        "train_b0_idx": batch.sparse_features.values().reshape(26, 128),
        "train_b0_offsets": offsets[:-1].reshape(26, 128) - offsets[:-1:128, None],
    }
    held_out = len(arrays["val_y"]) + len(arrays["test_y"])  # the last of its seven files
    arrays["total_per_file"] = [*map(len, np.array_split(arrays["train_y"], 6)), held_out]
    assert_all_equal(arrays, golden, rounded={"train_b0_X"})
