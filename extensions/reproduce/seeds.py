"""Runs of a reproduction, started one after another as processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from app.config import CONFIG_DIR, AppConfig
from app.record.children import run_module, score_test_split, wait_for_orphan
from app.record.documents import DONE
from app.record.reading import is_run, read_outcome
from app.report.compare import flat_facts
from app.report.read import UNFINISHED
from common.cli import EXIT_DONE, EXIT_STOPPED
from common.compose import compose_config, with_files
from common.config_file import literal, read_overrides
from common.errors import UserError
from common.keys import to_plain

OWN_KEYS = ("seeds", "out", "processes")
# Keys of a run that are refused, with what to type instead.
REFUSED = {
    "train.seed": "each run has its own, from 1 to seeds=N",
    "run.name": "the runs are named by their seeds; out=DIR says where they are",
    "run.dir": "out=DIR says where the runs are",
    "checkpoint.resume": "each run resumes by itself; give another out=DIR for new ones",
    "checkpoint.overwrite": "nothing is overwritten; give another out=DIR for new runs",
}
PLACES = ("data.path", "data.raw", "data.train", "data.val", "data.test")  # paths of the data
# Keys that leave a run the recipe's: places, records, machine, intervals of saving and logging.
BESIDE_RECIPE = (
    "run.",
    "record.",
    "checkpoint.",
    "environment.",
    "mlperf.",
    "baselines",
    *PLACES,
    "data.remote.",
    "data.generator_settings",
    "runtime.platform",
    "runtime.num_threads",
    "runtime.timeout_minutes",
    "train.log",
    "train.print",
    "train.warmup_steps_excluded",
    "train.max_minutes",
    "eval.keep_scores",
)
NOT_BEGUN = "not begun"


class Seed(NamedTuple):
    """One run of a reproduction: its seed, and its directory."""

    number: int
    name: str
    directory: Path

    @property
    def status(self) -> str:
        """Return the status in its summary; `unfinished` without one, `not begun` without a manifest."""
        outcome = read_outcome(self.directory)
        if outcome is not None:
            return outcome.status
        return UNFINISHED if is_run(self.directory) else NOT_BEGUN

    @property
    def overrides(self) -> list[str]:
        """Return the keys that make the recipe this run."""
        return [f"train.seed={self.number}", f"run.name={self.name}", f"run.dir={literal(str(self.directory))}"]


def seeds_of(out: Path, count: int) -> list[Seed]:
    """Return the runs with seeds 1 to `count` in `out`, named after it."""
    name = out.resolve().name
    return [Seed(seed, f"{name}_seed_{seed}", out / f"seed_{seed}") for seed in range(1, count + 1)]


def training_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for app.train, with each config=FILE replaced by its keys, as the file may change."""
    train_arguments = []
    for argument in arguments:
        key = _key(argument)
        if key in REFUSED:
            raise UserError(f"{argument}: not of a reproduction: {REFUSED[key]}")
        if key == "config":
            path = Path(argument.partition("=")[2].strip("\"'"))
            keys = [_key(override) for override in read_overrides(argument, path)]
            if others := [key for key in keys if key in REFUSED or key in OWN_KEYS]:
                why = REFUSED.get(others[0], f"type {others[0]}=… instead")
                raise UserError(f"{argument}: has {others[0]}, which is not taken from a file: {why}")
        if key not in OWN_KEYS:
            train_arguments.append(argument)
    return with_files(AppConfig, CONFIG_DIR, train_arguments)


def changed_keys(arguments: Sequence[str]) -> list[str]:
    """Return every `key=value` in which app.train's arguments differ from the recipe alone, on the same data."""
    choices = {_key(each): each for each in arguments if _key(each) in ("recipe", "model", *PLACES)}
    recipe, model = (choices.get(group, "").partition("=")[2] for group in ("recipe", "model"))
    if not (CONFIG_DIR / f"bars/{recipe}_{model}.yaml").is_file():  # the recipe is published with one model
        choices.pop("model", None)
    of_recipe, in_force = (
        dict(flat_facts("", to_plain(compose_config(AppConfig, CONFIG_DIR, overrides))))
        for overrides in (list(choices.values()), arguments)
    )
    keys = [
        key
        for key in dict.fromkeys((*in_force, *of_recipe))
        if in_force.get(key) != of_recipe.get(key) and is_of_recipe(key)
    ]
    return [f"{key}={in_force.get(key, 'null')}" for key in keys]


def is_of_recipe(key: str) -> bool:
    """Return whether a key may change what a recipe learns, or what is measured and published about it."""
    return key == "checkpoint.keep_best" or not key.startswith(BESIDE_RECIPE)


def _key(argument: str) -> str:
    return argument.lstrip("+~").partition("=")[0].partition("@")[0]


def run_seeds(seeds: Sequence[Seed], arguments: Sequence[str], processes: int | None) -> dict[int, int]:
    """Train unfinished runs, and score each run's test split; return the exit status of each failed seed.

    Stops at EXIT_STOPPED, and if the first run does not begin.

    Raises:
        Interrupted: a signal came, and the run could not save.
    """
    failed: dict[int, int] = {}
    launcher = ["app.launch", "--nproc-per-node", str(processes), "-m"] if processes else []
    for seed in seeds:
        print(f"seed {seed.number} of {len(seeds)}: {seed.directory}", flush=True)
        status = EXIT_DONE
        if seed.status not in DONE:
            wait_for_orphan(seed.directory)
            status = run_module([*launcher, "app.train", *arguments, *seed.overrides])
        if not status:
            status = score_test_split(seed.directory, launcher)
        if status:
            failed[seed.number] = status
        if status == EXIT_STOPPED or (status and not have_begun(seeds)):
            break
    return failed


def have_begun(seeds: Sequence[Seed]) -> bool:
    """Return whether a run has begun; if none has, the cause that stopped the first stops all."""
    return any(seed.status != NOT_BEGUN for seed in seeds)
