"""Checks of datasets and runs on disk: whether they are complete, or what is missing."""

import os
from collections.abc import Iterator
from pathlib import Path

from app.checkpoint.files import CHECKPOINTS, LATEST, PART, OtherFormatError, read_state
from app.checks.check import Check, Verdict, fail, ok, warn
from app.record.directory import BEFORE_MANIFEST
from app.record.reading import LOG, MANIFEST, is_run, read_outcome
from common.documents import format_of
from common.errors import UserError
from data_prep.dataset.format import MANIFEST_NAME, load_manifest, shard_path
from data_prep.dataset.manifest import FORMAT_NAME

UNFINISHED = ".work"  # data_prep's directory in a dataset that is being made


def check_datasets(directory: Path) -> Iterator[Check]:
    """Check every dataset under a directory, finished or begun, at any depth; skip other programs' files."""
    roots = []
    for above, directories, names in os.walk(directory):
        root = Path(above)
        is_of_another = format_of(root / MANIFEST_NAME) not in (None, FORMAT_NAME)
        if UNFINISHED in directories or (MANIFEST_NAME in names and not is_of_another):
            roots.append(root)
            directories.clear()
    yield from map(check_dataset, sorted(roots))
    if not roots:
        yield ok(f"datasets in {directory}", "none yet")


def check_dataset(root: Path) -> Check:
    """Check that all files in a dataset's manifest exist, with the recorded sizes."""
    name = f"dataset {root}"
    if not (root / MANIFEST_NAME).exists():
        return warn(name, f"no {MANIFEST_NAME}: not a finished dataset", "the command that began it finishes it")
    try:
        manifest = load_manifest(root)
    except UserError as error:
        return fail(name, str(error), "preprocess again with data.overwrite=true")
    size = 0
    for split, entry in manifest.splits.items():
        for shard in entry.shards:
            for kind, digest in shard.files.items():
                path = shard_path(root, split, shard.name, kind)
                actual = path.stat().st_size if path.exists() else None
                if actual != digest.bytes:
                    state = "missing" if actual is None else f"{actual} bytes, not {digest.bytes}"
                    return fail(name, f"{path}: {state}", "preprocess again with data.overwrite=true")
                size += digest.bytes
    splits = ", ".join(f"{split} {entry.rows:,}" for split, entry in manifest.splits.items())
    return ok(name, f"{splits} rows, {size / 2**20:,.1f} MiB (digests: python -m data_prep.verify data.path={root})")


def check_runs(directory: Path) -> Iterator[Check]:
    """Check each run in a directory: how it ended, and whether it can be resumed; count those in a directory below."""
    if not directory.is_dir():
        yield ok(f"runs in {directory}", "none yet")
        return
    runs = [path for path in sorted(directory.iterdir()) if path.is_dir()]
    if not runs:
        yield ok(f"runs in {directory}", "none yet")
    for run in runs:
        deeper = [] if (run / MANIFEST).exists() else sorted(run.glob(f"*/**/{MANIFEST}"))  # run.dir may lie there
        runs_within = [path.parent for path in deeper if is_run(path.parent)]
        checks = [check_run(path) for path in runs_within or [run]]
        if runs_within:  # of a search, or of several seeds
            yield ok(f"runs in {run}", f"{len(checks)}; runs={run} lists them")
            checks = [check for check in checks if check.verdict is Verdict.fail]
        yield from checks


def check_run(run: Path) -> Check:
    """Check one run: how it ended, and whether it can be resumed."""
    name = f"run {run}"
    if not (run / MANIFEST).is_file():
        others = sorted(path.name for path in run.iterdir() if path.name not in BEFORE_MANIFEST)
        if others:
            return warn(name, f"no {MANIFEST}, but {others[0]}: no run's directory", "move it out of here")
        return warn(name, f"no {MANIFEST}: it never began", "remove the directory, or train again")
    outcome = read_outcome(run)
    status, step = (outcome.status, outcome.steps) if outcome is not None else ("running or killed", None)
    checkpoints = run / CHECKPOINTS
    leftovers = sorted(checkpoints.glob(f"*{PART}")) if checkpoints.is_dir() else []
    latest = _latest(checkpoints)
    if latest is not None:
        try:
            read_state(latest)
        except OtherFormatError as error:
            return fail(name, f"{status}; another version wrote its latest checkpoint", str(error))
        except UserError as error:
            remedy = "a resumption uses the newest complete one; remove this one"
            return fail(name, f"{status}; its latest checkpoint is incomplete or damaged: {error}", remedy)
    state = f"{status}, step {step}" if step is not None else status
    if status == "failed":
        return warn(name, state, f"read {run}/{LOG}; the same command resumes from the last checkpoint")
    if status in ("running or killed", "interrupted"):
        remedy = "the same command resumes it" if latest else "no checkpoint yet: the same command starts over"
        return warn(name, f"{state}; latest checkpoint {latest.name if latest else 'none'}", remedy)
    if leftovers:
        return warn(name, f"{state}; {len(leftovers)} unfinished checkpoint(s)", f"remove {leftovers[0]}")
    return ok(name, state)


def _latest(checkpoints: Path) -> Path | None:
    try:
        return checkpoints / (checkpoints / LATEST).read_text().strip()
    except OSError:
        return None
