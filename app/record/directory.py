"""A run's directory: what made the run, what happened in it, its results and scores. Only rank 0 writes.

<run>/scores/SPLIT.logits.npy is [rows] float32 and SPLIT.labels.npy [rows] bool, both in the order of the split's rows.
SPLIT.json is written last and has the checksums of both.
"""

import contextlib
import csv
import datetime
import io
import itertools
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml
from filelock import FileLock, Timeout
from msgspec import Struct
from msgspec.structs import replace
from tqdm import tqdm

from app.checkpoint.files import CHECKPOINTS
from app.config.app_config import AppConfig
from app.config.kinds import ACCURACY
from app.config.kinds import METRICS as METRIC_ROWS
from app.metrics.documents import (
    Curves,
    EvaluationEvent,
    EvaluationFigures,
    Event,
    StepTimeHistogram,
    TrainEvent,
    decode_event,
)
from app.record.documents import (
    CONFIG,
    CURVES,
    DONE,
    FORMAT_NAME,
    LOCK,
    LOG,
    MANIFEST,
    METRICS,
    RESULTS,
    SCORES,
    STEP_TIMES,
    SUMMARY,
    TEST,
    UNFINISHED,
    RunManifest,
    Summary,
    is_run,
    read_config,
    read_manifest,
    read_status,
)
from common import signals
from common.cli import EXIT_DONE, EXIT_STOPPED
from common.command import RedactingFormatter, log, redact
from common.compose import quote_literally
from common.documents import encode, plain_object, read_document
from common.errors import UserError, last_line
from common.extensions import FilesBesideRun, rows_of_extensions
from common.files import write_atomically
from common.signals import Interrupted

# First the five columns of AMD's process_training_log.py, for the whole job (there: for one GPU); then the same with
# labels; then what made them.
RESULTS_COLUMNS = (
    *("Time Stamp", "Num. Nodes", "Batch Size", "Recommendations/s (mean)", "Recommendations/s (std/mean)"),
    *("Run", "World Size", "Global Batch Size", "Global Recommendations/s (mean)", "Batch Size per Device"),
    *("Recommendations/s per Device (mean)", "Status", "Device", "Precision", "Recipe", "Commit"),
)
# Files that a run may leave if it is killed before it has a manifest.
BEFORE_MANIFEST = (LOCK, LOG, ".shared", ".shared.tmp", f"{MANIFEST}.tmp")


@contextlib.contextmanager
def ignoring_full_disk() -> Iterator[None]:
    """Log a full disk while a failed run writes its last figures, so that it does not hide the failure."""
    try:
        yield
    except OSError as error:
        log.error("the last figures were not written: %s", error.strerror or error)


class _LogFile(logging.FileHandler):
    """Writes log.txt. On a full disk it reports once that lines are lost; logging would print a traceback for each."""

    reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging calls it so
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.reported:
            self.reported = True
            with contextlib.suppress(OSError):  # stderr may go to the same disk
                print(f"{self.baseFilename}: lines may be lost: {error}", file=sys.stderr)


class RunDirectory:
    """The directory of one run; only rank 0 writes. Nothing secret is written (common.command)."""

    is_tracked = True  # whether trackers show the run

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self._writes = rank == 0
        self._lock: FileLock | None = None
        self._new_directories: list[Path] = []  # directories that `open` has made

    def open(self) -> None:
        """Make and lock the directory, on rank 0. Raises UserError if it is no run's, or another process has it."""
        try:
            # Only the directories that are made here may be removed again if the run never begins.
            new_directories = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._new_directories = new_directories
            # Files of an earlier start may be there before any manifest, and are not somebody else's.
            names = [path.name for path in self.path.iterdir() if path.name not in BEFORE_MANIFEST]
            patterns = [row.names for row in rows_of_extensions(FilesBesideRun)]
            foreign = [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)]
            if foreign and not is_run(self.path):
                raise UserError(
                    f"run.dir={self.path}: contains {foreign[0]} and is not a run's directory; choose another"
                )
            # A lock of the kernel ends with its process, however that ends, so no lock is left to be removed by hand.
            lock = FileLock(self.path / LOCK, blocking=False, thread_local=False)
            lock.acquire()
            self._lock = lock  # held until the process ends
        except Timeout as error:
            raise UserError(
                f"run.dir={self.path}: another process is training there; choose another run.name"
            ) from error
        except OSError as error:
            raise UserError(f"run.dir={self.path}: not writable ({error.strerror}); choose another") from error

    def begin(
        self,
        config: dict[str, Any],
        manifest: RunManifest,
        step: int,
        evaluated: bool,
        afresh: bool,
        views: Sequence[str] = (),
    ) -> None:
        """Write the configuration and the manifest, on rank 0; drop events that will be repeated.

        step, evaluated: where the run starts, and whether that step was evaluated.
        afresh: remove the files of an earlier run, but keep its log and metrics under another name. Otherwise keep the
            manifests of the run's earlier launches.
        views: names of other tools' files and directories, which are removed with the run's own.
        """
        aside = self._put_aside() if afresh else ""
        if afresh:
            # Files of extensions describe the earlier run as well, so they go with it.
            patterns = [row.names for row in rows_of_extensions(FilesBesideRun) if row.is_of_run]
            obsolete = {CHECKPOINTS, CURVES, STEP_TIMES, SCORES, *views}
            for path in list(self.path.iterdir()):
                if path.name in obsolete or any(pattern.fullmatch(path.name) for pattern in patterns):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        # A summary means that the run has ended. Without it, a run that is killed from here on counts as killed.
        (self.path / SUMMARY).unlink(missing_ok=True)
        # The manifest marks a run's directory, so it exists at all times.
        before = None if afresh or not is_run(self.path) else read_manifest(self.path)
        earlier = [*before.earlier, replace(before, earlier=[])] if before else []
        results = self.path / RESULTS
        lines_before = len(results.read_bytes().splitlines()) if results.exists() else 0
        document = replace(
            manifest,
            format=FORMAT_NAME,
            from_step=step,
            results_before=before.results_before if before else lines_before,
            earlier=earlier,
        )
        write_atomically(self.path / MANIFEST, _json(document))
        write_atomically(self.path / CONFIG, yaml.safe_dump(redact(config), sort_keys=False).encode())
        # Later events will be written again, so the file is cut back to the checkpoint's step.
        path = self.path / METRICS
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            write_atomically(path, b"".join(line for line in lines if _is_past(line, step, evaluated)))
        handler = _LogFile(self.path / LOG, encoding="utf-8")
        handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s", is_terminal=False))
        log.addHandler(handler)
        if aside:
            log.warning("%s: starts over from step %d; %s", self.path, step, aside)

    def _put_aside(self) -> str:
        """Rename log.txt and metrics.jsonl of an earlier run; return what to log about it, empty if there are none."""
        logs = [self.path / name for name in (LOG, METRICS) if (self.path / name).exists()]
        if not logs or not is_run(self.path):
            return ""
        named = ([path.with_name(f"{path.name}.{number}") for path in logs] for number in itertools.count(1))
        kept = next(paths for paths in named if not any(path.exists() for path in paths))
        before = "the part before was killed" if self.was_killed() else "the run before"
        for path, kept_path in zip(logs, kept, strict=True):
            path.rename(kept_path)
        return f"{before}; what it logged is in {' and '.join(path.name for path in kept)}"

    def was_killed(self) -> bool:
        """Return whether a run trained here and ended without a summary."""
        return is_run(self.path) and not (self.path / SUMMARY).exists()

    def release(self) -> None:
        """Remove what `open` created if the run never began, on rank 0."""
        if self._lock is not None and not is_run(self.path):
            (self.path / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files may be in it
                for path in self._new_directories:
                    path.rmdir()

    def event(self, event: Event) -> None:
        """Append one line to metrics.jsonl, on rank 0, without secrets."""
        if self._writes:
            # A line is written with one call, so that a kill leaves whole lines but for the last.
            with open(self.path / METRICS, "ab") as file:
                file.write(encode(redact(plain_object(event))).encode() + b"\n")

    def curves(self, compute: Callable[[], Curves]) -> Curves | None:
        """Write the newest evaluation's curves to curves.json and return them; only rank 0 computes them."""
        if not self._writes:
            return None
        content = compute()
        write_atomically(self.path / CURVES, encode(content).encode())
        return content

    def step_times(self, histogram: StepTimeHistogram) -> None:
        """Write step_times.json."""
        if self._writes:
            write_atomically(self.path / STEP_TIMES, encode(histogram).encode())

    def summary(self, figures: Summary) -> None:
        """Write summary.json."""
        if self._writes:
            save_summary(self.path, figures)

    def results(self, config: AppConfig, summary: Summary, num_nodes: int, spread: float | None) -> None:
        """Write this run's line to results.csv, in place of the lines of its earlier launches.

        spread: the throughput's standard deviation over its mean.
        """
        if not self._writes:
            return
        path = self.path / RESULTS
        world_size, rates, manifest = summary.world_size, summary.throughput, read_manifest(self.path)
        before, precision = manifest.results_before or 0, config.runtime.precision
        run, global_batch_size = config.run.name, config.train.global_batch_size
        text = io.StringIO()
        writer = csv.writer(text)
        # Lines after this number are of this run's earlier launches, whose figures the new line includes.
        lines = path.read_bytes().splitlines(keepends=True)[:before] if path.exists() else []
        if not lines:
            writer.writerow(RESULTS_COLUMNS)
        stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        rate = rates["samples_per_second"]
        of_all = [global_batch_size, rate, spread, run, world_size, global_batch_size, rate]
        per_device = [global_batch_size // world_size, rates["samples_per_second_per_device"]]
        made_by = [manifest.device(manifest.platform), precision if precision else "fp32"]
        made_by += [config.published.recipe or "", manifest.commit or ""]
        writer.writerow([stamp, num_nodes, *of_all, *per_device, summary.status, *made_by])
        write_atomically(path, b"".join(lines) + text.getvalue().encode())


def save_summary(directory: Path, figures: Summary) -> None:
    """Write summary.json of a run."""
    write_atomically(directory / SUMMARY, _json(figures))


def _json(document: Struct) -> bytes:
    """Return the content of a document's file, without secrets."""
    return (encode(redact(plain_object(document)), indent=1) + "\n").encode()


def _is_past(line: bytes, step: int, evaluated: bool) -> bool:
    """Return whether a run that resumes at `step` keeps a line's event: later ones and half lines are dropped.

    evaluated: keep evaluations of that very step, too.
    """
    try:
        event = decode_event(line)
    except ValueError:
        return False
    return evaluated if event.step == step and isinstance(event, EvaluationEvent) else event.step <= step


FIRST_SECONDS, QUIET_SECONDS = 5.0, 20.0  # before the first line, and between lines, without a terminal
BAR = "{desc}{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


class ProgressDisplay:
    """Shows steps done, loss, global samples/s and the time left."""

    def __init__(self, total_steps: int, visible: bool, may_end_early: bool = False) -> None:
        """may_end_early: whether the run may end before its last step; the display then says "at most"."""
        self._at_most = "at most " * may_end_early
        self._bar: Any = None
        self._next_line = self._began = time.monotonic()
        self._visible, self._total, self._first = visible, total_steps, 0

    def start(self, step: int) -> None:
        """Start to show progress; `step` steps were done before."""
        self._began, self._first = time.monotonic(), step
        self._next_line = self._began + FIRST_SECONDS
        if self._visible and sys.stderr.isatty():
            form = BAR
            if self._at_most:  # the share of all steps would be wrong
                form = BAR.replace("{percentage:3.0f}%", "").replace("/{total_fmt}", " of at most {total_fmt}")
            self._bar = tqdm(total=self._total, initial=step, dynamic_ncols=True, mininterval=0.2, bar_format=form)

    def update(self, event: TrainEvent, evaluation: EvaluationFigures | None) -> None:
        """Show a window's loss, accuracy, global rate and share of time waiting for input, and the last evaluation."""
        if not self._visible:
            return
        loss, accuracy = event.figure("loss"), event.figure(ACCURACY)
        rate, wait = event.figure("samples_per_second") or 0.0, event.figure("input_wait_fraction") or 0.0
        right = "" if accuracy is None else f" accuracy {accuracy:.2%}"
        text = "all skipped" if loss is None else f"loss {loss:.4f}{right}"
        text = f"epoch {event.epoch} {text} {rate:,.0f} samples/s, input wait {wait:.0%}"
        if evaluation is not None and (value := evaluation.figure(evaluation.main)) is not None:
            text += f", last {METRIC_ROWS[evaluation.main].label} {value:.4f}"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(event.step - self._bar.n)
        now = time.monotonic()
        if self._bar is None and now >= self._next_line:
            self._next_line = now + QUIET_SECONDS
            # Steps of earlier launches took none of the time since this one began, so they do not count.
            eta = (now - self._began) / max(1, event.step - self._first) * (self._total - event.step)
            left = self._at_most + tqdm.format_interval(eta)
            log.info("step %d/%d %s, %s to go", event.step, self._total, text, left)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


SECONDS_TO_LEAVE = 300  # patience with the process of a killed command
SECONDS_BETWEEN_LOOKS = 0.5  # of `watch` at a running process
TEST_FIGURES = "test.json"  # metrics of the test split in a run's directory
NOT_BEGUN = "not begun"
ENDED_BY_WATCH = -1  # in place of an exit status


@dataclass(frozen=True)
class ChildRun:
    """A run that another command makes in a process of its own. Its directory alone records its progress.

    Attributes:
        directory: of the run.
        overrides: app.train's, but run.dir.
        launcher: words before app.train, which start several processes.
    """

    directory: Path
    overrides: Sequence[str]
    launcher: Sequence[str] = ()

    @property
    def status(self) -> str:
        """Return the status in its summary; `unfinished` without one, `not begun` without a manifest."""
        return read_status(self.directory) or (UNFINISHED if is_run(self.directory) else NOT_BEGUN)

    @property
    def words(self) -> list[str]:
        """Return the arguments of `python -m` that train it."""
        return [*self.launcher, "app.train", *self.overrides, f"run.dir={quote_literally(str(self.directory))}"]

    @property
    def test_words(self) -> list[str]:
        """Return the arguments of `python -m` that write test.json of the finished run."""
        out = quote_literally(str(self.directory / TEST_FIGURES))
        return ["app.evaluate", f"run={quote_literally(str(self.directory))}", f"split={TEST}", f"out={out}"]

    def ensure(self, watch: Callable[[], bool] | None = None, is_quiet: bool = False) -> int:
        """Train the run unless it is done, or resume it if it was stopped; return the exit status.

        watch: is called every half second; once it returns True, the run is ended, and the status is ENDED_BY_WATCH.
        is_quiet: print none of its output but the last line of a run that fails. Raises Interrupted: a signal came,
        after which the run could not save. Raises UserError: another process trains the run.
        """
        if self.status in DONE:
            return EXIT_DONE
        # The process of a killed command may still be saving this run, and holds its lock until it ends.
        if self.directory.is_dir():
            try:
                with FileLock(self.directory / LOCK, timeout=SECONDS_TO_LEAVE):
                    pass
            except Timeout as error:
                raise UserError(f"{self.directory}: another process is training there; wait for its end") from error
        if not is_quiet:
            return _run_module(self.words, watch)
        with tempfile.TemporaryFile() as log:
            status = _run_module(self.words, watch, subprocess.DEVNULL, log)
            if status not in (EXIT_DONE, EXIT_STOPPED, ENDED_BY_WATCH):
                log.seek(0)
                print(last_line(log.read().decode(errors="replace"), ""), file=sys.stderr)
            return status

    def ensure_test_figures(self) -> int:
        """Write test.json of the finished run, unless it is newer than the summary or not needed; return the status."""
        config, rows = read_config(self.directory), read_manifest(self.directory).dataset.rows
        is_built = config["train"].get("max_steps") == 0  # and not trained
        if is_built or not rows.get(TEST) or config["eval"]["split"] == TEST or self.test_figures() is not None:
            return EXIT_DONE
        return _run_module([*self.launcher, *self.test_words], stdout=subprocess.DEVNULL)

    def test_figures(self) -> EvaluationFigures | None:
        """Return the figures of its test split, if measured after its summary was written."""
        path = self.directory / TEST_FIGURES
        try:
            # The run may have been trained on since its test split was scored.
            if path.stat().st_mtime_ns < (self.directory / SUMMARY).stat().st_mtime_ns:
                return None
            return read_document(path, EvaluationFigures, "remove it, and it is measured again")
        except FileNotFoundError:
            return None


def _run_module(
    words: Sequence[str],
    watch: Callable[[], bool] | None = None,
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
) -> int:
    """Run `python -m WORDS` and pass on a signal to stop; return the exit status, a shell's if a signal killed it."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,  # so that a terminal's signals reach it through this process only
        preexec_fn=signals.end_with_parent,  # noqa: PLW1509  # this process has no threads
    )
    is_ended = False
    while True:
        try:
            status = process.wait(None if watch is None or is_ended else SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            if watch is not None and watch():
                is_ended = True
                process.terminate()
        except Interrupted as error:
            process.send_signal(error.signal)
            if process.wait() == EXIT_STOPPED:
                return EXIT_STOPPED
            raise
        else:
            return ENDED_BY_WATCH if is_ended else status if status >= 0 else 128 - status
