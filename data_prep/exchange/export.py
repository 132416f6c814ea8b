"""Our shards as the files of other programs; each file appears whole."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.config.keys import ExchangeConfig
from data_prep.dataset.bags import Bags
from data_prep.dataset.format import Manifest, Shard, ShardArrays, open_shard
from data_prep.dataset.multi_hot import BLOCK_VALUES, MLPERF_SIZES, MultiHot, MultiHotTables
from data_prep.dataset.options import Encoding
from data_prep.exchange.npz import MultiHotWriter
from data_prep.io.arrays import ArrayWriter, take_mapped
from data_prep.io.disk_space import Need, require_room
from data_prep.stages.scatter import FIELD_BYTES

BLOCK_ROWS = 1 << 16
KINDS = ("labels", "dense", "sparse")
HELD_OUT = ("val", "test")


@dataclass(frozen=True)
class Piece:
    """Rows start..stop of a shard."""

    split: str
    shard: Shard
    start: int
    stop: int

    def open(self, root: Path, manifest: Manifest) -> ShardArrays:
        """Its rows, memory-mapped."""
        arrays = open_shard(root, self.split, self.shard, manifest)
        rows = slice(self.start, self.stop)
        bags = tuple(feature.part(self.start, self.stop) for feature in arrays.bags)
        return ShardArrays(arrays.labels[rows], arrays.dense[rows], arrays.sparse[rows], bags)


def split_pieces(manifest: Manifest, split: str) -> Iterator[Piece]:
    """The rows of a split, in pieces of at most BLOCK_ROWS."""
    for shard in manifest.splits[split].shards:
        for start in range(0, shard.rows, BLOCK_ROWS):
            yield Piece(split, shard, start, min(start + BLOCK_ROWS, shard.rows))


def day_rows(manifest: Manifest) -> list[int]:
    """Rows of each day file: the raw files' own, where those are the train split, else all train rows in one."""
    train = manifest.splits["train"].rows
    sources = [source["rows"] for source in manifest.sources[:-1]]
    held_out = sum(manifest.splits[split].rows for split in HELD_OUT)
    return [*(sources if sources and sum(sources) == train else [train]), held_out]


def day_pieces(manifest: Manifest) -> list[list[Piece]]:
    """The pieces of every day in order, the last day being val and test."""
    rows = day_rows(manifest)
    days: list[list[Piece]] = [[] for _ in rows]
    day, left = 0, rows[0]
    for piece in split_pieces(manifest, "train"):
        start = piece.start
        while start < piece.stop:
            while not left:
                day += 1
                left = rows[day]
            end = min(start + left, piece.stop)
            days[day].append(Piece(piece.split, piece.shard, start, end))
            left -= end - start
            start = end
    days[-1] += [piece for split in HELD_OUT for piece in split_pieces(manifest, split)]
    return days


def export_npy(root: Path, manifest: Manifest, target: Path, kinds: tuple[str, ...] = KINDS) -> list[Path]:
    """Write day_N_{dense,sparse,labels}.npy; with the encoding torchrec they are TorchRec's, byte for byte.

    Raises:
        UserError: the dataset holds bags, which these files cannot.
    """
    if "sparse" in kinds:
        refuse_bags(root, manifest)
        require_export_room(manifest, target, len(manifest.schema["sparse"]))
    _refuse_other_days(target, len(day_rows(manifest)))
    is_torchrec = manifest.encoding["name"] in (Encoding.torchrec.value, Encoding.torchrec_fixed.value)
    dtypes: dict[str, Any] = {"labels": np.int32, "dense": np.float32, "sparse": np.int32}
    days = day_pieces(manifest)
    files = []
    for day, pieces in enumerate(days):
        for kind in kinds:
            # TorchRec copies its last day as it is before the shuffle
            wide = kind == "sparse" and day == len(days) - 1 and is_torchrec
            width = 1 if kind == "labels" else len(manifest.schema[kind])
            rows = sum(piece.stop - piece.start for piece in pieces)
            writer = ArrayWriter(target / f"day_{day}_{kind}.npy", np.int64 if wide else dtypes[kind], width, rows)
            for piece in pieces:
                writer.append(getattr(piece.open(root, manifest), kind))
            writer.close()
            files.append(writer.path)
    return files


def _refuse_other_days(target: Path, days: int) -> None:
    """Raises UserError where files of further days lie, which would be taken for this dataset's."""
    for path in sorted(target.glob("day_*")):
        match = re.fullmatch(r"day_(\d+)_(labels|dense|sparse|sparse_multi_hot)\.np[yz]", path.name)
        if match and int(match[1]) >= days:
            raise UserError(f"{path}: of another dataset, as this one has {days} days; remove it, or export elsewhere")


def export_multi_hot(root: Path, manifest: Manifest, target: Path, exchange: ExchangeConfig) -> list[Path]:
    """Write MLPerf v2's day_N_sparse_multi_hot.npz, and dense and labels.

    Bags are the dataset's own, where it has some, else made of its ids as `exchange` says.

    Raises:
        UserError: bags of one feature that differ in size, which these files cannot hold.
    """
    if not manifest.ragged:
        bags = MultiHot.of("exchange", exchange.multi_hot_sizes or MLPERF_SIZES, exchange.distribution, exchange.seed)
        assert bags is not None
        bags.check(len(manifest.num_embeddings))
        require_export_room(manifest, target, sum(bags.sizes), bags.table_bytes(list(manifest.num_embeddings.values())))
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            tables = MultiHotTables.open(Path(scratch), list(manifest.num_embeddings.values()), bags, "exchange.to")
            return _export_bags(root, manifest, target, tables)
    for key in ("multi_hot_sizes", "distribution", "seed"):
        if getattr(exchange, key) is not None:
            raise UserError(f"exchange.{key}: has no effect, as {root} has multi-hot columns of its own; leave it out")
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    values = sum(shard.files["values"].bytes for shard in shards)
    require_export_room(manifest, target, len(manifest.schema["sparse"]) - len(manifest.ragged), values)
    return _export_bags(root, manifest, target, None)


def require_export_room(manifest: Manifest, target: Path, ids: int, others: int = 0) -> None:
    """Raises UserError where there is no room for files with so many ids a row and so many bytes of others."""
    needed = FIELD_BYTES * manifest.rows * (1 + len(manifest.schema["dense"]) + ids) + others
    require_room([Need(target, needed, "for the files")])


def _export_bags(root: Path, manifest: Manifest, target: Path, tables: MultiHotTables | None) -> list[Path]:
    files = export_npy(root, manifest, target, kinds=("labels", "dense"))
    single = [name for name in manifest.schema["sparse"] if name not in manifest.ragged]
    for day, pieces in enumerate(day_pieces(manifest)):
        rows = sum(piece.stop - piece.start for piece in pieces)
        with MultiHotWriter(target / f"day_{day}_sparse_multi_hot.npz") as writer:
            for feature, name in enumerate(manifest.schema["sparse"]):
                if name in manifest.ragged:
                    writer.append(rows, *_own_bags(root, manifest, pieces, name))
                else:
                    table = None if tables is None else tables.tables[feature]
                    blocks = _single_ids(root, manifest, pieces, single.index(name))
                    if table is None:
                        writer.append(rows, 1, blocks)
                    else:
                        writer.append(rows, table.shape[1], _expanded(table, blocks))
        files.append(writer.path)
    return files


def _expanded(table: NDArray[np.int32], blocks: Iterator[NDArray[np.int32]]) -> Iterator[NDArray[np.int32]]:
    """The bags of a feature's ids by its mapped table, [rows, size] in blocks."""
    step = max(1, BLOCK_VALUES // table.shape[1])
    for ids in blocks:
        for start in range(0, len(ids), step):
            yield take_mapped(table, ids[start : start + step, 0])


def _single_ids(root: Path, manifest: Manifest, pieces: list[Piece], column: int) -> Iterator[NDArray[np.int32]]:
    """The ids of a feature with one each, [rows, 1] in blocks."""
    for piece in pieces:
        yield np.array(piece.open(root, manifest).sparse[:, column : column + 1])


def _own_bags(
    root: Path, manifest: Manifest, pieces: list[Piece], name: str
) -> tuple[int, Iterator[NDArray[np.int32]]]:
    """The size of a feature's bags and the bags, [rows, size] in blocks."""
    place = manifest.ragged.index(name)

    def bags_of(piece: Piece) -> Bags:
        return piece.open(root, manifest).bags[place]

    size = int(bags_of(pieces[0]).lengths[0]) if pieces else 1

    def blocks() -> Iterator[NDArray[np.int32]]:
        for piece in pieces:
            bags = bags_of(piece)
            if (bags.lengths != size).any():
                raise UserError(
                    f"{root}: column {name} has bags of different sizes, such as {size} and "
                    f"{bags.lengths[bags.lengths != size][0]}; MLPerf's files hold one size a column"
                )
            yield bags.ids.reshape(len(bags.lengths), size)

    return size, blocks()


def refuse_bags(root: Path, manifest: Manifest) -> None:
    """Raises UserError for a dataset with multi-hot columns."""
    if manifest.ragged:
        raise UserError(
            f"{root}: has multi-hot columns ({', '.join(manifest.ragged)}), which these files cannot hold; "
            "use exchange.format=multi_hot"
        )
