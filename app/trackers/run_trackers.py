"""Views of a run for other tools: TensorBoard, and the trackers that extensions add."""

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from app.config import AppConfig
from app.kinds.trackers import TENSORBOARD, TrackerKind
from app.metrics.documents import AnyEvent, Curves
from app.record.documents import Summary
from app.trackers import base
from app.trackers.base import Setting, Tracker
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.keys import shown

log = logging.getLogger("clickwork")


def start_tensorboard(setting: Setting) -> Tracker | None:
    """Import torch's TensorBoard writer, which takes seconds, and open it."""
    from app.trackers import tensorboard

    return tensorboard.start(setting)


# The core's tracker, then those of extensions; a run opens them in this order.
TRACKERS = (
    TrackerKind("tensorboard", "record.tensorboard", start_tensorboard, file=TENSORBOARD, is_cut_back=True),
    *rows_of_extensions(TrackerKind),
)
# Names in a run's directory; a run that starts afresh removes them.
FILES = tuple(kind.file for kind in TRACKERS if kind.file)


class Trackers:
    """The configured trackers; one that fails is logged and dropped, and the run continues."""

    def __init__(self) -> None:
        self._open: list[tuple[TrackerKind, Tracker]] = []

    def start(
        self,
        directory: Path,
        config: AppConfig,
        plain: Mapping[str, Mapping[str, object]],
        rows: Mapping[str, int],
        world_size: int,
        from_step: int,
    ) -> None:
        """Open the trackers that the configuration asks for, on rank 0; other ranks track nothing.

        directory: the run's. plain: the configuration as dicts. rows: number per split of the dataset.
        """
        settings = base.settings(plain, world_size)
        for kind in configured_trackers(config):
            file = directory / kind.file
            tracker = kind.start(Setting(directory, file, config, settings, rows, world_size, from_step))
            self._open += [] if tracker is None else [(kind, tracker)]

    def event(self, event: AnyEvent) -> None:
        """Show one event of metrics.jsonl."""
        self._each(lambda tracker: tracker.event(event))

    def show_again(self, events: Sequence[AnyEvent], curves: Curves | None) -> None:
        """Show the last step's events again in trackers whose files were cut back; the others still have them."""
        for board in [tracker for kind, tracker in self._open if kind.is_cut_back]:
            for event in events:
                board.event(event)
            if curves is not None and any(event.event == "eval" for event in events):
                board.curves(curves)

    def curves(self, curves: Curves | None) -> None:
        """Show an evaluation's curves; None on ranks that have none."""
        if curves is not None:
            self._each(lambda tracker: tracker.curves(curves))

    def close(self, summary: Summary | None) -> None:
        """Close all trackers, with the run's summary if it has one."""
        self._each(lambda tracker: tracker.close(summary))
        self._open.clear()

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for entry in list(self._open):
            kind, tracker = entry
            try:
                action(tracker)
            except Exception as error:  # noqa: BLE001  # a server that is down must not end the training
                log.warning("%s: no more is sent (%s: %s)", kind.name, type(error).__name__, error)
                self._open.remove(entry)


def configured_trackers(config: AppConfig) -> list[TrackerKind]:
    """Return the trackers that a configuration enables."""

    def is_wanted(kind: TrackerKind) -> bool:
        if kind.is_wanted is not None:
            return kind.is_wanted(config)
        value = attrgetter(kind.key)(config)
        return value is not None and value is not False

    return [kind for kind in TRACKERS if is_wanted(kind)]


def require_clients(config: AppConfig) -> None:
    """Raise UserError if the client of a configured tracker is not installed."""
    for kind in configured_trackers(config):
        if kind.package and importlib.util.find_spec(kind.package) is None:
            value = shown(attrgetter(kind.key)(config) or True)
            raise UserError(
                f"{kind.key}={value}: the {kind.package} package is not installed; install it, or leave this out"
            )
