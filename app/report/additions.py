"""What extensions add to the report of a run: a row each, which the page calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from app.report.read import RunFiles
    from app.report.tables import ReportTable
    from app.report.verdict import ComparisonRow


class FoldedTable(NamedTuple):
    """A table that the line `summary` unfolds, in two halves."""

    summary: str
    caption: str
    halves: list[ReportTable]


class Additions(NamedTuple):
    """What an extension has to say about a run.

    Attributes:
        comparisons: lines of the table of comparisons.
        sentences: of the verdict, on the quality of a model of clicks; each with its kind.
        tables: below the table of comparisons.
    """

    comparisons: list[ComparisonRow]
    sentences: list[tuple[str, str]]
    tables: list[FoldedTable]


class ReportAddition(NamedTuple):
    """An extension's part of the report; the function imports what it needs."""

    of_run: Callable[[RunFiles], Additions]


def additions(run: RunFiles) -> list[Additions]:
    """What all extensions add to the report of a run."""
    return [row.of_run(run) for row in rows_of_extensions(ReportAddition)]
