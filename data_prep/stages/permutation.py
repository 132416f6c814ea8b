"""NumPy's legacy permutations of any number of rows, in memory that does not grow with them.

Fisher and Yates' shuffle goes through the places from the last to the first and swaps each with one drawn from those
up to it. Here the places are cut into windows, worked through from the last to the first. A swap within a window
is done at once. One with a place in an earlier window is sent there, in a file, with what it moves: when that
window's turn comes, all that was sent to it was drawn before its own swaps, and lies in the order in which it was
drawn. With one window nothing is sent, and this is the usual shuffle.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.jit import jit

DRAWS = 1 << 18  # made at once; as many swaps, at most, are sent at once
WIDE = 1 << 32  # from here on NumPy draws places as numbers of 64 bits
Places: TypeAlias = NDArray[Any]  # of unsigned integers


def inverse_permutation(
    rows: int, seed: int, directory: Path, window_rows: int, check: Callable[[], None] = lambda: None
) -> Iterator[Places]:
    """Yield the inverse of np.random.RandomState(seed).permutation(rows): for v the k with permutation[k] = v.

    It is also where np.random.shuffle puts the rows of a two-dimensional array: both swap by the same random integers.

    Args:
        directory: for files on the way, of up to 20 bytes a row (40 of more than 2^32 rows); empty at the end.
        window_rows: held in memory, twice.
        check: called now and then; what it raises ends the work.

    Returns:
        consecutive parts of window_rows each, the last one of fewer; uint32, or uint64 of more than 2^32 rows.
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
    """A shuffle between its windows: the swaps sent from one to another, and what the places hold for good."""

    def __init__(
        self, seed: int, directory: Path, dtype: np.dtype[Any], window_rows: int, check: Callable[[], None]
    ) -> None:
        self._check = check
        self._swaps = _WindowQueue(directory / "swaps", 3, dtype, window_rows)
        self._places = _WindowQueue(directory / "places", 2, dtype, window_rows)
        self._draws = _Draws(seed)
        self._swap_buffer: NDArray[Any] = np.empty((3, DRAWS), dtype)

    def all(self, rows: int) -> Places:
        """Positions of rows that fit into one window."""
        permutation = np.arange(rows, dtype=self._swap_buffer.dtype)
        for _ in self._swap(permutation, 0):
            pass
        place = np.empty(rows, permutation.dtype)
        for start in range(0, rows, DRAWS):
            part = permutation[start : start + DRAWS]
            place[part] = np.arange(start, start + len(part), dtype=place.dtype)
        return place

    def go_through(self, low: int, stop: int) -> None:
        """Do what comes to the places low..stop, and send on what goes from them."""
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
        if low == 0:  # the one place that is swapped with no earlier one
            self._places.send(window[:1], np.zeros(1, window.dtype))

    def places(self, low: int, stop: int) -> Places:
        """Positions of rows low..stop, once all windows are done."""
        place = np.empty(stop - low, self._swap_buffer.dtype)
        for value, number in self._places.take(low):
            self._check()
            place[value - place.dtype.type(low)] = number
        return place

    def _swap(self, window: Places, low: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Swap a window's places from the last on; after some, which ones are done and the swaps to be sent."""
        last, bottom = low + len(window) - 1, max(low, 1)
        while last >= bottom:
            self._check()
            draws, before = self._draws.coming(last), last
            stop = max(bottom, WIDE) if last >= WIDE else bottom
            last, num_draws, num_swaps = swap_rows(window, low, last, stop, draws, self._swap_buffer)
            self._draws.use(num_draws)
            yield last + 1, before + 1, self._swap_buffer[:, :num_swaps]


class _Draws:
    """The random integers of np.random.RandomState(seed)."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.MT19937()  # the published orders are of this one
        self._generator.state = np.random.RandomState(seed).get_state(legacy=False)  # type: ignore[assignment]
        self._raw = np.zeros(0, np.uint64)
        self._width = 1

    def coming(self, last: int) -> NDArray[np.uint64]:
        """The next ones, as NumPy draws them for a place up to `last`."""
        self._width = 2 if last >= WIDE else 1
        if len(self._raw) < self._width:
            self._raw = np.concatenate((self._raw, self._generator.random_raw(DRAWS - len(self._raw))))
        if self._width == 1:
            return self._raw
        pairs = self._raw[: len(self._raw) // 2 * 2].reshape(-1, 2)
        return (pairs[:, 0] << np.uint64(32)) | pairs[:, 1]

    def use(self, count: int) -> None:
        """So many of them are used up."""
        self._raw = self._raw[count * self._width :]


class _WindowQueue:
    """Rows of numbers on their way to the windows that their first number lies in, in files."""

    def __init__(self, stem: Path, width: int, dtype: np.dtype[Any], window_rows: int) -> None:
        self._stem, self._width, self._dtype, self._window_rows = stem, width, dtype, window_rows

    def send(self, *columns: Places) -> None:
        """Append rows, given by columns, to those sent before."""
        window = (columns[0] // self._dtype.type(self._window_rows)).astype(np.uint16)
        order = np.argsort(window, kind="stable")  # of 16 bits: by their digits
        rows = np.stack([column[order] for column in columns], axis=1)
        ends = np.cumsum(np.bincount(window)).tolist() if len(window) else []
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                with open(self._path(number), "ab") as file:
                    rows[start:end].tofile(file)

    def take(self, low: int) -> Iterator[NDArray[Any]]:
        """Swaps sent to the window that begins with `low`, as columns [width, n], part by part."""
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
    """Continue a shuffle whose places after `last` are done, down to `stop` or until there are no draws left.

    Args:
        window: the places from `low` on.
        swaps: output: places before the window, each with the one that it is swapped with and what is there.

    Returns:
        (the last place that is not done then, draws used, how many are in `swaps`).
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
    """Put each value to its place, one after the other; `values` are what was there."""
    for i in range(len(places)):
        place = np.int64(places[i]) - low
        before = window[place]
        window[place] = values[i]
        values[i] = before
