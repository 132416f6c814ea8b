"""What extensions look for in a dataset's rows that misleads a model: a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from common.documents import Json
    from data_prep.engine.job import Job
    from data_prep.stages.split import BuiltShard


class DataCheck(NamedTuple):
    """A look at the rows of a dataset that is made of raw files; its functions import what they need.

    Attributes:
        name: of its figures in a manifest's `extra`.
        figures: of a job's finished shards and their sparse features, in so many bytes of memory.
        sentences: that warn, by the figures. Raises ValueError, which names the key, for figures that are damaged.
    """

    name: str
    figures: Callable[[Job, Sequence[BuiltShard], Sequence[str], int], Json]
    sentences: Callable[[object], list[str]]


def data_checks() -> list[DataCheck]:
    """The rows of all extensions."""
    return rows_of_extensions(DataCheck)


def misleading_sentences(extra: Json) -> list[str]:
    """What misleads in a dataset, by its manifest's `extra`; nothing of checks that were not made."""
    return [
        sentence for check in data_checks() if check.name in extra for sentence in check.sentences(extra[check.name])
    ]
