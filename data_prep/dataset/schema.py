"""The columns of a table: one label, dense (integer or real) features, sparse (categorical) features."""

from dataclasses import dataclass
from typing import Any

CRITEO_NUM_DENSE = 13
CRITEO_NUM_SPARSE = 26


@dataclass(frozen=True)
class Schema:
    """Column names in the order of the file: the label, then N dense, then F sparse.

    `ragged` are those of `sparse`, in its order, whose fields hold any number of values.
    """

    label: str
    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    ragged: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All names in file order."""
        return (self.label, *self.dense, *self.sparse)

    @property
    def single(self) -> tuple[str, ...]:
        """The sparse columns that hold one value each."""
        return tuple(name for name in self.sparse if name not in self.ragged)

    def to_manifest(self) -> dict[str, Any]:
        """As `data_prep.dataset.format.Manifest.schema` holds it."""
        entry: dict[str, Any] = {"label": self.label, "dense": list(self.dense), "sparse": list(self.sparse)}
        return {**entry, "ragged": list(self.ragged)} if self.ragged else entry

    @classmethod
    def from_manifest(cls, entry: dict[str, Any]) -> "Schema":
        """The inverse of `to_manifest`."""
        return cls(entry["label"], tuple(entry["dense"]), tuple(entry["sparse"]), tuple(entry.get("ragged", ())))


CRITEO = Schema(
    label="label",
    dense=tuple(f"int_{i}" for i in range(CRITEO_NUM_DENSE)),
    sparse=tuple(f"cat_{i}" for i in range(CRITEO_NUM_SPARSE)),
)
