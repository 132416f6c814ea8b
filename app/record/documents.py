"""A run's manifest.json and summary.json, and reading of its directory. What was not measured is None.

The keys of each document are written in the order of its fields.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from msgspec import UNSET, UnsetType, field
from numpy.typing import NDArray

from app.config.sharding import PlannedTable
from app.metrics.documents import (
    Best,
    Curves,
    EarlyStop,
    EvaluationEvent,
    EvaluationFigures,
    Event,
    Parent,
    StepTimeHistogram,
    decode_event,
)
from common.documents import Figures, Json, Number, OpenDocument, decode, encode, format_of, read_document
from common.errors import UserError
from common.files import write_atomically

FORMAT_NAME = "clickwork-run"
SUMMARY_VERSION = 3
DONE = ("completed", "target_reached")  # statuses of a run that reached its end
UNFINISHED = "unfinished"  # there is no summary: the run is going on, or was killed


class Provenance(OpenDocument, kw_only=True):
    """Facts about a run by its machine and checkout, without secrets; only a run's manifest has `format`.

    code: commit of the checkout (`git_sha`), and SHA-256 of uncommitted changes (`dirty_diff_sha256`) and of the
    modules (`sources_sha256`). image, base_image: digests of the container's images. versions: of packages, by name.
    hardware: rank 0's machine: its processor's architecture (`machine`), the instructions that torch uses, the cores
    that the process may use, limits of its container (`cpu_quota`, `memory_limit_bytes`), its GPUs (`devices`) and
    their driver. environment: variables that affect a run. argv: the command line.
    """

    format: str | UnsetType = UNSET
    code: dict[str, str | None]
    image: str | None
    base_image: str | None
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    environment: dict[str, str]
    argv: list[str]

    def device(self, platform: str) -> str:
        """Return the name of rank 0's processor on platform cpu, else of its GPU."""
        devices = [] if platform == "cpu" else self.hardware["devices"]
        return str(devices[0]["name"] if devices else self.hardware["cpu"])

    @property
    def commit(self) -> str | None:
        """Commit of the checkout, if it is known."""
        return self.code.get("git_sha") or None


class Dataset(OpenDocument, kw_only=True):
    """The dataset of a run; path and digest are None for a run that was built from published table sizes.

    digest: SHA-256 of its manifest. published_tables: name of these sizes. rows: by split. labels: digest of the
    rows of each split, equal under any encoding. label_rate: share of labels 1 in all splits. sources: names of the
    first raw files. source_md5: MD5 of given files. bayes: the best possible figures on generated rows. unseen,
    misleading, sampling: sentences about the data.
    """

    path: str | None
    digest: str | None
    published_tables: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str | None] = field(default_factory=dict)
    label_rate: Number | None = None
    encoding: str | None = None
    sources: list[str | None] = field(default_factory=list)
    source_md5: list[str] | None = None
    bayes: Json | None = None
    unseen: str | None = None
    misleading: list[str] = field(default_factory=list)
    sampling: str | None = None


class TableSize(OpenDocument, kw_only=True):
    """Size of a whole table, its weights in bytes, and the mean number of ids that a sample looks up in it.

    features: number of features that share it. by_id: whether processes exchange rows, not sums of rows.
    """

    features: int
    by_id: bool
    ids_per_sample: Number
    num_embeddings: int
    embedding_dim: int
    bytes: int


class RunManifest(Provenance, kw_only=True):
    """manifest.json of a run: its newest launch, and the `earlier` ones, whose own lists are empty.

    files: SHA-256, by path, of files of initial values. seeds: by key. world_size: number of processes.
    local_world_size: number of those on one machine. num_threads: of a process. plan: sharding by table. began:
    when the launch began, in UTC and ISO 8601. pipeline: None for a run that was built and not trained.
    tables: sizes by name. from_step: step from which the launch resumed, else 0. results_before: lines of
    results.csv before the run.
    """

    dataset: Dataset
    files: dict[str, str]
    seeds: dict[str, int]
    world_size: int
    platform: str
    num_threads: int | None
    compile: str
    local_world_size: int
    plan: dict[str, PlannedTable]
    began: str
    pipeline: str | None
    tables: dict[str, TableSize]
    parent: Parent | UnsetType = UNSET
    from_step: int
    results_before: int
    earlier: "list[RunManifest]" = field(default_factory=list)

    @property
    def launches(self) -> "list[RunManifest]":
        """Manifests of all launches, the newest last."""
        return [*self.earlier, self]


class Summary(OpenDocument, kw_only=True):
    """summary.json: a run's final figures; figures that were not measured are None.

    status: completed, target_reached, interrupted or failed. error: why it failed. samples: number trained on.
    parameters: numbers of the whole model (`embedding`, `dense`, `total`). train: means over the last
    train.log_every_steps steps, leaving out skipped ones: `loss`, and `logloss` unless the run trains by another loss;
    `skipped_steps` of the whole run. best: the best evaluation. eval: evaluation of the served model, which is the best
    checkpoint's if the run keeps one. last: the newest evaluation. baselines: figures that the extension of this name
    has computed. no_baselines: why there are none, if they were wanted. throughput: rates over the measured steps, of
    all processes unless per device; median and 95th percentile of a step's milliseconds (`step_ms_p50`,
    `step_ms_p95`); `input_wait_fraction`, the share of their time that rank 0 spent waiting for batches. covers: the
    steps, seconds or launches that groups of figures cover. events: number of each kind in metrics.jsonl. memory: peak
    bytes of the process that used the most; of a failed run, of rank 0. phase_seconds: mean seconds of a step's parts.
    power: of all devices together, with the meter (`source`). tables: by name, figures over `rows` of a table's rows (a
    sample of a large table): `rows_touched`, those that differ from their initial values, None if rows change without
    being looked up or the run started from another run's checkpoint; norms are rows' 2-norms. seconds: time spent, by
    kind. digest: SHA-256 over the bytes of all `parameters`, and of the `losses` of all steps.
    """

    status: str
    error: str | None = None
    version: int
    steps: int
    samples: int
    world_size: int
    parameters: dict[str, int]
    train: Figures
    best: Best | None
    early_stop: EarlyStop | None
    eval: EvaluationFigures
    last: EvaluationFigures
    baselines: Json | None = None
    no_baselines: str | None = None
    throughput: Figures
    covers: dict[str, dict[str, Number | str]]
    events: dict[str, int] = field(default_factory=dict)
    memory: Figures | None = None
    phase_seconds: Figures | None = None
    power: dict[str, Number | str | None] | None = None
    tables: dict[str, Figures] = field(default_factory=dict)
    seconds: dict[str, Number] = field(default_factory=dict)
    digest: dict[str, str | None] | None = None


CONFIG, MANIFEST, METRICS, SUMMARY = "config.yaml", "manifest.json", "metrics.jsonl", "summary.json"
RESULTS, LOG, LOCK = "results.csv", "log.txt", ".lock"
CURVES, STEP_TIMES = "curves.json", "step_times.json"
OTHER_VERSION = "if another version of the tool wrote it, use that; else train the run again"
RUNS = Path("runs")  # directory of runs, unless run.dir names another
WITHOUT = "remove it, and the report does without"
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if PyYAML has it, takes a tenth of the time


def read_config(directory: Path) -> dict[str, Any]:
    """Return the resolved configuration of a run, nested. Raises UserError if it has none."""
    try:
        content = yaml.load((directory / CONFIG).read_bytes(), Loader=SAFE_LOADER)
    except (OSError, yaml.YAMLError) as error:
        place, example = RUNS / directory, RUNS / "quickstart"
        if not directory.is_absolute() and (place / CONFIG).is_file():
            remedy = f"did you mean {place}?"
        elif directory == example:
            remedy = "python -m app.train makes it"
        else:
            remedy = f"give one, such as {example}"
        raise UserError(f"run={directory}: not a run's directory (no readable {CONFIG}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"run={directory}: {CONFIG} is not a configuration")
    return content


def is_run(directory: Path) -> bool:
    """Return whether a directory has the manifest of a run, of whichever version."""
    return format_of(directory / MANIFEST) == FORMAT_NAME


def read_manifest(directory: Path) -> RunManifest:
    """Return the manifest of a run. Raises UserError if there is none, or it is not readable."""
    if not is_run(directory):
        raise UserError(f"run={directory}: not a run's directory (no readable {MANIFEST})")
    return read_document(directory / MANIFEST, RunManifest, OTHER_VERSION)


def ancestors(parent: Parent | UnsetType) -> Iterator[Parent]:
    """Yield a run's parent, its parent, and so on, as far as their directories are there."""
    seen = set[str]()  # a run that was trained again may have begun with its own descendant
    while parent and parent.checkpoint_sha256 not in seen:
        seen.add(parent.checkpoint_sha256)
        yield parent
        directory = Path(parent.run)
        parent = read_manifest(directory).parent if is_run(directory) else UNSET


def read_events(directory: Path) -> list[Event]:
    """Return a run's events; leaves out a last line that a kill cut off."""
    path = directory / METRICS
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(decode_event(line))
        except ValueError as error:
            # Lines are appended, so a kill can cut off the last one only. Damage elsewhere must not pass unseen.
            if number == len(lines):
                break
            raise UserError(f"{path}: line {number} is not an event ({error}); delete the line") from error
    return events


def read_evaluations(directory: Path, kind: str = "eval") -> list[EvaluationEvent]:
    """Return a run's evaluation events of one kind. Raises UserError as `read_events` does."""
    events = read_events(directory)
    return [event for event in events if isinstance(event, EvaluationEvent) and event.event == kind]


def read_summary(directory: Path) -> Summary | None:
    """Return the summary of a run; None if it has none yet."""
    with suppress(FileNotFoundError):
        return read_document(directory / SUMMARY, Summary, "remove it, and the run counts as not finished")
    return None


def read_status(directory: Path) -> str | None:
    """Return the status with which a run ended, of any version; None if there is no summary that can be read."""
    try:
        return str(decode((directory / SUMMARY).read_bytes(), Json)["status"])
    except (OSError, ValueError, KeyError):
        return None


def read_curves(directory: Path) -> Curves | None:
    """Return the curves of a run's newest evaluation; None if there are none. Raises UserError for damaged ones."""
    with suppress(FileNotFoundError):
        return read_document(directory / CURVES, Curves, WITHOUT)
    return None


def read_step_times(directory: Path) -> StepTimeHistogram | None:
    """Return the histogram of a run's step times; None if there is none. Raises UserError for a damaged one."""
    with suppress(FileNotFoundError):
        return read_document(directory / STEP_TIMES, StepTimeHistogram, WITHOUT)
    return None


SCORES = "scores"
TEST = "test"  # the split that is compared if there are several


class ScoresFile(OpenDocument, kw_only=True):
    """scores/SPLIT.json: the scores that a run keeps of a split.

    step: of the checkpoint that scored. dataset: digest of its manifest. logits_sha256, labels_sha256: of both arrays.
    """

    split: str
    rows: int
    step: int
    dataset: str
    logits_sha256: str
    labels_sha256: str


class Scores(NamedTuple):
    """Scores of a split: logits [rows] float32, labels [rows] bool, and the file about them."""

    about: ScoresFile
    logits: NDArray[np.float32]
    labels: NDArray[np.bool_]


def write_scores(
    directory: Path, split: str, step: int, dataset: str, logits: NDArray[np.float32], labels: NDArray[np.float32]
) -> Path:
    """Write a run's scores of a split, [rows] in the order of its rows; return the path of the file about them."""
    folder = directory / SCORES
    sums: dict[str, Any] = {}
    for name, values in (("logits", logits.astype(np.float32)), ("labels", labels > 0.5)):
        buffer = io.BytesIO()
        np.save(buffer, values)
        write_atomically(folder / f"{split}.{name}.npy", buffer.getvalue())
        sums[f"{name}_sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    about = ScoresFile(split=split, rows=len(labels), step=step, dataset=dataset, **sums)
    # This file comes last, since it makes the arrays count as scores.
    write_atomically(folder / f"{split}.json", (encode(about, indent=1) + "\n").encode())
    return folder / f"{split}.json"


def kept_splits(directory: Path) -> list[str]:
    """Return the splits for which a run has scores, the test split first."""
    return sorted((path.stem for path in (directory / SCORES).glob("*.json")), key=lambda name: (name != TEST, name))


def read_scores(directory: Path, split: str) -> Scores:
    """Return a run's scores of a split.

    Raises FileNotFoundError: there are none. Raises UserError: the scores are damaged.
    """
    path = directory / SCORES / f"{split}.json"
    about = read_document(path, ScoresFile, f"remove it, and keep the scores of {split} again")
    remedy = f"write them again by python -m app.evaluate run={directory} split={split} keep_scores={about.rows}"
    arrays = []
    for name, checksum in (("logits", about.logits_sha256), ("labels", about.labels_sha256)):
        array = path.with_name(f"{split}.{name}.npy")
        content = array.read_bytes() if array.is_file() else b""
        if hashlib.sha256(content).hexdigest() != checksum:
            raise UserError(f"{array}: damaged (not the one that {path.name} names); {remedy}")
        arrays.append(np.load(io.BytesIO(content), allow_pickle=False))
    return Scores(about, *arrays)
