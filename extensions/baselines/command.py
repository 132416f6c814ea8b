"""Baselines after training, or of a run by `clickwork baselines`; their part of the report.

The base rate; each column's label rate by value alone; a logistic regression on one-hot ids and numbers; boosted trees
on out-of-fold rates and numbers. All are trained on the run's train split and scored on the split that it was evaluated
on. The run's model is compared with each on the same rows. They need scikit-learn (`pip install scikit-learn`);
the trees are LightGBM's where that is installed.
"""

import base64
import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from app.config.app_config import AppConfig
from app.config.kinds import AUC, BASE_RATE, COMPARED, NE, Additions
from app.record.directory import ignoring_full_disk, save_summary
from app.record.documents import (
    DONE,
    SUMMARY,
    Scores,
    read_config,
    read_manifest,
    read_scores,
    read_summary,
    write_scores,
)
from app.report.page import ReportTable, halves, write_report
from app.report.read import RunFiles, figure, read_run, signed
from app.report.statistics import delong
from common.cli import EXIT_DONE
from common.command import log
from common.compose import quote_literally
from common.documents import Figures, convert, encode, plain_object, read_document
from common.errors import UserError
from common.files import write_atomically
from data_prep.dataset.format import Manifest, load_rows_manifest, sampled_row_numbers
from data_prep.dataset.kinds import ROWS
from data_prep.dataset.options import LabelKind
from extensions.baselines.fit import FOLDER, SAMPLE_ROWS, Baseline, Baselines, BaselinesConfig, fit_baselines, load_rows

if TYPE_CHECKING:
    from app.training.predictor import Evaluation, Predictor

BASELINE_NAMES = {
    BASE_RATE: "the base rate",
    "columns": "single columns",
    "lr": "logistic regression",
    "trees": "boosted trees",
}


def additions(run: RunFiles) -> Additions:
    """Return the tables and the sentence for a run's baselines, or the reason for their absence."""
    figures, sentence, tables, comparisons = figures_of(run), baselines_sentence(run), [], []
    if figures is not None and figures.columns and figures.columns.rest:
        auc_of_each = figures.columns.rest.get("auc_of_each") or {}
        aucs = convert(auc_of_each, dict[str, float], "baselines.columns.auc_of_each")
        rows = [[name, figure(auc)] for name, auc in sorted(aucs.items(), key=lambda item: -item[1])]
        summary = "AUC of each column alone, by its label rates in train (0.5 is chance)"
        tables.append((summary, "AUC of each column alone", halves(ReportTable(["Column", "AUC"], rows, {1}))))
    for name, baseline in _baselines_by_words(run, figures).items() if figures else ():
        assert figures is not None
        remark = f"a simpler model on the same splits{_sample_clause(figures)}"
        if baseline.difference is not None and baseline.difference_interval:
            half = (baseline.difference_interval[1] - baseline.difference_interval[0]) / 2
            remark += (
                f"; this run {signed(baseline.difference, 4)} ± {half:.4f} AUC on the same "
                f"{figures.compared_rows:,} rows (95%)"
            )
        values: Figures = {**dict.fromkeys(COMPARED), AUC: baseline.auc, NE: baseline.ne}
        comparisons.append((f"{name[0].upper()}{name[1:]}", values, None, remark))
    return Additions(comparisons, [] if sentence is None else [sentence], tables)


def figures_of(run: RunFiles) -> Baselines | None:
    """Return the baselines in a run's summary; None without a summary, or without baselines in it."""
    recorded = run.summary.baselines if run.summary else None
    return None if recorded is None else convert(recorded, Baselines, "baselines")


def baselines_sentence(run: RunFiles) -> tuple[str, str] | None:
    """Return a sentence on whether the model earns its keep, with its kind: good, bad or plain.

    None if baselines were left out or are of another split.
    """
    if run.summary is not None and run.summary.no_baselines:
        return "plain", f"Compared with no baselines: {run.summary.no_baselines}."
    auc, figures = run.evaluation.auc, figures_of(run)
    if auc is None or figures is None:
        return None
    baselines = _baselines_by_words(run, figures)
    aucs = {name: baseline.auc for name, baseline in baselines.items() if baseline.auc is not None}
    if not aucs:
        return None
    best = max(aucs, key=lambda name: aucs[name])
    difference, interval = baselines[best].difference, baselines[best].difference_interval
    others = ", ".join(f"{name} {value:.4f}" for name, value in aucs.items())
    missing = "".join(f"; {BASELINE_NAMES[name]}: {reason}" for name, reason in figures.missing.items())
    scope = f"(AUC {auc:.4f} against {others}{_sample_clause(figures)}{missing})"
    # AUC judges the order of rows alone, so a lower NE of a baseline is named, too.
    ne, nes = run.evaluation.figure(NE), {name: each.ne for name, each in baselines.items() if each.ne is not None}
    if ne is not None and nes and min(nes.values()) < ne:
        surest = min(nes, key=lambda name: nes[name])
        scope += f"; its probabilities are worse, NE {ne:.4f} against {nes[surest]:.4f} of {surest}: "
        scope += "train.monitor=ne keeps the checkpoint by them"
    if difference is None:
        gain, side = auc - aucs[best], "behind" if auc < aucs[best] else "ahead of"
        reason = figures.not_compared or f"python -m app.baselines run={run.directory} compares them"
        return "plain", f"{abs(gain):.4f} AUC {side} {best}, not compared row by row: {reason} {scope}."
    side = "Behind" if difference < 0 else "Ahead of"
    lead = f"{side} the best baseline, {best}, by {abs(difference):.4f}"
    if not interval:
        return "plain", f"{lead} AUC; too few rows of a label for a test {scope}."
    lead = f"{lead} ± {(interval[1] - interval[0]) / 2:.4f} AUC on {figures.compared_rows:,} rows of {figures.split}"
    if interval[0] <= 0 <= interval[1]:
        return "plain", f"{lead} (95%), which cannot show whether it is real {scope}."
    if difference > 0:
        return "good", f"The model earns its keep: {lead[0].lower()}{lead[1:]} (95%) {scope}."
    return "bad", f"The model does not earn its keep yet: {lead[0].lower()}{lead[1:]} (95%) {scope}."


def _baselines_by_words(run: RunFiles, figures: Baselines) -> dict[str, Baseline]:
    """Return the baselines on the evaluation's split, except the base rate, by their names in words."""
    if figures.split != run.evaluation.split:
        return {}
    column = figures.columns.rest.get("column") if figures.columns else None
    by_words = {
        f"the label rates of {column} alone": figures.columns,
        BASELINE_NAMES["lr"]: figures.lr,
        BASELINE_NAMES["trees"]: figures.trees,
    }
    return {words: baseline for words, baseline in by_words.items() if baseline is not None}


def _sample_clause(figures: Baselines) -> str:
    """Return a clause on the rows that baselines learned from and were scored on; empty if these are all rows."""
    parts = [("trained on", figures.rows, figures.of_rows), ("scored on", figures.eval_rows, figures.of_eval_rows)]
    phrases = [f"{purpose} {rows:,} of {all_rows:,} rows" for purpose, rows, all_rows in parts if rows < all_rows]
    return f"; baselines {' and '.join(phrases)}" if phrases else ""


POSITIVES_ALONE = "baselines learn from rows of the split, which are positives alone"  # with data.negatives
DEFAULT_ROWS, DEFAULT_SECONDS = 200_000, 30  # of each split, and for all baselines, unless baselines=true
REPOSITORY = Path(__file__).parents[2]


def require_possible(config: AppConfig) -> None:
    """Refuse baselines=true before training if they cannot be computed."""
    if config.baselines and (reason := obstacle(config)) is not None:
        raise UserError(f"baselines=true: {reason}, or leave it out")


def obstacle(config: AppConfig) -> str | None:
    """Return why a run of this configuration can have no baselines, with a remedy; None if it can."""
    learns_from = config.model.kind.learns_from
    if learns_from is not ROWS:
        return f"baselines are of rows, and this model learns from {learns_from.name}; give baselines=false"
    if config.data.negatives.per_positive is not None:
        return f"{POSITIVES_ALONE}; give baselines=false"
    if importlib.util.find_spec("sklearn") is None:
        return "scikit-learn is not installed; pip install scikit-learn"
    return None


def add_baselines(config: AppConfig) -> None:
    """Compute the baselines of a completed run that has none; log any obstacle in one line."""
    directory = Path(config.run.dir)
    summary = read_summary(directory)
    is_completed = summary is not None and summary.status in DONE
    if config.baselines is False or summary is None or not is_completed or summary.baselines or not summary.steps:
        return
    level, reason = logging.INFO, obstacle(config)
    if reason is None and summary.eval.main != AUC:
        reason = "they are of clicks, and the labels are numbers"
    if reason is None:
        level, reason = logging.WARNING, _compute_in_process(config, directory)
    newest = read_summary(directory)
    if reason is None or newest is None:
        return
    log.log(level, "baselines: not computed: %s", reason)
    if newest.no_baselines != reason:
        newest.no_baselines = reason
        with ignoring_full_disk():
            save_summary(directory, newest)
            write_report(directory)


def _compute_in_process(config: AppConfig, directory: Path) -> str | None:
    """Compute baselines in a separate process and log the result; return why there are none, or None."""
    path = read_manifest(directory).dataset.path
    command = [sys.executable, "-m", "app.baselines", f"run={quote_literally(str(directory.absolute()))}"]
    if path is not None:
        command.append(f"data.path={quote_literally(str(Path(path).absolute()))}")
    later = shlex.join(["python", "-m", "app.baselines", f"run={directory}"])
    limit = None
    if config.baselines is None:
        command += [f"rows={DEFAULT_ROWS}", f"seconds={DEFAULT_SECONDS}"]
        limit = DEFAULT_SECONDS + 30  # the process also has to start, to read the rows and to write the report
        log.info("baselines: fitting them, for %d s at most; baselines=false leaves them out", DEFAULT_SECONDS)
    # A launcher's variables would make the process wait for others of its group.
    group = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in group}
    environment["RANK"] = "0"  # Like a launcher's process, it then ends with this one.
    other_paths = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *other_paths])
    settings: dict[str, Any] = {"env": environment, "cwd": REPOSITORY, "capture_output": True, "text": True}
    try:
        # Start in the repository: the working directory may have its own package `app`.
        process = subprocess.run(command, timeout=limit, check=False, **settings)
    except subprocess.TimeoutExpired:
        return f"not done within {limit} s; {later} has no limit"
    if process.returncode:
        last_lines = process.stderr.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        return last_lines[0].removeprefix("error: ")
    if any(line.startswith("baselines: stopped") for line in process.stderr.splitlines()):
        log.warning("baselines: stopped after %g s; %s has no limit", DEFAULT_SECONDS, later)
    if (sentence := baselines_sentence(read_run(directory))) is not None:
        log.info("baselines: %s", sentence[1])
    return None


CACHE = ".baselines.json"
VERSION = 3  # increase it with each change of the figures that extensions/baselines computes


class ScoredBaselines(Struct):
    """Baselines, and how each of them ranks the rows of `numbers_of`.

    ranks: by name, the ranks [n] int32 of the predictions as base64, equal ones for ties; AUC and its test need them.
    """

    figures: Baselines
    ranks: dict[str, str]


class _Cache(Struct):
    """Baselines of one dataset by the settings that decide them."""

    dataset: str
    baselines: dict[str, ScoredBaselines]


def numbers_of(manifest: Manifest, split: str, rows: int | None) -> NDArray[np.int64]:
    """Return the numbers of the rows on which baselines and a run's model are compared.

    These rows are in the sample of SAMPLE_ROWS whose scores a run keeps, and in the sample of `rows` for baselines.
    """
    shard_rows = [shard.rows for shard in manifest.splits[split].shards]
    kept, fitted = (sampled_row_numbers(shard_rows, number) for number in (SAMPLE_ROWS, rows))
    return np.intersect1d(kept, fitted, assume_unique=True)


def find_or_fit(
    root: Path, manifest: Manifest, split: str, directory: Path, config: BaselinesConfig
) -> ScoredBaselines:
    """Return the baselines of a dataset, scored on a split, from the cache or newly computed.

    The cache lies in the dataset at `root`, or in the run's `directory` if that cannot be written.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise UserError("baselines: scikit-learn is not installed; pip install scikit-learn")
    # Figures of other versions may differ, so the key of the cache has them.
    libraries = ["scikit-learn", *(["lightgbm"] if importlib.util.find_spec("lightgbm") else [])]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in libraries]
    largest = max(manifest.splits[name].rows for name in {"train", split} & set(manifest.splits))
    # A limit above all rows is none, so both find the same entry of the cache.
    rows = None if config.rows is None or config.rows >= largest else config.rows
    key = " ".join([split, f"rows={rows}", f"version={VERSION}", *versions])
    known: dict[str, ScoredBaselines] = {}
    # The dataset's cache comes second, so it counts where both exist.
    for path in (directory / CACHE, root / CACHE):
        # A damaged cache, or one of another dataset, is written again.
        with contextlib.suppress(FileNotFoundError, UserError):
            cache = read_document(path, _Cache, "remove it")
            known = cache.baselines if cache.dataset == manifest.digest else known
    if key in known:
        return known[key]

    train, others = (load_rows(root, manifest, name, rows) for name in ("train", split))
    names = [*manifest.schema["dense"], *manifest.schema["sparse"]]
    baselines, preds = fit_baselines(train, others, names, config.seconds)
    baselines.split = split
    shard_rows = [shard.rows for shard in manifest.splits[split].shards]
    is_compared = np.isin(sampled_row_numbers(shard_rows, rows), numbers_of(manifest, split, rows), assume_unique=True)
    ranks = {name: np.unique(values[is_compared], return_inverse=True)[1] for name, values in preds.items()}
    encoded = {name: base64.b64encode(numbers.astype("<i4").tobytes()).decode() for name, numbers in ranks.items()}
    scored = ScoredBaselines(baselines, encoded)
    if baselines.is_whole:  # otherwise another attempt may have enough time
        cache_directory = root if os.access(root, os.W_OK) else directory
        write_atomically(cache_directory / CACHE, encode(_Cache(manifest.digest, {**known, key: scored})).encode())
    return scored


def compare(scored: ScoredBaselines, manifest: Manifest, directory: Path, step: int | None, rows: int | None) -> None:
    """Set the difference of each baseline to the run's model, or why there is none.

    The model's scores are those that training kept, or else those of the whole split (keep_scores of evaluate).

    step: step of the model that the run serves. rows: maximum rows of the split that baselines were scored on; None:
    all.
    """
    figures = scored.figures
    split = figures.split
    numbers = numbers_of(manifest, split, rows)
    try:
        if manifest.weight:
            raise UserError(f"the rows have sample weights ({manifest.weight}), which DeLong's test does not take")
        places, kept = _find_scores(directory, manifest, split, step, numbers)
        labels, logits = kept.labels[places], kept.logits[places]
        if labels.all() or not labels.any():
            raise UserError(f"the {len(labels):,} rows that both scored have one label")
    except UserError as error:
        figures.not_compared = str(error)
        return
    figures.compared_rows = len(labels)
    for name in scored.ranks:
        ranks = np.frombuffer(base64.b64decode(scored.ranks[name]), "<i4")
        difference = delong(labels, ranks.astype(np.float64), logits)
        baseline = getattr(figures, name)
        baseline.difference = difference.mean
        ends = (difference.low, difference.high)
        baseline.difference_interval = None if None in ends else [end for end in ends if end is not None]


def _find_scores(
    directory: Path, manifest: Manifest, split: str, step: int | None, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Scores]:
    """Return the indices, in the kept scores of the served model, of the rows with these numbers, and the scores.

    Raises UserError: there are none; the remedy makes them.
    """
    shard_rows = [shard.rows for shard in manifest.splits[split].shards]
    for folder, limit in ((directory / FOLDER, SAMPLE_ROWS), (directory, None)):
        try:
            kept = read_scores(folder, split)
        except (FileNotFoundError, UserError):  # damaged scores count as missing
            continue
        if (kept.about.dataset, kept.about.step) == (manifest.digest, step):
            return np.searchsorted(sampled_row_numbers(shard_rows, limit), numbers), kept
    raise UserError(
        f"the run kept no scores of {split} by its model of step {step}; python -m app.evaluate run={directory} "
        f"split={split} keep_scores={sum(shard_rows)} keeps them, and python -m app.baselines run={directory} compares"
    )


def main(config: BaselinesConfig) -> int:
    """Compute or look up baselines, write them to the run, and return the exit status."""
    logging.basicConfig(format="%(message)s")
    directory = Path(config.run)
    dataset, summary = read_manifest(directory).dataset, read_summary(directory)
    if summary is None:
        raise UserError(
            f"run={directory}: has no {SUMMARY}, so it is not finished; the command that began it resumes it"
        )
    root = config.data.path or dataset.path
    if root is None:
        raise UserError(f"run={directory}: was built from published table sizes, without data; train it on a dataset")
    manifest = load_rows_manifest(Path(root))
    if manifest.digest != dataset.digest:
        raise UserError(
            f"data.path={root}: another dataset than the run's, by its digest; give data.path=DIRECTORY of that one"
        )
    if manifest.label_kind is not LabelKind.click:
        raise UserError(
            f"run={directory}: baselines are of clicks, and the labels of {root} are numbers; its report compares with "
            "their mean"
        )
    recorded = read_config(directory)
    if (recorded["data"].get("negatives") or {}).get("per_positive") is not None:
        raise UserError(f"run={directory}: {POSITIVES_ALONE}")
    split = str(recorded["eval"]["split"])
    scored = find_or_fit(Path(root), manifest, split, directory, config)
    compare(scored, manifest, directory, summary.eval.step or None, config.rows)

    # Update the summary as it is now, since the run may have been resumed in the meantime.
    newest = read_summary(directory)
    if newest is None or (newest.steps, newest.digest) != (summary.steps, summary.digest):
        raise UserError(
            f"run={directory}: was trained further while its baselines were computed; when it has ended, "
            "give the same command again"
        )
    newest.baselines, newest.no_baselines = plain_object(scored.figures), None
    save_summary(directory, newest)
    write_report(directory)
    print(json.dumps(newest.baselines, indent=1))
    return EXIT_DONE


def score_writer(predictor: "Predictor", evaluation: "Evaluation") -> Callable[[Path, int], None] | None:
    """Return a function of a run's directory and a step, which writes the scores of the rows to compare baselines on.

    It has at most SAMPLE_ROWS rows of the split. None on ranks other than 0, without baselines, and for a split of more
    than eval.exact_rows rows, whose logits an evaluation does not keep.
    """
    from app.training.predictor import task_of  # imports torch, which the command does without

    config, manifest, split = predictor.config, predictor.manifest, str(evaluation.figures.split)
    is_wanted = config.baselines is not False and obstacle(config) is None and task_of(manifest).has_clicks
    is_wanted = is_wanted and not manifest.weight  # `compare` would not use them
    rows = int(evaluation.figures.samples or 0)
    if predictor.runtime.rank or not is_wanted or rows > config.eval.exact_rows:
        return None
    numbers = sampled_row_numbers([shard.rows for shard in manifest.splits[split].shards], SAMPLE_ROWS)
    logits, labels = evaluation.logits[numbers], evaluation.labels[numbers]

    def write(directory: Path, step: int) -> None:
        write_scores(directory / FOLDER, split, step, manifest.digest, logits, labels)

    return write
