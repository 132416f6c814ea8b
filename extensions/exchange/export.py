"""Export of shards to the files of other programs, which appear atomically."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.disk_space import Need, require_room
from common.errors import UserError
from data_prep.dataset.format import Manifest, Shard, ShardArrays, open_shard
from data_prep.dataset.options import DenseTransform, Encoding, LabelKind
from data_prep.dataset.schema import CRITEO
from data_prep.io.arrays import ArrayWriter
from data_prep.stages.scatter import FIELD_BYTES

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
        return ShardArrays(arrays.labels[rows], arrays.dense[rows], arrays.sparse[rows])


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


def export_npy(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write day_N_{dense,sparse,labels}.npy; with the encoding torchrec they equal TorchRec's byte for byte."""
    require_place(root, manifest, target)
    _refuse_other_days(target, len(day_rows(manifest)))
    is_torchrec = manifest.encoding["name"] in (Encoding.torchrec.value, Encoding.torchrec_fixed.value)
    dtypes: dict[str, Any] = {"labels": np.int32, "dense": np.float32, "sparse": np.int32}
    days = day_ranges(manifest)
    with _together(target) as (scratch, files):
        for day, ranges in enumerate(days):
            for kind in KINDS:
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
        match = re.fullmatch(r"day_(\d+)_(labels|dense|sparse)\.npy", path.name)
        if match and int(match[1]) >= days:
            raise UserError(f"{path}: of another dataset, as this one has {days} days; remove it, or export elsewhere")


def require_place(root: Path, manifest: Manifest, target: Path) -> None:
    """Refuse a dataset with bags, numbers as labels or weights, which the files cannot hold, and a disk too small."""
    lacks = {
        f"has multi-hot columns ({', '.join(manifest.ragged)})": manifest.ragged,
        "its labels are numbers": manifest.label_kind is LabelKind.number,
        f"its rows have sample weights ({manifest.weight})": manifest.weight,
    }
    if found := next((words for words, is_so in lacks.items() if is_so), None):
        raise UserError(
            f"data.path={root}: {found}, which these files cannot hold; read the shards themselves, which are plain "
            "NumPy files"
        )
    columns = 1 + len(manifest.schema["dense"]) + len(manifest.schema["sparse"])
    require_room([Need(target, FIELD_BYTES * manifest.rows * columns, "for the files")])


def export_bin(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write terabyte_processed_{train,val,test}.bin of a dataset that holds the exact raw integers."""
    require_place(root, manifest, target)
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
            if dense.dtype != np.int32 and np.abs(dense).max(initial=0) >= 2**24:  # such as 2^24 + 1
                raise UserError(
                    f"{root}: split {split} has an integer of 2^24 or more, which float32 has rounded; preprocess "
                    "with data.dense_transform=integers to export it as bin"
                )
            whole = dense.astype(np.int32)
            if (whole != dense).any():
                raise UserError(f"{root}: split {split} has a number with a fraction, which .bin files cannot hold")
            record = np.concatenate((arrays.labels, whole, arrays.sparse), axis=1)
            file.write(record.astype(np.int32).data)
