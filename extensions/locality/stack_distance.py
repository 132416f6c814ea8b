"""An LRU stack: ids in the order of their last use, with look-up of an id's depth and of the id at a depth.

Each use takes the next slot of a bitmap and clears the id's former slot. So set bits are ids in the order of their last
use, and a depth is a count of bits. A Fenwick tree (Fenwick 1994) over the words counts them in O(log n), as Bennett
and Kruskal (1975) did for stack distances. When the slots are used up, the set bits move to the front.
"""

import numpy as np
from numpy.typing import NDArray

from common.jit import Int, count_ones, count_trailing_zeros, jit

WORD_BITS = 64
MIN_WORDS = 64
NEAR_WORDS = 4  # this near the top of the stack, counting bits is faster than the tree
NEVER = -1
NEXT, LIVE = 0, 1  # indices in `state`: next free slot, number of ids in the stack


class LruStack:
    """A stack of ids in [0, num_ids), initially empty."""

    def __init__(self, num_ids: int) -> None:
        self._slot_of = np.full(num_ids, NEVER, np.int64)
        self._state = np.zeros(2, np.int64)
        self._allocate(MIN_WORDS)

    def _allocate(self, num_words: int) -> None:
        self._words = np.zeros(num_words, np.uint64)
        self._tree = np.zeros(num_words + 1, np.int32)
        self._id_at = np.zeros(num_words * WORD_BITS, np.int64)

    @property
    def arrays(
        self,
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """State that the kernels of this module update: words, tree, id_at, slot_of, state."""
        return self._words, self._tree, self._id_at, self._slot_of, self._state

    @property
    def depth(self) -> int:
        """Return the number of ids in the stack."""
        return int(self._state[LIVE])

    def room(self) -> int:
        """Return the number of accesses that fit, at least one; compacts or grows the stack if needed."""
        capacity = len(self._id_at)
        if self._state[NEXT] == capacity:
            live = self.depth
            ids = np.empty(live, np.int64)
            ids_in_order(self._words, self._id_at, ids)
            self._allocate(len(self._words) * (2 if live > capacity // 2 else 1))
            refill(ids, *self.arrays)
        return len(self._id_at) - int(self._state[NEXT])

    def use(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """Use ids in turn; return how many others were used since the last use of each, [n] int64; -1 at first use."""
        distances = np.empty(len(ids), np.int64)
        start = 0
        while start < len(ids):
            stop = start + self.room()
            use_ids(ids[start:stop], distances[start:stop], *self.arrays)
            start = stop
        return distances


@jit
def _add(tree: NDArray[np.integer], word: Int, change: Int) -> None:
    position = word + 1
    while position < len(tree):
        tree[position] += change
        position += position & -position


@jit
def _count_up_to(words: NDArray[np.uint64], tree: NDArray[np.integer], slot: Int) -> Int:
    """Count the set bits at slots 0 to `slot`."""
    word = slot >> 6
    count = np.int64(count_ones(words[word] << np.uint64(63 - (slot & 63))))
    position = word
    while position > 0:
        count += tree[position]
        position &= position - 1
    return count


@jit
def _count_after(words: NDArray[np.uint64], tree: NDArray[np.integer], slot: Int, state: NDArray[np.int64]) -> Int:
    """Count the set bits after `slot`."""
    word, last = slot >> 6, (state[NEXT] - 1) >> 6
    if last - word > NEAR_WORDS:
        return state[LIVE] - _count_up_to(words, tree, slot)
    count = np.int64(count_ones((words[word] >> np.uint64(slot & 63)) >> np.uint64(1)))
    for later in range(word + 1, last + 1):
        count += np.int64(count_ones(words[later]))
    return count


@jit
def _select_in_word(word: np.uint64, rank: Int) -> Int:
    """Return the index of the set bit with `rank` others below it."""
    index = np.uint64(0)
    width = np.uint64(32)
    while width > np.uint64(0):
        below = np.int64(count_ones(word & ((np.uint64(1) << width) - np.uint64(1))))
        if rank >= below:
            rank -= below
            word >>= width
            index += width
        width >>= np.uint64(1)
    return np.int64(index)


@jit
def find_in_tree(tree: NDArray[np.integer], rank: Int) -> tuple[Int, Int]:
    """Return the entry of a Fenwick tree with the item that has `rank` others before it, and its rank in the entry."""
    index, step = 0, 1
    while step * 2 < len(tree):
        step *= 2
    while step > 0:
        if index + step < len(tree) and tree[index + step] <= rank:
            index += step
            rank -= tree[index]
        step >>= 1
    return index, rank


@jit
def _select(words: NDArray[np.uint64], tree: NDArray[np.integer], rank: Int) -> Int:
    """Return the slot of the set bit with `rank` others before it."""
    word, rest = find_in_tree(tree, rank)
    return (word << 6) + _select_in_word(words[word], rest)


@jit
def move_to_top(
    identity: Int,
    slot: Int,
    words: NDArray[np.uint64],
    tree: NDArray[np.integer],
    id_at: NDArray[np.int64],
    slot_of: NDArray[np.int64],
    state: NDArray[np.int64],
) -> None:
    """Use an id whose last use had `slot`, which is NEVER for an id that is not in the stack."""
    top = state[NEXT]
    if slot == NEVER:
        state[LIVE] += 1
        _add(tree, top >> 6, 1)
    else:
        words[slot >> 6] &= ~(np.uint64(1) << np.uint64(slot & 63))
        if slot >> 6 != top >> 6:
            _add(tree, slot >> 6, -1)
            _add(tree, top >> 6, 1)
    words[top >> 6] |= np.uint64(1) << np.uint64(top & 63)
    id_at[top] = identity
    slot_of[identity] = top
    state[NEXT] = top + 1


@jit
def slot_at_depth(depth: Int, words: NDArray[np.uint64], tree: NDArray[np.integer], state: NDArray[np.int64]) -> Int:
    """Return the slot of the id with `depth` others above it."""
    last, rest = (state[NEXT] - 1) >> 6, depth
    for back in range(NEAR_WORDS):
        word = last - back
        if word < 0:
            break
        bits = np.int64(count_ones(words[word]))
        if rest < bits:
            return (word << 6) + _select_in_word(words[word], bits - 1 - rest)
        rest -= bits
    return _select(words, tree, state[LIVE] - 1 - depth)


@jit
def use_ids(
    ids: NDArray[np.integer],
    distances: NDArray[np.int64],
    words: NDArray[np.uint64],
    tree: NDArray[np.integer],
    id_at: NDArray[np.int64],
    slot_of: NDArray[np.int64],
    state: NDArray[np.int64],
) -> None:
    """Use ids as LruStack.use does; there must be room for them."""
    for i in range(len(ids)):
        slot = slot_of[ids[i]]
        if slot == state[NEXT] - 1 and slot != NEVER:
            distances[i] = 0
        else:
            distances[i] = NEVER if slot == NEVER else _count_after(words, tree, slot, state)
            move_to_top(ids[i], slot, words, tree, id_at, slot_of, state)


@jit
def ids_in_order(words: NDArray[np.uint64], id_at: NDArray[np.int64], ids: NDArray[np.integer]) -> None:
    """Write the ids of all set bits, the longest unused first."""
    count = 0
    for word in range(len(words)):
        bits = words[word]
        while bits != np.uint64(0):
            ids[count] = id_at[(word << 6) + np.int64(count_trailing_zeros(bits))]
            bits &= bits - np.uint64(1)
            count += 1


@jit
def refill(
    ids: NDArray[np.integer],
    words: NDArray[np.uint64],
    tree: NDArray[np.integer],
    id_at: NDArray[np.int64],
    slot_of: NDArray[np.int64],
    state: NDArray[np.int64],
) -> None:
    """Put ids, the longest unused first, into an empty bitmap."""
    state[NEXT] = state[LIVE] = 0
    for i in range(len(ids)):
        move_to_top(ids[i], NEVER, words, tree, id_at, slot_of, state)
