"""Simple models to compare a run's model with: base rate, single columns, logistic regression, boosted trees.

See docs/truth.md.
"""

import re
from pathlib import Path

from app.config.kinds import AfterTraining, ReportAddition
from common.command import Command
from common.extensions import Core, FilesBesideRun, later


def register(core: Core) -> None:
    """Add the command, the step after training, and the part of the report."""
    core.add(
        Command(
            name="baselines",
            module="app.baselines",
            function="extensions.baselines.command:main",
            summary="what simpler models score on a run's data, and whether its model earns its keep",
            schema="extensions.baselines.fit:BaselinesConfig",
            config="schema",
            config_dir=Path(__file__).parent,
            leave="app.runtime.environment:leave",  # without a thread that still fits
        ),
        AfterTraining(
            later("extensions.baselines.command:require_possible"),
            later("extensions.baselines.command:score_writer"),
            later("extensions.baselines.command:add_baselines"),
        ),
        ReportAddition(later("extensions.baselines.command:additions")),
        FilesBesideRun(re.compile(r"\.baselines"), is_of_run=True),
    )
