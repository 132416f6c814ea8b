"""The outcome of a search: its trials, its finalists over several seeds, and which settings to take."""

from dataclasses import dataclass, field
from typing import Any

from app.config.train import Monitor
from app.kinds.metrics import METRICS
from app.metrics.documents import EvaluationFigures
from app.report.statistics import MeanDifference, paired, seeds_needed, spread
from app.report.words import figure, plural
from common.keys import shown
from extensions.tune.runs import TuneRun

LEVEL = 0.05  # of the paired test, divided by the number of finalists (Bonferroni)
WANTED = 0.001  # the difference whose number of seeds is named
DIGITS = 5


@dataclass
class Tried:
    """A trial: its run, how it ended (completed, pruned or fail), and its score on val, higher for better models."""

    run: TuneRun
    status: str
    score: float | None

    @property
    def is_ranked(self) -> bool:
        """Whether it may become a finalist."""
        return self.status == "completed" and self.score is not None


@dataclass
class Finalist:
    """Settings at several seeds; scores on val by seed, and figures of test where it was scored."""

    trial: int
    settings: list[str]
    runs: list[TuneRun]
    scores: list[float]
    tested: list[EvaluationFigures | None] = field(default_factory=list)


@dataclass
class Outcome:
    """All trials, and the finalists, of which the first is the configuration as it is."""

    tried: list[Tried]
    finalists: list[Finalist]
    monitor: Monitor

    @property
    def differences(self) -> list[MeanDifference]:
        """Return each finalist's mean score less that of the configuration as it is, paired by seed."""
        return [paired(self.finalists[0].scores, other.scores) for other in self.finalists[1:]]

    @property
    def taken(self) -> int:
        """Return the place of the finalist to take; 0 if none is better by more than chance."""
        better = [
            (difference.mean, place)
            for place, difference in enumerate(self.differences, start=1)
            if difference.mean > 0 and difference.p is not None and difference.p < LEVEL / len(self.differences)
        ]
        return max(better)[1] if better else 0

    @property
    def label(self) -> str:
        """Return the name of what trials are judged by."""
        return METRICS[self.monitor].label if isinstance(self.monitor, str) else shown(self.monitor)

    def value(self, score: float) -> float:
        """Return the metric of a score, which is negated where smaller is better."""
        return -score if isinstance(self.monitor, str) and METRICS[self.monitor].larger_is_better is False else score

    def sentences(self) -> list[str]:
        """Return the verdict."""
        if not self.finalists:
            return [f"{plural(len(self.tried), 'trial')} so far."]
        if len(self.finalists) == 1:
            return ["No trial came to an end, so there is nothing to compare with the configuration as it is."]
        seeds = len(self.finalists[0].scores)
        base = self.finalists[0]
        place = self.taken or max(range(1, len(self.finalists)), key=lambda place: self.differences[place - 1].mean)
        best, difference = self.finalists[place], self.differences[place - 1]
        means = [figure(self.value(spread(each.scores).mean), DIGITS) for each in (best, base)]
        ends = sorted(self.value(end) for end in (difference.low or 0.0, difference.high or 0.0))
        compared = (
            f"{self.label} of val {means[0]} instead of {means[1]} (95% interval of the difference "
            f"{figure(ends[0], DIGITS)} to {figure(ends[1], DIGITS)}, on {plural(seeds, 'fresh seed')})"
        )
        if self.taken:
            sentences = [f"Take trial {best.trial}, {' '.join(best.settings)}: {compared}."]
        else:
            deviations = spread([b - a for a, b in zip(base.scores, best.scores, strict=True)]).std or 0.0
            needed = seeds_needed(WANTED, deviations)
            more = (
                f"{needed} seeds would detect a difference of {WANTED}"
                if needed
                else f"a difference of {WANTED} needs over 10,000 seeds"
            )
            sentences = [f"No difference: trial {best.trial}, {' '.join(best.settings)}: {compared}; {more}."]
        tested = [[each.main_value for each in finalist.tested if each] for finalist in (best, base)]
        if all(values and None not in values for values in tested):
            main = METRICS[next(each.main for each in base.tested if each)].label
            shown_means = [figure(spread([value or 0.0 for value in values]).mean, DIGITS) for values in tested]
            sentences.append(f"{main} of test, scored once: {shown_means[0]} instead of {shown_means[1]}.")
        return sentences

    def document(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "judged by": shown(self.monitor),
            "verdict": self.sentences(),
            "take": self.finalists[self.taken].settings if self.finalists else None,
            "trials": [
                {
                    "trial": each.run.trial,
                    "settings": each.run.settings,
                    "status": each.status,
                    "value": None if each.score is None else self.value(each.score),
                }
                for each in self.tried
            ],
            "finalists": [
                {
                    "trial": each.trial,
                    "settings": each.settings,
                    "values": {
                        str(run.seed): self.value(score) for run, score in zip(each.runs, each.scores, strict=True)
                    },
                    "test": [figures and figures.main_value for figures in each.tested] or None,
                }
                for each in self.finalists
            ],
        }
