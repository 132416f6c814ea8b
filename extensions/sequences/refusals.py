"""Checks for keys of preparation that have no effect on a log of events."""

from common.errors import UserError
from common.keys import shown
from data_prep.config.checks import USED_BY_GENERATORS, refuse_other_keys
from data_prep.config.keys import DataConfig

USED_BY_EVENTS = USED_BY_GENERATORS | {
    "raw",
    "schema",
    "scheduler",
    "memory_budget",
    "chunk_bytes",
    "allow_degenerate",
}


def refuse_keys_without_events(data: DataConfig) -> None:
    """Raise UserError for a key of rows, or of another source, without effect on events."""
    if data.train is not None:
        raise UserError("data.train: a log of events is split by time, not by files; name its files in data.raw")
    refuse_other_keys(data, USED_BY_EVENTS, "on a log of events; leave it out")
    if data.source_kind.figures and data.raw is not None:
        raise UserError(
            f"data.raw: has no effect with data.source={shown(data.source)}, which makes the log; leave it out"
        )
