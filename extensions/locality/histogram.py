"""Temporal locality of accesses to a table: stack distances, and the hit rates of LRU caches that follow.

The stack distance of an access is the number of distinct ids used since the last use of its id (Mattson et al. 1970);
the first use of an id has none. A cache of the C most recently used ids hits exactly the accesses with a distance below
C. So the distribution of stack distances gives the hit rate of every LRU cache, and the greatest difference between two
distributions (Kolmogorov-Smirnov) is the greatest difference in hit rate at any size.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from common.documents import decode
from common.errors import UserError
from common.files import temporary_path
from extensions.locality.keys import REMEDY
from extensions.locality.stack_distance import LruStack

# Distances and numbers of accesses are counted in bins: one per number below 256, then 128 per octave.
EXACT_BINS, BINS_PER_OCTAVE, OCTAVES = 256, 128, 32
ROUNDING = 5e-6  # rounding of a printed distance
NUM_BINS = EXACT_BINS + BINS_PER_OCTAVE * OCTAVES
FORMAT = "clickwork-locality-1"
DISTANCE_KEYS = ("distances", "nearest", "farthest")


def bin_starts() -> NDArray[np.int64]:
    """Return the lowest number of each bin, and the end of the last: [NUM_BINS + 1]."""
    octave = np.arange(OCTAVES)[:, None]
    starts = (EXACT_BINS << octave) + np.arange(BINS_PER_OCTAVE) * ((EXACT_BINS // BINS_PER_OCTAVE) << octave)
    return np.concatenate((np.arange(EXACT_BINS), starts.ravel(), [EXACT_BINS << OCTAVES]))


BIN_STARTS = bin_starts()


def bins_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bin of each number."""
    return np.searchsorted(BIN_STARTS, numbers, side="right") - 1


@dataclass
class TableProfile:
    """Locality of the accesses to one table.

    Attributes:
        num_embeddings: rows of the table. accesses: number of accesses.
        distances: [NUM_BINS] int64, accesses by stack distance, without first uses.
        nearest, farthest: [NUM_BINS] int64, smallest and largest distance in each nonempty bin.
        first_uses: [NUM_BINS] int64, first uses of an id by the number of accesses before.
        bag_lengths: [longest + 1] int64, bags by number of ids.
        exact: [num_embeddings] int64, accesses by stack distance if counted separately.
    """

    num_embeddings: int
    accesses: int = 0
    distances: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    nearest: NDArray[np.int64] = field(default_factory=lambda: BIN_STARTS[1:] - 1)
    farthest: NDArray[np.int64] = field(default_factory=BIN_STARTS[:-1].copy)
    first_uses: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    bag_lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    exact: NDArray[np.int64] | None = None

    @property
    def distinct(self) -> int:
        """Return the number of distinct ids."""
        return int(self.first_uses.sum())

    def hit_rates(self) -> NDArray[np.float64]:
        """Return the share of accesses that an LRU cache of BIN_STARTS[1:] ids would hit: [NUM_BINS]."""
        return np.cumsum(self.distances) / max(1, self.accesses)


class Profiler:
    """Profiles a table's accesses in pieces; `exact`: also count each distance separately."""

    def __init__(self, num_embeddings: int, exact: bool = False) -> None:
        self.profile = TableProfile(num_embeddings, exact=np.zeros(num_embeddings, np.int64) if exact else None)
        self._stack = LruStack(num_embeddings)

    def feed(self, ids: NDArray[np.integer], bag_lengths: NDArray[np.integer] | None = None) -> None:
        """Add accesses in order; bag_lengths: None if each access is its own bag."""
        profile = self.profile
        distances = self._stack.use(ids)
        is_reuse = distances >= 0
        bins = bins_of(distances[is_reuse])
        if profile.exact is not None:
            np.add.at(profile.exact, distances[is_reuse], 1)
        profile.distances += np.bincount(bins, minlength=NUM_BINS)
        np.minimum.at(profile.nearest, bins, distances[is_reuse])
        np.maximum.at(profile.farthest, bins, distances[is_reuse])
        first = profile.accesses + np.flatnonzero(~is_reuse)
        profile.first_uses += np.bincount(bins_of(first), minlength=NUM_BINS)
        profile.accesses += len(ids)
        counts = np.array([0, len(ids)]) if bag_lengths is None else np.bincount(bag_lengths)
        longest = max(len(counts), len(profile.bag_lengths))
        profile.bag_lengths = np.pad(profile.bag_lengths, (0, longest - len(profile.bag_lengths)))
        profile.bag_lengths[: len(counts)] += counts


class KSDistance(NamedTuple):
    """A Kolmogorov-Smirnov distance, between `low` and `high`."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.5f}" if self.high - self.low < ROUNDING else f"{self.low:.5f} to {self.high:.5f}"


def distance_between(one: Sequence[TableProfile], other: Sequence[TableProfile]) -> KSDistance:
    """Return the distance between the stack distances of two traces over all tables; first uses are infinitely far.

    The distance is exact if both profiles count each distance separately. Otherwise it is known at the ends of bins,
    and bounded between them.
    """
    exact = [[profile.exact for profile in profiles if profile.exact is not None] for profiles in (one, other)]
    if [len(counts) for counts in exact] == [len(one), len(other)]:
        longest = max(len(count) for counts in exact for count in counts)
        sums = [sum(np.pad(count, (0, longest - len(count))) for count in counts) for counts in exact]
        rates = [
            np.cumsum(total) / max(1, sum(profile.accesses for profile in profiles))
            for total, profiles in zip(sums, (one, other), strict=True)
        ]
        distance = float(np.abs(rates[0] - rates[1]).max())
        return KSDistance(distance, distance)
    first, second = joint_hit_rates(one), joint_hit_rates(other)
    low, inside = float(np.abs(first - second).max()), np.diff(BIN_STARTS) > 1
    before = [np.concatenate(([0.0], rates[:-1])) for rates in (first, second)]
    apart = np.maximum(np.abs(first - before[1]), np.abs(second - before[0]))[inside]
    return KSDistance(low, max(low, float(apart.max())))


def joint_hit_rates(profiles: Sequence[TableProfile]) -> NDArray[np.float64]:
    """Return the hit rate over all tables' accesses, with a cache of BIN_STARTS[1:] ids per table: [NUM_BINS]."""
    return np.asarray(sum(np.cumsum(p.distances) for p in profiles) / max(1, sum(p.accesses for p in profiles)))


def save_profiles(path: Path, profiles: dict[str, TableProfile], rows: int) -> None:
    """Write the profiles of all tables, by name, of a trace with `rows` samples, atomically."""
    arrays: dict[str, Any] = {}
    for number, profile in enumerate(profiles.values()):
        distance_bins, time_bins = np.flatnonzero(profile.distances), np.flatnonzero(profile.first_uses)
        distances = [getattr(profile, key)[distance_bins] for key in DISTANCE_KEYS]
        arrays[f"{number}.distances"] = np.stack((distance_bins, *distances))
        arrays[f"{number}.first_uses"] = np.stack((time_bins, profile.first_uses[time_bins]))
        arrays[f"{number}.bag_lengths"] = profile.bag_lengths
        arrays[f"{number}.sizes"] = np.array([profile.num_embeddings, profile.accesses])
    header = json.dumps({"format": FORMAT, "tables": list(profiles), "rows": rows})
    temporary = temporary_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(temporary, "wb") as file:
        np.savez_compressed(file, header=np.array(header), **arrays)
    temporary.replace(path)


class _Header(Struct):
    """Tables in a file of profiles, in order, and the number of rows that were profiled."""

    format: str
    tables: list[str]
    rows: int


def load_profiles(path: Path) -> tuple[dict[str, TableProfile], int]:
    """Load profiles written by `save_profiles`.

    Raises:
        UserError: missing file, or no file of profiles.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = decode(str(file["header"]), _Header)
            if header.format != FORMAT:
                raise ValueError(f"of format {header.format}, not {FORMAT}")
            profiles = {}
            for number, name in enumerate(header.tables):
                num_embeddings, accesses = file[f"{number}.sizes"].tolist()
                profile = TableProfile(num_embeddings, accesses, bag_lengths=file[f"{number}.bag_lengths"])
                bins, *distances = file[f"{number}.distances"]
                for key, values in zip(DISTANCE_KEYS, distances, strict=True):
                    getattr(profile, key)[bins] = values
                bins, counts = file[f"{number}.first_uses"]
                profile.first_uses[bins] = counts
                profiles[name] = profile
            return profiles, header.rows
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a locality profile ({error}); {REMEDY}") from error
