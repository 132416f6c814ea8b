"""Figures of a reproduction over its seeds, compared with published ones, and the verdict."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from app.config.data import DataScale
from app.kinds.metrics import ACCURACY, AUC, HR, LOGLOSS, MAE, METRICS, NDCG, NE, PUBLISHED, RMSE
from app.metrics.documents import EvaluationFigures
from app.record.children import TEST, figures_of_test
from app.record.documents import DONE
from app.record.reading import MANIFEST
from app.report.compare import BESIDE, MADE_BY, differences
from app.report.read import RunFiles, read_run
from app.report.statistics import Spread, spread
from app.report.verdict import not_comparable
from app.report.words import count, devices, duration, figure, plural
from common.files import digest_file
from common.redact import redact_arguments
from extensions.reproduce.documents import DataOf, Reproduction, SeedFigure, SeedRun, SourceOf
from extensions.reproduce.keys import ReproduceConfig
from extensions.reproduce.seeds import NOT_BEGUN, Seed, changed_keys, is_of_recipe

DIGITS = 5
JOULES_OF_KWH = 3.6e6


class Finished(NamedTuple):
    """A finished run, with the figures of its splits by name; the evaluated split comes first."""

    seed: int
    run: RunFiles
    splits: dict[str, EvaluationFigures]


def finished_runs(seeds: Sequence[Seed]) -> list[Finished]:
    """Return the finished runs in the order of their seeds."""
    runs = []
    for seed in seeds:
        if seed.status in DONE:
            run = read_run(seed.directory)
            splits = {str(run.evaluation.split): run.evaluation} if run.is_evaluated else {}
            if (tested := figures_of_test(seed.directory)) is not None:
                splits[TEST] = tested
            runs.append(Finished(seed.number, run, splits))
    return runs


def summarise(
    config: ReproduceConfig,
    arguments: Sequence[str],
    seeds: Sequence[Seed],
    runs: Sequence[Finished],
    failed: dict[int, int],
) -> Reproduction:
    """Return the document of a reproduction.

    arguments: app.train's. runs: finished runs of `seeds`. failed: exit status of each seed that failed this time.
    """
    published = config.published
    manifest = runs[-1].run.manifest if runs else None
    reason = why_no_verdict(config, arguments, runs)
    figures = figures_of(config, runs, is_judged=reason is None)
    records = [_record(seed, failed.get(seed.number)) for seed in seeds]
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
        published=SourceOf(
            source=published.source, data=published.data, hardware=published.hardware, md5=published.md5
        ),
        dataset=DataOf(
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
        joules=sum(joules) if joules and len(joules) == len(seconds) else None,
        verdict=[
            *_progress(records),
            *_equality(runs),
            *_means(figures),
            *_against_published(config, figures, reason, runs),
            *_target(config, records),
            *_cost(seconds, joules),
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


def _record(seed: Seed, status: int | None) -> SeedRun:
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


def why_no_verdict(config: ReproduceConfig, arguments: Sequence[str], runs: Sequence[Finished]) -> str | None:
    """Return why figures are not compared with the published ones; None if they are, or if none are published."""
    digests = {run.run.manifest.dataset.digest or "none" for run in runs}
    if len(digests) > 1:
        return (
            f"The seeds were trained on different datasets (digests {', '.join(sorted(each[:12] for each in digests))}"
            "), so there is no verdict."
        )
    if config.data.scale is DataScale.tiny:
        return "Of the recipe's tiny form on generated rows (data.scale=tiny), so there is no verdict."
    published = {**vars(config.published)}
    for each in runs:
        if (reason := not_comparable(each.run, published)) is not None:
            return f"{reason.removesuffix('.')}; the dataset is {each.run.manifest.dataset.path}."
    of_config = [key for key in _differing(runs) if is_of_recipe(key) and _is_of_config(key, runs[0].run)]
    if of_config:
        return f"The configurations of the seeds differ ({', '.join(of_config)}), so there is no verdict."
    if recipe_changes := changed_keys(arguments):
        return f"The recipe was changed ({' '.join(recipe_changes)}), so there is no verdict on the published figure."
    return None


def figures_of(config: ReproduceConfig, runs: Sequence[Finished], is_judged: bool) -> list[SeedFigure]:
    """Return the main metrics of each split, and other published ones, over the finished runs."""
    published = config.published
    evaluated = {metric: getattr(published, metric) for metric in PUBLISHED}
    of_numbers = any(figures.main == RMSE for run in runs for figures in run.splits.values())
    tested = {AUC: published.test_auc, LOGLOSS: published.test_logloss}
    figures = []
    for split in dict.fromkeys(name for each in runs for name in each.splits):
        of_split = evaluated if split == config.eval.split else tested
        for metric in (RMSE, MAE) if of_numbers else (AUC, LOGLOSS, NE, ACCURACY, HR, NDCG):
            reference = of_split.get(metric)
            if metric in (ACCURACY, HR, NDCG) and reference is None:
                continue
            of_seed = {each.seed: each.splits[split].figure(metric) for each in runs if split in each.splits}
            values = [value for value in of_seed.values() if value is not None]
            measured = spread(values) if values else None
            judged = is_inside(measured, reference, published.tolerance)
            if judged is not None and is_target(config, split, metric):
                judged = not _count_misses(runs)
            figures.append(
                SeedFigure(
                    split=split,
                    metric=metric,
                    values={str(seed): value for seed, value in of_seed.items()},
                    mean=measured.mean if measured else None,
                    std=measured.std if measured else None,
                    low=measured.low if measured else None,
                    high=measured.high if measured else None,
                    published=reference,
                    tolerance=None if reference is None else published.tolerance,
                    inside=judged if is_judged else None,
                )
            )
    return figures


def is_target(config: ReproduceConfig, split: str, metric: str) -> bool:
    """Return whether a figure is the published AUC at which training stops, so that runs end at or above it."""
    target = config.train.target_auc
    return (metric, split) == (AUC, config.eval.split) and target is not None and target == config.published.auc


def _count_misses(runs: Sequence[Finished]) -> int:
    """Return the number of finished runs that did not reach the target of training."""
    return sum(each.run.status != "target_reached" for each in runs)


def is_inside(measured: Spread | None, reference: float | None, tolerance: float | None) -> bool | None:
    """Return whether a published figure is in the interval widened by the tolerance; None without one of them."""
    if measured is None or reference is None or measured.low is None or measured.high is None:
        return None
    return measured.low - (tolerance or 0.0) <= reference <= measured.high + (tolerance or 0.0)


def _progress(records: Sequence[SeedRun]) -> list[tuple[str, str]]:
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


def _differing(runs: Sequence[Finished]) -> list[str]:
    """Return the keys in which runs differ, except those beside learning and speed."""
    return [key for key in differences([each.run for each in runs])[0] if not key.startswith(BESIDE)] if runs else []


def _is_of_config(key: str, run: RunFiles) -> bool:
    group = key.partition(".")[0]
    return group in run.config and group not in MADE_BY


def _equality(runs: Sequence[Finished]) -> list[tuple[str, str]]:
    keys = _differing(runs)
    return [("bad", f"The runs were not made alike; they differ in {', '.join(keys)}.")] if keys else []


def _means(figures: Sequence[SeedFigure]) -> list[tuple[str, str]]:
    """Return sentences on the AUC or RMSE of each split, and on published metrics of groups."""
    sentences = []
    for each in figures:
        if each.metric in (AUC, RMSE, HR, NDCG) and each.mean is not None:
            interval = "no interval of one seed"
            if each.low is not None and each.high is not None:
                interval = f"95% interval {figure(each.low, DIGITS)} to {figure(each.high, DIGITS)}"
                interval += f", standard deviation {figure(each.std, DIGITS)}"
            sentences.append(
                (
                    "plain",
                    f"{METRICS[each.metric].label} of {each.split}: mean {figure(each.mean, DIGITS)}, {interval}.",
                )
            )
    return sentences or [("plain", "What the models have learned was not measured.")]


def _against_published(
    config: ReproduceConfig, figures: Sequence[SeedFigure], reason: str | None, runs: Sequence[Finished]
) -> list[tuple[str, str]]:
    compared = [each for each in figures if each.published is not None]
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
        _judged_by_target(each, _count_misses(runs), len(runs))
        if is_target(config, each.split, each.metric) and each.inside is not None
        else _judged(each)
        for each in compared
    ]


def _judged_by_target(each: SeedFigure, misses: int, seeds: int) -> tuple[str, str]:
    beside = f"the published {each.label}, {figure(each.published, DIGITS)}"
    if not misses:
        return "good", f"Reproduced: each of {plural(seeds, 'seed')} reached {beside}, at which training stops."
    return "bad", f"Not reproduced: {misses} of {plural(seeds, 'seed')} did not reach {beside}, the target of training."


def _judged(each: SeedFigure) -> tuple[str, str]:
    label, reference = METRICS[each.metric].title, each.published
    assert reference is not None
    beside = f"{label} of {each.split}: published {figure(reference, DIGITS)}"
    if each.mean is None or each.low is None or each.high is None:
        mean_text = "" if each.mean is None else f", here {figure(each.mean, DIGITS)}"
        return "plain", f"{beside}{mean_text}; an interval takes two finished seeds at least, so there is no verdict."
    measured = (
        f"mean {figure(each.mean, DIGITS)}, 95% interval {figure(each.low, DIGITS)} to {figure(each.high, DIGITS)}"
    )
    allowed = f", tolerance ± {each.tolerance}" if each.tolerance else ""
    if each.inside:
        return "good", f"Reproduced: {beside} lies inside, {measured}{allowed}."
    better = (each.mean > reference) is METRICS[each.metric].larger_is_better
    kind = "plain" if better else "bad"
    is_better = "better" if better else "worse"
    apart = f"the mean is {is_better} by {figure(abs(each.mean - reference), DIGITS)}"
    return kind, f"Not reproduced: {beside} lies outside, {measured}{allowed}; {apart}."


def _target(config: ReproduceConfig, records: Sequence[SeedRun]) -> list[tuple[str, str]]:
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


def _cost(seconds: Sequence[float], joules: Sequence[float]) -> list[tuple[str, str]]:
    if not seconds:
        return []
    energy = f"{sum(joules) / JOULES_OF_KWH:.4f} kWh" if len(joules) == len(seconds) else "not measured"
    each = duration(sum(seconds) / len(seconds))
    sentence = (
        f"Time of the runs, without the evaluations after them and the reports: {duration(sum(seconds))}, {each} each; "
        f"energy: {energy}."
    )
    return [("plain", sentence)]
