"""What a shard's windows are filled with, one window after the other; what is needed next is read meanwhile."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.format import ROW_KINDS
from data_prep.io.direct_io import read_parts, rows_part
from data_prep.stages.encode import unit_blocks
from data_prep.stages.row_layout import RecordLayout
from data_prep.stages.scatter import KeptUnit
from data_prep.stages.shuffle_order import Positions

Window = dict[str, NDArray[Any]]  # an array of each of ROW_KINDS


@dataclass(frozen=True)
class Moved:
    """A scattered unit's rows of a shard: the first is row `begin` of the unit as scattered, places [n] are rising."""

    path: Path
    begin: int
    places: Positions


class MovedRows:
    """The rows of scattered units, for the windows of a shard between `bounds`."""

    def __init__(self, layout: RecordLayout, units: Sequence[Moved], bounds: Sequence[int]) -> None:
        self._layout = layout
        cuts = [between(unit.places, bounds).tolist() for unit in units]
        self._windows = [
            [(unit, *cut[i : i + 2]) for unit, cut in zip(units, cuts, strict=True) if cut[i] < cut[i + 1]]
            for i in range(len(bounds) - 1)
        ]
        self._contents = read_parts(
            (
                rows_part(unit.path, unit.begin + first, unit.begin + behind, layout.row_bytes, np.uint8)
                for window in self._windows
                for unit, first, behind in window
            ),
            "records",
        )
        self._starts = list(bounds)

    def fill(self, number: int, window: Window) -> None:
        """Put those of a window into its arrays; the windows come in their order."""
        for unit, first, behind in self._windows[number]:
            records = next(self._contents).reshape(behind - first, self._layout.row_bytes)
            self._layout.unpack(records, unit.places[first:behind] - self._starts[number], window)


def between(rising: Positions, bounds: Sequence[int]) -> NDArray[np.int64]:
    """How many of rising numbers are below each of the bounds."""
    return np.searchsorted(rising, np.array(bounds, rising.dtype))  # of another type all numbers are converted


class KeptRows:
    """The rows of units that keep their order, encoded, for a shard whose first row has the position `start`."""

    def __init__(self, units: Sequence[KeptUnit], start: int, stop: int) -> None:
        self._blocks = self._read(units, start, stop)
        self._block = next(self._blocks, None)  # of which nothing has been placed yet

    def fill(self, start: int, stop: int, window: Window) -> None:
        """Put the shard's rows start..stop that are of these units into a window's arrays; rows come rising."""
        while self._block is not None and self._block[0] < stop:
            place, block = self._block
            rows = len(block["labels"])
            count = min(stop - place, rows)
            for kind in ROW_KINDS:
                window[kind][place - start : place - start + count] = block[kind][:count]
            if count < rows:
                self._block = place + count, {kind: rest[count:] for kind, rest in block.items()}
            else:
                self._block = next(self._blocks, None)

    @staticmethod
    def _read(units: Sequence[KeptUnit], start: int, stop: int) -> Iterator[tuple[int, Window]]:
        """All blocks, each with the shard's row that its first one is."""
        for kept in sorted(units, key=lambda kept: kept.position):
            for begin, rows in unit_blocks(kept.unit, *kept.rows_between(start, stop)):
                yield kept.position + begin - start, rows
