"""Checks of extensions for rows that mislead a model; each check is one row of an extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from common.documents import Json
    from data_prep.engine.job import Job
    from data_prep.stages.split import BuiltShard

SHARED_IDS = "shared_ids"  # key of a manifest's `extra`: what data.max_ind_range merges, by one of these two figures
VALUES_PER_ROW, UNKNOWN_SHARE = "values_per_row", "unknown_share"
NAMED_SHARE, CROWDED = 0.2, 1.25  # a larger share of values without their own id, or more values a row, is reported


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
    of_checks = [check.sentences(extra[check.name]) for check in data_checks() if check.name in extra]
    return [*_shared_values(extra), *chain.from_iterable(of_checks)]


def _shared_values(extra: Json) -> list[str]:
    """Return sentences on columns of which NAMED_SHARE of the values share an id because of the tables' sizes."""
    from common.documents import convert

    shared = convert(extra.get(SHARED_IDS, {}), dict[str, dict[str, float]], f"extra.{SHARED_IDS}")
    crowded = [f"{name} ({mean:.1f})" for name, mean in shared.get(VALUES_PER_ROW, {}).items() if mean > CROWDED]
    unknown = [f"{name} ({share:.0%})" for name, share in shared.get(UNKNOWN_SHARE, {}).items() if share > NAMED_SHARE]
    sentences = {
        "values share the rows of their table, on average": crowded,
        "of train's values these shares have the id of unknown values:": unknown,
    }
    return [f"{words} {', '.join(names)}; raise data.max_ind_range" for words, names in sentences.items() if names]
