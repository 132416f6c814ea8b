"""Layout of sequences of different lengths, one after another, in the tensors of a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class SequenceLayout:
    """Places of sequences among T positions, and the number of candidates at the end of each.

    lengths, num_candidates: per sequence, on the host; a length includes the candidates.
    divisor: N of the attention.
    """

    lengths: Sequence[int]
    num_candidates: Sequence[int]
    divisor: float
    _products: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Return what a strategy derives from the layout, computed once for all layers."""
        if key not in self._products:
            self._products[key] = make()
        product: T = self._products[key]
        return product
