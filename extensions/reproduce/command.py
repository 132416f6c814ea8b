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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from app.config.app_config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.kinds import ACCURACY, AUC, HR, LOGLOSS, MAE, METRICS, NDCG, NE, PUBLISHED, RMSE
from app.config.train import validate_new_name
from app.metrics.documents import EvaluationFigures
from app.record.directory import NOT_BEGUN, ChildRun
from app.record.documents import DONE, MANIFEST, TEST
from app.report.charts import not_comparable
from app.report.compare import BESIDE, MADE_BY, differences, flat_facts
from app.report.page import ReportTable, render, write_page
from app.report.read import (
    NOT_MEASURED,
    RunFiles,
    count,
    devices,
    duration,
    figure,
    plural,
    read_run,
    refusing_other_versions,
)
from app.report.statistics import spread
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED
from common.command import redact_arguments
from common.compose import add_file_keys, compose_config
from common.documents import Json, Number, OpenDocument, encode, plain, read_document
from common.errors import UserError
from common.files import digest_file, write_atomically
from common.keys import key


@dataclass(frozen=True)
class ReproduceConfig(AppConfig):
    """Configuration of `python -m app.reproduce`: a run's, with its seeds and directory."""

    seeds: int = key(5, "number of runs, with train.seed from 1 on", at_least=1)
    out: str = key("runs/${run.name}", "directory of the runs, reproduce.json and reproduce.html", is_name=True)
    processes: int | None = key(None, "processes of each run, started by app.launch; null: one", at_least=1)


def validate_reproduce(config: ReproduceConfig) -> None:
    """Raise UserError for invalid values of a run, and for an `out` whose last part cannot begin the runs' names."""
    validate_new_run(config)
    try:
        validate_new_name(f"{Path(config.out).resolve().name}_seed_{config.seeds}")
    except UserError as error:
        # A message is `key: fault; remedy`, and its key, run.name, is not one that the user gave.
        fault = str(error).partition(": ")[2].partition(";")[0]
        raise UserError(
            f"out={config.out}: names the runs by its last part, and {fault}; choose a plain one"
        ) from error


FORMAT, VERSION = "clickwork-reproduction", 1
DOCUMENT, PAGE = "reproduce.json", "reproduce.html"


class Reproduction(OpenDocument, kw_only=True):
    """reproduce.json: a recipe at several seeds; None: not measured, or not known yet.

    arguments: of app.train, as typed; command: the whole line. runs: of each seed, its status, as in summary.json, or
    `unfinished`, or `not begun`; why it failed (`error`); SHA-256 of its manifest.json; its steps, samples, rate, time
    and energy; `samples_to_target`, where train.target_auc was reached. figures: metrics of each split over the
    finished seeds: `values` by seed; `mean`, `std` and the mean's 95% interval (Student's t) from `low` to `high`;
    `published` with its `tolerance`; `inside`: whether it lies in the interval, widened by the tolerance at both ends,
    None: no verdict; of a published AUC that is train.target_auc: whether each finished run reached it. published:
    source, data, hardware and MD5 sums of the figures published. dataset: digest of its manifest, encoding, rows by
    split, MD5 of given files. commit: of the code of the finished runs, and whether it had changes (`dirty`). seconds,
    joules: sums over the runs that ended, however they did. verdict: sentences with their kind (good, bad, plain).
    """

    format: str = FORMAT
    version: int = VERSION
    recipe: str
    command: str
    arguments: list[str]
    seeds: int
    runs: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    published: Json
    dataset: Json | None
    machine: str | None
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool
    seconds: Number | None
    joules: Number | None
    verdict: list[tuple[str, str]]


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
    *("run.", "record.", "checkpoint.", "environment.", "mlperf.", "baselines", *PLACES, "data.remote."),
    *("data.generator_settings", "runtime.platform", "runtime.num_threads", "runtime.timeout_minutes", "train.log"),
    *("train.print", "train.warmup_steps_excluded", "train.max_minutes", "eval.keep_scores"),
)


def seeds_of(out: Path, count: int, arguments: Sequence[str] = (), processes: int | None = None) -> dict[int, ChildRun]:
    """Return the runs with seeds 1 to `count` in `out`, named after it.

    arguments: app.train's. processes: of each run; None: one without a launcher.
    """
    name = out.resolve().name
    launcher = ["app.launch", "--nproc-per-node", str(processes), "-m"] if processes else []
    return {
        seed: ChildRun(
            out / f"seed_{seed}", [*arguments, f"train.seed={seed}", f"run.name={name}_seed_{seed}"], launcher
        )
        for seed in range(1, count + 1)
    }


def training_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for app.train, with each config=FILE replaced by its keys, as the file may change."""
    kept = [argument for argument in arguments if _key_name(argument) not in OWN_KEYS]
    expanded = add_file_keys(AppConfig, CONFIG_DIR, kept)
    for argument in expanded:
        if (key := _key_name(argument)) in REFUSED:
            raise UserError(f"{argument}: not of a reproduction: {REFUSED[key]}")
    return expanded


def changed_keys(arguments: Sequence[str]) -> list[str]:
    """Return every `key=value` in which app.train's arguments differ from the recipe alone, on the same data."""
    # The recipe on the user's own paths, or with a model that it is published for, is still that recipe.
    choices = {_key_name(argument): argument for argument in arguments}
    choices = {name: choices[name] for name in choices if name in ("recipe", "model", *PLACES)}
    recipe, model = (choices.get(group, "").partition("=")[2] for group in ("recipe", "model"))
    if not (CONFIG_DIR / f"bars/{recipe}_{model}.yaml").is_file():  # the recipe is published with one model
        choices.pop("model", None)
    recipe_facts, own_facts = (
        flat_facts(plain(compose_config(AppConfig, CONFIG_DIR, overrides)))
        for overrides in (list(choices.values()), arguments)
    )
    keys = dict.fromkeys((*own_facts, *recipe_facts))
    changed = [key for key in keys if own_facts.get(key) != recipe_facts.get(key) and is_recipe_key(key)]
    return [f"{key}={own_facts.get(key, 'null')}" for key in changed]


def is_recipe_key(key: str) -> bool:
    """Return whether a key may change what a recipe learns, or what is measured and published about it."""
    # This key decides whether the best or the last checkpoint is measured.
    return key == "checkpoint.keep_best" or not key.startswith(BESIDE_RECIPE)


def _key_name(argument: str) -> str:
    """Return the key of an argument such as +key=value, or the group of group@place=name."""
    return argument.lstrip("+~").partition("=")[0].partition("@")[0]


def run_seeds(seeds: dict[int, ChildRun]) -> dict[int, int]:
    """Train unfinished runs, and score each run's test split; return the exit status of each failed seed.

    Stops at EXIT_STOPPED, and if the first run does not begin. Raise Interrupted for a signal after which a run could
    not save.
    """
    failed: dict[int, int] = {}
    for seed, child in seeds.items():
        print(f"seed {seed} of {len(seeds)}: {child.directory}", flush=True)
        if status := child.ensure() or child.ensure_test_figures():
            failed[seed] = status
        # If none has begun, the cause that stopped the first stops all.
        if status == EXIT_STOPPED or (status and all(other.status == NOT_BEGUN for other in seeds.values())):
            break
    return failed


DIGITS = 5

# A finished run, with the figures of its splits by name; the evaluated split comes first.
Finished: TypeAlias = tuple[RunFiles, dict[str, EvaluationFigures]]


def finished_runs(seeds: dict[int, ChildRun]) -> dict[int, Finished]:
    """Return the finished runs by their seeds."""
    runs = {}
    for seed, child in seeds.items():
        if child.status in DONE:
            run = read_run(child.directory)
            splits = {str(run.evaluation.split): run.evaluation} if run.is_evaluated else {}
            if (tested := child.test_figures()) is not None:
                splits[TEST] = tested
            runs[seed] = run, splits
    return runs


def summarise(
    config: ReproduceConfig, arguments: Sequence[str], seeds: dict[int, ChildRun], failed: dict[int, int]
) -> Reproduction:
    """Return the document of a reproduction.

    arguments: app.train's. failed: exit status of each seed that failed this time.
    """
    published, finished = config.published, finished_runs(seeds)
    runs = [run for run, _ in finished.values()]
    manifest = runs[-1].manifest if runs else None
    reason = why_no_verdict(config, arguments, runs)
    figures = list(figures_of(config, finished, is_judged=reason is None))
    records = [_seed_record(seed, child, failed.get(seed)) for seed, child in seeds.items()]
    own_keys = [f"seeds={config.seeds}"]
    own_keys += [f"out={config.out}"] if config.out != f"runs/{config.run.name}" else []
    own_keys += [f"processes={config.processes}"] if config.processes is not None else []
    facts: Json | None = None
    if manifest is not None:
        dataset = manifest.dataset
        facts = {"digest": dataset.digest, "encoding": dataset.encoding, "rows": dataset.rows}
        facts["md5"] = dataset.source_md5 or []
    seconds = [record["seconds"] for record in records if record["seconds"] is not None]
    joules = [record["joules"] for record in records if record["joules"] is not None]
    commits = {run.manifest.commit for run in runs}
    return Reproduction(
        recipe=config.run.name,
        command=shlex.join(["python", "-m", "app.reproduce", *redact_arguments([*own_keys, *arguments])]),
        arguments=redact_arguments(arguments),
        seeds=len(seeds),
        runs=records,
        figures=figures,
        published={name: getattr(published, name) for name in ("source", "data", "hardware", "md5")},
        dataset=facts,
        machine=devices(manifest) if manifest else None,
        versions=manifest.versions if manifest else {},
        commit=commits.pop() if len(commits) == 1 else None,
        dirty=any(run.manifest.code.get("dirty_diff_sha256") for run in runs),
        seconds=sum(seconds) if seconds else None,
        # A sum over a part of the runs would be too low.
        joules=sum(joules) if joules and len(joules) == len(seconds) else None,
        verdict=[
            *_progress_sentences(config, records, runs, seconds, joules),
            *_figure_sentences(config, figures, reason, runs),
        ],
    )


def _seed_record(seed: int, child: ChildRun, status: int | None) -> dict[str, Any]:
    """Return the document's entry of a seed; status: exit status if it failed this time, else None.

    The run's own record tells the rest, also of a failure in an earlier call.
    """
    record: dict[str, Any] = dict.fromkeys(
        ("error", "manifest", "steps", "samples", "samples_to_target", "samples_per_second", "seconds", "joules")
    )
    record = {"seed": seed, "status": child.status, **record}
    if child.status == NOT_BEGUN:
        error = None if status is None else f"ended with exit status {status} before it began"
        return record | {"error": error}
    run = read_run(child.directory)
    record |= {"manifest": digest_file(child.directory / MANIFEST).sha256, "samples_per_second": run.rate}
    summary = run.summary
    if status is not None and run.status in DONE:
        record["error"] = f"its test split was not evaluated (exit status {status})"
    elif status is not None or run.status == "failed":
        record["error"] = (summary.error if summary else None) or f"ended with exit status {status}"
    if summary is not None:
        record |= {"steps": summary.steps, "samples": summary.samples, "seconds": summary.seconds.get("total")}
        record["samples_to_target"] = summary.samples if run.status == "target_reached" else None
        record["joules"] = summary.power and (float(summary.power["joules"] or 0) or None)
    return record


def why_no_verdict(config: ReproduceConfig, arguments: Sequence[str], runs: Sequence[RunFiles]) -> str | None:
    """Return why figures are not compared with the published ones; None if they are, or if none are published."""
    digests = {run.manifest.dataset.digest or "none" for run in runs}
    if len(digests) > 1:
        names = ", ".join(sorted(digest[:12] for digest in digests))
        return f"The seeds were trained on different datasets (digests {names}), so there is no verdict."
    if config.data.scale == "tiny":
        return "Of the recipe's tiny form on generated rows (data.scale=tiny), so there is no verdict."
    published = {**vars(config.published)}
    for run in runs:
        if (reason := not_comparable(run, published)) is not None:
            return f"{reason.removesuffix('.')}; the dataset is {run.manifest.dataset.path}."
    groups = runs[0].config.keys() - {*MADE_BY} if runs else set()
    differing = [key for key in _differing_keys(runs) if is_recipe_key(key) and key.partition(".")[0] in groups]
    if differing:
        return f"The configurations of the seeds differ ({', '.join(differing)}), so there is no verdict."
    if recipe_changes := changed_keys(arguments):
        return f"The recipe was changed ({' '.join(recipe_changes)}), so there is no verdict on the published figure."
    return None


def figures_of(config: ReproduceConfig, runs: dict[int, Finished], is_judged: bool) -> Iterator[dict[str, Any]]:
    """Yield the main metrics of each split, and other published ones, over the finished runs.

    is_judged: whether they are compared with the published ones; otherwise `inside` is None.
    """
    published, splits_of = config.published, {seed: splits for seed, (_, splits) in runs.items()}
    evaluated = {metric: getattr(published, metric) for metric in PUBLISHED}
    predicts_numbers = any(figures.main == RMSE for splits in splits_of.values() for figures in splits.values())
    tested = {AUC: published.test_auc, LOGLOSS: published.test_logloss}
    for split in dict.fromkeys(name for splits in splits_of.values() for name in splits):
        references = evaluated if split == config.eval.split else tested
        for metric in (RMSE, MAE) if predicts_numbers else (AUC, LOGLOSS, NE, ACCURACY, HR, NDCG):
            reference = references.get(metric)
            if metric in (ACCURACY, HR, NDCG) and reference is None:
                continue
            value_of = {
                str(seed): splits[split].figure(metric) for seed, splits in splits_of.items() if split in splits
            }
            values = [value for value in value_of.values() if value is not None]
            mean, std, low, high = spread(values) if values else (None, None, None, None)
            inside = None
            if is_judged and low is not None and high is not None and reference is not None:
                margin = published.tolerance or 0.0
                inside = low - margin <= reference <= high + margin
                # Such runs end at the published figure or above it, so the interval would say nothing.
                if is_target(config, split, metric):
                    inside = not _count_misses([run for run, _ in runs.values()])
            tolerance = None if reference is None else published.tolerance
            yield {"split": split, "metric": metric, "values": value_of, "mean": mean, "std": std} | {
                "low": low,
                "high": high,
                "published": reference,
                "tolerance": tolerance,
                "inside": inside,
            }


def is_target(config: ReproduceConfig, split: str, metric: str) -> bool:
    """Return whether a figure is the published AUC at which training stops, so that runs end at or above it."""
    target = config.train.target_auc
    return (metric, split) == (AUC, config.eval.split) and target is not None and target == config.published.auc


def _count_misses(runs: Sequence[RunFiles]) -> int:
    """Return how many of these finished runs did not reach train.target_auc."""
    return sum(run.status != "target_reached" for run in runs)


def _progress_sentences(
    config: ReproduceConfig,
    records: Sequence[dict[str, Any]],
    runs: Sequence[RunFiles],
    seconds: Sequence[float],
    joules: Sequence[float],
) -> Iterator[tuple[str, str]]:
    """Yield sentences, with their kind: which seeds are done, how the runs differ, samples to the target, and cost."""
    num_complete = sum(record["status"] in DONE for record in records)
    yield "good" if num_complete == len(records) else "bad", f"{num_complete} of {plural(len(records), 'seed')} done."
    waiting = []
    for record in records:
        seed, status, error = record["seed"], record["status"], record["error"]
        if error is not None:
            rest = "" if status in DONE else "; the figures are of the other seeds"
            yield "bad", f"Seed {seed}: {status}, {error}{rest}."
        elif status not in DONE:
            waiting.append(str(seed))
    if waiting:
        yield "bad", f"Not finished: seed {', '.join(waiting)}; the same command resumes there."
    if keys := _differing_keys(runs):
        yield "bad", f"The runs were not made alike; they differ in {', '.join(keys)}."
    if (target := config.train.target_auc) is not None:
        if samples := [count for record in records if (count := record["samples_to_target"]) is not None]:
            mean, _, low, high = spread(samples)
            interval = "" if low is None else f", 95% interval {count(low)} to {count(high)}"
            yield "plain", f"Samples to AUC {target}: mean {count(mean)}{interval}, of {plural(len(samples), 'seed')}."
        if misses := sum(record["status"] == "completed" for record in records):
            yield "bad", f"{plural(misses, 'seed')} did not reach AUC {target}."
    if seconds:
        energy = f"{sum(joules) / 3.6e6:.4f} kWh" if len(joules) == len(seconds) else "not measured"
        times = f"{duration(sum(seconds))}, {duration(sum(seconds) / len(seconds))} each"
        yield "plain", f"Time of the runs, without later evaluations and the reports: {times}; energy: {energy}."


def _figure_sentences(
    config: ReproduceConfig, figures: Sequence[dict[str, Any]], reason: str | None, runs: Sequence[RunFiles]
) -> Iterator[tuple[str, str]]:
    """Yield the main metrics' means, and a verdict on each published figure, or the reason why there is none."""
    for measured in figures:
        if measured["metric"] in (AUC, RMSE, HR, NDCG) and measured["mean"] is not None:
            interval = "no interval of one seed"
            if measured["low"] is not None:
                interval = f"{_interval_text(measured)}, standard deviation {figure(measured['std'], DIGITS)}"
            label = f"{METRICS[measured['metric']].label} of {measured['split']}"
            yield "plain", f"{label}: mean {figure(measured['mean'], DIGITS)}, {interval}."
    compared = [measured for measured in figures if measured["published"] is not None]
    if not compared:
        keys = (*PUBLISHED, "test_auc", "test_logloss")
        is_published = any(getattr(config.published, key) is not None for key in keys)
        lacks = "the published figures were not measured" if is_published else "no figure is published"
        yield "plain", f"{config.published.recipe or config.run.name}: {lacks}, so there is none to hold these against."
        return
    if reason is not None:
        yield "plain", reason
        return
    for measured in compared:
        label, reference = f"{METRICS[measured['metric']].title} of {measured['split']}", measured["published"]
        assert reference is not None
        published = f"{label}: published {figure(reference, DIGITS)}"
        measurement = "" if measured["mean"] is None else f", here {figure(measured['mean'], DIGITS)}"
        if measured["inside"] is None or measured["mean"] is None:
            text = f"{published}{measurement}; an interval takes two finished seeds at least, so there is no verdict."
            yield "plain", text
        elif is_target(config, measured["split"], measured["metric"]):
            misses, seeds = _count_misses(runs), plural(len(runs), "seed")
            who = f"{misses} of {seeds} did not reach" if misses else f"each of {seeds} reached"
            word = "Not reproduced" if misses else "Reproduced"
            yield "bad" if misses else "good", f"{word}: {who} the target of training, {published}."
        else:
            tolerance = f", tolerance ± {measured['tolerance']}" if measured["tolerance"] else ""
            interval = f"mean {figure(measured['mean'], DIGITS)}, {_interval_text(measured)}{tolerance}"
            if measured["inside"]:
                yield "good", f"Reproduced: {published} lies inside, {interval}."
                continue
            is_better = (measured["mean"] > reference) is METRICS[measured["metric"]].larger_is_better
            distance = f"{'better' if is_better else 'worse'} by {figure(abs(measured['mean'] - reference), DIGITS)}"
            kind = "plain" if is_better else "bad"
            yield kind, f"Not reproduced: {published} lies outside, {interval}; the mean is {distance}."


def _interval_text(measured: dict[str, Any]) -> str:
    """Return the 95% interval of a metric's mean over the seeds, in words."""
    return f"95% interval {figure(measured['low'], DIGITS)} to {figure(measured['high'], DIGITS)}"


def _differing_keys(runs: Sequence[RunFiles]) -> list[str]:
    """Return the keys in which runs' configurations differ, except those that change neither learning nor speed."""
    differing = differences([*runs])[0] if runs else {}
    return [key for key in differing if not key.startswith(BESIDE)]


def reproduction_page(config: ReproduceConfig, document: Reproduction, directory: Path) -> str:
    """Return the HTML of a reproduction with files in `directory`."""

    def text(value: float | None) -> str:
        return "–" if value is None else figure(value, DIGITS)

    figures = []
    for each in document.figures:
        interval = "–" if each["low"] is None else f"{text(each['low'])} to {text(each['high'])}"
        tolerance = "–" if each["tolerance"] is None else f"± {each['tolerance']}"
        verdict = {True: "inside", False: "outside", None: "no verdict"}[each["inside"]]
        verdict = "none published" if each["published"] is None else verdict
        name = f"{METRICS[each['metric']].title} of {each['split']}"
        figures.append(
            [name, text(each["mean"]), text(each["std"]), interval, text(each["published"]), tolerance, verdict]
        )
    shown = [each for each in document.figures if each["metric"] in (AUC, LOGLOSS, RMSE, MAE, HR, NDCG)]
    seeds = [
        [
            str(run["seed"]),
            run["status"],
            *(text(each["values"].get(str(run["seed"]))) for each in shown),
            *(count(run[name]) for name in ("steps", "samples_to_target", "samples_per_second")),
            duration(run["seconds"]),
            NOT_MEASURED if run["joules"] is None else f"{run['joules']:,.0f} J",
            run["error"] or "–",
        ]
        for run in document.runs
    ]
    columns = ["Seed", "Status", *(f"{METRICS[each['metric']].title} of {each['split']}" for each in shown)]
    columns += ["Steps", "Samples to target", "Samples/s, global", "Time", "Energy", "Remark"]
    versions = [f"{name} {version}" for name, version in document.versions.items() if version]
    commit = (document.commit or "more than one commit, or none") + (" with changes" if document.dirty else "")
    source = {
        "Published by": config.published.source,
        "Published for": config.published.data,
        "Published on": config.published.hardware,
        "Dataset here": "; ".join(f"{name}: {value}" for name, value in (document.dataset or {}).items() if value),
        "Machine here": document.machine,
        "Versions and code": ", ".join([*versions, commit]),
    }
    note = (
        "Of the model that each run serves, over the finished seeds; the interval by Student's t. Inside: the "
        "published figure lies in the interval, widened by the tolerance at both ends; or, where it is the target "
        "of training, each run reached it."
    )
    headings = ["Figure", "Mean", "Standard deviation", "95% interval of the mean", "Published", "Tolerance", "Verdict"]
    own_reports = "Each run has a report of its own: seed_N/report.html."
    return render(
        Path(__file__).with_name("reproduce.html.j2"),
        directory,
        [],
        title=f"{document.recipe} at {plural(document.seeds, 'seed')}",
        sentences=document.verdict,
        figures=ReportTable(headings, figures, {1, 2, 3, 4, 5}, note),
        seeds=ReportTable(columns, seeds, set(range(2, len(columns) - 1)), own_reports),
        source=ReportTable(["", ""], [[name, str(value or "not said")] for name, value in source.items()], set()),
        command=document.command,
    )


EXIT_FAILED = 1
LOCK = ".reproduce.lock"


def main(config: ReproduceConfig) -> int:
    """Train unfinished runs, write the page, and return the exit status."""
    logging.basicConfig(format="%(message)s")
    arguments, out = training_arguments(sys.argv[1:]), Path(config.out)
    if (out / DOCUMENT).exists():
        former = read_document(out / DOCUMENT, Reproduction, "make it again with python -m app.reproduce").arguments
        if sorted(former) != sorted(redact_arguments(arguments)):
            words = " ".join(former) or "no further keys"
            raise UserError(f"out={out}: its runs were made with {words}; type these, or give another out")
    seeds = seeds_of(out, config.seeds, arguments, config.processes)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / LOCK, blocking=False):
            # Written before the runs, so that a resuming command can compare its arguments.
            _write_document(config, arguments, seeds, {}, out)
            failed = run_seeds(seeds)
            # After a refused first run nothing is left, so that the corrected command is not refused for its keys.
            if EXIT_BAD_INPUT in failed.values() and all(child.status == NOT_BEGUN for child in seeds.values()):
                for name in (DOCUMENT, PAGE):
                    (out / name).unlink(missing_ok=True)
                return EXIT_BAD_INPUT
            is_stopped = EXIT_STOPPED in failed.values()
            failed = {seed: status for seed, status in failed.items() if status != EXIT_STOPPED}
            for _, sentence in _write_document(config, arguments, seeds, failed, out).verdict:
                print(sentence)
            print(out / PAGE)
    except Timeout as error:
        raise UserError(
            f"out={out}: another process makes runs there; wait for its end, or give another out"
        ) from error
    if is_stopped:
        return EXIT_STOPPED
    return EXIT_FAILED if failed else EXIT_DONE


def _write_document(
    config: ReproduceConfig, arguments: Sequence[str], seeds: dict[int, ChildRun], failed: dict[int, int], out: Path
) -> Reproduction:
    """Write document and page from the runs on disk, and return the document."""
    with refusing_other_versions(f"[{','.join(str(run.directory) for run in seeds.values() if run.status in DONE)}]"):
        document = summarise(config, arguments, seeds, failed)
        page = reproduction_page(config, document, out)
    write_atomically(out / DOCUMENT, (encode(document, indent=1) + "\n").encode())
    write_page(out / PAGE, page)
    return document
