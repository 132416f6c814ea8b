"""How much each feature matters to a run's model, and its metrics by value of a column (docs/truth.md)."""

import re
from pathlib import Path

from app.config.kinds import ReportAddition
from common.command import Command
from common.extensions import Core, FilesBesideRun, later


def register(core: Core) -> None:
    """Add the command, its file in a run's directory, and the part of the report."""
    core.add(
        Command(
            name="importance",
            module="app.importance",
            function="extensions.importance.command:main",
            summary="what a run's model loses without each feature, and its metrics by value of a column",
            schema="extensions.importance.report:ImportanceConfig",
            config="schema",
            config_dir=Path(__file__).parent,
            leave="app.runtime.environment:leave",
        ),
        ReportAddition(later("extensions.importance.report:additions")),
        FilesBesideRun(re.compile(r"importance\.json"), is_of_run=True),
    )
