"""state.json of a checkpoint: everything except tensors and arrays. Needs no torch."""

from typing import Final, Literal

import msgspec

from app.metrics.documents import Best, EvaluationFigures, Monitored
from app.metrics.totals import Measured
from common.documents import Json, Number, OpenDocument
from common.files import FileDigest

FORMAT: Final = 3


class Layout(OpenDocument, kw_only=True):
    """Settings that may differ after a resumption, at the price of different rounding."""

    processes: int
    threads: int
    platform: str
    sharding: str
    compile: str
    rest: Json = msgspec.field(default_factory=dict)


class WithFormat(msgspec.Struct):
    """Part of a state that every version writes."""

    format: int


class SavedState(OpenDocument, kw_only=True):
    """A run's state after `step`.

    seconds: time spent, by kind. dataset: its directory. fingerprint: the settings that a resumption must not change,
    by key. files: size and digest of every file except state.json and its checksum.
    """

    format: Literal[3]
    step: int
    samples: int
    epoch: int
    step_in_epoch: int
    measured: Measured
    unreported: Measured
    skipped: int
    evaluation: EvaluationFigures | None
    best: Best | None
    monitored: Monitored
    seconds: dict[str, Number]
    world_size: int
    layout: Layout
    dataset: str
    dataset_digest: str
    fingerprint: Json
    rest: Json = msgspec.field(default_factory=dict)
    files: dict[str, FileDigest]
