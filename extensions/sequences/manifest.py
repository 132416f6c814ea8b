"""Checks of the manifest of a dataset of events."""

from typing import Literal

from common.documents import convert
from data_prep.dataset.manifest_schema import Count, Document, JsonObject, VocabularyFiles
from data_prep.dataset.schema import Feature
from extensions.sequences.event_schema import EVENTS, EventSchema


class EventEncoding(JsonObject):
    """Encoding of events; its parameters are of `extensions.sequences.preparation`."""

    name: Literal["events"]
    raw_schema: EventSchema
    chunk_bytes: Count
    order: str
    bits: list[str]
    vocabulary: dict[Feature, VocabularyFiles]


def fault(document: Document) -> str | None:
    """Return the first contradiction in a manifest, or None. Raise ValueError for a value of a wrong type."""
    schema = convert(document.encoding, EventEncoding, "encoding").raw_schema
    if contradiction := schema.fault():
        return f"key 'encoding.raw_schema': {contradiction}"
    if tuple(document.num_embeddings) != schema.tables:
        return "keys 'num_embeddings' and 'encoding.raw_schema' name different tables"
    if list(document.splits) != [EVENTS] or len(document.splits[EVENTS].shards) != 1:
        return f"key 'splits' is not of one split, {EVENTS!r}, with one shard"
    return None
