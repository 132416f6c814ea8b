"""How much each feature matters to a run's model, and its metrics by value of a column (docs/truth.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from app.config.kinds import Additions, ReportAddition
from common.command import Command
from common.extensions import Core, FilesBesideRun

if TYPE_CHECKING:
    from app.report.read import RunFiles


def register(core: Core) -> None:
    """Add the command, its file in a run's directory, and the part of the report."""
    core.add(
        Command(
            name="importance",
            module="app.importance",
            function="extensions.importance.command:main",
            summary="what a run's model loses without each feature, and its metrics by value of a column",
            schema="extensions.importance.keys:ImportanceConfig",
            config="schema",
            config_dir=Path(__file__).parent,
            leave="app.runtime.environment:leave",
        ),
        ReportAddition(report_additions),
        FilesBesideRun(re.compile(r"importance\.json"), is_of_run=True),
    )


def report_additions(run: RunFiles) -> Additions:
    """Return the tables of a run's importances and slices, if they were computed."""
    from extensions.importance.report import additions

    return additions(run)
