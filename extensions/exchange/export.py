"""Export of shards to the files of other programs, which appear atomically."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.disk_space import Need, require_room
from common.errors import UserError
from data_prep.dataset.bags import Bags
from data_prep.dataset.format import Manifest, Shard, ShardArrays, open_shard
from data_prep.dataset.multi_hot import BLOCK_VALUES, MLPERF_SIZES, MultiHot, MultiHotTables
from data_prep.dataset.options import DenseTransform, Encoding
from data_prep.dataset.schema import CRITEO
from data_prep.io.arrays import ArrayWriter, take_mapped
from data_prep.stages.scatter import FIELD_BYTES
from extensions.exchange.keys import ExchangeConfig
from extensions.exchange.npz import MultiHotWriter

BLOCK_ROWS = 1 << 16
KINDS = ("labels", "dense", "sparse")
HELD_OUT = ("val", "test")


@dataclass(frozen=True)
class ExportRange:
    """Rows start..stop of a shard."""

    split: str
    shard: Shard
    start: int
    stop: int

    def open(self, root: Path, manifest: Manifest) -> ShardArrays:
        """Map the rows."""
        arrays = open_shard(root, self.split, self.shard, manifest)
        rows = slice(self.start, self.stop)
        bags = tuple(feature.part(self.start, self.stop) for feature in arrays.bags)
        return ShardArrays(arrays.labels[rows], arrays.dense[rows], arrays.sparse[rows], bags)


def split_ranges(manifest: Manifest, split: str) -> Iterator[ExportRange]:
    """Yield the rows of a split in ranges of at most BLOCK_ROWS."""
    for shard in manifest.splits[split].shards:
        for start in range(0, shard.rows, BLOCK_ROWS):
            yield ExportRange(split, shard, start, min(start + BLOCK_ROWS, shard.rows))


def day_rows(manifest: Manifest) -> list[int]:
    """Return the rows of each day file: those of the raw files if these make up train, else all train rows."""
    train = manifest.splits["train"].rows
    sources = [source["rows"] for source in manifest.sources[:-1]]
    held_out = sum(manifest.splits[split].rows for split in HELD_OUT)
    return [*(sources if sources and sum(sources) == train else [train]), held_out]


def day_ranges(manifest: Manifest) -> list[list[ExportRange]]:
    """Return the ranges of each day in order; the last day is val and test."""
    rows = day_rows(manifest)
    days: list[list[ExportRange]] = [[] for _ in rows]
    day, remaining = 0, rows[0]
    for rows_here in split_ranges(manifest, "train"):
        start = rows_here.start
        while start < rows_here.stop:
            while not remaining:
                day += 1
                remaining = rows[day]
            end = min(start + remaining, rows_here.stop)
            days[day].append(ExportRange(rows_here.split, rows_here.shard, start, end))
            remaining -= end - start
            start = end
    days[-1] += [rows_here for split in HELD_OUT for rows_here in split_ranges(manifest, split)]
    return days


def export_npy(root: Path, manifest: Manifest, target: Path, kinds: tuple[str, ...] = KINDS) -> list[Path]:
    """Write day_N_{dense,sparse,labels}.npy; with the encoding torchrec they equal TorchRec's byte for byte.

    Raises:
        UserError: the dataset has bags, which these files cannot hold.
    """
    if "sparse" in kinds:
        refuse_bags(root, manifest)
        require_disk_space(manifest, target, len(manifest.schema["sparse"]))
    _refuse_other_days(target, len(day_rows(manifest)))
    is_torchrec = manifest.encoding["name"] in (Encoding.torchrec.value, Encoding.torchrec_fixed.value)
    dtypes: dict[str, Any] = {"labels": np.int32, "dense": np.float32, "sparse": np.int32}
    days = day_ranges(manifest)
    with _together(target) as (scratch, files):
        for day, ranges in enumerate(days):
            for kind in kinds:
                # TorchRec copies its last day unchanged before the shuffle.
                wide = kind == "sparse" and day == len(days) - 1 and is_torchrec
                width = 1 if kind == "labels" else len(manifest.schema[kind])
                rows = sum(rows_here.stop - rows_here.start for rows_here in ranges)
                writer = ArrayWriter(scratch / f"day_{day}_{kind}.npy", np.int64 if wide else dtypes[kind], width, rows)
                for rows_here in ranges:
                    writer.append(getattr(rows_here.open(root, manifest), kind))
                writer.close()
                files.append(target / writer.path.name)
    return files


@contextmanager
def _together(target: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Provide a directory to write to, and a list for the files' names; all move to `target` at the end."""
    target.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        yield Path(scratch), files
        for path in files:
            (Path(scratch) / path.name).replace(path)


def _refuse_other_days(target: Path, days: int) -> None:
    """Raise UserError for files of further days, which readers would take for this dataset's."""
    for path in sorted(target.glob("day_*")):
        match = re.fullmatch(r"day_(\d+)_(labels|dense|sparse|sparse_multi_hot)\.np[yz]", path.name)
        if match and int(match[1]) >= days:
            raise UserError(f"{path}: of another dataset, as this one has {days} days; remove it, or export elsewhere")


def export_multi_hot(root: Path, manifest: Manifest, target: Path, exchange: ExchangeConfig) -> list[Path]:
    """Write MLPerf v2's day_N_sparse_multi_hot.npz, and its dense values and labels.

    Bags are the dataset's own if it has any, otherwise made of its ids by the keys of `exchange`.

    Raises:
        UserError: bags of one feature differ in size, which these files cannot hold.
    """
    if not manifest.ragged:
        bags = MultiHot.of("exchange", exchange.multi_hot_sizes or MLPERF_SIZES, exchange.distribution, exchange.seed)
        assert bags is not None
        bags.check(len(manifest.num_embeddings))
        require_disk_space(manifest, target, sum(bags.sizes), bags.table_bytes(list(manifest.num_embeddings.values())))
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            tables = MultiHotTables.open(Path(scratch), list(manifest.num_embeddings.values()), bags, "exchange.to")
            return _export_bags(root, manifest, target, tables)
    for key in ("multi_hot_sizes", "distribution", "seed"):
        if getattr(exchange, key) is not None:
            raise UserError(f"exchange.{key}: has no effect, as {root} has multi-hot columns of its own; leave it out")
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    values = sum(shard.files["values"].bytes for shard in shards)
    require_disk_space(manifest, target, len(manifest.schema["sparse"]) - len(manifest.ragged), values)
    return _export_bags(root, manifest, target, None)


def require_disk_space(manifest: Manifest, target: Path, ids: int, other_bytes: int = 0) -> None:
    """Raise UserError if the disk is too small for files with `ids` ids a row and `other_bytes` more bytes."""
    required_bytes = FIELD_BYTES * manifest.rows * (1 + len(manifest.schema["dense"]) + ids) + other_bytes
    require_room([Need(target, required_bytes, "for the files")])


def _export_bags(root: Path, manifest: Manifest, target: Path, tables: MultiHotTables | None) -> list[Path]:
    single = [name for name in manifest.schema["sparse"] if name not in manifest.ragged]
    with _together(target) as (scratch, archives):
        for day, ranges in enumerate(day_ranges(manifest)):
            rows = sum(rows_here.stop - rows_here.start for rows_here in ranges)
            with MultiHotWriter(scratch / f"day_{day}_sparse_multi_hot.npz") as writer:
                for feature, name in enumerate(manifest.schema["sparse"]):
                    if name in manifest.ragged:
                        writer.append(rows, *_own_bags(root, manifest, ranges, name))
                        continue
                    blocks = _single_ids(root, manifest, ranges, single.index(name))
                    table = None if tables is None else tables.tables[feature]
                    if table is None:
                        writer.append(rows, 1, blocks)
                    else:
                        writer.append(rows, table.shape[1], _expanded(table, blocks))
            archives.append(target / writer.path.name)
        files = export_npy(root, manifest, target, kinds=("labels", "dense"))
    return files + archives


def _expanded(table: NDArray[np.int32], blocks: Iterator[NDArray[np.int32]]) -> Iterator[NDArray[np.int32]]:
    """Yield the bags of a feature's ids from its mapped table, [rows, size] in blocks."""
    step = max(1, BLOCK_VALUES // table.shape[1])
    for ids in blocks:
        for start in range(0, len(ids), step):
            yield take_mapped(table, ids[start : start + step, 0])


def _single_ids(root: Path, manifest: Manifest, ranges: list[ExportRange], column: int) -> Iterator[NDArray[np.int32]]:
    """Yield the ids of a feature with single ids, [rows, 1] in blocks."""
    for rows_here in ranges:
        yield np.array(rows_here.open(root, manifest).sparse[:, column : column + 1])


def _own_bags(
    root: Path, manifest: Manifest, ranges: list[ExportRange], name: str
) -> tuple[int, Iterator[NDArray[np.int32]]]:
    """Return the size of a feature's bags, and the bags, [rows, size] in blocks."""
    index = manifest.ragged.index(name)

    def bags_of(rows_here: ExportRange) -> Bags:
        return rows_here.open(root, manifest).bags[index]

    size = int(bags_of(ranges[0]).lengths[0]) if ranges else 1

    def blocks() -> Iterator[NDArray[np.int32]]:
        for rows_here in ranges:
            bags = bags_of(rows_here)
            if (bags.lengths != size).any():
                raise UserError(
                    f"{root}: column {name} has bags of different sizes, such as {size} and "
                    f"{bags.lengths[bags.lengths != size][0]}; MLPerf's files hold one size a column"
                )
            yield bags.ids.reshape(len(bags.lengths), size)

    return size, blocks()


def refuse_bags(root: Path, manifest: Manifest) -> None:
    """Raise UserError for a dataset with multi-hot columns."""
    if manifest.ragged:
        raise UserError(
            f"{root}: has multi-hot columns ({', '.join(manifest.ragged)}), which these files cannot hold; "
            "use exchange.format=multi_hot"
        )


EXACT_FLOAT32 = 2**24


def export_bin(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write terabyte_processed_{train,val,test}.bin.

    Raises:
        UserError: the dataset does not hold the exact raw integers, or it has bags.
    """
    refuse_bags(root, manifest)
    columns = len(manifest.schema["dense"]), len(manifest.schema["sparse"])
    if columns != (len(CRITEO.dense), len(CRITEO.sparse)):
        raise UserError(
            f"{root}: has {columns[0]} dense and {columns[1]} sparse columns, but a record of .bin files is of "
            f"Criteo's {len(CRITEO.dense)} and {len(CRITEO.sparse)}; use exchange.format=npy"
        )
    transform = manifest.encoding.get("dense_transform")
    if (manifest.encoding.get("table") or {}).get("transforms"):
        transform = "by column"
    if transform not in (DenseTransform.raw.value, DenseTransform.integers.value):
        raise UserError(
            f"{root}: integers are transformed ({transform or 'how, is not known'}), but .bin files hold them as they "
            "are; preprocess, or import, with data.dense_transform=integers"
        )
    require_disk_space(manifest, target, len(manifest.schema["sparse"]))
    with _together(target) as (scratch, files):
        for split in manifest.splits:
            name = f"terabyte_processed_{split}.bin"
            _write_records(root, manifest, split, scratch / name)
            files.append(target / name)
    return files


def _write_records(root: Path, manifest: Manifest, split: str, path: Path) -> None:
    with open(path, "wb") as file:
        for rows_here in split_ranges(manifest, split):
            arrays = rows_here.open(root, manifest)
            dense = arrays.dense
            if dense.dtype != np.int32 and np.abs(dense).max(initial=0) >= EXACT_FLOAT32:  # such as 2^24 + 1
                raise UserError(
                    f"{root}: split {split} has an integer of 2^24 or more, which float32 has rounded; preprocess "
                    "with data.dense_transform=integers to export it as bin"
                )
            whole = dense.astype(np.int32)
            if (whole != dense).any():
                raise UserError(f"{root}: split {split} has a number with a fraction, which .bin files cannot hold")
            record = np.concatenate((arrays.labels, whole, arrays.sparse), axis=1)
            file.write(record.astype(np.int32).data)
