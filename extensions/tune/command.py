"""python -m app.tune search.KEY=VALUES … [trials=20] [key=value …]: search settings on val, and say which to take.

    python -m app.tune data.path=data/mine 'search.optimizer.lr=[1e-3,1e-1]' 'search.model.interaction=[dot,dcn]'

VALUES is a list of values, or [low,high] with a fraction or an exponent for all numbers between. Each trial is a run
of app.train in out/trial_N, judged by train.monitor on val; Optuna draws the settings and stops trials that do worse
than the median of others after as many steps. The best are trained again at other seeds, beside the configuration as
it is, and a paired test over these seeds says which to take; only then is test scored. The same command continues a
search that was stopped or killed, and more trials can be asked for later.

Exit status: 0 done; 1 no trial came to an end; 2 bad input or configuration; 75 stopped: the same command continues.
"""

import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from app.config import CONFIG_DIR, AppConfig, validate_new_run
from app.report.page import write_page
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED
from common.compose import compose_config, with_files
from common.errors import UserError
from common.files import write_atomically
from common.redact import redact_arguments
from extensions.tune.keys import TuneConfig
from extensions.tune.outcome import Finalist, Outcome, Tried
from extensions.tune.page import tune_page
from extensions.tune.runs import STOPPED_BY_WATCH, SearchStopped, TuneRun, test_figures, train
from extensions.tune.space import Space, draw, ends, overrides_of, space_of

if TYPE_CHECKING:
    from optuna.study import Study

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
    for overrides in ends(space):
        validate_new_run(compose_config(AppConfig, CONFIG_DIR, [*arguments, *overrides]))
    study = open_study(out, arguments, space)
    try:
        with FileLock(out / LOCK, blocking=False):
            return _tune(config, arguments, space, study)
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
    own = [argument for name, argument in zip(names, arguments, strict=True) if name.split(".")[0] not in OWN_KEYS]
    return with_files(AppConfig, CONFIG_DIR, own)


def open_study(out: Path, arguments: Sequence[str], space: Space) -> "Study":
    """Open or create the search's database."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError("optuna is not installed; pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
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


def _tune(config: TuneConfig, arguments: Sequence[str], space: Space, study: "Study") -> int:
    out, monitor, seed = Path(config.out), config.train.monitor, config.train.seed
    base = TuneRun(0, seed, [], out / "trial_0")
    progress = Progress(config.trials + (1 + config.finalists) * config.seeds)
    progress.begin(f"{base.directory}: the configuration as it is")
    status = train(base, arguments, monitor)
    if status:
        return status if status in (EXIT_BAD_INPUT, EXIT_STOPPED) else EXIT_FAILED
    tried = [Tried(base, "completed", base.score(monitor))]
    _write(config, Outcome(tried, [], monitor))
    for number in range(1, config.trials):
        tried.append(_try(number, study, space, arguments, config, progress))
        _write(config, Outcome(tried, [], monitor))
    best = sorted((each for each in tried[1:] if each.is_ranked), key=lambda each: -(each.score or 0.0))
    finalists = [_finalist(each.run, arguments, config, progress) for each in [tried[0], *best[: config.finalists]]]
    outcome = Outcome(tried, finalists, monitor)
    for finalist in {0: finalists[0], outcome.taken: finalists[outcome.taken]}.values():
        finalist.tested += [test_figures(run) for run in finalist.runs]
    _write(config, outcome)
    for sentence in outcome.sentences():
        print(sentence)
    print(out / PAGE)
    return EXIT_DONE if best else EXIT_FAILED


class Progress:
    """Prints a line as each run begins: its number, and the time that all others may still take."""

    def __init__(self, total: int) -> None:
        self._total, self._begun, self._start = total, 0, time.monotonic()

    def begin(self, words: str) -> None:
        """Print the line of the next run."""
        seconds = (time.monotonic() - self._start) / max(1, self._begun) * (self._total - self._begun)
        about = f", about {seconds:.0f} s to go" if self._begun else ""
        self._begun += 1
        print(f"{self._begun} of {self._total}{about}: {words}", flush=True)


def _try(
    number: int, study: "Study", space: Space, arguments: Sequence[str], config: TuneConfig, progress: Progress
) -> Tried:
    """Run a trial of Optuna's, or return what became of it."""
    from optuna.samplers import TPESampler
    from optuna.trial import Trial, TrialState

    # A sampler for each trial, so that a search that was killed draws what an undisturbed one does.
    study.sampler = TPESampler(seed=config.train.seed + number, n_startup_trials=max(5, 2 * len(space)))
    known = study.get_trials(deepcopy=False)
    # Optuna has no public way to go on with a trial that was killed.
    trial = study.ask() if len(known) < number else Trial(study, known[number - 1]._trial_id)
    state = study.trials[number - 1].state
    if not state.is_finished():
        draw(trial, space)
    run = TuneRun(number, config.train.seed, overrides_of(trial.params), Path(config.out) / f"trial_{number}")
    progress.begin(f"{run.directory}: {' '.join(run.settings)}")
    if state.is_finished():
        return Tried(run, state.name.lower().replace("complete", "completed"), study.trials[number - 1].value)
    reported = study.trials[number - 1].intermediate_values  # before a kill

    def watch(step: int, score: float) -> bool:
        if step not in reported:
            trial.report(score, step)
        return trial.should_prune()

    status = train(run, arguments, config.train.monitor, watch)
    score = run.score(config.train.monitor) if status == EXIT_DONE else None
    state = TrialState.COMPLETE if score is not None else TrialState.FAIL
    if status == STOPPED_BY_WATCH:
        state = TrialState.PRUNED
    study.tell(trial, score, state=state)
    return Tried(run, state.name.lower().replace("complete", "completed"), score)


def _finalist(run: TuneRun, arguments: Sequence[str], config: TuneConfig, progress: Progress) -> Finalist:
    """Train a finalist's settings at other seeds than the one that the trials were chosen by."""
    runs = []
    for seed in range(config.train.seed + 1, config.train.seed + 1 + config.seeds):
        other = run._replace(seed=seed, directory=run.directory.with_name(f"{run.directory.name}_seed_{seed}"))
        progress.begin(f"{other.directory}: seed {seed} of {' '.join(run.settings) or 'the configuration as it is'}")
        if status := train(other, arguments, config.train.monitor):
            raise UserError(f"{other.directory}: ended with exit status {status}; the same command goes on from there")
        runs.append(other)
    return Finalist(run.trial, run.settings, runs, [each.score(config.train.monitor) for each in runs])


def _write(config: TuneConfig, outcome: Outcome) -> None:
    out = Path(config.out)
    write_atomically(out / DOCUMENT, (json.dumps(outcome.document(), indent=1) + "\n").encode())
    write_page(out / PAGE, tune_page(outcome, redact_arguments(sys.argv[1:]), out))
