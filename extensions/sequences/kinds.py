"""The dataset of events and its sources, as rows for the core's tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.dataset.kinds import DatasetKind, KindParts, NamedSource, SourceKind

if TYPE_CHECKING:
    from data_prep.config.keys import DataConfig
    from data_prep.sources.discover import Source


def parts() -> KindParts:
    """Return the functions for datasets of events; imports their modules only now."""
    from extensions.sequences import event_arrays, manifest, preparation

    return KindParts(preparation.prepare_events, event_arrays.verify_events, manifest.fault)


EVENT_LOG = DatasetKind(
    "events",
    "give a dataset of events in data.path (docs/sequences.md)",
    parts,
    arrays=("users", "offsets", "items", "times", "flags"),
    splits=("events",),
    windows=("train", "val"),
    described_by=frozenset({"user", "item"}),
)


def fetch_log(data: "DataConfig", root: Path, work: Path) -> "list[Source]":
    """Download Yambda's log from mirrors, with the tables of its items' attributes."""
    from extensions.sequences.preparation import fetch_log

    return fetch_log(data, root, work)


def generate_log(data: "DataConfig", root: Path, work: Path) -> "list[Source]":
    """Generate a log and its items' table."""
    from extensions.sequences.synthetic import find_log

    return find_log(data, root, work)


def generated_figures(data: "DataConfig", root: Path) -> dict[str, Any]:
    """Return the settings of a generated log's events, and the best scores."""
    from extensions.sequences.synthetic import figures

    return figures(data, root)


YAMBDA = SourceKind(EVENT_LOG, fetch_log, group="remote")
SOURCES = (
    NamedSource(
        "synthetic_events", SourceKind(EVENT_LOG, generate_log, group="synthetic_events", figures=generated_figures)
    ),
    *(NamedSource(name, YAMBDA) for name in ("yambda_50m", "yambda_500m", "yambda_5b")),
)
