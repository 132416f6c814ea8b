"""NumPy's legacy permutations of any number of rows, in constant memory.

A Fisher-Yates shuffle goes through the places from last to first and swaps each with a random place up to it. Here the
places are divided into windows, which are processed from last to first. A swap within a window is done at once. A swap
with an earlier window is written to a file for that window, with the value it moves. All swaps sent to a window were
drawn before the window's own swaps, and lie in the order of their draws, so applying them first gives the same result.
With one window this is the usual shuffle.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.jit import jit

DRAWS = 1 << 18  # draws made, and swaps sent, at once at most
WIDE = 1 << 32  # from here on NumPy draws places as 64-bit numbers
Places: TypeAlias = NDArray[Any]  # unsigned integers


def inverse_permutation(
    rows: int, seed: int, directory: Path, window_rows: int, check: Callable[[], None] = lambda: None
) -> Iterator[Places]:
    """Yield the inverse of np.random.RandomState(seed).permutation(rows): for v, the k with permutation[k] = v.

    np.random.shuffle moves the rows of a two-dimensional array to the same places, since both draw the same swaps.

    Args:
        directory: for temporary files of up to 20 bytes a row (40 beyond 2^32 rows); empty at the end.
        window_rows: rows held in memory, twice.
        check: called now and then; an exception from it ends the work.

    Returns:
        Consecutive parts of window_rows each (the last may be shorter), uint32, or uint64 beyond 2^32 rows.
    """
    dtype = np.dtype(np.uint32 if rows <= WIDE else np.uint64)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    shuffle = _Shuffle(seed, directory, dtype, window_rows, check)
    windows = [(low, min(low + window_rows, rows)) for low in range(0, rows, window_rows)]
    if len(windows) == 1:
        yield shuffle.all(rows)
    else:
        for low, stop in reversed(windows):
            shuffle.go_through(low, stop)
        for low, stop in windows:
            yield shuffle.places(low, stop)


class _Shuffle:
    """State of a shuffle between windows: swaps sent from one to another, and final values of places."""

    def __init__(
        self, seed: int, directory: Path, dtype: np.dtype[Any], window_rows: int, check: Callable[[], None]
    ) -> None:
        self._check = check
        self._swaps = _WindowQueue(directory / "swaps", 3, dtype, window_rows)
        self._places = _WindowQueue(directory / "places", 2, dtype, window_rows)
        self._draws = _Draws(seed)
        self._swap_buffer: NDArray[Any] = np.empty((3, DRAWS), dtype)

    def all(self, rows: int) -> Places:
        """Return the positions of rows that fit into one window."""
        permutation = np.arange(rows, dtype=self._swap_buffer.dtype)
        for _ in self._swap(permutation, 0):
            pass
        place = np.empty(rows, permutation.dtype)
        for start in range(0, rows, DRAWS):
            part = permutation[start : start + DRAWS]
            place[part] = np.arange(start, start + len(part), dtype=place.dtype)
        return place

    def go_through(self, low: int, stop: int) -> None:
        """Apply the swaps sent to places low..stop, make their own swaps, and send on those for earlier windows."""
        window = np.arange(low, stop, dtype=self._swap_buffer.dtype)
        for place, number, value in self._swaps.take(low):
            self._check()
            exchange(window, low, place, value)
            self._places.send(value, number)
        for start, stop, swaps in self._swap(window, low):
            self._swaps.send(*swaps)
            stays = np.ones(stop - start, bool)
            stays[swaps[1] - swaps.dtype.type(start)] = False
            number = np.arange(start, stop, dtype=window.dtype)
            self._places.send(window[start - low : stop - low][stays], number[stays])
        if low == 0:  # The first place is swapped with no earlier one.
            self._places.send(window[:1], np.zeros(1, window.dtype))

    def places(self, low: int, stop: int) -> Places:
        """Return the positions of rows low..stop, after all windows are done."""
        place = np.empty(stop - low, self._swap_buffer.dtype)
        for value, number in self._places.take(low):
            self._check()
            place[value - place.dtype.type(low)] = number
        return place

    def _swap(self, window: Places, low: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Swap a window's places from last to first; yield the range done so far, and the swaps to send."""
        last, bottom = low + len(window) - 1, max(low, 1)
        while last >= bottom:
            self._check()
            draws, before = self._draws.coming(last), last
            stop = max(bottom, WIDE) if last >= WIDE else bottom
            last, num_draws, num_swaps = swap_rows(window, low, last, stop, draws, self._swap_buffer)
            self._draws.use(num_draws)
            yield last + 1, before + 1, self._swap_buffer[:, :num_swaps]


class _Draws:
    """Random integers of np.random.RandomState(seed)."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.MT19937()  # generator of the published orders
        self._generator.state = np.random.RandomState(seed).get_state(legacy=False)  # type: ignore[assignment]
        self._raw = np.zeros(0, np.uint64)
        self._width = 1

    def coming(self, last: int) -> NDArray[np.uint64]:
        """Return the next integers, as NumPy draws them for a place up to `last`."""
        self._width = 2 if last >= WIDE else 1
        if len(self._raw) < self._width:
            self._raw = np.concatenate((self._raw, self._generator.random_raw(DRAWS - len(self._raw))))
        if self._width == 1:
            return self._raw
        pairs = self._raw[: len(self._raw) // 2 * 2].reshape(-1, 2)
        return (pairs[:, 0] << np.uint64(32)) | pairs[:, 1]

    def use(self, count: int) -> None:
        """Drop the first `count` integers."""
        self._raw = self._raw[count * self._width :]


class _WindowQueue:
    """Rows of numbers in files, one per window; a row's first number decides its window."""

    def __init__(self, stem: Path, width: int, dtype: np.dtype[Any], window_rows: int) -> None:
        self._stem, self._width, self._dtype, self._window_rows = stem, width, dtype, window_rows

    def send(self, *columns: Places) -> None:
        """Append rows, given by columns."""
        window = (columns[0] // self._dtype.type(self._window_rows)).astype(np.uint16)
        order = np.argsort(window, kind="stable")  # NumPy sorts 16-bit numbers by radix, which is faster
        rows = np.stack([column[order] for column in columns], axis=1)
        ends = np.cumsum(np.bincount(window)).tolist() if len(window) else []
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                with open(self._path(number), "ab") as file:
                    rows[start:end].tofile(file)

    def take(self, low: int) -> Iterator[NDArray[Any]]:
        """Yield the rows sent to the window that begins with `low`, in parts, as columns [width, n]."""
        path = self._path(low // self._window_rows)
        if path.exists():
            with open(path, "rb") as file:
                while len(rows := np.fromfile(file, self._dtype, DRAWS * self._width)):
                    yield np.ascontiguousarray(rows.reshape(-1, self._width).T)
            path.unlink()

    def _path(self, window: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}-{window}")


@jit
def swap_rows(
    window: NDArray[np.uint32], low: int, last: int, stop: int, draws: NDArray[np.uint64], swaps: NDArray[np.uint32]
) -> tuple[int, int, int]:
    """Continue a shuffle at place `last`, down to `stop` or until no draws are left.

    Args:
        window: values of the places from `low` on.
        swaps: output: places before the window, the place that each is swapped with, and the value there.

    Returns:
        (the last place that is not done, draws used, number of swaps written).
    """
    num_swaps = num_draws = 0
    mask = 1
    while mask < last:
        mask = 2 * mask + 1
    for draw in draws:
        if last < stop:
            break
        num_draws += 1
        place = np.int64(draw) & mask
        if place > last:
            continue
        value = window[last - low]
        if place >= low:
            window[last - low] = window[place - low]
            window[place - low] = value
        else:
            swaps[0, num_swaps] = place
            swaps[1, num_swaps] = last
            swaps[2, num_swaps] = value
            num_swaps += 1
        last -= 1
        if last == mask >> 1:
            mask >>= 1
    return last, num_draws, num_swaps


@jit
def exchange(window: NDArray[np.uint32], low: int, places: NDArray[np.uint32], values: NDArray[np.uint32]) -> None:
    """Exchange the values at places, one after another; `values` receives the previous ones."""
    for i in range(len(places)):
        place = np.int64(places[i]) - low
        before = window[place]
        window[place] = values[i]
        values[i] = before
