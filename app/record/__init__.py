"""The directory of one run: `directory` writes it, `reading` reads it."""

from app.record.directory import RESULTS_COLUMNS, Record, told_where_no_room
from app.record.reading import (
    CHECKPOINTS,
    CONFIG,
    CURVES,
    MANIFEST,
    METRICS,
    STEP_TIMES,
    SUMMARY,
    read_config,
    read_events,
    read_manifest,
    read_summary,
)

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "CURVES",
    "MANIFEST",
    "METRICS",
    "RESULTS_COLUMNS",
    "STEP_TIMES",
    "SUMMARY",
    "Record",
    "read_config",
    "read_events",
    "read_manifest",
    "read_summary",
    "told_where_no_room",
]
