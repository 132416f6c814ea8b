"""The page of a search, in the report's style."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from app.report.page import render
from app.report.tables import ReportTable
from app.report.words import figure, plural
from extensions.tune.outcome import DIGITS, Outcome

NONE = "–"
AS_IT_IS = "the configuration as it is"


def tune_page(outcome: Outcome, arguments: Sequence[str], directory: Path) -> str:
    """Return the HTML of a search with its trials in `directory`; arguments: those of the command."""
    return render(
        Path(__file__).with_name("tune.html.j2"),
        directory,
        [],
        title=f"Search of {plural(len(outcome.tried), 'trial')}",
        sentences=[("good" if outcome.taken else "plain", sentence) for sentence in outcome.sentences()],
        trials=_trials(outcome),
        finalists=_finalists(outcome),
        command=shlex.join(["python", "-m", "app.tune", *arguments]),
    )


def _trials(outcome: Outcome) -> ReportTable:
    ranked = sorted(outcome.tried, key=lambda each: (each.score is None, -(each.score or 0.0), each.run.trial))
    rows = [
        [
            str(each.run.trial),
            NONE if each.score is None else figure(outcome.value(each.score), DIGITS),
            {"fail": "failed", "pruned": "stopped early"}.get(each.status, each.status),
            " ".join(each.run.settings) or AS_IT_IS,
        ]
        for each in ranked
    ]
    note = "The best first. Stopped early: worse than the median of earlier trials after as many steps."
    return ReportTable(["Trial", f"{outcome.label} of val", "Ended", "Settings"], rows, {1}, note)


def _finalists(outcome: Outcome) -> ReportTable:
    seeds = [run.seed for run in outcome.finalists[0].runs] if outcome.finalists else []
    rows = [
        [
            str(each.trial),
            " ".join(each.settings) or AS_IT_IS,
            *(figure(outcome.value(score), DIGITS) for score in each.scores),
        ]
        for each in outcome.finalists
    ]
    columns = ["Trial", "Settings", *(f"Seed {seed}" for seed in seeds)]
    return ReportTable(columns, rows, set(range(2, len(columns))), f"{outcome.label} of val by seed.")
