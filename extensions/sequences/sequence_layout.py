"""Where sequences of many lengths lie, one after the other, in the tensors of a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class SequenceLayout:
    """Where sequences lie among T positions, and how many candidates each ends with.

    lengths, num_candidates: of each sequence, on the host; a length counts the candidates.
    divisor: N.
    """

    lengths: Sequence[int]
    num_candidates: Sequence[int]
    divisor: float
    _products: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What a strategy makes of the layout for one layer and uses for all."""
        if key not in self._products:
            self._products[key] = make()
        product: T = self._products[key]
        return product
