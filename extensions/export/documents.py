"""clickwork.json in an exported program: where it comes from, and its inputs. Needs no torch."""

from app.metrics.documents import rest
from app.record.documents import Provenance
from common.documents import Json, Number


class ExportedProgram(Provenance, kw_only=True):
    """A run's model as one file.

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
    rest: Json = rest()
