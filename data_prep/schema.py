"""The columns of a table: one label, dense (integer or real) features, sparse (categorical) features."""

from dataclasses import dataclass
from typing import Any

CRITEO_NUM_DENSE = 13
CRITEO_NUM_SPARSE = 26


@dataclass(frozen=True)
class Schema:
    """Column names in the order of the file: the label, then N dense, then F sparse."""

    label: str
    dense: tuple[str, ...]
    sparse: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All names in file order."""
        return (self.label, *self.dense, *self.sparse)

    def to_manifest(self) -> dict[str, Any]:
        """As `data_prep.format.Manifest.schema` holds it."""
        return {"label": self.label, "dense": list(self.dense), "sparse": list(self.sparse)}

    @classmethod
    def from_manifest(cls, entry: dict[str, Any]) -> "Schema":
        """The inverse of `to_manifest`."""
        return cls(entry["label"], tuple(entry["dense"]), tuple(entry["sparse"]))


CRITEO = Schema(
    label="label",
    dense=tuple(f"int_{i}" for i in range(CRITEO_NUM_DENSE)),
    sparse=tuple(f"cat_{i}" for i in range(CRITEO_NUM_SPARSE)),
)
