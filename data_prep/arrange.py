"""Where every row goes, for splits and shuffles that do not keep the order of the raw files.

The answer is an array on disk, int32 or, of as many rows, int64: position[i] of row i of the dataset, the train
split's rows coming first, then val's, then test's; -1 for a row that is left out.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.choices import SplitMethod
from data_prep.jit import jit
from data_prep.rules import Rules
from data_prep.work import Job, UnitRecord

POSITION_DTYPES: dict[str, np.dtype[Any]] = {
    "positions.i32": np.dtype(np.int32),
    "positions.i64": np.dtype(np.int64),
}
ORDER_NAME = "order"
LEFT_OUT = -1
Positions: TypeAlias = NDArray[np.signedinteger]
BLOCK_ROWS = 1 << 20
SPLITS = ("train", "val", "test")


def split_sizes(rules: Rules, total: int, last_day: int) -> dict[str, int]:
    """Rows of every split where the rows keep their order, or are shuffled within the train split.

    Args:
        total: rows of the dataset; last_day: those of the last source.
    """
    if rules.split is SplitMethod.last_day:
        held_out = last_day
    elif rules.split is SplitMethod.scikit_learn:
        held_out = int(np.ceil(total * rules.held_out))
        return {"train": total - held_out, "val": 0, "test": held_out}
    else:
        held_out = int(total * rules.held_out + 1e-9)
        if rules.held_out and total > len(SPLITS) - 1:
            held_out = max(held_out, len(SPLITS) - 1)
    halves = [-(-held_out // 2), held_out // 2]
    val, test = reversed(halves) if rules.test_first else halves
    return {"train": total - held_out, "val": val, "test": test}


def legacy_permutation(rows: int, seed: int, path: Path | None = None) -> NDArray[np.unsignedinteger]:
    """np.random.RandomState(seed).permutation(rows), in a file if `path` is given.

    It is also the order in which np.random.shuffle leaves the rows of a two-dimensional array: both swap by the
    same sequence of random integers.
    """
    dtype = np.dtype(np.uint32 if rows <= 2**32 else np.uint64)
    order = np.empty(rows, dtype) if path is None else _array_on_disk(path, rows, dtype)
    for start in range(0, rows, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, rows)
        order[start:stop] = np.arange(start, stop, dtype=dtype)
    legacy = np.random.RandomState(seed)  # the published orders are of this generator
    if dtype.itemsize > 4:
        legacy.shuffle(order)
        return order
    # as `shuffle` does it, which lets no other thread run: Fisher and Yates' swaps by masked draws of 32 bits
    generator = np.random.MT19937()
    generator.state = legacy.get_state(legacy=False)  # type: ignore[assignment]  # which is the same
    last = rows - 1
    while last > 0:
        last = swap_rows(order, last, generator.random_raw(min(BLOCK_ROWS, 2 * last)))
    return order


@jit
def swap_rows(order, last, draws):  # type: ignore[no-untyped-def]
    """Go on with a shuffle whose places behind `last` are done; the last place that is not done then."""
    mask = 1
    while mask < last:
        mask = 2 * mask + 1
    for draw in draws:
        place = np.int64(draw) & mask
        if place > last:
            continue
        order[last], order[place] = order[place], order[last]
        last -= 1
        if last == 0:
            break
        if last == mask >> 1:
            mask >>= 1
    return last


def arrange(job: Job, records: list[UnitRecord]) -> dict[str, int]:
    """Write the positions of all rows to one of POSITION_DTYPES in <work>.

    Args:
        records: all units, in the order of the rows.

    Returns:
        rows of every split.
    """
    rules = job.rules
    total = sum(record.rows for record in records)
    positions = _positions_on_disk(job, total)
    kept, kept_last_day = _number_kept_rows(job, records, positions)
    if rules.split is SplitMethod.random:
        return _split_at_random(rules, positions)
    sizes = split_sizes(rules, kept, kept_last_day)
    if rules.split is SplitMethod.scikit_learn:
        order = legacy_permutation(kept, rules.split_seed, job.work / ORDER_NAME)
        _permute(job, positions, order, kept, shift=sizes["train"])  # scikit-learn takes the test rows from the front
        return sizes
    if rules.train_seed is not None:
        order = legacy_permutation(sizes["train"], rules.train_seed, job.work / ORDER_NAME)
        _permute(job, positions, order, kept, shift=0)
    if rules.test_first:
        first, held_out = sizes["train"], sizes["val"] + sizes["test"]
        destination = first + (np.arange(held_out) + sizes["val"]) % max(1, held_out)
        _apply(positions, destination, first, held_out)
    return sizes


def unit_positions(job: Job, begin: int, rows: int) -> Positions:
    """The positions of a unit's rows, of which the first is row `begin` of the dataset."""
    path, dtype = _find_positions(job)
    return np.fromfile(path, dtype, rows, offset=dtype.itemsize * begin)


def _find_positions(job: Job) -> tuple[Path, np.dtype[Any]]:
    """Where the positions are, and of what type."""
    return next((job.work / name, dtype) for name, dtype in POSITION_DTYPES.items() if (job.work / name).exists())


def kept_position(job: Job, begin: int, rows: int) -> int | None:
    """The position of a unit's first row if the others come behind it, in their order; else None."""
    if not rows:
        return None
    path, dtype = _find_positions(job)
    positions = np.memmap(path, dtype, "r", dtype.itemsize * begin, (rows,))
    first, last = int(positions[0]), int(positions[-1])  # which tell of most units whose rows do not
    return first if first >= 0 and last - first == rows - 1 and bool((np.diff(positions) == 1).all()) else None


def _number_kept_rows(job: Job, records: list[UnitRecord], positions: Positions) -> tuple[int, int]:
    """Number the rows that are not dropped; how many there are, and how many in the last source."""
    rules = job.rules
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([rules.sampling_seed, 0xD809])))
    begin = kept = kept_last_day = 0
    for record in records:
        part = positions[begin : begin + record.rows]
        count = record.rows
        if rules.negative_drop_rate:
            labels = np.load(job.unit_path(record.source, record.chunk, "labels.npy"))[:, 0]
            keep = (labels == 1) | (rng.random(record.rows) >= rules.negative_drop_rate)
            part[:] = np.where(keep, kept - 1 + np.cumsum(keep), LEFT_OUT)
            count = int(keep.sum())
        else:
            part[:] = np.arange(kept, kept + count)
        kept += count
        kept_last_day += count if record.source == len(job.sources) - 1 else 0
        begin += record.rows
    return kept, kept_last_day


def _split_at_random(rules: Rules, positions: Positions) -> dict[str, int]:
    """Give each kept row a split; rows of a split keep their order."""
    sizes = np.zeros(len(SPLITS), np.int64)
    for choice, part in _random_splits(rules, positions):
        sizes += np.bincount(choice[part >= 0], minlength=len(SPLITS))
    following = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    for choice, part in _random_splits(rules, positions):
        kept = part >= 0
        for split in range(len(SPLITS)):
            mine = kept & (choice == split)
            count = int(mine.sum())
            part[mine] = np.arange(following[split], following[split] + count)
            following[split] += count
    return dict(zip(SPLITS, sizes.tolist(), strict=True))


def _random_splits(rules: Rules, positions: Positions) -> Iterator[tuple[NDArray[np.int64], Positions]]:
    """The split of every row, block by block, the same each time, beside the block of positions."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([rules.split_seed, 0x5B117])))
    for start in range(0, len(positions), BLOCK_ROWS):
        part = positions[start : start + BLOCK_ROWS]
        uniform = rng.random(len(part))
        bounds = (1 - rules.held_out, 1 - rules.held_out / 2)
        yield np.searchsorted(bounds, uniform, side="right").astype(np.int64), part


def _permute(job: Job, positions: Positions, order: NDArray[np.unsignedinteger], kept: int, shift: int) -> None:
    """Replace position order[k] of the first ones by k, moved on by `shift` places, the last ones coming first."""
    rows = len(order)
    is_whole = kept == len(positions)  # then each row's position is still its number
    destination = positions
    if not is_whole:
        destination = _array_on_disk(job.work / "destination.i64", rows, np.dtype(np.int64))
    for start in range(0, rows, BLOCK_ROWS):
        part = order[start : start + BLOCK_ROWS]
        moved = np.arange(start + shift, start + shift + len(part))
        destination[part] = moved % rows if shift else moved
    if not is_whole:
        _apply(positions, destination, 0, rows)


def _apply(positions: Positions, destination: Positions, first: int, count: int) -> None:
    """Replace the positions first..first+count by their destinations."""
    for start in range(0, len(positions), BLOCK_ROWS):
        part = positions[start : start + BLOCK_ROWS]
        mine = (part >= first) & (part < first + count)
        part[mine] = destination[part[mine] - first]


def _positions_on_disk(job: Job, rows: int) -> Positions:
    for name in POSITION_DTYPES:
        (job.work / name).unlink(missing_ok=True)
    name, dtype = next((name, dtype) for name, dtype in POSITION_DTYPES.items() if rows <= np.iinfo(dtype).max)
    return _array_on_disk(job.work / name, rows, dtype)


def _array_on_disk(path: Path, rows: int, dtype: np.dtype) -> NDArray:  # type: ignore[type-arg]
    """An array in a file: as large as the disk, as fast as the page cache."""
    with open(path, "wb+") as file:
        file.truncate(max(1, rows * dtype.itemsize))
        mapped = mmap.mmap(file.fileno(), 0)
    return np.frombuffer(mapped, dtype, rows)
