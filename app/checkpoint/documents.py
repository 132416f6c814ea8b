"""state.json of a checkpoint: its contents besides tensors and arrays. Needs no torch."""

import msgspec
from msgspec import UNSET, UnsetType

from app.metrics.documents import Best, EvaluationFigures, Monitored
from app.metrics.totals import Measured
from common.documents import Json, Number, OpenDocument
from common.files import FileDigest

SUMMED = 2  # the format from which on state.json has a checksum


class Layout(OpenDocument, kw_only=True):
    """Settings that may differ after a resumption, at the price of different rounding."""

    processes: int
    threads: int
    platform: str
    sharding: str
    compile: str | UnsetType = UNSET
    rest: Json = msgspec.field(default_factory=dict)


class SavedState(OpenDocument, kw_only=True):
    """A run's state after `step`; keys that older versions did not write are UNSET where a document lacks them.

    input_wait: read by older versions. seconds: spent, by kind. dataset: its directory. fingerprint: the configuration
    that a resumption must not change, by key. files: size and digest of every file but state.json and its checksum.
    """

    format: int | UnsetType = UNSET
    step: int
    samples: int | UnsetType = UNSET
    epoch: int
    step_in_epoch: int
    input_wait: Number
    measured: Measured | UnsetType = UNSET
    unreported: Measured | UnsetType = UNSET
    skipped: int
    evaluation: EvaluationFigures | UnsetType | None = UNSET
    best: Best | UnsetType | None = UNSET
    monitored: Monitored | UnsetType = UNSET
    seconds: dict[str, Number]
    world_size: int
    layout: Layout
    dataset: str
    dataset_digest: str
    fingerprint: Json
    rest: Json = msgspec.field(default_factory=dict)
    files: dict[str, FileDigest] | UnsetType = UNSET
