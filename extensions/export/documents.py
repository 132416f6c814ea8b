"""Descriptions of an export: clickwork.json in a program, manifest.json in a directory. Needs no torch."""

from app.metrics.documents import rest
from app.record.documents import Provenance
from common.documents import Json, Number
from common.files import FileDigest


class ExportedModel(Provenance, kw_only=True):
    """A run's model as others load it.

    imports: packages to import before it is loaded. inputs: the program's, in order, and what they are.
    sparse_features: rows of each one's table. tolerance: of its logits against the model's.
    """

    run: str
    checkpoint: str
    step: int
    dataset_digest: str
    tables: str
    imports: list[str]
    inputs: dict[str, str]
    dense_features: list[str]
    sparse_features: dict[str, int]
    tolerance: Number


class ExportedProgram(ExportedModel, kw_only=True):
    """A run's model as one file."""

    rest: Json = rest()


class ExportedDirectory(ExportedModel, kw_only=True):
    """A run's model and encoder as a directory.

    outputs: what the model gives, by name. model: its file. files: all files but this one, with their SHA-256.
    """

    outputs: dict[str, str]
    model: str
    files: dict[str, FileDigest]
    rest: Json = rest()
