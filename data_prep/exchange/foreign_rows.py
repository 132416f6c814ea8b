"""What other programs' arrays must be before they become shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.schema import CRITEO
from data_prep.io.arrays import open_array

MAX_ID = np.iinfo(np.int32).max
INTEGERS, FLOAT32 = "integers", "float32"


@dataclass(frozen=True)
class Origin:
    """Where rows come from: the files of their labels, dense values and ids, and how many rows come before them."""

    labels: Path
    dense: Path
    sparse: Path
    first_row: int


def open_rows(path: Path, width: int, kind: str, like: tuple[Path, int] | None = None) -> NDArray[Any]:
    """Memory-map a .npy file [rows, width] of INTEGERS (of any size) or FLOAT32.

    Args:
        like: another file of the same day, and its rows.

    Raises:
        UserError: it is not readable, or something else.
    """
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as a NumPy file ({error}); get it again") from error
    if array.ndim != 2 or array.shape[1] != width:
        raise UserError(f"{path}: an array {array.shape}, not (rows, {width}); get it again")
    if array.dtype != np.float32 if kind == FLOAT32 else array.dtype.kind not in "iu":
        raise UserError(f"{path}: {array.dtype}, not {kind}; convert it, or get it again")
    if like is not None and len(array) != like[1]:
        raise UserError(f"{path}: {len(array)} rows, but {like[0].name} has {like[1]}; get them again")
    return array


def check_rows(labels: NDArray[Any], dense: NDArray[np.float32], ids: Sequence[NDArray[Any]], origin: Origin) -> None:
    """Refuse what no shard may hold.

    Args:
        labels, dense: [rows, 1] and [rows, N]; ids: of every feature, [rows, size].

    Raises:
        UserError: naming the first bad value's file, row (from 1) and column.
    """
    first = origin.first_row
    _refuse(origin.labels, first, [CRITEO.label], labels, (labels != 0) & (labels != 1), "a label is neither 0 nor 1")
    _refuse(origin.dense, first, CRITEO.dense, dense, ~np.isfinite(dense), "not a finite number")
    for name, column in zip(CRITEO.sparse, ids, strict=True):
        if column.min() < 0 or column.max() > MAX_ID:
            bad, names = (column < 0) | (column > MAX_ID), [name] * column.shape[1]
            _refuse(origin.sparse, first, names, column, bad, "an id is negative or beyond int32")


def _refuse(
    path: Path, first: int, names: Sequence[str], values: NDArray[Any], bad: NDArray[np.bool_], why: str
) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        raise UserError(
            f"{path}: row {first + row + 1}, column {names[column]}: {value}: {why}; mend the file, or get it again"
        )
