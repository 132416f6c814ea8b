"""Baselines of a run that has just been trained, in a separate process, so that they change nothing of the run."""

import importlib.util
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from app.config import AppConfig
from app.kinds.metrics import AUC
from app.record.directory import ignoring_full_disk, save_summary
from app.record.documents import DONE
from app.record.reading import read_manifest, read_summary
from app.report.page import write_report
from app.report.read import read_run
from common.config_file import literal
from common.errors import UserError
from data_prep.dataset.kinds import ROWS
from extensions.baselines.report import baselines_sentence

log = logging.getLogger("clickwork")

POSITIVES_ALONE = "baselines learn from rows of the split, which are positives alone"  # with data.negatives
DEFAULT_ROWS, DEFAULT_SECONDS = 200_000, 30
GRACE_SECONDS = 30  # for a process with limited time to start, read the rows and write the report
REPOSITORY = Path(__file__).parents[2]
OF_LAUNCHERS = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def require_possible(config: AppConfig) -> None:
    """Refuse baselines=true before training if they cannot be computed."""
    if config.baselines and (reason := obstacle(config)) is not None:
        raise UserError(f"baselines=true: {reason}, or leave it out")


def obstacle(config: AppConfig) -> str | None:
    """Return why a run of this configuration can have no baselines; None if it can."""
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
        level, reason = logging.WARNING, _compute(config, directory)
    newest = read_summary(directory)
    if reason is None or newest is None:
        return
    log.log(level, "baselines: not computed: %s", reason)
    if newest.no_baselines != reason:
        newest.no_baselines = reason
        with ignoring_full_disk():
            save_summary(directory, newest)
            write_report(directory)


def _compute(config: AppConfig, directory: Path) -> str | None:
    """Compute baselines in a separate process and log the result; return why there are none, or None."""
    path = read_manifest(directory).dataset.path
    command = [sys.executable, "-m", "app.baselines", f"run={literal(str(directory.absolute()))}"]
    if path is not None:
        command.append(f"data.path={literal(str(Path(path).absolute()))}")
    later = shlex.join(["python", "-m", "app.baselines", f"run={directory}"])
    limit = None
    if config.baselines is None:
        command += [f"rows={DEFAULT_ROWS}", f"seconds={DEFAULT_SECONDS}"]
        limit = DEFAULT_SECONDS + GRACE_SECONDS
        log.info("baselines: fitting them, for %d s at most; baselines=false leaves them out", DEFAULT_SECONDS)
    environment = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    environment["RANK"] = "0"  # Like a launcher's process, it then ends with this one.
    others = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *others])
    settings: dict[str, Any] = {"env": environment, "cwd": REPOSITORY, "capture_output": True, "text": True}
    try:
        # Start in the repository: the working directory may have its own package `app`.
        process = subprocess.run(command, timeout=limit, check=False, **settings)
    except subprocess.TimeoutExpired:
        return f"not done within {limit} s; {later} has no limit"
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        return last[0].removeprefix("error: ")
    if any(line.startswith("baselines: stopped") for line in process.stderr.splitlines()):
        log.warning("baselines: stopped after %g s; %s has no limit", DEFAULT_SECONDS, later)
    if (sentence := baselines_sentence(read_run(directory))) is not None:
        log.info("baselines: %s", sentence[1])
    return None
