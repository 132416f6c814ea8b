"""Checks for misleading data: columns that hold the label, and rows that are both in train and in val or test.

See docs/truth.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.extensions import Core
from data_prep.dataset.kinds import DataCheck

if TYPE_CHECKING:
    from common.documents import Json
    from data_prep.engine.job import Job
    from data_prep.stages.write import BuiltShard


def register(core: Core) -> None:
    """Add the check."""
    core.add(DataCheck("misleading", compute_figures, warning_sentences))


def compute_figures(job: Job, built: Sequence[BuiltShard], features: Sequence[str], budget: int) -> Json:
    """Compute the figures of a job's finished shards."""
    from common.documents import plain_object
    from extensions.data_checks.search import find_misleading

    return plain_object(find_misleading(job, built, features, budget))


def warning_sentences(recorded: object) -> list[str]:
    """Return the warnings for the figures."""
    from extensions.data_checks.search import misleading_sentences

    return misleading_sentences(recorded)
