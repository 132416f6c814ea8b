"""Kinds of datasets, by what they hold: one is a row of `KINDS`, its arrays on disk, and models that learn from it."""

from dataclasses import dataclass

EVENTS = "events"  # the kind of a dataset, its encoding's name, and its only split


@dataclass(frozen=True)
class DatasetKind:
    """What is to know of a kind of dataset.

    Attributes:
        name: what it holds, for readers.
        prepare: the function "module:function" of DataConfig and the directory that makes it of raw files.
        verify: the function of root and manifest that compares the arrays with the manifest.
        remedy: what to give instead of a dataset of another kind.
        encoding: the encoding's name in a manifest; empty: all names of no other row.
        schema: the class "module:class" of the manifest's `raw_schema`, with `from_manifest`; empty: readers need none.
        windows: splits that a reader makes, as windows of time; empty: splits are on disk, row by row with labels.
    """

    name: str
    prepare: str
    verify: str
    remedy: str
    encoding: str = ""
    schema: str = ""
    windows: tuple[str, ...] = ()


ROWS = DatasetKind(
    "rows", "data_prep.pipeline:prepare_rows", "data_prep.verify:verify_rows", "give a dataset of rows in its place"
)
EVENT_LOG = DatasetKind(
    "events",
    "data_prep.event_pipeline:prepare_events",
    "data_prep.dataset.events:verify_events",
    "give a dataset of events in data.path (docs/sequences.md)",
    encoding=EVENTS,
    schema="data_prep.dataset.event_schema:EventSchema",
    windows=("train", "val"),
)
KINDS = (ROWS, EVENT_LOG)


def kind_of(encoding: str | None) -> DatasetKind:
    """The kind of a dataset, by its encoding's name."""
    return next((kind for kind in KINDS if kind.encoding == encoding), ROWS)
