"""Parts that extensions add to the report of a run, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from common.extensions import rows_of_extensions

if TYPE_CHECKING:
    from app.report.read import RunFiles
    from app.report.tables import ReportTable
    from app.report.verdict import ComparisonRow


class FoldedTable(NamedTuple):
    """A collapsed table in two halves; a click on `summary` opens it."""

    summary: str
    caption: str
    halves: list[ReportTable]


class Additions(NamedTuple):
    """Additions of an extension to the report of one run.

    Attributes:
        comparisons: rows for the table of comparisons.
        sentences: (kind, sentence) pairs for the verdict on a click model's quality.
        tables: tables below the table of comparisons.
    """

    comparisons: list[ComparisonRow]
    sentences: list[tuple[str, str]]
    tables: list[FoldedTable]


class ReportAddition(NamedTuple):
    """The function of an extension that adds to a report. It imports its modules when called."""

    of_run: Callable[[RunFiles], Additions]


def additions(run: RunFiles) -> list[Additions]:
    """Return the additions of all extensions to the report of a run."""
    return [row.of_run(run) for row in rows_of_extensions(ReportAddition)]
