"""Our shards as the files of other programs."""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.choices import Encoding
from data_prep.config import ExchangeConfig
from data_prep.format import Manifest, open_shard
from data_prep.multi_hot import MLPERF_SIZES, MultiHot, MultiHotTables
from data_prep.npy import NpyWriter

BLOCK_ROWS = 1 << 16
KINDS = ("labels", "dense", "sparse")
EXACT_FLOAT32 = 2**24


def split_blocks(root: Path, manifest: Manifest, split: str) -> Iterator[dict[str, NDArray[Any]]]:
    """The rows of a split, block by block: labels [rows, 1], dense, sparse."""
    if manifest.ragged:
        raise UserError(f"{root}: has multi-hot columns ({', '.join(manifest.ragged)}), which these files cannot hold")
    num_dense, num_sparse = len(manifest.schema["dense"]), len(manifest.schema["sparse"])
    for shard in manifest.splits[split].shards:
        arrays = open_shard(root, split, shard, num_dense, num_sparse)
        for start in range(0, shard.rows, BLOCK_ROWS):
            yield {kind: np.array(getattr(arrays, kind)[start : start + BLOCK_ROWS]) for kind in KINDS}


def day_rows(manifest: Manifest) -> list[int]:
    """Rows of each day file: the raw files' own, where those are the train split, else all train rows in one."""
    train = manifest.splits["train"].rows
    sources = [source["rows"] for source in manifest.sources[:-1]]
    held_out = manifest.splits["val"].rows + manifest.splits["test"].rows
    return [*(sources if sources and sum(sources) == train else [train]), held_out]


def day_blocks(root: Path, manifest: Manifest) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """(day, block) of all rows in order, the last day being val and test."""
    rows = day_rows(manifest)
    day, left = 0, rows[0]
    for block in split_blocks(root, manifest, "train"):
        start, stop = 0, len(block["labels"])
        while start < stop:
            while not left:
                day += 1
                left = rows[day]
            end = min(start + left, stop)
            yield day, {kind: array[start:end] for kind, array in block.items()}
            left -= end - start
            start = end
    for split in ("val", "test"):
        for block in split_blocks(root, manifest, split):
            yield len(rows) - 1, block


def export_npy(root: Path, manifest: Manifest, target: Path, kinds: tuple[str, ...] = KINDS) -> list[Path]:
    """Write day_N_{dense,sparse,labels}.npy; with the encoding torchrec they are TorchRec's, byte for byte."""
    last = len(day_rows(manifest)) - 1
    is_torchrec = manifest.encoding["name"] in (Encoding.torchrec.value, Encoding.torchrec_fixed.value)
    writers: dict[tuple[int, str], NpyWriter] = {}
    dtypes: dict[str, Any] = {"labels": np.int32, "dense": np.float32, "sparse": np.int32}
    for day in range(last + 1):
        for kind in kinds:
            # TorchRec copies its last day as it is before the shuffle
            wide = kind == "sparse" and day == last and is_torchrec
            width = 1 if kind == "labels" else len(manifest.schema[kind])
            path = target / f"day_{day}_{kind}.npy"
            writers[day, kind] = NpyWriter(path, np.int64 if wide else dtypes[kind], width)
    for day, block in day_blocks(root, manifest):
        for kind in kinds:
            writers[day, kind].append(block[kind])
    for writer in writers.values():
        writer.close()
    return [writer.path for writer in writers.values()]


def export_multi_hot(root: Path, manifest: Manifest, target: Path, exchange: ExchangeConfig) -> list[Path]:
    """Write MLPerf v2's day_N_sparse_multi_hot.npz, arrays "0", "1", … of one feature each, and dense and labels."""
    features = manifest.schema["sparse"]
    bags = MultiHot(tuple(exchange.multi_hot_sizes or MLPERF_SIZES), exchange.distribution, exchange.seed)
    rows = [manifest.num_embeddings[feature] for feature in features]
    files = export_npy(root, manifest, target, kinds=("labels", "dense"))
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        directory = Path(scratch)
        tables = MultiHotTables.open(directory, rows, bags)
        ids = export_npy(root, manifest, directory, kinds=("sparse",))
        for day, path in enumerate(ids):
            sparse = np.load(path, mmap_mode="r")
            archive = target / f"day_{day}_sparse_multi_hot.npz"
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED, allowZip64=True) as members:
                for feature in range(len(features)):
                    _write_member(members, str(feature), sparse, tables, feature)
            files.append(archive)
    return files


def _write_member(
    members: zipfile.ZipFile, name: str, sparse: NDArray[Any], tables: MultiHotTables, feature: int
) -> None:
    """One feature's bags as a .npy file inside the archive."""
    header = {"descr": "<i4", "fortran_order": False, "shape": (len(sparse), tables.sizes[feature])}
    with members.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for start in range(0, len(sparse), BLOCK_ROWS):
            ids = np.array(sparse[start : start + BLOCK_ROWS, feature])
            member.write(tables.expand(feature, ids).tobytes())


def export_bin(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write terabyte_processed_{train,val,test}.bin.

    Raises:
        UserError: the dataset does not hold the integers as they were, or not exactly.
    """
    if manifest.encoding["dense_transform"] != "raw":
        raise UserError(
            f"{root}: integers are transformed ({manifest.encoding['dense_transform']}), but .bin files hold them "
            "raw; preprocess with data.dense_transform=raw"
        )
    free = shutil.disk_usage(target).free
    needed = manifest.rows * 4 * (1 + len(manifest.schema["dense"]) + len(manifest.schema["sparse"]))
    if needed > free:
        raise UserError(f"{target}: {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free; choose another place")
    files = []
    for split in manifest.splits:
        path = target / f"terabyte_processed_{split}.bin"
        with open(path, "wb") as file:
            for block in split_blocks(root, manifest, split):
                dense = block["dense"]
                if np.abs(dense).max(initial=0) > EXACT_FLOAT32:
                    raise UserError(f"{root}: an integer beyond 2^24 is rounded in float32; it cannot be exported")
                record = np.concatenate((block["labels"], dense.astype(np.int32), block["sparse"]), axis=1)
                file.write(record.astype(np.int32).data)
        files.append(path)
    return files
