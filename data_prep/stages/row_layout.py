"""Rows on their way from one order to another: one record of bytes each, with ids in as few bytes as they need."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.dataset.format import ROW_KINDS

ID_TYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.int32), np.dtype(np.uint16), np.dtype(np.uint8))
ALIGNMENT = 4
FLOAT32 = np.dtype(np.float32)
FIELD_BYTES = 4  # of a label, of a dense value


@jit
def pack_rows(labels, dense, ids, places, fields, columns):  # type: ignore[no-untyped-def]
    """Write row i to place places[i] of the records' fields, but where the place is negative.

    Args:
        labels, dense, ids: [rows, 1], [rows, N] and [rows, F].
        fields: views of the records: their labels, dense values, and the ids of each of ID_TYPES.
        columns: the columns of `ids` that are of each type.
    """
    out_labels, out_dense, out_large, out_medium, out_small = fields
    large, medium, small = columns
    for i in range(len(places)):
        place = places[i]
        if place < 0:
            continue
        out_labels[place, 0] = labels[i, 0]
        for column in range(dense.shape[1]):
            out_dense[place, column] = dense[i, column]
        for number in range(len(large)):
            out_large[place, number] = ids[i, large[number]]
        for number in range(len(medium)):
            out_medium[place, number] = ids[i, medium[number]]
        for number in range(len(small)):
            out_small[place, number] = ids[i, small[number]]


@jit
def unpack_rows(fields, columns, places, labels, dense, ids):  # type: ignore[no-untyped-def]
    """The other way: the record i to row places[i] of the arrays."""
    in_labels, in_dense, in_large, in_medium, in_small = fields
    large, medium, small = columns
    for i in range(len(places)):
        place = places[i]
        labels[place, 0] = in_labels[i, 0]
        for column in range(dense.shape[1]):
            dense[place, column] = in_dense[i, column]
        for number in range(len(large)):
            ids[place, large[number]] = in_large[i, number]
        for number in range(len(medium)):
            ids[place, medium[number]] = in_medium[i, number]
        for number in range(len(small)):
            ids[place, small[number]] = in_small[i, number]


@dataclass(frozen=True)
class RecordLayout:
    """A label, N dense values, and as many ids as `largest_ids` has, of each the largest there can be."""

    num_dense: int
    largest_ids: tuple[int, ...]
    dense: np.dtype[Any] = FLOAT32

    @cached_property
    def id_columns(self) -> tuple[NDArray[np.int64], ...]:
        """The sparse columns whose ids are of each of ID_TYPES."""
        fits = [np.array([np.iinfo(kind).max >= largest for largest in self.largest_ids], bool) for kind in ID_TYPES]
        smallest = np.sum(fits, axis=0) - 1
        return tuple(np.flatnonzero(smallest == number) for number in range(len(ID_TYPES)))

    @property
    def row_bytes(self) -> int:
        """Bytes of a record."""
        ids = sum(kind.itemsize * len(columns) for kind, columns in zip(ID_TYPES, self.id_columns, strict=True))
        return -(-(FIELD_BYTES * (1 + self.num_dense) + ids) // ALIGNMENT) * ALIGNMENT

    def width(self, kind: str) -> int:
        """Columns of an array of that kind."""
        return {"labels": 1, "dense": self.num_dense, "sparse": len(self.largest_ids)}[kind]

    def pack(self, rows: dict[str, NDArray[Any]], places: NDArray[np.int64], records: NDArray[np.uint8]) -> None:
        """Pack rows of one array per kind into records [n, row_bytes], row i at index places[i] unless negative."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        pack_rows(labels, dense, ids, places, self._fields(records), self.id_columns)

    def unpack(self, records: NDArray[np.uint8], places: NDArray[np.int64], rows: dict[str, NDArray[Any]]) -> None:
        """Put records into the rows of arrays at `places`."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        unpack_rows(self._fields(records), self.id_columns, places, labels, dense, ids)

    def _fields(self, records: NDArray[np.uint8]) -> tuple[NDArray[Any], ...]:
        """Views of the records: labels, dense values, ids of each of ID_TYPES, [n, how many]."""
        widths = [1, self.num_dense, *(len(columns) for columns in self.id_columns)]
        dtypes = [np.dtype(np.int32), self.dense, *ID_TYPES]
        fields, place = [], 0
        for dtype, width in zip(dtypes, widths, strict=True):
            behind = place + dtype.itemsize * width
            fields.append(records[:, place:behind].view(dtype))
            place = behind
        return tuple(fields)
