"""The columns of a table: one label, dense (integer or real) features and sparse (categorical) features."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from common.documents import Json, decode
from data_prep.dataset.options import LabelKind

CRITEO_NUM_DENSE = 13
CRITEO_NUM_SPARSE = 26
MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32

Feature = Annotated[str, Meta(pattern=r"\A[^./\\\0]+\Z")]  # names files and tables
TableRows = Annotated[int, Meta(ge=1, le=MAX_NUM_EMBEDDINGS)]


class Schema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Column names in file order: the label, then N dense, then F sparse.

    `ragged` lists the multi-hot columns, in the order of `sparse`. `label_kind` is the kind of the labels. `weight` is
    the column of sample weights, which is no feature; "": none.
    """

    label: str
    dense: tuple[str, ...]
    sparse: tuple[Feature, ...]
    ragged: tuple[Feature, ...] = ()
    label_kind: LabelKind = LabelKind.click
    weight: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all names in file order."""
        return (self.label, *self.dense, *self.sparse)

    @property
    def single(self) -> tuple[str, ...]:
        """Return the sparse columns with one value per row."""
        return tuple(name for name in self.sparse if name not in self.ragged)

    def to_manifest(self) -> Json:
        """Convert to the form of `Manifest.schema`."""
        return to_json(self)

    @classmethod
    def from_manifest(cls, entry: Json) -> "Schema":
        """Build from the form of `to_manifest`."""
        return msgspec.convert(entry, cls)


def to_json(entry: object) -> Json:
    """Convert to plain dicts, lists and values, as JSON returns them, without fields that have their defaults."""
    # Decode first: before Python 3.11 an empty tuple may not be the default object, and would be written.
    return decode(msgspec.json.encode(decode(msgspec.json.encode(entry), type(entry))), Json)


CRITEO = Schema(
    label="label",
    dense=tuple(f"int_{i}" for i in range(CRITEO_NUM_DENSE)),
    sparse=tuple(f"cat_{i}" for i in range(CRITEO_NUM_SPARSE)),
)
