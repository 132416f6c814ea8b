"""`data.source=trace`: ids by the stack distances of a trace; numbers and labels by chance.

The stack distance of an access is the place of its id among all ids by their last use, from 1 for the last one; 0
stands for an id that was not used yet (Mattson et al. 1970). A cache of the C most recently used rows hits the accesses
with a distance of 1 to C, so the distribution of distances gives the hit rate of every such cache.

A file has three lines of numbers between commas, as facebookresearch/dlrm's data_utils write them
(`--data-trace-file`): the trace's different ids in the order of their first use, its distances in ascending order, and
their cumulative probabilities. Its generator is repeated here, but for the random numbers.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.documents import Json
from common.errors import UserError
from common.files import digest_file
from common.jit import Int, jit
from data_prep.dataset.format import SPLITS, ShardArrays
from data_prep.dataset.options import CRITEO, Schema
from data_prep.synthetic import seeded_generator
from extensions.locality import TraceConfig

SUFFIX = ".log"
FORM = "three lines of numbers between commas: ids, ascending stack distances, their cumulative probabilities"


class Trace:
    """Accesses to one table, whose ids are 0 to n - 1 in the order of their first use in the file.

    num_embeddings: n.
    """

    def __init__(self, path: Path, key: list[int], enable_padding: bool) -> None:
        """Read the file; key: seed of its draws. Raise UserError for a file of another form."""
        try:
            ids, distances, shares = (
                np.array([float(word) for word in line.split(",")]) for line in path.read_text("ascii").splitlines()
            )
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: no stack-distance file ({error}); it needs {FORM}") from error
        self.num_embeddings = len(ids)
        is_ascending = bool((np.diff(distances) > 0).all() and (np.diff(shares) >= 0).all())
        if (
            len(distances) != len(shares)
            or not is_ascending
            or not (shares[0] > 0 and 1 - 1e-6 < shares[-1] < 1 + 1e-6)
        ):
            raise UserError(f"{path}: its distances and cumulative probabilities do not fit; it needs {FORM}")
        if distances[0] or distances[-1] > len(ids) or len(np.unique(ids)) < len(ids) or (distances % 1).any():
            raise UserError(
                f"{path}: distances must be whole, from 0 to at most {len(ids):,}, of as many different ids"
            )
        shares[-1] = 1.0
        self._distances, self._shares, self._enable_padding = distances.astype(np.int64), shares, enable_padding
        self._rng = seeded_generator(key)
        # A ring: its oldest id is taken in one step, and a distance moves only the ids above it.
        self._ring, self._state = np.arange(len(ids), dtype=np.int32), np.zeros(2, np.int64)

    def draw(self, count: int) -> NDArray[np.int32]:
        """Return the ids [count] of the next `count` accesses, which continue those of the call before."""
        ids, uniform = np.empty(count, np.int32), self._rng.random(count)
        draw_ids(uniform, self._distances, self._shares, self._enable_padding, self._ring, self._state, ids)
        return ids


@jit
def draw_ids(
    uniform: NDArray[np.float64],
    distances: NDArray[np.int64],
    shares: NDArray[np.float64],
    enable_padding: bool,
    ring: NDArray[np.int32],
    state: NDArray[np.int64],
    ids: NDArray[np.int32],
) -> None:
    """Draw `ids` [n] by uniform numbers [n]; distances, shares: the file's, with cumulative probabilities.

    ring: all ids by their last use; state: the index of the oldest there, and how many ids were drawn as new.
    """
    size: Int = len(ring)
    for index in range(len(ids)):
        share = uniform[index]
        if state[1] < distances[-1]:  # no distance beyond the ids used so far
            share *= shares[np.searchsorted(distances, state[1], side="right") - 1]
        elif enable_padding:
            share = shares[0] + (1.0 - shares[0]) * share
        distance = distances[np.searchsorted(shares, share)]
        oldest = state[0]
        if distance == 0:
            # The oldest id is the next new one; as the ring turns by one, it becomes the newest.
            identity = ring[oldest]
            state[0] = (oldest + 1) % size
            state[1] += 1
        else:
            place = (oldest + size - distance) % size
            identity = ring[place]
            for _ in range(distance - 1):
                following = (place + 1) % size
                ring[place] = ring[following]
                place = following
            ring[place] = identity
        ids[index] = identity


class TraceRows:
    """A data_prep.stages.write.Generator. Each table's accesses continue from train through val to test."""

    def __init__(self, config: TraceConfig, threads: int) -> None:
        """Raise UserError for a directory without stack-distance files."""
        paths = sorted(Path(config.directory).glob(f"*{SUFFIX}")) if config.directory else []
        if not paths:
            raise UserError(
                f"data.trace.directory={config.directory}: no file NAME{SUFFIX} there; give a directory of "
                "facebookresearch/dlrm's stack-distance files"
            )
        self._config, self._threads = config, threads
        keys = ([config.seed, 0, number] for number in range(len(paths)))
        self._traces = [Trace(path, key, config.enable_padding) for path, key in zip(paths, keys, strict=True)]
        names = [path.name.removesuffix(SUFFIX) for path in paths]
        self.schema = Schema(CRITEO.label, CRITEO.dense, tuple(names))
        self.num_embeddings = {name: trace.num_embeddings for name, trace in zip(names, self._traces, strict=True)}
        files = "\n".join(f"{path.name} {digest_file(path).sha256}" for path in paths)
        settings = asdict(config) | {"directory": hashlib.sha256(files.encode()).hexdigest()}
        self.encoding: Json = {"name": "trace", "trace": settings}
        self.rows = dict(zip(SPLITS, (config.rows, config.eval_rows, config.eval_rows), strict=True))
        self.row_bytes = 4.0 * (1 + len(CRITEO.dense) + len(paths))

    def shard(self, split: str, start: int, rows: int) -> ShardArrays:
        """Return the next `rows` rows of a split: ids follow those of the last call; `start` seeds all other draws."""
        key = [self._config.seed, 1 + SPLITS.index(split), start]  # 0 in place of a split is in the keys of traces
        # Each table has a generator of its own, so the number of threads does not change its draws.
        with ThreadPoolExecutor(self._threads) as executor:
            sparse = np.stack(list(executor.map(lambda trace: trace.draw(rows), self._traces)), axis=1)
        rng = seeded_generator(key)
        labels = (rng.random((rows, 1)) < self._config.click_rate).astype(np.int32)
        return ShardArrays(labels, rng.random((rows, len(CRITEO.dense)), np.float32), sparse)
