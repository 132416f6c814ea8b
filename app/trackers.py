"""Views of a run for other tools: TensorBoard, and the trackers that extensions add."""

import functools
import importlib.util
import threading
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from app.config.app_config import AppConfig
from app.config.kinds import TENSORBOARD, TrackerKind
from app.metrics.documents import Curves, Event
from app.record.documents import Summary
from common.command import log
from common.documents import plain_object
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.keys import flatten, shown

# Keys of an event that are not figures of the run.
NO_FIGURES = ("event", "step", "samples", "seconds", "epoch", "steps")


class Tracker(Protocol):
    """A view of a run for another tool; only rank 0 has trackers."""

    def event(self, event: Event) -> None:
        """Show one event of metrics.jsonl."""

    def close(self, summary: Summary | None) -> None:
        """Show the summary, if there is one, and close the view."""


class Setting(NamedTuple):
    """Inputs of a new tracker.

    file: the tracker's own file in the run's directory. plain: the configuration as dicts, without passwords. rows:
    number per split of the dataset. from_step: the step that the run starts from.
    """

    file: Path
    config: AppConfig
    plain: Mapping[str, Mapping[str, object]]
    rows: Mapping[str, int]
    world_size: int
    from_step: int

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """The settings that decide a result, by key, and the number of processes."""
        return {"world_size": self.world_size} | {
            f"{group}.{key}": value if isinstance(value, (str, int, float, bool)) else str(value)
            for group in ("model", "loss", "optimizer", "schedule", "sharding", "train", "runtime")
            for key, value in self.plain[group].items()
            if value is not None
        }


def figures(event: Event) -> dict[str, float]:
    """Return the numbers of an event by tag, `<kind>/<key>`, or `<kind>/<key>/<key>` for nested ones.

    Figures that were not measured are left out.
    """
    plain = {key: value for key, value in plain_object(event).items() if key not in NO_FIGURES}
    leaves = flatten(plain, event.event, "/")
    return {
        tag: float(value) for tag, value in leaves if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def start_tensorboard(setting: Setting) -> Tracker | None:
    """Open a writer of events; None, with a warning, if the package is not installed."""
    if AVAILABLE:
        return TensorBoard(setting)
    log.warning(
        "tensorboard: the package is not installed, so no events are written; pip install tensorboard, or "
        "record.tensorboard=false"
    )
    return None


# The core's tracker, then those of extensions; a run opens them in this order.
TRACKERS = (
    TrackerKind("tensorboard", "record.tensorboard", start_tensorboard, file=TENSORBOARD),
    *rows_of_extensions(TrackerKind),
)
# Names in a run's directory; a run that starts afresh removes them.
FILES = tuple(kind.file for kind in TRACKERS if kind.file)


class Trackers:
    """The configured trackers; one that fails is logged and dropped, and the run continues."""

    def __init__(self) -> None:
        self._open: list[tuple[TrackerKind, Tracker]] = []

    def start(self, setting: Setting) -> None:
        """Open the trackers that the configuration asks for, on rank 0; `file` of the setting is the run's directory.

        Other ranks track nothing.
        """
        for kind in configured_trackers(setting.config):
            tracker = kind.start(setting._replace(file=setting.file / kind.file))
            self._open += [] if tracker is None else [(kind, tracker)]

    def event(self, event: Event) -> None:
        """Show one event of metrics.jsonl."""
        self._call_each(lambda tracker: tracker.event(event))

    def curves(self, curves: Curves | None) -> None:
        """Show an evaluation's curves in TensorBoard; None on ranks that have none."""
        if curves is not None:
            self._call_each(lambda tracker: tracker.curves(curves) if isinstance(tracker, TensorBoard) else None)

    def close(self, summary: Summary | None) -> None:
        """Close all trackers, with the run's summary if it has one."""
        self._call_each(lambda tracker: tracker.close(summary))
        self._open.clear()

    def _call_each(self, action: Callable[[Tracker], None]) -> None:
        """Call `action` for each open tracker; one that fails is left out from then on."""
        for entry in list(self._open):
            kind, tracker = entry
            try:
                action(tracker)
            except Exception as error:  # noqa: BLE001  # a server that is down must not end the training
                log.warning("%s: no more is sent (%s: %s)", kind.name, type(error).__name__, error)
                self._open.remove(entry)


def configured_trackers(config: AppConfig) -> list[TrackerKind]:
    """Return the trackers that a configuration enables."""
    return [
        kind
        for kind in TRACKERS
        if (kind.is_wanted(config) if kind.is_wanted else attrgetter(kind.key)(config) not in (None, False))
    ]


def require_clients(config: AppConfig) -> None:
    """Raise UserError if the client of a configured tracker is not installed."""
    for kind in configured_trackers(config):
        if kind.package and importlib.util.find_spec(kind.package) is None:
            value = shown(attrgetter(kind.key)(config) or True)
            raise UserError(
                f"{kind.key}={value}: the {kind.package} package is not installed; install it, or leave this out"
            )


try:
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    AVAILABLE = True
except ImportError:  # the tensorboard package is not installed
    AVAILABLE = False

WRITERS = "tensorboard.summary.writer"  # the module of TensorBoard's own threads
LAST_GROUP = "various"  # heading of figures other than of evaluations and training
SUMMARY_TAGS = ("eval/auc", "eval/ne", "eval/logloss", "train/samples_per_second")  # beside the settings in HParams


class TensorBoard:
    """Writes an events file; TensorBoard's queue does so in its own thread."""

    def __init__(self, setting: Setting) -> None:
        """Continue after `from_step`: TensorBoard hides earlier events of later steps."""
        _report_errors_once()
        self._writer = SummaryWriter(str(setting.file), purge_step=setting.from_step + 1 if setting.from_step else None)
        # The third summary says that the session has ended, which `close` adds.
        for summary in hparams(setting.settings, dict.fromkeys(SUMMARY_TAGS, 0.0))[:2]:
            self._add(summary)

    def event(self, event: Event) -> None:
        # TensorBoard sorts headings alphabetically: evaluations come first, then training, and checkpoints last.
        for tag, value in figures(event).items():
            is_quality = tag.startswith(("eval", "train"))
            self._writer.add_scalar(tag if is_quality else f"{LAST_GROUP}/{tag}", value, event.step)

    def curves(self, curves: Curves) -> None:
        edges = np.asarray(curves.scores["edges"], np.float64)
        # Only counts of scores are kept, so the sums are those of the middles of bins.
        centres = (edges[:-1] + edges[1:]) / 2
        for label, name in (("positive", "clicks"), ("negative", "no clicks")):
            counts = np.asarray(curves.scores[label], np.float64)
            self._writer.add_histogram_raw(
                f"eval/probabilities of {name}",
                min=edges[0],
                max=edges[-1],
                num=int(counts.sum()),
                sum=float(counts @ centres),
                sum_squares=float(counts @ centres**2),
                bucket_limits=edges[1:].tolist(),
                bucket_counts=counts.tolist(),
                global_step=curves.step,
            )

    def close(self, summary: Summary | None) -> None:
        if summary is not None and summary.status != "failed":
            # The figures came with the events; of the summary only the end is shown, which a failed run lacks.
            _, _, session_end = hparams({}, {})
            self._add(session_end)
        self._writer.close()

    def _add(self, summary: Any) -> None:
        writer: Any = self._writer.file_writer
        writer.add_summary(summary)


@functools.cache
def _report_errors_once() -> None:
    """Suppress tracebacks of TensorBoard's own thread: the next call raises its error, which is reported there."""
    report = threading.excepthook

    def report_others(error: threading.ExceptHookArgs) -> None:
        if not type(error.thread).__module__.startswith(WRITERS):
            report(error)

    threading.excepthook = report_others
