"""Checks of extensions for rows that mislead a model; each check is one row of an extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from common.documents import Json
    from data_prep.engine.job import Job
    from data_prep.stages.split import BuiltShard


class DataCheck(NamedTuple):
    """A check of the rows of a dataset from raw files. Its functions import their modules when called.

    Attributes:
        name: key of its figures in a manifest's `extra`.
        figures: computes the figures; takes a job, its finished shards, the sparse features and the memory in bytes.
        sentences: returns warnings for the figures. Raises ValueError, which names the key, for damaged figures.
    """

    name: str
    figures: Callable[[Job, Sequence[BuiltShard], Sequence[str], int], Json]
    sentences: Callable[[object], list[str]]


def data_checks() -> list[DataCheck]:
    """Return the checks of all extensions."""
    return rows_of_extensions(DataCheck)


def misleading_sentences(extra: Json) -> list[str]:
    """Return the warnings for a manifest's `extra`. A check without figures there gives none."""
    return [
        sentence for check in data_checks() if check.name in extra for sentence in check.sentences(extra[check.name])
    ]
