"""python -m app.tune search.KEY=VALUES … [trials=20] [key=value …]: search settings on val, and say which to take.

    python -m app.tune data.path=data/mine 'search.optimizer.lr=[1e-3,1e-1]' 'search.model.interaction=[dot,dcn]'

VALUES is a list of values, or [low,high] with a fraction or an exponent for all numbers between. Each trial is a run
of app.train in out/trial_N, judged by train.monitor on val; Optuna draws the settings and stops trials that do worse
than the median of others after as many steps. The best are trained again at other seeds, beside the configuration as
it is, and a paired test over these seeds says which to take; only then is test scored. The same command continues a
search that was stopped or killed, and more trials can be asked for later.

Exit status: 0 done; 1 no trial came to an end; 2 bad input or configuration; 75 stopped: the same command continues.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from filelock import FileLock, Timeout

from app.config.app_config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.kinds import METRICS as METRIC_ROWS
from app.config.train import Monitor
from app.metrics.documents import EvaluationFigures, monitored_value, score
from app.record.directory import ENDED_BY_WATCH, ChildRun
from app.record.documents import METRICS, read_evaluations
from app.report.page import ReportTable, render, write_page
from app.report.read import figure, plural, read_run
from app.report.statistics import MeanDifference, paired, spread
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED
from common.command import redact_arguments
from common.compose import add_file_keys, compose_config, format_override
from common.errors import UserError
from common.files import write_atomically
from common.keys import key, shown

if TYPE_CHECKING:
    from optuna.study import Study


class Range(NamedTuple):
    """All numbers from low to high."""

    low: float
    high: float

    @property
    def is_log(self) -> bool:
        """Return whether factors, in place of differences, are equally likely: over a decade or more."""
        return self.low > 0 and self.high / self.low >= 10


Space: TypeAlias = dict[str, Range | tuple[str, ...]]  # by dotted key: a range, or values as they are typed


def space_of(search: dict[str, Any], prefix: str = "") -> Space:
    """Return the settings to search from the nested values of `search`. Raise UserError for fewer than two values.

    prefix: what the dotted keys begin with.
    """
    space: Space = {}
    for word, values in search.items():
        name = f"{prefix}{word}"
        if isinstance(values, dict):
            space |= space_of(values, f"{name}.")
            continue
        # Choices stand as they are typed behind `key=`; a plain word needs no quotes.
        texts = [
            value if isinstance(value, str) and re.fullmatch(r"[\w.-]+", value) else format_override(value)
            for value in (values if isinstance(values, list) else [])
        ]
        if len(set(texts)) < 2:
            raise UserError(f"search.{name}={format_override(values)}: must be a list of two or more different values")
        space[name] = tuple(dict.fromkeys(texts))
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        # Two whole numbers are two choices. A fraction or an exponent makes numbers the ends of a range.
        if len(values) == len(numbers) == 2 and any(isinstance(value, float) for value in values):
            if numbers[0] >= numbers[1]:
                raise UserError(
                    f"search.{name}={format_override(values)}: a range is [low,high]; write the lower number first"
                )
            space[name] = Range(float(numbers[0]), float(numbers[1]))
    return space


# Keys that may not be searched, with the reason.
NOT_SEARCHED = {
    "data.": "all trials read one dataset; prepare others, and tune on each",
    "run.": "each trial has its own directory",
    "checkpoint.": "it does not change what is learned",
    "record.": "it does not change what is learned",
    "eval.": "trials must be measured alike",
    "train.seed": "finalists are compared over seeds=N",
    "train.monitor": "trials must be measured alike",
}


@dataclass(frozen=True)
class TuneConfig(AppConfig):
    """Configuration of `python -m app.tune`: a run's, with the settings to search."""

    search: dict[str, Any] = key(
        {}, "values to try of each dotted key: a list, or [low,high] with a fraction or an exponent for all between"
    )
    trials: int = key(20, "settings to try; the first is the configuration as it is", at_least=1)
    finalists: int = key(2, "the best settings, which are trained at every seed beside the first", at_least=1)
    seeds: int = key(3, "seeds of each finalist, from train.seed on", at_least=2)
    out: str = key("runs/tune", "directory of the trials, tune.db, tune.json and tune.html", is_name=True)


def validate_tune(config: TuneConfig) -> None:
    """Raise UserError for invalid values of a run, and for a search of nothing, of a fixed key, or judged on test."""
    validate_new_run(config)
    if not config.search:
        raise UserError("search: no key is searched; give for instance search.optimizer.lr=[1e-3,1e-1]")
    for name in space_of(config.search):
        for prefix, reason in NOT_SEARCHED.items():
            if name.startswith(prefix):
                raise UserError(f"search.{name}: is not searched: {reason}")
    if config.eval.split == "test":
        raise UserError("eval.split=test: trials are judged on val, and test is scored once; leave eval.split out")


QUIET = ["baselines=false", "record.tensorboard=false"]  # unless the command line has them

Begin = Callable[[str], None]  # takes what to print as a run begins


class SearchStopped(Exception):
    """The search was asked to stop, and its run has saved."""


def train(run: ChildRun, monitor: Monitor, watch: Callable[[int, float], bool] | None = None) -> int:
    """Train a run unless it is done, and return the exit status; ENDED_BY_WATCH if `watch` ended it.

    watch takes a step and the score there, once for each evaluation, in order; it returns whether to end the run.
    Raise SearchStopped after a signal, once the run has saved.
    """
    num_seen = 0

    def look() -> bool:
        """Pass new evaluations to `watch`, from the log that a trial has as any run."""
        nonlocal num_seen
        evaluations = read_evaluations(run.directory) if (run.directory / METRICS).exists() else []
        new, num_seen = evaluations[num_seen:], len(evaluations)
        values = [(evaluation.step or 0, monitored_value(evaluation.figures(), monitor)) for evaluation in new]
        return watch is not None and any(
            watch(step, score(value, monitor)) for step, value in values if value is not None
        )

    # A trial's output would hide the search's own lines.
    status = run.ensure(look if watch else None, is_quiet=True)
    if status == EXIT_STOPPED:
        raise SearchStopped
    return status


def score_of(run: ChildRun, monitor: Monitor) -> float:
    """Return the served model's score on val, higher if better. Raise UserError for an undefined train.monitor."""
    value = monitored_value(read_run(run.directory).evaluation, monitor)
    if value is None:
        raise UserError(f"{run.directory}: {shown(monitor)} of val is undefined; val needs rows of both labels")
    return score(value, monitor)


SIGNIFICANCE = 0.05  # of the paired test, divided by the number of finalists (Bonferroni)
DIGITS = 5  # decimals of a metric


@dataclass
class Trial:
    """Settings that were tried: how their run ended (completed, pruned, fail), and its score on val, higher if better.

    scores, tested: of a finalist, by seed: scores on val, and figures of test where it was scored.
    """

    number: int
    settings: list[str]
    status: str = ""
    score: float | None = None
    scores: dict[int, float] = field(default_factory=dict)
    tested: list[EvaluationFigures | None] = field(default_factory=list)

    def run(self, out: Path, arguments: Sequence[str], seed: int, is_finalist: bool = False) -> ChildRun:
        """Return the run of these settings in the search's directory; arguments: app.train's."""
        name = f"trial_{self.number}" + (f"_seed_{seed}" if is_finalist else "")
        own = [*self.settings, f"train.seed={seed}", f"run.name={out.resolve().name}_{name}"]
        return ChildRun(out / name, [*QUIET, *arguments, *own])


@dataclass
class Outcome:
    """All trials, and the finalists, of which the first is the configuration as it is."""

    tried: list[Trial]
    finalists: list[Trial]
    monitor: Monitor

    @property
    def differences(self) -> list[MeanDifference]:
        """Return each finalist's mean score less that of the configuration as it is, paired by seed."""
        scores = [[*finalist.scores.values()] for finalist in self.finalists]
        return [paired(scores[0], others) for others in scores[1:]]

    @property
    def place_to_take(self) -> int:
        """Return the index in `finalists` of the one to take; 0, the configuration as it is, if none is better."""
        # The best of many trials leads by chance, too, so only a significant gain is taken.
        better = [
            (difference.mean, place)
            for place, difference in enumerate(self.differences, start=1)
            if difference.mean > 0 and difference.p is not None and difference.p < SIGNIFICANCE / len(self.differences)
        ]
        return max(better)[1] if better else 0

    @property
    def label(self) -> str:
        """Return what trials are judged by: the label of train.monitor's metric, or its weights of metrics as typed."""
        return METRIC_ROWS[self.monitor].label if isinstance(self.monitor, str) else shown(self.monitor)

    def value(self, score: float) -> float:
        """Return the metric of a score, which is negated where smaller is better."""
        is_negated = isinstance(self.monitor, str) and METRIC_ROWS[self.monitor].larger_is_better is False
        return -score if is_negated else score

    def sentences(self) -> list[str]:
        """Return the verdict in sentences: whether to take the settings of the best trial, and by which figures."""
        if not self.finalists:
            return [f"{plural(len(self.tried), 'trial')} so far."]
        if len(self.finalists) == 1:
            return ["No trial came to an end, so there is nothing to compare with the configuration as it is."]
        seeds = len(self.finalists[0].scores)
        base = self.finalists[0]
        place = self.place_to_take or max(
            range(1, len(self.finalists)), key=lambda place: self.differences[place - 1].mean
        )
        best, difference = self.finalists[place], self.differences[place - 1]
        means = [figure(self.value(spread([*finalist.scores.values()])[0]), DIGITS) for finalist in (best, base)]
        interval = sorted(self.value(end) for end in (difference.low or 0.0, difference.high or 0.0))
        compared = (
            f"{self.label} of val {means[0]} instead of {means[1]} (95% interval of the difference "
            f"{figure(interval[0], DIGITS)} to {figure(interval[1], DIGITS)}, on {plural(seeds, 'fresh seed')})"
        )
        if self.place_to_take:
            sentences = [f"Take trial {best.number}, {' '.join(best.settings)}: {compared}."]
        else:
            sentences = [f"No difference: trial {best.number}, {' '.join(best.settings)}: {compared}."]
        tested = [[figures.main_value for figures in finalist.tested if figures] for finalist in (best, base)]
        if all(values and None not in values for values in tested):
            main = METRIC_ROWS[next(figures.main for figures in base.tested if figures)].label
            shown_means = [figure(spread([value or 0.0 for value in values])[0], DIGITS) for values in tested]
            sentences.append(f"{main} of test, scored once: {shown_means[0]} instead of {shown_means[1]}.")
        return sentences

    def document(self) -> dict[str, Any]:
        """Return tune.json: the verdict, all trials, and the finalists with their values by seed."""
        trials = [
            {
                "trial": trial.number,
                "settings": trial.settings,
                "status": trial.status,
                "value": None if trial.score is None else self.value(trial.score),
            }
            for trial in self.tried
        ]
        finalists = [
            {
                "trial": finalist.number,
                "settings": finalist.settings,
                "values": {str(seed): self.value(score) for seed, score in finalist.scores.items()},
                "test": [figures and figures.main_value for figures in finalist.tested] or None,
            }
            for finalist in self.finalists
        ]
        return {
            "judged by": shown(self.monitor),
            "verdict": self.sentences(),
            "take": self.finalists[self.place_to_take].settings if self.finalists else None,
            "trials": trials,
            "finalists": finalists,
        }


AS_IT_IS = "the configuration as it is"


def tune_page(outcome: Outcome, arguments: Sequence[str], directory: Path) -> str:
    """Return the HTML of a search with its trials in `directory`; arguments: those of the command."""
    # The best trial stands first, those without a score stand last.
    ranked = sorted(outcome.tried, key=lambda trial: (trial.score is None, -(trial.score or 0.0), trial.number))
    trials = [
        [
            str(trial.number),
            "–" if trial.score is None else figure(outcome.value(trial.score), DIGITS),
            {"fail": "failed", "pruned": "stopped early"}.get(trial.status, trial.status),
            " ".join(trial.settings) or AS_IT_IS,
        ]
        for trial in ranked
    ]
    note = "The best first. Stopped early: worse than the median of earlier trials after as many steps."
    finalists = []
    for finalist in outcome.finalists:
        values = [figure(outcome.value(score), DIGITS) for score in finalist.scores.values()]
        finalists.append([str(finalist.number), " ".join(finalist.settings) or AS_IT_IS, *values])
    seeds = list(outcome.finalists[0].scores) if outcome.finalists else []
    columns = ["Trial", "Settings", *(f"Seed {seed}" for seed in seeds)]
    return render(
        Path(__file__).with_name("tune.html.j2"),
        directory,
        [],
        title=f"Search of {plural(len(outcome.tried), 'trial')}",
        sentences=[("good" if outcome.place_to_take else "plain", sentence) for sentence in outcome.sentences()],
        trials=ReportTable(["Trial", f"{outcome.label} of val", "Ended", "Settings"], trials, {1}, note),
        finalists=ReportTable(columns, finalists, set(range(2, len(columns))), f"{outcome.label} of val by seed."),
        command=shlex.join(["python", "-m", "app.tune", *arguments]),
    )


EXIT_FAILED = 1
DATABASE, DOCUMENT, PAGE, LOCK = "tune.db", "tune.json", "tune.html", ".tune.lock"
OWN_KEYS = ("trials", "finalists", "seeds", "out", "search")
REFUSED = {
    "run.name": "trials are named by their numbers; out=DIR says where they are",
    "run.dir": "out=DIR says where the trials are",
    "checkpoint.resume": "trials resume by themselves; give another out=DIR for new ones",
    "checkpoint.overwrite": "nothing is overwritten; give another out=DIR for new trials",
}


def main(config: TuneConfig) -> int:
    """Search, train the finalists, write the page, and return the exit status."""
    logging.basicConfig(format="%(message)s")
    arguments, space, out = training_arguments(sys.argv[1:]), space_of(config.search), Path(config.out)
    # A setting that cannot work is refused before the first trial, not in the middle of the search.
    for name, values in space.items():
        for value in (repr(values.low), repr(values.high)) if isinstance(values, Range) else values:
            validate_new_run(compose_config(AppConfig, CONFIG_DIR, [*arguments, f"{name}={value}"]))
    study = open_study(out, arguments, space)
    try:
        with FileLock(out / LOCK, blocking=False):
            return _search_and_compare(config, arguments, space, study)
    except SearchStopped:
        return EXIT_STOPPED
    except Timeout as error:
        raise UserError(f"out={out}: another process tunes there; wait for its end, or give another out") from error


def training_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for app.train, with each config=FILE replaced by its keys."""
    names = [argument.lstrip("+~").partition("=")[0] for argument in arguments]
    for name, argument in zip(names, arguments, strict=True):
        if name in REFUSED:
            raise UserError(f"{argument}: not of a search: {REFUSED[name]}")
    kept = [argument for name, argument in zip(names, arguments, strict=True) if name.split(".")[0] not in OWN_KEYS]
    return add_file_keys(AppConfig, CONFIG_DIR, kept)


def open_study(out: Path, arguments: Sequence[str], space: Space) -> Study:
    """Open or create the search's database. Raise UserError if it is of other arguments, or Optuna is missing."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError("optuna is not installed: run `make tune`, or pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    # Scores are negated where smaller is better, so a study always maximises.
    study = optuna.create_study(
        storage=f"sqlite:///{(out / DATABASE).resolve()}",
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(),
    )
    words = sorted([*redact_arguments(arguments), *(f"search.{name}={list(values)}" for name, values in space.items())])
    former = study.user_attrs.get("arguments")
    if former is None:
        study.set_user_attr("arguments", words)
    elif former != words:
        raise UserError(f"out={out}: was tuned with {' '.join(former)}; type these, or give another out")
    return study


def _search_and_compare(config: TuneConfig, arguments: Sequence[str], space: Space, study: Study) -> int:
    """Run the trials and the finalists, write the results after each trial, and return the exit status."""
    out, monitor, seed = Path(config.out), config.train.monitor, config.train.seed
    total, numbers = config.trials + (1 + config.finalists) * config.seeds, itertools.count(1)

    def begin(words: str) -> None:
        """Print the line of the next run."""
        print(f"{next(numbers)} of {total}: {words}", flush=True)

    # Optuna does not draw trial 0: it is what all others are compared with.
    base = Trial(0, [], "completed")
    run = base.run(out, arguments, seed)
    begin(f"{run.directory}: {AS_IT_IS}")
    if status := train(run, monitor):
        return status if status == EXIT_BAD_INPUT else EXIT_FAILED
    base.score = score_of(run, monitor)
    outcome = Outcome([base], [], monitor)
    _write_results(config, outcome)
    for number in range(1, config.trials):
        outcome.tried.append(_run_trial(number, study, space, arguments, config, begin))
        _write_results(config, outcome)
    ended = [trial for trial in outcome.tried[1:] if trial.status == "completed" and trial.score is not None]
    best = sorted(ended, key=lambda trial: -(trial.score or 0.0))
    finalists = [base, *best[: config.finalists]]
    # Finalists are trained at other seeds than the one that the trials were chosen by.
    seeds = range(seed + 1, seed + 1 + config.seeds)
    for finalist in finalists:
        for other in seeds:
            run = finalist.run(out, arguments, other, is_finalist=True)
            begin(f"{run.directory}: seed {other} of {' '.join(finalist.settings) or AS_IT_IS}")
            if status := train(run, monitor):
                raise UserError(
                    f"{run.directory}: ended with exit status {status}; the same command goes on from there"
                )
            finalist.scores[other] = score_of(run, monitor)
    outcome.finalists = finalists
    # Test is scored once, after the choice: a choice by test would make its figures too good. The place to take may be
    # 0, the base itself.
    for place in sorted({0, outcome.place_to_take}):
        for other in seeds:
            run = finalists[place].run(out, arguments, other, is_finalist=True)
            if run.ensure_test_figures():
                words = " ".join(run.test_words)
                raise UserError(f"{run.directory}: its test split was not scored; python -m {words}")
            finalists[place].tested.append(run.test_figures())
    _write_results(config, outcome)
    for sentence in outcome.sentences():
        print(sentence)
    print(out / PAGE)
    return EXIT_DONE if best else EXIT_FAILED


def _run_trial(
    number: int, study: Study, space: Space, arguments: Sequence[str], config: TuneConfig, begin: Begin
) -> Trial:
    """Run a trial whose settings Optuna draws, or continue it; return the result of one that has ended."""
    from optuna.samplers import TPESampler
    from optuna.trial import Trial as OptunaTrial
    from optuna.trial import TrialState

    # A sampler for each trial, so that a search that was killed draws what an undisturbed one does.
    study.sampler = TPESampler(seed=config.train.seed + number, n_startup_trials=max(5, 2 * len(space)))
    # Optuna does not know trial 0, so trial N is number N - 1 of its list.
    known = study.get_trials(deepcopy=False)
    # Optuna has no public way to go on with a trial that was killed.
    drawn = study.ask() if len(known) < number else OptunaTrial(study, known[number - 1]._trial_id)
    before, monitor = study.trials[number - 1], config.train.monitor
    if not before.state.is_finished():
        for name, values in space.items():
            if isinstance(values, Range):
                drawn.suggest_float(name, values.low, values.high, log=values.is_log)
            else:
                drawn.suggest_categorical(name, values)
    # A number is rounded before training, so that the setting that is printed is the one that was trained.
    parameters = drawn.params.items()
    settings = [f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in parameters]
    trial = Trial(number, settings, score=before.value)
    run, state = trial.run(Path(config.out), arguments, config.train.seed), before.state
    begin(f"{run.directory}: {' '.join(settings)}")

    def watch(step: int, score: float) -> bool:
        """Report a score to Optuna; return whether the trial does worse than the median and should stop."""
        # Steps from before a kill are in the study already.
        if step not in before.intermediate_values:
            drawn.report(score, step)
        return drawn.should_prune()

    if not state.is_finished():
        status = train(run, monitor, watch)
        trial.score = score_of(run, monitor) if status == EXIT_DONE else None
        state = TrialState.COMPLETE if trial.score is not None else TrialState.FAIL
        if status == ENDED_BY_WATCH:
            state = TrialState.PRUNED
        study.tell(drawn, trial.score, state=state)
    trial.status = state.name.lower().replace("complete", "completed")
    return trial


def _write_results(config: TuneConfig, outcome: Outcome) -> None:
    """Write tune.json and tune.html."""
    out = Path(config.out)
    write_atomically(out / DOCUMENT, (json.dumps(outcome.document(), indent=1) + "\n").encode())
    write_page(out / PAGE, tune_page(outcome, redact_arguments(sys.argv[1:]), out))
