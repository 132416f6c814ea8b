"""The columns of a table: one label, dense (integer or real) features, sparse (categorical) features."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from common.documents import Json, decode
from data_prep.dataset.options import LabelKind

CRITEO_NUM_DENSE = 13
CRITEO_NUM_SPARSE = 26
MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32

Feature = Annotated[str, Meta(pattern=r"\A[^./\\\0]+\Z")]  # it names files and tables
TableRows = Annotated[int, Meta(ge=1, le=MAX_NUM_EMBEDDINGS)]


class Schema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Column names in the order of the file: the label, then N dense, then F sparse.

    `ragged` are those of `sparse`, in its order, whose fields hold any number of values. label_kind: of the labels.
    """

    label: str
    dense: tuple[str, ...]
    sparse: tuple[Feature, ...]
    ragged: tuple[Feature, ...] = ()
    label_kind: LabelKind = LabelKind.click

    @property
    def columns(self) -> tuple[str, ...]:
        """All names in file order."""
        return (self.label, *self.dense, *self.sparse)

    @property
    def single(self) -> tuple[str, ...]:
        """The sparse columns that hold one value each."""
        return tuple(name for name in self.sparse if name not in self.ragged)

    def to_manifest(self) -> Json:
        """Convert to the form of `Manifest.schema`."""
        return to_json(self)

    @classmethod
    def from_manifest(cls, entry: Json) -> "Schema":
        """The inverse of `to_manifest`."""
        return msgspec.convert(entry, cls)


def to_json(entry: object) -> Json:
    """Plain dicts, lists and values, as they come back from JSON, without what is as by default."""
    # Read back first: before Python 3.11 an empty tuple may be another than the default, and would be written.
    return decode(msgspec.json.encode(decode(msgspec.json.encode(entry), type(entry))), Json)


CRITEO = Schema(
    label="label",
    dense=tuple(f"int_{i}" for i in range(CRITEO_NUM_DENSE)),
    sparse=tuple(f"cat_{i}" for i in range(CRITEO_NUM_SPARSE)),
)
