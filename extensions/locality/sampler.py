"""Accesses with a profile's locality, chosen by their depth in an LRU stack, and warnings about their number."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.jit import Int, jit
from extensions.locality.histogram import BIN_STARTS, NUM_BINS, TableProfile
from extensions.locality.stack_distance import NEVER, LruStack, find_in_tree, move_to_top, slot_at_depth

PIECE = 1 << 16
ACCESS_SEED = 0x7ACE
# Indices in `state`: accesses so far; ids used so far; bins wholly or partly in reach; draws left within them;
# first uses still to come in the present bin of time; that bin.
DONE, USED, IN_REACH, LEFT, NEW_LEFT, TIME_BIN = range(6)


class AccessGenerator:
    """Generator of any number of accesses to one table.

    First uses come at the same rate over time as in the profiled trace. Each other access draws a stack distance
    without replacement from an urn with the profile's distances, among those that the stack is deep enough for. So over
    the profile's length the distances equal the profile's, in another order. An empty urn is filled again. The id is
    the one at that depth, and new ids come in random order. This keeps how soon ids are used again, not which ids these
    are.
    """

    def __init__(self, profile: TableProfile, seed: tuple[int, ...]) -> None:
        self._rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*seed, ACCESS_SEED])))
        new_ids = self._rng.permutation(profile.num_embeddings).astype(np.int32)[: profile.distinct]
        self._fixed = (
            profile.accesses,
            profile.first_uses,
            profile.distances,
            new_ids,
            BIN_STARTS,
            profile.nearest,
            profile.farthest,
        )
        self._stack = LruStack(profile.num_embeddings)
        self._urn = profile.distances.copy()
        self._tree = np.zeros(NUM_BINS + 1, np.int64)
        fill_tree(self._urn, self._tree)
        self._state = np.zeros(6, np.int64)
        self._state[TIME_BIN] = -1

    def draw(self, count: int) -> NDArray[np.int32]:
        """Return the next accesses, [count] int32."""
        ids = np.empty(count, np.int32)
        start = 0
        while start < count:
            stop = min(count, start + min(PIECE, self._stack.room()))
            uniform = self._rng.random((stop - start, 2))
            draw_accesses(ids[start:stop], uniform, self._fixed, self._urn, self._tree, self._state, self._stack.arrays)
            start = stop
        return ids


@jit
def fill_tree(urn: NDArray[np.int64], tree: NDArray[np.integer]) -> None:
    """Build a Fenwick tree of the urn's counts."""
    tree[:] = 0
    for i in range(len(urn)):
        tree[i + 1] += urn[i]
        parent = i + 1 + ((i + 1) & -(i + 1))
        if parent < len(tree):
            tree[parent] += tree[i + 1]


@jit
def _take(tree: NDArray[np.integer], urn: NDArray[np.int64], draw: Int) -> Int:
    """Remove the draw-th distance from the urn, and return its bin."""
    index, _ = find_in_tree(tree, draw)
    urn[index] -= 1
    position = index + 1
    while position < len(tree):
        tree[position] -= 1
        position += position & -position
    return index


@jit
def _is_first_use(
    uniform: float, length: Int, first_uses: NDArray[np.int64], starts: NDArray[np.int64], state: NDArray[np.int64]
) -> bool:
    """Return whether the next access has a new id: per bin of time as often as in the profile, at random positions."""
    num_accesses = state[DONE]
    if num_accesses >= length:
        return False
    if state[TIME_BIN] < 0 or num_accesses >= starts[state[TIME_BIN] + 1]:
        state[TIME_BIN] += 1
        state[NEW_LEFT] = first_uses[state[TIME_BIN]]
    remaining = min(starts[state[TIME_BIN] + 1], length) - num_accesses
    if uniform * remaining < state[NEW_LEFT]:
        state[NEW_LEFT] -= 1
        return True
    return False


@jit
def _draw_depth(
    uniform: float,
    distances: NDArray[np.int64],
    nearest: NDArray[np.int64],
    farthest: NDArray[np.int64],
    urn: NDArray[np.int64],
    tree: NDArray[np.integer],
    state: NDArray[np.int64],
) -> Int:
    """Draw a depth below the number of ids used so far."""
    deep = state[USED]
    while state[IN_REACH] < len(urn) and nearest[state[IN_REACH]] < deep:
        state[LEFT] += urn[state[IN_REACH]]
        state[IN_REACH] += 1
    if state[LEFT] == 0:
        for i in range(len(urn)):
            urn[i] += distances[i]
        fill_tree(urn, tree)
        for i in range(state[IN_REACH]):
            state[LEFT] += urn[i]
        if state[LEFT] == 0:  # no distance of the profile is possible, so any id will do
            return min(np.int64(uniform * deep), deep - 1)
    target = uniform * state[LEFT]
    draw = min(np.int64(target), state[LEFT] - 1)
    state[LEFT] -= 1
    slot = _take(tree, urn, draw)
    low, high = nearest[slot], min(farthest[slot] + 1, deep)
    return low + min(np.int64((target - draw) * (high - low)), high - low - 1)


@jit
def draw_accesses(
    ids: NDArray[np.integer],
    uniform: NDArray[np.float64],
    profile: tuple[Any, ...],
    urn: NDArray[np.int64],
    counts: NDArray[np.int64],
    sampler_state: NDArray[np.int64],
    stack: tuple[Any, ...],
) -> None:
    """Fill `ids`; uniform is [n, 2]. Updates `urn`, its tree `counts`, `sampler_state` and the stack's arrays."""
    length, first_uses, distances, new_ids, starts, nearest, farthest = profile
    words, tree, id_at, slot_of, state = stack
    for i in range(len(ids)):
        is_new = sampler_state[USED] == 0 or _is_first_use(uniform[i, 0], length, first_uses, starts, sampler_state)
        if is_new and sampler_state[USED] < len(new_ids):
            identity = np.int64(new_ids[sampler_state[USED]])
            move_to_top(identity, NEVER, words, tree, id_at, slot_of, state)
            sampler_state[USED] += 1
        else:
            depth = _draw_depth(uniform[i, 1], distances, nearest, farthest, urn, counts, sampler_state)
            slot = slot_at_depth(depth, words, tree, state)
            identity = id_at[slot]
            if depth > 0:
                move_to_top(identity, slot, words, tree, id_at, slot_of, state)
        ids[i] = identity
        sampler_state[DONE] += 1


TOLERANCE = 0.01  # difference in hit rate without a warning


def share_used_before(profile: TableProfile, accesses: int) -> float:
    """Return the share of the first `accesses` that use an earlier id again: the maximum hit rate of any cache.

    First uses come as in the profiled trace, and none come after its end (AccessGenerator).
    """
    first_uses = np.concatenate(([0], np.cumsum(profile.first_uses)))
    return 1 - float(np.interp(accesses, np.minimum(BIN_STARTS, profile.accesses), first_uses)) / max(1, accesses)


def warn_of_length(profiles: dict[str, TableProfile], accesses: dict[str, int], setting: str, profiled: str) -> None:
    """Warn on stderr if the generated accesses cannot have the profile's hit rates.

    Args:
        accesses: number of accesses to generate per table.
        setting, profiled: texts for the two numbers in the warning.
    """
    shares = {
        name: (share_used_before(p, accesses[name]), share_used_before(p, p.accesses)) for name, p in profiles.items()
    }
    name = max(shares, key=lambda table: abs(shares[table][0] - shares[table][1]))
    share, profile_share = shares[name]
    if abs(share - profile_share) <= TOLERANCE:
        return
    why = "its end adds no new ids" if accesses[name] > profiles[name].accesses else "it is like the trace's beginning"
    print(
        f"warning: {setting}, but the profile is of {profiled}: {why}. At some size a cache's hit rate is at least "
        f"{abs(share - profile_share):.3f} off: accesses to ids used before are {100 * share:.1f} % in {name}, in the "
        f"profile {100 * profile_share:.1f} %. Generate as many as were profiled, or profile a trace of the length you "
        "want",
        file=sys.stderr,
    )
