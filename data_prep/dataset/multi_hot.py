"""Expansion of one id per feature to a bag of ids, as in MLPerf v2's synthetic multi-hot data.

Each id has a fixed bag: the id itself, then ids drawn once. The draws repeat those of the reference
(facebookresearch/dlrm's torchrec_dlrm/multi_hot.py): one stream of NumPy's legacy generator over all tables in turn.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from common.documents import decode
from common.errors import UserError
from common.files import FileDigest, Need, digest_file, format_bytes, require_room, sync, write_atomically
from common.jit import copy_16, jit, prefetch
from data_prep.dataset.options import to_json
from data_prep.io import ArrayWriter

MLPERF_V2 = "mlperf_v2"
MLPERF_SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
PARETO_SHAPE = 0.25  # as in the reference
ID_BYTES = 4
REPORTED_BYTES = 10**9  # Draws above this size print a line on stderr: they take seconds.
BLOCK_VALUES = 1 << 20  # values drawn or expanded at once
LANES = 16  # int32 values in a cache line
PREFETCHED_ROWS = 12  # rows ahead whose bags are fetched into the caches
SUMS_NAME, LOCK_NAME = "sums.json", "lock"  # the sums are written last, so tables with them are whole
REMEDY = "remove its directory: it is made again"
TABLES_DIRECTORY = "multi_hot"  # directory in a dataset with the bags of all ids


# Of a bag's drawn ids: uniform, or skewed to a few ids.
Distribution: TypeAlias = Literal["uniform", "pareto"]


@dataclass(frozen=True)
class MultiHot:
    """Settings that decide the bags besides the table sizes; `sizes` holds the ids per bag of each feature."""

    sizes: tuple[int, ...]
    distribution: Distribution = "uniform"
    seed: int = 0

    def table_bytes(self, num_embeddings: Sequence[int]) -> int:
        """Return the bytes on disk of the bags of all ids; num_embeddings: ids by feature. Size 1 needs no file."""
        return sum(ID_BYTES * rows * size for rows, size in zip(num_embeddings, self.sizes, strict=True) if size > 1)


def parse_sizes(key: str, sizes: Any, num_features: int | None = None) -> list[int]:
    """Return the ids per bag of each feature; num_features: None: any number. Raise UserError for invalid sizes.

    key: configuration key that gives the sizes: a list, or the name mlperf_v2.
    """
    sizes = MLPERF_SIZES if sizes == MLPERF_V2 else sizes
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
    is_valid = is_list and all(isinstance(size, int) and size >= 1 for size in sizes)
    if not is_valid or num_features not in (None, len(sizes)):
        features = "every feature" if num_features is None else f"each of {num_features} features"
        raise UserError(f"{key}={sizes}: give ids per bag, one for {features}, each at least 1, or {MLPERF_V2}")
    return list(sizes)


class MultiHotTables:
    """The bags of all ids of all features.

    `tables[f]` is [num_embeddings of f, size of f] int32, memory-mapped. Row i is the bag of id i and begins with i. A
    feature of size 1 has None.
    """

    def __init__(self, tables: list[NDArray[np.int32] | None]) -> None:
        self.tables = tables

    @property
    def sizes(self) -> list[int]:
        """Return the ids per bag of each feature; 1 for a feature without bags."""
        return [1 if table is None else table.shape[1] for table in self.tables]

    @classmethod
    def open(cls, parent: Path, num_embeddings: Sequence[int], bags: MultiHot) -> "MultiHotTables":
        """Open the tables in a subdirectory of `parent`; draw them first if they are missing.

        Drawing takes constant memory. A file lock lets one process draw while others wait.
        """
        directory = _locate_tables(parent, num_embeddings, bags)
        sums = directory / SUMS_NAME
        try:
            if not sums.is_file():
                directory.mkdir(parents=True, exist_ok=True)
                with FileLock(directory / LOCK_NAME):
                    # Whoever waited for the lock may find the tables drawn, so they are looked for a second time.
                    if not sums.is_file():
                        _draw_tables(directory, num_embeddings, bags)
            files = [None if size == 1 else directory / f"{feature}.npy" for feature, size in enumerate(bags.sizes)]
            return cls([None if path is None else np.load(path, mmap_mode="r") for path in files])
        except (OSError, ValueError) as error:
            raise UserError(
                f"{directory}: the multi-hot tables cannot be written or read there ({error}); free some space, "
                f"{REMEDY}, or choose another data.multi_hot.directory"
            ) from error

    def expand(self, feature: int, ids: NDArray[np.int32], out: NDArray[np.int32]) -> None:
        """Write the bags of one feature's ids [rows] to `out` [rows * size].

        Raises IndexError: an id is outside the table. UserError: a bag holds such an id, so the file was changed.
        """
        table = self.tables[feature]
        assert table is not None, "bags of one id are the ids"
        if not _copy_bags(table.reshape(-1), table.shape[1], ids, out):
            raise IndexError(f"feature {feature}: an id is not in its multi-hot table of {len(table)} rows")
        # As an unsigned integer, a negative id is above any table.
        if len(out) and out.view(np.uint32).max() >= len(table):
            name = getattr(table, "filename", f"feature {feature}")
            raise UserError(f"{name}: a bag holds an id beyond its table of {len(table)} rows; {REMEDY}")


def verify_tables(parent: Path, num_embeddings: Sequence[int], bags: MultiHot) -> None:
    """Compare the tables in a subdirectory of `parent` with their recorded checksums, if they are drawn."""
    if (sums := _locate_tables(parent, num_embeddings, bags) / SUMS_NAME).is_file():
        verify_sums(sums)


def verify_sums(path: Path) -> None:
    """Compare the tables beside a file of checksums with it. Raise UserError for the first that differs."""
    try:
        sums = decode(path.read_bytes(), dict[str, FileDigest])
        mismatches = [name for name, expected in sums.items() if digest_file(path.with_name(name)) != expected]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not as it was written ({error}); {REMEDY}") from error
    if mismatches:
        raise UserError(
            f"{path.with_name(mismatches[0])}: sha256 is not that of {SUMS_NAME}: the file changed; {REMEDY}"
        )


def _locate_tables(parent: Path, num_embeddings: Sequence[int], bags: MultiHot) -> Path:
    """Return the tables' directory, whose name is a hash of the settings: tables of several lie beside each other."""
    settings = {"num_embeddings": list(num_embeddings), **to_json(bags)}
    return parent / hashlib.sha256(f"{json.dumps(settings)}\n".encode()).hexdigest()[:12]


@jit
def _copy_bags(table: NDArray[np.int32], size: int, ids: NDArray[np.int32], out: NDArray[np.int32]) -> bool:
    """Copy the bag of each id from the flat table to `out`; return False if an id is outside it.

    Copies whole vectors: the next bag overwrites the values copied beyond a bag's end.

    table: [num_embeddings * size]. ids: [rows]. out: [rows * size].
    """
    whole = -(-size // LANES) * LANES  # values that copying a bag by whole vectors writes
    end = 0  # values of `out` that are written
    for row in range(len(ids)):
        # Bags lie at random places of a table beyond the caches, so a later row's lines are fetched ahead.
        if row + PREFETCHED_ROWS < len(ids):
            ahead = np.int64(ids[row + PREFETCHED_ROWS]) * size
            for value in range(0, size, LANES):
                prefetch(table, ahead + value)
        start = np.int64(ids[row]) * size
        if start < 0 or start + size > len(table):
            return False
        if start + whole <= len(table) and end + whole <= len(out):
            for value in range(0, size, LANES):
                copy_16(out, end + value, table, start + value)
        else:
            for value in range(size):
                out[end + value] = table[start + value]
        end += size
    return True


def _draw_tables(directory: Path, num_embeddings: Sequence[int], bags: MultiHot) -> None:
    """Draw the bags of all ids, table by table, in blocks; the arguments are those of `MultiHotTables.open`."""
    # Tables without sums are those of a killed process.
    for leftover in (*directory.glob("*.npy"), *directory.glob("*.npy.*")):
        leftover.unlink()
    table_bytes = bags.table_bytes(num_embeddings)
    need = Need(directory, table_bytes, "for the multi-hot tables")
    require_room([need], "free some, or choose another data.multi_hot.directory")
    if table_bytes > REPORTED_BYTES:
        print(f"{directory}: drawing {format_bytes(table_bytes)} of multi-hot tables, once", file=sys.stderr)
    sums = {}
    rng = np.random.RandomState(bags.seed)  # the reference's generator
    for feature, (rows, size) in enumerate(zip(num_embeddings, bags.sizes, strict=True)):
        if size == 1:
            continue
        # Bags of all ids may take 24 GB, so they are drawn and written in blocks; the stream of draws is the same.
        writer = ArrayWriter(directory / f"{feature}.npy", np.int32, size, rows)
        step = max(1, BLOCK_VALUES // size)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            other_ids = _draw_ids(rng, bags.distribution, rows, (stop - start, size - 1))
            writer.append(np.concatenate((np.arange(start, stop)[:, None], other_ids), axis=1, dtype=np.int32))
        sums[writer.path.name] = asdict(writer.close())
        sync(writer.path)
    write_atomically(directory / SUMS_NAME, (json.dumps(sums) + "\n").encode())


def _draw_ids(
    rng: np.random.RandomState, distribution: Distribution, rows: int, shape: tuple[int, int]
) -> NDArray[np.integer]:
    """Draw ids from 0 to rows - 1, in the given shape, as the reference draws them."""
    if distribution == "uniform":
        return rng.randint(0, rows, size=shape)
    variates = rng.pareto(a=PARETO_SHAPE, size=shape)
    # The reference converts to int32 as x86 does: all numbers beyond it become the smallest.
    return np.where(variates < 2**31, variates, -(2.0**31)).astype(np.int64) % rows
