"""python -m app.reproduce recipe=NAME seeds=5 [key=value ...]: a recipe at several seeds beside its published figure.

Each seed is a run like any other, of app.train with the keys that are typed, in runs/NAME/seed_N; a run that is done is
not trained again, and one that was interrupted resumes, so that the same command can be repeated at any moment.
reproduce.json and reproduce.html have mean, standard deviation and 95% interval (Student's t) of the test split's and
the evaluated split's metrics of the models that are served, and whether the published figure lies inside.

Exit status: 0 all seeds done; 1 a seed failed, and the others are on the page; 2 bad input or configuration; 75
stopped: the same command continues from there.
"""

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from msgspec import Struct

from app.config.app_config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.data import DataScale
from app.config.kinds import ACCURACY, AUC, HR, LOGLOSS, MAE, METRICS, NDCG, NE, PUBLISHED, RMSE
from app.config.train import validate_new_name
from app.metrics.documents import EvaluationFigures, rest
from app.record.directory import figures_of_test, run_module, score_test_split, wait_for_orphan
from app.record.documents import DONE, MANIFEST, TEST, is_run, read_outcome
from app.report.charts import not_comparable
from app.report.compare import BESIDE, MADE_BY, differences, flat_facts, short
from app.report.page import ReportTable, render, write_page
from app.report.read import (
    NOT_MEASURED,
    UNFINISHED,
    RunFiles,
    count,
    devices,
    duration,
    figure,
    plural,
    read_run,
    refusing_other_versions,
)
from app.report.statistics import Spread, spread
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED
from common.command import redact_arguments
from common.compose import add_file_keys, compose_config
from common.config_file import quote_literally, read_overrides
from common.documents import Json, Number, OpenDocument, decode, encode, read_document
from common.errors import UserError
from common.files import digest_file, write_atomically
from common.keys import key, to_plain


@dataclass(frozen=True)
class ReproduceConfig(AppConfig):
    """Configuration of `python -m app.reproduce`: a run's, with its seeds and directory."""

    seeds: int = key(5, "number of runs, with train.seed from 1 on", at_least=1)
    out: str = key("runs/${run.name}", "directory of the runs, reproduce.json and reproduce.html", is_name=True)
    processes: int | None = key(None, "processes of each run, started by app.launch; null: one", at_least=1)


def validate_reproduce(config: ReproduceConfig) -> None:
    """Raise UserError for invalid values."""
    validate_new_run(config)
    try:
        validate_new_name(f"{Path(config.out).resolve().name}_seed_{config.seeds}")
    except UserError as error:
        fault = str(error).partition(": ")[2].partition(";")[0]
        raise UserError(
            f"out={config.out}: names the runs by its last part, and {fault}; choose a plain one"
        ) from error


FORMAT, VERSION = "clickwork-reproduction", 1
DOCUMENT, PAGE = "reproduce.json", "reproduce.html"
VERDICTS = {True: "inside", False: "outside", None: "no verdict"}
DIGEST_LENGTH = 12  # characters of a digest


class _Version(Struct):
    """Keys that say whether a document can be read."""

    format: str | None = None
    version: int | None = None


class SeedRun(OpenDocument, kw_only=True):
    """The run of one seed; None: not measured, or not known before it ended.

    status: as in summary.json; or `unfinished`, or `not begun`. error: why it failed. manifest: SHA-256 of its
    manifest.json. samples_to_target: until train.target_auc, where it was reached.
    """

    seed: int
    status: str
    error: str | None = None
    manifest: str | None = None
    steps: int | None = None
    samples: int | None = None
    samples_to_target: int | None = None
    samples_per_second: Number | None = None
    seconds: Number | None = None
    joules: Number | None = None
    rest: Json = rest()


class SeedFigure(OpenDocument, kw_only=True):
    """A metric of a split over the finished seeds.

    values: by seed; mean, std and the mean's 95% interval (Student's t) of those that are not None. published, with
    its tolerance: null: there is none. inside: whether it lies in the interval, widened by the tolerance at both ends;
    None: no verdict. Of a published AUC that is train.target_auc: whether each finished run reached it.
    """

    split: str
    metric: str
    values: dict[str, Number | None]
    mean: Number | None
    std: Number | None
    low: Number | None
    high: Number | None
    published: Number | None
    tolerance: Number | None
    inside: bool | None
    rest: Json = rest()

    @property
    def label(self) -> str:
        """Return its name for readers, such as AUC of test."""
        return f"{METRICS[self.metric].title} of {self.split}"


class PublishedSource(Struct, kw_only=True):
    """Who published a figure, on which data and hardware, as `published.*` of the recipe has it."""

    source: str | None
    data: str | None
    hardware: str | None
    md5: list[str]


class DatasetFacts(Struct, kw_only=True):
    """The dataset of the runs: digest of its manifest, encoding, rows by split, MD5 of given files."""

    digest: str | None
    encoding: str | None
    rows: dict[str, int]
    md5: list[str]


class Reproduction(OpenDocument, kw_only=True):
    """reproduce.json: a recipe at several seeds.

    arguments: of app.train, as typed; command: the whole line. Lists of None: not known yet.

    commit: of the code of the finished runs, and whether it had changes (`dirty`). seconds, joules: sums over the
    runs that ended, however they did. verdict: sentences with their kind (good, bad, plain).
    """

    format: str = FORMAT
    version: int = VERSION
    recipe: str
    command: str
    arguments: list[str]
    seeds: int
    runs: list[SeedRun]
    figures: list[SeedFigure]
    published: PublishedSource
    dataset: DatasetFacts | None
    machine: str | None
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool
    seconds: Number | None
    joules: Number | None
    verdict: list[tuple[str, str]]
    rest: Json = rest()

    @property
    def main(self) -> str:
        """Return the metric that its models are judged by."""
        return self.figures[0].metric if self.figures else AUC

    def figure_of(self, metric: str) -> SeedFigure | None:
        """Return a metric's figure that has a published one; else that of the test split, else of the evaluated one."""
        candidates = [figure for figure in self.figures if figure.metric == metric and figure.mean is not None]
        candidates.sort(key=lambda figure: (figure.published is None, figure.split != "test"))
        return candidates[0] if candidates else None


def read_reproduction(path: Path) -> Reproduction:
    """Read a reproduction's document.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it is another document, damaged, or of another version.
    """
    remedy = "make it again with python -m app.reproduce"
    try:
        header = decode(path.read_bytes(), _Version)
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); {remedy}") from error
    if header.format != FORMAT:
        raise UserError(f"{path}: is not of python -m app.reproduce (its format is {header.format}); remove it")
    if header.version != VERSION:
        raise UserError(f"{path}: of version {header.version} of its format, here {VERSION} is read; {remedy}")
    return read_document(path, Reproduction, remedy)


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
        return [f"train.seed={self.number}", f"run.name={self.name}", f"run.dir={quote_literally(str(self.directory))}"]


def seeds_of(out: Path, count: int) -> list[Seed]:
    """Return the runs with seeds 1 to `count` in `out`, named after it."""
    name = out.resolve().name
    return [Seed(seed, f"{name}_seed_{seed}", out / f"seed_{seed}") for seed in range(1, count + 1)]


def training_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for app.train, with each config=FILE replaced by its keys, as the file may change."""
    train_arguments = []
    for argument in arguments:
        key = _key_name(argument)
        if key in REFUSED:
            raise UserError(f"{argument}: not of a reproduction: {REFUSED[key]}")
        if key == "config":
            path = Path(argument.partition("=")[2].strip("\"'"))
            keys = [_key_name(override) for override in read_overrides(argument, path)]
            if others := [key for key in keys if key in REFUSED or key in OWN_KEYS]:
                why = REFUSED.get(others[0], f"type {others[0]}=… instead")
                raise UserError(f"{argument}: has {others[0]}, which is not taken from a file: {why}")
        if key not in OWN_KEYS:
            train_arguments.append(argument)
    return add_file_keys(AppConfig, CONFIG_DIR, train_arguments)


def changed_keys(arguments: Sequence[str]) -> list[str]:
    """Return every `key=value` in which app.train's arguments differ from the recipe alone, on the same data."""
    # The recipe on the user's own paths, or with a model that it is published for, is still that recipe.
    choices = {
        _key_name(argument): argument for argument in arguments if _key_name(argument) in ("recipe", "model", *PLACES)
    }
    recipe, model = (choices.get(group, "").partition("=")[2] for group in ("recipe", "model"))
    if not (CONFIG_DIR / f"bars/{recipe}_{model}.yaml").is_file():  # the recipe is published with one model
        choices.pop("model", None)
    recipe_facts, own_facts = (
        dict(flat_facts("", to_plain(compose_config(AppConfig, CONFIG_DIR, overrides))))
        for overrides in (list(choices.values()), arguments)
    )
    keys = [
        key
        for key in dict.fromkeys((*own_facts, *recipe_facts))
        if own_facts.get(key) != recipe_facts.get(key) and is_recipe_key(key)
    ]
    return [f"{key}={own_facts.get(key, 'null')}" for key in keys]


def is_recipe_key(key: str) -> bool:
    """Return whether a key may change what a recipe learns, or what is measured and published about it."""
    # This key decides whether the best or the last checkpoint is measured.
    return key == "checkpoint.keep_best" or not key.startswith(BESIDE_RECIPE)


def _key_name(argument: str) -> str:
    """Return the key of an argument such as +key=value or group@place=name."""
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
            # The process of a killed command may still be saving this run.
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


DIGITS = 5
JOULES_OF_KWH = 3.6e6


class FinishedRun(NamedTuple):
    """A finished run, with the figures of its splits by name; the evaluated split comes first."""

    seed: int
    run: RunFiles
    splits: dict[str, EvaluationFigures]


def finished_runs(seeds: Sequence[Seed]) -> list[FinishedRun]:
    """Return the finished runs in the order of their seeds."""
    runs = []
    for seed in seeds:
        if seed.status in DONE:
            run = read_run(seed.directory)
            splits = {str(run.evaluation.split): run.evaluation} if run.is_evaluated else {}
            if (tested := figures_of_test(seed.directory)) is not None:
                splits[TEST] = tested
            runs.append(FinishedRun(seed.number, run, splits))
    return runs


def summarise(
    config: ReproduceConfig,
    arguments: Sequence[str],
    seeds: Sequence[Seed],
    runs: Sequence[FinishedRun],
    failed: dict[int, int],
) -> Reproduction:
    """Return the document of a reproduction.

    arguments: app.train's. runs: finished runs of `seeds`. failed: exit status of each seed that failed this time.
    """
    published = config.published
    manifest = runs[-1].run.manifest if runs else None
    reason = why_no_verdict(config, arguments, runs)
    figures = figures_of(config, runs, is_judged=reason is None)
    records = [_seed_record(seed, failed.get(seed.number)) for seed in seeds]
    words = ["python", "-m", "app.reproduce", *redact_arguments([*_command_keys(config), *arguments])]
    dataset = manifest.dataset if manifest else None
    seconds = [run.seconds for run in records if run.seconds is not None]
    joules = [run.joules for run in records if run.joules is not None]
    commits = {run.run.manifest.commit for run in runs}
    return Reproduction(
        recipe=config.run.name,
        command=shlex.join(words),
        arguments=redact_arguments(arguments),
        seeds=len(seeds),
        runs=records,
        figures=figures,
        published=PublishedSource(
            source=published.source, data=published.data, hardware=published.hardware, md5=published.md5
        ),
        dataset=DatasetFacts(
            digest=dataset.digest,
            encoding=dataset.encoding,
            rows=dataset.rows,
            md5=dataset.source_md5 or [],
        )
        if dataset
        else None,
        machine=devices(manifest) if manifest else None,
        versions=manifest.versions if manifest else {},
        commit=commits.pop() if len(commits) == 1 else None,
        dirty=any(run.run.manifest.code and run.run.manifest.code.dirty_diff_sha256 for run in runs),
        seconds=sum(seconds) if seconds else None,
        # A sum over a part of the runs would be too low.
        joules=sum(joules) if joules and len(joules) == len(seconds) else None,
        verdict=[
            *_progress_sentences(records),
            *_difference_sentences(runs),
            *_mean_sentences(figures),
            *_verdict_sentences(config, figures, reason, runs),
            *_target_sentences(config, records),
            *_cost_sentences(seconds, joules),
        ],
    )


def _command_keys(config: ReproduceConfig) -> list[str]:
    """Return the command's own keys that are not at their defaults."""
    keys = [f"seeds={config.seeds}"]
    if config.out != f"runs/{config.run.name}":
        keys.append(f"out={config.out}")
    if config.processes is not None:
        keys.append(f"processes={config.processes}")
    return keys


def _seed_record(seed: Seed, status: int | None) -> SeedRun:
    """Return the document's entry of a seed; status: exit status if it failed this time, else None."""
    if seed.status == NOT_BEGUN:
        error = None if status is None else f"ended with exit status {status} before it began"
        return SeedRun(seed=seed.number, status=NOT_BEGUN, error=error)
    run = read_run(seed.directory)
    summary, error = run.summary, None
    if status is not None and run.status in DONE:
        error = f"its test split was not evaluated (exit status {status})"
    elif status is not None or run.status == "failed":
        error = (summary.error if summary else None) or f"ended with exit status {status}"
    power = summary.power if summary else None
    return SeedRun(
        seed=seed.number,
        status=run.status,
        error=error,
        manifest=digest_file(seed.directory / MANIFEST).sha256,
        steps=summary.steps if summary else None,
        samples=summary.samples if summary else None,
        samples_to_target=summary.samples if summary and run.status == "target_reached" else None,
        samples_per_second=run.throughput.samples_per_second,
        seconds=summary.seconds.get("total") if summary else None,
        joules=(power.joules or None) if power else None,
    )


def why_no_verdict(config: ReproduceConfig, arguments: Sequence[str], runs: Sequence[FinishedRun]) -> str | None:
    """Return why figures are not compared with the published ones; None if they are, or if none are published."""
    digests = {run.run.manifest.dataset.digest or "none" for run in runs}
    if len(digests) > 1:
        return (
            "The seeds were trained on different datasets (digests "
            f"{', '.join(sorted(digest[:DIGEST_LENGTH] for digest in digests))}), so there is no verdict."
        )
    if config.data.scale is DataScale.tiny:
        return "Of the recipe's tiny form on generated rows (data.scale=tiny), so there is no verdict."
    published = {**vars(config.published)}
    for finished in runs:
        if (reason := not_comparable(finished.run, published)) is not None:
            return f"{reason.removesuffix('.')}; the dataset is {finished.run.manifest.dataset.path}."
    differing = [key for key in _differing_keys(runs) if is_recipe_key(key) and _is_config_key(key, runs[0].run)]
    if differing:
        return f"The configurations of the seeds differ ({', '.join(differing)}), so there is no verdict."
    if recipe_changes := changed_keys(arguments):
        return f"The recipe was changed ({' '.join(recipe_changes)}), so there is no verdict on the published figure."
    return None


def figures_of(config: ReproduceConfig, runs: Sequence[FinishedRun], is_judged: bool) -> list[SeedFigure]:
    """Return the main metrics of each split, and other published ones, over the finished runs.

    is_judged: whether they are compared with the published ones; otherwise `inside` is None.
    """
    published = config.published
    evaluated = {metric: getattr(published, metric) for metric in PUBLISHED}
    predicts_numbers = any(figures.main == RMSE for run in runs for figures in run.splits.values())
    tested = {AUC: published.test_auc, LOGLOSS: published.test_logloss}
    figures = []
    for split in dict.fromkeys(name for finished in runs for name in finished.splits):
        references = evaluated if split == config.eval.split else tested
        for metric in (RMSE, MAE) if predicts_numbers else (AUC, LOGLOSS, NE, ACCURACY, HR, NDCG):
            reference = references.get(metric)
            if metric in (ACCURACY, HR, NDCG) and reference is None:
                continue
            value_of = {run.seed: run.splits[split].figure(metric) for run in runs if split in run.splits}
            values = [value for value in value_of.values() if value is not None]
            measured = spread(values) if values else None
            inside = is_inside(measured, reference, published.tolerance)
            # Such runs end at the published figure or above it, so the interval would say nothing.
            if inside is not None and is_target(config, split, metric):
                inside = not _count_misses(runs)
            figures.append(
                SeedFigure(
                    split=split,
                    metric=metric,
                    values={str(seed): value for seed, value in value_of.items()},
                    mean=measured.mean if measured else None,
                    std=measured.std if measured else None,
                    low=measured.low if measured else None,
                    high=measured.high if measured else None,
                    published=reference,
                    tolerance=None if reference is None else published.tolerance,
                    inside=inside if is_judged else None,
                )
            )
    return figures


def is_target(config: ReproduceConfig, split: str, metric: str) -> bool:
    """Return whether a figure is the published AUC at which training stops, so that runs end at or above it."""
    target = config.train.target_auc
    return (metric, split) == (AUC, config.eval.split) and target is not None and target == config.published.auc


def _count_misses(runs: Sequence[FinishedRun]) -> int:
    """Return the number of finished runs that did not reach the target of training."""
    return sum(finished.run.status != "target_reached" for finished in runs)


def is_inside(measured: Spread | None, reference: float | None, tolerance: float | None) -> bool | None:
    """Return whether a published figure is in the interval widened by the tolerance; None without one of them."""
    if measured is None or reference is None or measured.low is None or measured.high is None:
        return None
    return measured.low - (tolerance or 0.0) <= reference <= measured.high + (tolerance or 0.0)


def _progress_sentences(records: Sequence[SeedRun]) -> list[tuple[str, str]]:
    """Return sentences, with their kind, on the seeds that are done, failed or wait."""
    num_complete = sum(run.status in DONE for run in records)
    sentences = [
        ("good" if num_complete == len(records) else "bad", f"{num_complete} of {plural(len(records), 'seed')} done.")
    ]
    for run in records:
        if run.error is not None:
            rest = "" if run.status in DONE else "; the figures are of the other seeds"
            sentences.append(("bad", f"Seed {run.seed}: {run.status}, {run.error}{rest}."))
    waiting = [str(run.seed) for run in records if run.status not in DONE and run.error is None]
    if waiting:
        sentences.append(("bad", f"Not finished: seed {', '.join(waiting)}; the same command resumes there."))
    return sentences


def _differing_keys(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the keys in which runs differ, except those beside learning and speed."""
    if not runs:
        return []
    return [key for key in differences([finished.run for finished in runs])[0] if not key.startswith(BESIDE)]


def _is_config_key(key: str, run: RunFiles) -> bool:
    """Return whether a key of `differences` is of the configuration, not of what a run found or measured."""
    group = key.partition(".")[0]
    return group in run.config and group not in MADE_BY


def _difference_sentences(runs: Sequence[FinishedRun]) -> list[tuple[str, str]]:
    """Return a sentence on the keys in which the runs differ, if there are any."""
    keys = _differing_keys(runs)
    return [("bad", f"The runs were not made alike; they differ in {', '.join(keys)}.")] if keys else []


def _mean_sentences(figures: Sequence[SeedFigure]) -> list[tuple[str, str]]:
    """Return sentences on the AUC or RMSE of each split, and on published metrics of groups."""
    sentences = []
    for measured in figures:
        if measured.metric in (AUC, RMSE, HR, NDCG) and measured.mean is not None:
            interval = "no interval of one seed"
            if measured.low is not None and measured.high is not None:
                interval = f"95% interval {figure(measured.low, DIGITS)} to {figure(measured.high, DIGITS)}"
                interval += f", standard deviation {figure(measured.std, DIGITS)}"
            label = f"{METRICS[measured.metric].label} of {measured.split}"
            sentences.append(("plain", f"{label}: mean {figure(measured.mean, DIGITS)}, {interval}."))
    return sentences or [("plain", "What the models have learned was not measured.")]


def _verdict_sentences(
    config: ReproduceConfig, figures: Sequence[SeedFigure], reason: str | None, runs: Sequence[FinishedRun]
) -> list[tuple[str, str]]:
    """Return a verdict on each published figure, or why there is none; reason: of `why_no_verdict`."""
    compared = [measured for measured in figures if measured.published is not None]
    if not compared:
        name = config.published.recipe or config.run.name
        is_published = any(
            getattr(config.published, key) is not None for key in (*PUBLISHED, "test_auc", "test_logloss")
        )
        lacks = "the published figures were not measured" if is_published else "no figure is published"
        return [("plain", f"{name}: {lacks}, so there is none to hold these against.")]
    if reason is not None:
        return [("plain", reason)]
    return [
        _sentence_by_target(measured, _count_misses(runs), len(runs))
        if is_target(config, measured.split, measured.metric) and measured.inside is not None
        else _sentence_by_interval(measured)
        for measured in compared
    ]


def _sentence_by_target(measured: SeedFigure, misses: int, seeds: int) -> tuple[str, str]:
    """Return the verdict on a published figure at which training stops: whether each seed reached it."""
    target = f"the published {measured.label}, {figure(measured.published, DIGITS)}"
    if not misses:
        return "good", f"Reproduced: each of {plural(seeds, 'seed')} reached {target}, at which training stops."
    return "bad", f"Not reproduced: {misses} of {plural(seeds, 'seed')} did not reach {target}, the target of training."


def _sentence_by_interval(measured: SeedFigure) -> tuple[str, str]:
    """Return the verdict on a published figure: whether it lies in the interval of the mean over seeds."""
    label, reference = METRICS[measured.metric].title, measured.published
    assert reference is not None
    published = f"{label} of {measured.split}: published {figure(reference, DIGITS)}"
    if measured.mean is None or measured.low is None or measured.high is None:
        mean_text = "" if measured.mean is None else f", here {figure(measured.mean, DIGITS)}"
        return (
            "plain",
            f"{published}{mean_text}; an interval takes two finished seeds at least, so there is no verdict.",
        )
    low, high = figure(measured.low, DIGITS), figure(measured.high, DIGITS)
    interval = f"mean {figure(measured.mean, DIGITS)}, 95% interval {low} to {high}"
    tolerance = f", tolerance ± {measured.tolerance}" if measured.tolerance else ""
    if measured.inside:
        return "good", f"Reproduced: {published} lies inside, {interval}{tolerance}."
    is_better = (measured.mean > reference) is METRICS[measured.metric].larger_is_better
    kind, word = ("plain", "better") if is_better else ("bad", "worse")
    distance = f"the mean is {word} by {figure(abs(measured.mean - reference), DIGITS)}"
    return kind, f"Not reproduced: {published} lies outside, {interval}{tolerance}; {distance}."


def _target_sentences(config: ReproduceConfig, records: Sequence[SeedRun]) -> list[tuple[str, str]]:
    """Return sentences on samples until the AUC at which training stops."""
    target, sentences = config.train.target_auc, []
    samples = [run.samples_to_target for run in records if run.samples_to_target is not None]
    misses = sum(run.status == "completed" for run in records)
    if target is not None and samples:
        mean, _, low, high = spread(samples)
        interval = "" if low is None else f", 95% interval {count(low)} to {count(high)}"
        text = f"Samples to AUC {target}: mean {count(mean)}{interval}, of {plural(len(samples), 'seed')}."
        sentences.append(("plain", text))
    if target is not None and misses:
        sentences.append(("bad", f"{plural(misses, 'seed')} did not reach AUC {target}."))
    return sentences


def _cost_sentences(seconds: Sequence[float], joules: Sequence[float]) -> list[tuple[str, str]]:
    """Return a sentence on time and energy; joules: of the runs that measured them."""
    if not seconds:
        return []
    energy = f"{sum(joules) / JOULES_OF_KWH:.4f} kWh" if len(joules) == len(seconds) else "not measured"
    mean = duration(sum(seconds) / len(seconds))
    sentence = (
        f"Time of the runs, without the evaluations after them and the reports: {duration(sum(seconds))}, {mean} each; "
        f"energy: {energy}."
    )
    return [("plain", sentence)]


NONE = "–"


def reproduction_page(
    config: ReproduceConfig, document: Reproduction, runs: Sequence[FinishedRun], directory: Path
) -> str:
    """Return the HTML of a reproduction with files in `directory`; `runs` are its finished runs."""
    differing = differences([finished.run for finished in runs])[0] if runs else {}
    differing.pop("train.seed", None)
    return render(
        Path(__file__).with_name("reproduce.html.j2"),
        directory,
        [],
        title=f"{document.recipe} at {plural(document.seeds, 'seed')}",
        sentences=document.verdict,
        figures=_figure_table(document),
        seeds=_seed_table(document),
        source=_source_table(config, document),
        differing=ReportTable(
            ["Key", *(f"seed {finished.seed}" for finished in runs)],
            [[key, *map(short, row)] for key, row in differing.items()],
            set(),
        ),
        command=document.command,
    )


def _figure_text(value: float | None) -> str:
    """Return a figure with DIGITS digits, or NONE."""
    return NONE if value is None else figure(value, DIGITS)


def _figure_table(document: Reproduction) -> ReportTable:
    """Return the table of all metrics over seeds, beside the published ones."""
    rows = [
        [
            measured.label,
            _figure_text(measured.mean),
            _figure_text(measured.std),
            NONE if measured.low is None else f"{figure(measured.low, DIGITS)} to {figure(measured.high, DIGITS)}",
            _figure_text(measured.published),
            NONE if measured.tolerance is None else f"± {measured.tolerance}",
            "none published" if measured.published is None else VERDICTS[measured.inside],
        ]
        for measured in document.figures
    ]
    columns = ["Figure", "Mean", "Standard deviation", "95% interval of the mean", "Published", "Tolerance", "Verdict"]
    note = (
        "Of the model that each run serves, over the finished seeds; the interval by Student's t. Inside: the "
        "published figure lies in the interval, widened by the tolerance at both ends; or, where it is the target of "
        "training, each run reached it."
    )
    return ReportTable(columns, rows, {1, 2, 3, 4, 5}, note)


def _seed_table(document: Reproduction) -> ReportTable:
    """Return the table of the seeds' runs, with their metrics, time and energy."""
    figures = [measured for measured in document.figures if measured.metric in (AUC, LOGLOSS, RMSE, MAE, HR, NDCG)]
    rows = [
        [
            str(run.seed),
            run.status,
            *(_figure_text(measured.values.get(str(run.seed))) for measured in figures),
            count(run.steps),
            NONE if run.samples_to_target is None else count(run.samples_to_target),
            count(run.samples_per_second),
            duration(run.seconds),
            NOT_MEASURED if run.joules is None else f"{run.joules:,.0f} J",
            run.error or NONE,
        ]
        for run in document.runs
    ]
    columns = [
        "Seed",
        "Status",
        *(measured.label for measured in figures),
        "Steps",
        "Samples to target",
        "Samples/s, global",
        "Time",
    ]
    columns += ["Energy", "Remark"]
    note = "Each run has a report of its own: seed_N/report.html."
    return ReportTable(columns, rows, set(range(2, len(columns) - 1)), note)


def _source_table(config: ReproduceConfig, document: Reproduction) -> ReportTable:
    """Compare data, hardware and speed of the source with those of these runs."""
    published, source, data = config.published, document.published, document.dataset
    rows = ", ".join(f"{name} {value:,}" for name, value in (data.rows if data else {}).items())
    rates = [run.samples_per_second for run in document.runs if run.samples_per_second is not None]
    md5s = [", ".join(f"{md5[:DIGEST_LENGTH]}…" for md5 in facts.md5) if facts else "" for facts in (source, data)]
    about_data = f"digest {(data.digest or 'none')[:DIGEST_LENGTH]}…, {data.encoding or 'own'}" if data else ""
    versions = " ".join(f"{name} {version}" for name, version in document.versions.items() if version)
    commit = (document.commit or "more than one commit, or none") + (" with changes" if document.dirty else "")
    entries: list[tuple[str, object, object]] = [
        ("Source", source.source or "none", "these runs"),
        ("Data", source.data, about_data),
        ("Training rows", published.train_rows and count(published.train_rows), rows),
        ("MD5 of the files", md5s[0], md5s[1] or "no files given by split"),
        ("Hardware", source.hardware, document.machine),
        ("Versions", None, versions),
        ("Code", None, commit),
        (
            "Samples/s, global",
            published.samples_per_second and count(published.samples_per_second),
            rates and f"{count(sum(rates) / len(rates))} (mean)",
        ),
    ]
    cells = [[str(name), str(there or "not said"), str(here or NOT_MEASURED)] for name, there, here in entries]
    return ReportTable(["", "The source", "Here"], cells, set())


EXIT_FAILED = 1
LOCK = ".reproduce.lock"


def main(config: ReproduceConfig) -> int:
    """Train unfinished runs, write the page, and return the exit status."""
    logging.basicConfig(format="%(message)s")
    arguments, out = training_arguments(sys.argv[1:]), Path(config.out)
    _require_same_arguments(out, arguments)
    seeds = seeds_of(out, config.seeds)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / LOCK, blocking=False):
            return _reproduce(config, arguments, seeds, out)
    except Timeout as error:
        raise UserError(
            f"out={out}: another process makes runs there; wait for its end, or give another out"
        ) from error


def _require_same_arguments(out: Path, arguments: Sequence[str]) -> None:
    """Raise UserError if the directory has runs with other arguments."""
    try:
        former = read_reproduction(out / DOCUMENT).arguments
    except FileNotFoundError:
        return
    if sorted(former) != sorted(redact_arguments(arguments)):
        words = " ".join(former) or "no further keys"
        raise UserError(f"out={out}: its runs were made with {words}; type these, or give another out")


def _reproduce(config: ReproduceConfig, arguments: Sequence[str], seeds: Sequence[Seed], out: Path) -> int:
    """Train the seeds, write the page, print the verdict, and return the exit status."""
    # Written before the runs, so that a resuming command can compare its arguments.
    _write_document(config, arguments, seeds, {}, out)
    failed = run_seeds(seeds, arguments, config.processes)
    # After a refused first run nothing is left, so that the corrected command is not refused for its other keys.
    if EXIT_BAD_INPUT in failed.values() and not have_begun(seeds):
        for name in (DOCUMENT, PAGE):
            (out / name).unlink(missing_ok=True)
        return EXIT_BAD_INPUT
    is_stopped = EXIT_STOPPED in failed.values()
    failed = {seed: status for seed, status in failed.items() if status != EXIT_STOPPED}
    for _, sentence in _write_document(config, arguments, seeds, failed, out).verdict:
        print(sentence)
    print(out / PAGE)
    if is_stopped:
        return EXIT_STOPPED
    return EXIT_FAILED if failed else EXIT_DONE


def _write_document(
    config: ReproduceConfig, arguments: Sequence[str], seeds: Sequence[Seed], failed: dict[int, int], out: Path
) -> Reproduction:
    """Write document and page from the runs on disk, and return the document."""
    with refusing_other_versions(f"[{','.join(str(seed.directory) for seed in seeds if seed.status in DONE)}]"):
        runs = finished_runs(seeds)
        document = summarise(config, arguments, seeds, runs, failed)
        page = reproduction_page(config, document, runs, out)
    write_atomically(out / DOCUMENT, (encode(document, indent=1) + "\n").encode())
    write_page(out / PAGE, page)
    return document
