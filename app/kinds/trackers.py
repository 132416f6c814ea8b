"""The row type of trackers, which show a run to other tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from app.config import AppConfig
    from app.trackers.base import Setting, Tracker

TENSORBOARD = "tensorboard"  # directory of its events, and of traces


class TrackerKind(NamedTuple):
    """Properties of a tracker.

    Attributes:
        name: name of the tracker in the log.
        key: the key that enables it, by any value except null and false.
        start: opens the tracker. It may return None, and raises UserError if the tracker cannot start.
        package: the package that it requires; empty: none.
        file: its file in the run's directory, which a run from the start removes; empty: none.
        is_cut_back: True if a resumption repeats the events of the last step.
        is_wanted: returns whether a configuration enables it, if a null key depends on other keys; None: `key` decides.
        of_clicks: True if it supports only labels of 0 and 1.
    """

    name: str
    key: str
    start: Callable[[Setting], Tracker | None]
    package: str = ""
    file: str = ""
    is_cut_back: bool = False
    is_wanted: Callable[[AppConfig], bool] | None = None
    of_clicks: bool = False
