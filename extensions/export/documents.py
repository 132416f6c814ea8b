"""Description of an export: manifest.json of its directory. Needs no torch."""

from app.metrics.documents import rest
from app.record.documents import Provenance
from common.documents import Json, Number
from common.files import FileDigest


class ExportedDirectory(Provenance, kw_only=True):
    """A run's model and encoder as a directory.

    imports: packages that score.py imports. inputs, outputs: the model's by name, and their meaning.
    sparse_features: rows of each one's table. tolerance: of its logits against the model's. model: its file.
    files: all files but this one, with their SHA-256.
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
    outputs: dict[str, str]
    model: str
    files: dict[str, FileDigest]
    rest: Json = rest()
