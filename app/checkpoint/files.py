"""Checkpoints as files: which exist, which to start from, their names, digests, state.json and removal.

A checkpoint is written under a temporary name and renamed when all of it is on disk, with the sizes and digests of its
files: state.json holds those of all others, and a file beside it its own. A checkpoint is never overwritten in place:
if torch.distributed.checkpoint were killed then, it would leave the old metadata over new, truncated data.
"""

import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from app.config.train import CheckpointConfig
from app.metrics.documents import Best, EvaluationFigures, Measured, Monitored, Parent
from common.command import log
from common.documents import Json, Number, OpenDocument, decode, encode
from common.errors import UserError
from common.files import FileDigest, digest_file, sync, write_atomically

FORMAT: Final = 3


class SavedState(OpenDocument, kw_only=True):
    """state.json of a checkpoint: a run's state after `step`.

    samples: trained so far. step_in_epoch: steps of `epoch` that are done. measured: sums since the run began.
    skipped: steps without an update. evaluation: the newest. best: the best.
    monitored: state of train.monitor. seconds: time spent, by kind. world_size: number of processes. layout: settings
    that may differ after a resumption, at the price of different rounding. dataset: its directory. fingerprint: the
    settings that a resumption must not change, by key. files: size and digest of every file except state.json and its
    checksum.
    """

    format: Literal[3]
    step: int
    samples: int
    epoch: int
    step_in_epoch: int
    measured: Measured
    parent: Parent | None = None
    skipped: int
    evaluation: EvaluationFigures | None
    best: Best | None
    monitored: Monitored
    seconds: dict[str, Number]
    world_size: int
    layout: dict[str, int | str]
    dataset: str
    dataset_digest: str
    fingerprint: Json
    files: dict[str, FileDigest]


CHECKPOINTS = "checkpoints"  # name of their directory in a run's
LATEST, BEST = "latest", "best"  # files that name the newest checkpoint, and the best by train.monitor
LAST = "last"  # name of the newest for people
STATE, STATE_SUM = "state.json", "state.json.sha256"  # the second has the format of sha256sum
ARRAYS = "arrays.npz"
PART, OLD = ".part", ".old"  # suffixes of incomplete checkpoints, and of checkpoints being removed


class OtherFormatError(UserError):
    """Another version wrote the checkpoint."""


# A checkpoint's contents besides tensors: JSON values, and arrays by name.
CheckpointState: TypeAlias = tuple[SavedState, dict[str, NDArray[Any]]]


def checkpoint_name(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step_{step:08d}"


def whole_checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints in a run's checkpoint directory, oldest first."""
    # A name with a suffix is that of a checkpoint being written or removed. A whole one has got its state.json last.
    return sorted(path for path in directory.glob("step_*") if not path.suffix and (path / STATE).is_file())


def prune(directory: Path, keep: int) -> None:
    """Remove the complete checkpoints of a run but the `keep` (at least 1) newest and the one that `best` names."""
    best = pointed_to(directory, BEST)
    for old in whole_checkpoints(directory)[:-keep]:
        if old != best:
            remove(old)


def pointed_to(directory: Path, pointer: str) -> Path | None:
    """Return the checkpoint that `latest` or `best` names, if it exists and is complete."""
    try:
        path = directory / (directory / pointer).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return path if path in whole_checkpoints(directory) else None


def point_to_best(directory: Path, name: str | None) -> None:
    """Let `best` name a checkpoint of `directory`; None removes `best`."""
    if name is not None:
        write_atomically(directory / BEST, name.encode())
    else:
        (directory / BEST).unlink(missing_ok=True)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; if killed meanwhile, leave nothing that looks like one."""
    old = checkpoint.with_suffix(OLD)
    # After the rename no command takes it for a checkpoint, however far the removal comes.
    os.rename(checkpoint, old)
    shutil.rmtree(old)


def resumption(directory: Path) -> tuple[bool, str]:
    """Return whether a run's checkpoint directory has a complete one, and what the same command would then do.

    Its digests are not compared here: a damaged one is passed over when the run resumes.
    """
    if complete := whole_checkpoints(directory):
        return True, f"the same command resumes from {complete[-1]}"
    return False, "there is no checkpoint, so the same command starts over"


def undamaged_checkpoints(directory: Path) -> Iterator[Path]:
    """Yield a directory's complete and undamaged checkpoints, the newest first; warn of the damaged ones before each.

    `latest` is for people only: a kill may come between the renaming of a checkpoint and the update of `latest`.

    Raises OtherFormatError: another version wrote one of them. A run that skipped it would start over and remove it.
    """
    for checkpoint in reversed(whole_checkpoints(directory)):
        try:
            verify(checkpoint)
        except OtherFormatError:
            raise
        except UserError as error:
            log.warning("checkpoint: skipped %s", error)
        else:
            yield checkpoint


def verify(checkpoint: Path) -> None:
    """Compare a checkpoint's files with the sizes and digests recorded when it was written.

    Raises UserError: there is no checkpoint here, or a file is missing or differs; the message names it.
    """
    for name, expected in read_state(checkpoint).files.items():
        path = checkpoint / name
        try:
            if path.stat().st_size != expected.bytes or digest_file(path) != expected:
                raise UserError(f"{path}: damaged: its size or digest is not the recorded one")
        except OSError as error:
            raise UserError(f"{path}: checkpoint file not readable ({error.strerror})") from error


def read(checkpoint: Path) -> CheckpointState:
    """Read a checkpoint's state.json and arrays. Raises UserError if they are missing or damaged."""
    try:
        # A pickle could run code, and a checkpoint may come from somebody else.
        with np.load(checkpoint / ARRAYS, allow_pickle=False) as arrays:
            return read_state(checkpoint), dict(arrays)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _damage_error(checkpoint / ARRAYS, error) from error


def publish(part: Path, final: Path, saved: CheckpointState, digests: dict[str, FileDigest]) -> None:
    """Write the arrays and state.json, sync all files, and give the checkpoint its name.

    digests: size and digest of the tensors' files by name; the others are added here.
    """
    values, arrays = saved
    np.savez(part / ARRAYS, allow_pickle=False, **arrays)
    # The tensors' files are synced and hashed by the processes that wrote them.
    for path in sorted(part.iterdir()):
        if path.name not in digests:
            sync(path)
            digests[path.name] = digest_file(path)
    state = encode(replace(values, files=digests), indent=1).encode()
    # The file state.json comes last, since it makes the directory count as a checkpoint.
    write_atomically(part / STATE_SUM, checksum_line(state))
    write_atomically(part / STATE, state)
    # A rename cannot replace a directory with files, such as this step's checkpoint of an earlier start.
    if final.exists():
        remove(final)
    os.rename(part, final)
    write_atomically(final.parent / LATEST, final.name.encode())


def checksum_line(state: bytes) -> bytes:
    """Return the content of the file with the checksum of state.json's bytes."""
    return f"{hashlib.sha256(state).hexdigest()}  {STATE}\n".encode()


def read_state(checkpoint: Path) -> SavedState:
    """Read state.json and compare it with its checksum.

    Raises OtherFormatError: another version wrote it. Raises UserError: there is no checkpoint here, or the file is
    damaged.
    """
    path = checkpoint / STATE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{checkpoint}: no checkpoint here ({STATE} is missing)") from error
    except OSError as error:
        raise _damage_error(path, error) from error
    try:
        if (checkpoint / STATE_SUM).read_bytes() != checksum_line(content):
            raise _damage_error(path, f"it does not fit its checksum in {STATE_SUM}")
        # The format is checked before all other keys, since another format may have other keys.
        written = decode(content, Json).get("format", FORMAT)
        if written != FORMAT:
            raise OtherFormatError(
                f"{path}: format {written}, and this version reads {FORMAT}; use the version that wrote it, or train "
                "again with another run.name"
            )
        return decode(content, SavedState)
    except FileNotFoundError as error:
        raise _damage_error(path, f"{STATE_SUM} is missing") from error
    except (OSError, ValueError) as error:
        raise _damage_error(path, error) from error


def _damage_error(path: Path, reason: object) -> UserError:
    return UserError(f"{path}: damaged ({reason}); remove the checkpoint to use another")


def choose(config: CheckpointConfig, checkpoints: Path) -> Path | None:
    """Return the checkpoint to start from, if any; skip damaged ones with a warning.

    If torchrun restarted the job after a loss, start from the run's newest, whatever checkpoint.resume says. Nothing is
    removed here; raises UserError if checkpoints would have to be, without checkpoint.overwrite.
    """
    choice = config.resume
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    # A launcher's restart repeats the user's own words, which would remove the checkpoints that the job has just saved.
    if restarted and choice != "auto" and whole_checkpoints(checkpoints):
        log.info("resume: torchrun restarted the job, so checkpoint.resume=auto instead of %s", choice)
        choice = "auto"
    if choice == "never":
        directory, obsolete = None, whole_checkpoints(checkpoints)
    elif choice == "auto":
        directory, obsolete = next(undamaged_checkpoints(checkpoints), None), []
    else:
        directory = choose_start(choice)
        obsolete = _not_before(checkpoints, directory)
    if obsolete and not config.overwrite:
        raise UserError(
            f"checkpoint.resume={config.resume}: would remove {', '.join(path.name for path in obsolete)} in "
            f"{obsolete[0].parent}; give another run.name, or checkpoint.overwrite=true to remove them"
        )
    return directory


def choose_start(choice: str) -> Path:
    """Return the checkpoint of a path: of a checkpoint, or of a run, whose newest undamaged one it is."""
    directory = Path(choice)
    # The file `latest` stands for its run.
    if directory.name == LATEST and directory.is_file():
        directory = directory.parent.parent
    if (directory / CHECKPOINTS).is_dir():
        for checkpoint in undamaged_checkpoints(directory / CHECKPOINTS):
            return checkpoint
    verify(directory)
    return directory


def _not_before(checkpoints: Path, start: Path) -> list[Path]:
    """Return this run's checkpoints that are later than `start`, or all of them if `start` is another run's."""
    is_same_run = start.parent.resolve() == checkpoints.resolve()
    return [path for path in whole_checkpoints(checkpoints) if not is_same_run or path.name > start.name]


def find_checkpoint(run: Path, choice: str | None) -> Path:
    """Return a run's checkpoint to score by: `best`, `last` (or `latest`), a step's number, or any path.

    None means the best if the run keeps one, else the last. The last is the newest that is not damaged.
    """
    checkpoints, choice = run / CHECKPOINTS, choice or None
    if choice is None and (best := pointed_to(checkpoints, BEST)) is not None:
        try:
            verify(best)
            return best
        except UserError as error:
            # Nobody has asked for the best, so a damaged one gives way to the last.
            log.warning("checkpoint: skipped the best: %s", error)
    if choice in (None, LAST, LATEST):
        for undamaged in undamaged_checkpoints(checkpoints):
            return undamaged
        for damaged in whole_checkpoints(checkpoints):
            verify(damaged)  # which raises
        raise UserError(f"run={run}: no complete checkpoint yet; train it first")
    if choice == BEST:
        checkpoint = pointed_to(checkpoints, BEST)
        if checkpoint is None:
            remedy = f"use checkpoint={LAST}" if whole_checkpoints(checkpoints) else "train it first"
            raise UserError(f"checkpoint={BEST}: {run} keeps none (checkpoint.keep_best); {remedy}")
    elif choice.isdecimal():
        checkpoint = checkpoints / checkpoint_name(int(choice))
        existing = whole_checkpoints(checkpoints)
        if checkpoint not in existing:
            steps = ", ".join(str(int(path.name.removeprefix("step_"))) for path in existing) or "none"
            raise UserError(f"checkpoint={choice}: {run} has no checkpoint of this step; it has of steps: {steps}")
    else:
        checkpoint = checkpoints / choice if (checkpoints / choice).is_dir() else Path(choice)
        if not checkpoint.is_dir():
            raise UserError(f"checkpoint={choice}: must be {BEST}, {LAST}, a step, or the path of a checkpoint")
    verify(checkpoint)
    return checkpoint


def remove_later(checkpoints: Path, start: Path, best_step: int | None) -> None:
    """Remove this run's checkpoints that are later than its own `start`.

    best_step: step of the best evaluation up to `start`; `best` then names its checkpoint, if that exists.
    """
    # These steps are trained again, and their old checkpoints would pass for the newest.
    for path in _not_before(checkpoints, start):
        log.info("resume: removing %s, which is later than %s", path, start)
        remove(path)
    best = None if best_step is None else checkpoint_name(best_step)
    has_best = best in [path.name for path in whole_checkpoints(checkpoints)]
    point_to_best(checkpoints, best if has_best else None)
