"""Simple models to compare a run's model with: base rate, single columns, logistic regression, boosted trees.

See docs/truth.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.config.kinds import Additions, AfterTraining, ReportAddition
from common.command import Command
from common.extensions import Core, FilesBesideRun

if TYPE_CHECKING:
    from app.config.app_config import AppConfig
    from app.report.read import RunFiles
    from app.training.predictor import Evaluation, Predictor


def register(core: Core) -> None:
    """Add the command, the step after training, and the part of the report."""
    core.add(
        Command(
            name="baselines",
            module="app.baselines",
            function="extensions.baselines.command:main",
            summary="what simpler models score on a run's data, and whether its model earns its keep",
            schema="extensions.baselines.rows:BaselinesConfig",
            config="schema",
            config_dir=Path(__file__).parent,
        ),
        AfterTraining(refuse_impossible, score_writer, compute_baselines),
        ReportAddition(report_additions),
        FilesBesideRun(re.compile(r"\.baselines"), is_of_run=True),
    )


def refuse_impossible(config: AppConfig) -> None:
    """Refuse baselines=true if they cannot be computed."""
    from extensions.baselines.command import require_possible

    require_possible(config)


def score_writer(predictor: Predictor, evaluation: Evaluation) -> Callable[[Path, int], None] | None:
    """Return a function of a run's directory and a step, which writes the scores of the rows to compare baselines on.

    None if this process has none to write.
    """
    from extensions.baselines.scores import sampled_scores

    scores = sampled_scores(predictor, evaluation)
    return scores.write if scores is not None else None


def compute_baselines(config: AppConfig) -> None:
    """Compute the baselines of a completed run."""
    from extensions.baselines.command import add_baselines

    add_baselines(config)


def report_additions(run: RunFiles) -> Additions:
    """Return the comparison of the run's model with its baselines."""
    from extensions.baselines.command import additions

    return additions(run)
