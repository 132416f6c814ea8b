"""A column's merged run, part by part: on disk where there are several."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.vocabulary.count import Run


class SpilledRun:
    """A run on disk: each of its arrays is read when it is asked for."""

    def __init__(self, run: Run, stem: Path) -> None:
        self._stem = stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        for name, array in run._asdict().items():
            array.tofile(self._path(name))

    def _path(self, name: str) -> Path:
        return self._stem.with_name(f"{self._stem.name}.{name}")

    @property
    def values(self) -> NDArray[np.uint32]:
        """As of `Run`."""
        return np.fromfile(self._path("values"), np.uint32)

    @property
    def counts(self) -> NDArray[np.int64]:
        """As of `Run`."""
        return np.fromfile(self._path("counts"), np.int64)

    @property
    def first(self) -> NDArray[np.int64]:
        """As of `Run`."""
        return np.fromfile(self._path("first"), np.int64)


AnyRun: TypeAlias = Run | SpilledRun


def held_parts(merged: Iterator[Run], directory: Path) -> Sequence[AnyRun]:
    """A single part as it is, of several each on disk."""
    first = next(merged, None)
    if first is None:
        return []
    second = next(merged, None)
    if second is None:
        return [first]
    spilled = [SpilledRun(first, directory / "0"), SpilledRun(second, directory / "1")]
    del first, second
    spilled += [SpilledRun(part, directory / str(i)) for i, part in enumerate(merged, 2)]
    return spilled
