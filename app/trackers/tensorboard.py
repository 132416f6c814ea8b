"""TensorBoard: scalars of every event, histograms at evaluations, hyper-parameters."""

import functools
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.metrics.documents import AnyEvent, Curves
from app.record.documents import Summary
from app.trackers.base import Setting, figures

log = logging.getLogger("clickwork")

try:
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    AVAILABLE = True
except ImportError:  # the tensorboard package is not installed
    AVAILABLE = False

WRITERS = "tensorboard.summary.writer"
LAST_GROUP = "various"
SUMMARY_TAGS = ("eval/auc", "eval/ne", "eval/logloss", "train/samples_per_second")


class TensorBoard:
    """Writes an events file; TensorBoard's queue does so in its own thread."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int | float | bool], from_step: int) -> None:
        """Continue at `from_step`: TensorBoard hides earlier events of that step and later ones."""
        _report_errors_once()
        self._writer = SummaryWriter(str(directory), purge_step=from_step or None)
        for summary in hparams(dict(settings), dict.fromkeys(SUMMARY_TAGS, 0.0))[:2]:
            self._add(summary)

    def event(self, event: AnyEvent) -> None:
        for tag, value in figures(event).items():
            self._writer.add_scalar(_grouped(tag), value, event.step)

    def curves(self, curves: Curves) -> None:
        edges = np.asarray(curves.scores.edges, np.float64)
        centres = (edges[:-1] + edges[1:]) / 2
        for samples, name in ((curves.scores.positive, "clicks"), (curves.scores.negative, "no clicks")):
            counts = np.asarray(samples, np.float64)
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
            self._add(hparams({}, {})[2])  # the session ended well
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


def _grouped(tag: str) -> str:
    """Return a tag with a heading for TensorBoard, which sorts headings alphabetically.

    Evaluations come first, then training; checkpoints, and sums from which other figures are made, come last.
    """
    kind, _, figure = tag.partition("/")
    is_quality = kind.startswith(("eval", "train")) and not figure.startswith("measured/")
    return tag if is_quality else f"{LAST_GROUP}/{tag}"


def start(setting: Setting) -> TensorBoard | None:
    """Open a writer of events; None, with a warning, if the package is not installed."""
    if AVAILABLE:
        return TensorBoard(setting.file, setting.settings, setting.from_step)
    log.warning(
        "tensorboard: the package is not installed, so no events are written; pip install tensorboard, or "
        "record.tensorboard=false"
    )
    return None
